"""Correct the rounding of torch's arithmetic and its order of additions, as SPEC clauses 3 and 20 require.

Some results of torch's sqrt are wrong by one unit in the last place, in float32 more often than in float64. torch
computes ``float / tensor``, and on CUDA also ``tensor / float``, as a product with the reciprocal. index_add_
adds in order of occurrence only on the CPU. May import: `torch`, `islices.backends.torch.tracers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from islices.backends.torch.tracers import in_forward_mode

#: Inputs from SMALL to LARGE need no scaling, and other inputs are scaled by the square of RESCALE. Without scaling,
#: the difference between an input outside of this range and the square of its root could be subnormal or overflow.
LARGE, SMALL, RESCALE = 2.0**500, 2.0**-500, 2.0**300
#: The constant that splits a float64 into two halves whose products are exact (T. J. Dekker, Numer. Math. 18, 1971).
SPLITTER = 2.0**27 + 1.0


def with_numbers(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Wrap a function of two tensors, so that one of the arguments may also be a Python number.

    The wrapper converts the number to a tensor. Otherwise torch may compute the division of or by a number as a product
    with a reciprocal, and torch.minimum and torch.maximum raise errors.
    """

    def call(a: Any, b: Any) -> Tensor:
        if not isinstance(a, Tensor):
            a = b.new_full((), a)
        elif not isinstance(b, Tensor):
            b = a.new_full((), b)
        return function(a, b)

    return call


def rounded_sqrt(x: Tensor) -> Tensor:
    """Return the correctly rounded square root of each element.

    For float64, this function computes the difference between `x` and the square of torch's root, and corrects the
    root. For other dtypes, this function rounds torch's float64 root to the dtype.
    """
    if x.dtype is not torch.float64:  # rounding removes the float64 root's error in the last place
        return x.double().sqrt().to(x.dtype)
    small, large = x < SMALL, x > LARGE
    x = torch.where(small, x * RESCALE**2, torch.where(large, x / RESCALE**2, x))
    root = x.sqrt()
    root = root + _shift(x.detach(), root.detach())
    return torch.where(small, root / RESCALE, torch.where(large, root * RESCALE, root))


def _shift(x: Tensor, root: Tensor) -> Tensor:
    """Return the correction that must be added to torch's float64 root of `x`. The correction is at most one unit in
    the last place, and 0 for the roots 0, inf and NaN."""
    cut = SPLITTER * root
    upper = cut - (cut - root)
    lower = root - upper
    short = ((x - upper * upper) - 2.0 * (upper * lower)) - lower * lower  # x - root * root, exactly
    up = torch.nextafter(root, root.new_full((), torch.inf)) - root
    down = torch.nextafter(root, root.new_zeros(())) - root
    # check whether x is beyond the square of the midpoint between root and a neighbour
    return torch.where(short > root * up, up, torch.where(short <= root * down, down, 0.0))


def in_bags(values: Tensor) -> bool:
    """Return True if the caller should use `sum_bags` to sum these rows. On the CPU, `sum_bags` is fast only for
    float32.

    Return False for dtypes other than float32 and, on CUDA, float64. Also return False in forward mode, if `values` is
    empty, or if `values` requires a gradient. `sum_bags` calls embedding_bag, for which torch has no forward-mode rule
    and no second derivative.
    """
    if in_forward_mode():
        return False
    kinds = (torch.float32, torch.float64) if values.is_cuda else (torch.float32,)
    return values.dtype in kinds and values.numel() > 0 and not values.requires_grad


def sum_bags(values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the rows of `values` that have the same index, from left to right. Return (sums, distinct indices in
    ascending order).

    torch's embedding_bag computes the sums. On the CPU and on CUDA, a single thread computes each element of a sum,
    and adds in order.
    """
    ordered, order = torch.sort(indices, stable=True)
    first = torch.ones(len(indices), dtype=torch.bool, device=indices.device)
    torch.ne(ordered[1:], ordered[:-1], out=first[1:])
    starts = first.nonzero()[:, 0]
    sums = embedding_bag(order, values.reshape(len(values), -1), starts, mode="sum")
    return sums.reshape(-1, *values.shape[1:]), ordered.index_select(0, starts)
