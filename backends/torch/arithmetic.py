"""Correct the rounding and the order of torch's arithmetic, as SPEC clauses 3 and 20 require.

In torch 2.13, sqrt is off by one unit in the last place in 17 % of float32 and 1 % of float64 results.
``float / tensor`` is a product with the reciprocal, and so is ``tensor / float`` on CUDA. index_add_ adds in order of
occurrence only on the CPU. May import: `torch`, `islices.backends.torch.tracers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from islices.backends.torch.tracers import in_forward_mode

#: The range of inputs that need no scaling, and the scale. Outside this range the remainder of a square would be
#: subnormal or overflow.
LARGE, SMALL, RESCALE = 2.0**500, 2.0**-500, 2.0**300
#: The constant that splits a float64 into two halves whose products are exact (T. J. Dekker, Numer. Math. 18, 1971).
SPLITTER = 2.0**27 + 1.0


def with_numbers(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Wrap a function of two tensors, so that one of the two arguments may be a Python number.

    The wrapper converts the number to a tensor, because torch divides by a number and by a tensor differently.
    """

    def call(a: Any, b: Any) -> Tensor:
        if not isinstance(a, Tensor):
            a = b.new_full((), a)
        elif not isinstance(b, Tensor):
            b = a.new_full((), b)
        return function(a, b)

    return call


def rounded_sqrt(x: Tensor) -> Tensor:
    """Return the correctly rounded square root.

    For float64, torch's root is corrected with the difference between `x` and the root's square. For other dtypes
    torch's float64 root is rounded to the dtype.
    """
    if x.dtype is not torch.float64:  # rounding removes the float64 root's error in the last place
        return x.double().sqrt().to(x.dtype)
    small, large = x < SMALL, x > LARGE
    x = torch.where(small, x * RESCALE**2, torch.where(large, x / RESCALE**2, x))
    root = x.sqrt()
    root = root + _shift(x.detach(), root.detach())
    return torch.where(small, root / RESCALE, torch.where(large, root * RESCALE, root))


def _shift(x: Tensor, root: Tensor) -> Tensor:
    """Return the correction to add to torch's float64 root of `x`. The correction is at most one unit in the last
    place, and 0 for the roots 0, inf and NaN."""
    cut = SPLITTER * root
    upper = cut - (cut - root)
    lower = root - upper
    short = ((x - upper * upper) - 2.0 * (upper * lower)) - lower * lower  # x - root * root, exactly
    up = torch.nextafter(root, root.new_full((), torch.inf)) - root
    down = torch.nextafter(root, root.new_zeros(())) - root
    # check whether x is beyond the square of the midpoint between root and a neighbour
    return torch.where(short > root * up, up, torch.where(short <= root * down, down, 0.0))


def in_bags(values: Tensor) -> bool:
    """Return True if the caller should sum these rows with `sum_bags`. On the CPU `sum_bags` is fast only for float32.

    The result is False in forward mode, and if `values` requires a gradient. The function embedding_bag, which
    `sum_bags` calls, has no forward-mode rule and no second derivative in torch.
    """
    if in_forward_mode():
        return False
    kinds = (torch.float32, torch.float64) if values.is_cuda else (torch.float32,)
    return values.dtype in kinds and values.numel() > 0 and not values.requires_grad


def sum_bags(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return (sums, ids): for each distinct index, in ascending order, the sum of the index's rows of `values`, added
    left to right.

    torch's embedding_bag computes the sums. On the CPU and on CUDA, one thread of embedding_bag adds all members of a
    bag in order.
    """
    ordered, order = torch.sort(indices, stable=True)
    first = torch.ones(len(indices), dtype=torch.bool, device=indices.device)
    torch.ne(ordered[1:], ordered[:-1], out=first[1:])
    starts = first.nonzero()[:, 0]
    sums = embedding_bag(order, values.reshape(len(values), -1), starts, mode="sum")
    return sums.reshape(-1, *values.shape[1:]), ordered.index_select(0, starts)
