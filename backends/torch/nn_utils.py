"""Gradient clipping as torch.nn.utils has it, for parameters whose gradients may be sparse.

torch's own functions raise NotImplementedError on the gradients of ``nn.Embedding(sparse=True)``. These take the same
arguments, change ``p.grad`` in place, and see the gradient itself: duplicate rows count as their sum. On dense
gradients they do what torch's do, up to rounding, so a training script needs no more than another import.
"""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from islices.backend import FLOATS
from islices.clip import clip_by_value
from islices.linear import round_scalar, scale_values
from islices.modes import HOST
from islices.native import adopt
from islices.norms import norm64, norm_dtype, parts
from islices.presets import BY_GLOBAL_NORM, lookup_formula
from islices.registry import describe
from islices.slices import IndexedSlices

__all__ = ["clip_grad_norm_", "clip_grad_value_"]


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    semantics: str = "torch",
) -> torch.Tensor:
    """Scale the gradients of parameters together, in place, to a norm of at most max_norm.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Parameters with dense, sparse (COO, one sparse dimension) or no gradients, on any devices.
    max_norm : float
        Not negative.
    norm_type : 1, 2 or inf
    error_if_nonfinite : bool
        Raise RuntimeError where the norm is NaN or infinite. Otherwise such gradients are scaled by it.
    foreach : bool, optional
        Taken for compatibility, without effect.
    semantics : {"torch", "islices", "tensorflow", "keras", "mxnet", "optax"}
        Whose factor. "torch", the default: min(1, max_norm / (norm + 1e-6)), so that what trains with torch's function
        keeps its course; "islices": max_norm / norm where the norm exceeds max_norm. SPEC clauses 10 and 11.

    Returns
    -------
    0-d Tensor
        The norm before clipping, on the device of the first gradient: float32, or float64 if any gradient is.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument, or a gradient, that does not fit. Nothing has been changed then.
    RuntimeError
        error_if_nonfinite, and the norm is not finite. Nothing has been changed.

    Notes
    -----
    A sparse gradient stays the same object, uncoalesced if it was, but gets new values: torch's own may share memory
    with tensors of the caller. Rows it does not hold stay zero, also where the norm is NaN.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding(4, 2, sparse=True)
    >>> layer(torch.tensor([1, 1])).sum().backward()
    >>> clip_grad_norm_(layer.parameters(), 1.0)
    tensor(2.8284)
    """
    grads = _gradients(parameters)
    limit, ord = _number(max_norm, "max_norm"), float(norm_type)
    if ord not in (1.0, 2.0, math.inf):
        raise ValueError(f"norm_type: got {norm_type!r}; accepted are 1, 2 and inf")
    formula = lookup_formula(BY_GLOBAL_NORM, semantics, "clip_grad_norm_")
    leaves = [_leaf(grad, position) for position, grad in grads]
    if not leaves:
        return torch.tensor(0.0)
    E, exact = norm64(leaves, ord, raw=formula.raw)
    if E is not HOST:
        raise NotImplementedError("clip_grad_norm_ within torch.compile or torch.func: call it outside")
    with E.scope():
        norm = E.astype(exact, norm_dtype(leaves))
        seen = exact if formula.wide else norm
        if error_if_nonfinite and not E.isfinite(seen).all():
            raise RuntimeError(
                f"the norm of order {ord} of the gradients is {float(seen[0])}, so they cannot be clipped; "
                "error_if_nonfinite=False scales them by it"
            )
        steps = [(name, c if isinstance(c, float) else c.item()) for name, c in formula.steps(E, seen, limit)]
    if any(c != 1.0 for _, c in steps):
        for (_, grad), leaf in zip(grads, leaves, strict=True):
            _scale_(grad, leaf, steps)
    B, values = parts(leaves[0])
    return B.scalar(norm.reshape(()), values)  # type: ignore[no-any-return]


@torch.no_grad()
def clip_grad_value_(
    parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every element of the gradients of parameters, in place, to [-clip_value, clip_value].

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Parameters with dense, sparse (COO, one sparse dimension) or no gradients, on any devices.
    clip_value : float
        Not negative.
    foreach : bool, optional
        Taken for compatibility, without effect.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument, or a gradient, that does not fit. Nothing has been changed then.

    Notes
    -----
    A sparse gradient stays the same object and comes back coalesced, with new values: the elements that count are
    the sums of duplicates. SPEC clause 9.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding(4, 1, sparse=True)
    >>> layer(torch.tensor([1, 1])).sum().backward()
    >>> clip_grad_value_(layer.parameters(), 1.5)
    >>> layer.weight.grad.to_dense().flatten().tolist()
    [0.0, 1.5, 0.0, 0.0]
    """
    grads = _gradients(parameters)
    bound = _number(clip_value, "clip_value")
    for position, grad in grads:
        _leaf(grad, position)
    sparse = {id(grad): clip_by_value(grad, -bound, bound) for _, grad in grads if grad.is_sparse}
    for _, grad in grads:
        if grad.is_sparse:
            grad.data = sparse[id(grad)]
        else:
            _in_place(grad, lambda g: g.clamp_(-bound, bound))


# ---------------------------------------------------------------------- arguments
def _gradients(parameters: Any) -> list[tuple[int, torch.Tensor]]:
    """(position among the parameters, gradient) of those that have one."""
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    empty_is_odd = isinstance(parameters, types.GeneratorType)
    try:
        parameters = list(parameters)
    except TypeError:
        hint = ": model.parameters()" if isinstance(parameters, torch.nn.Module) else ""
        raise TypeError(
            f"parameters: got {describe(parameters)}; accepted is a Tensor or an iterable of them{hint}"
        ) from None
    for position, p in enumerate(parameters):
        if not isinstance(p, torch.Tensor):
            raise TypeError(f"parameters: got {describe(p)} at position {position}; accepted are Tensors")
    if empty_is_odd and not parameters:
        warnings.warn("parameters: got a generator with nothing (left) in it; no gradient is clipped", stacklevel=4)
    return [(position, p.grad) for position, p in enumerate(parameters) if p.grad is not None]


def _number(x: Any, argument: str) -> float:
    try:
        number = float(x)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{argument}: got {describe(x)}; accepted is a number >= 0") from None
    if not number >= 0:
        raise ValueError(f"{argument}: got {number}; accepted is a number >= 0")
    return number


def _leaf(grad: torch.Tensor, position: int) -> Any:
    """The gradient as the core sees it, valid; what is wrong with it is said of its parameter."""
    try:
        leaf, _ = adopt(grad, "grad")
        B, values = parts(leaf)
        if B.dtype(values) not in FLOATS:
            raise TypeError(f"x: got {describe(values)}; accepted is a real floating dtype")
    except (TypeError, ValueError, IndexError) as error:
        raise type(error)(f"parameters: the gradient at position {position}: {error}") from None
    return leaf


# ---------------------------------------------------------------------- changing a gradient
def _scale_(grad: torch.Tensor, leaf: Any, steps: list[tuple[str, float]]) -> None:
    B, values = parts(leaf)
    rounded = [(name, round_scalar(B, values, c, name)) for name, c in steps]
    if isinstance(leaf, IndexedSlices):
        scaled = B.to_native(
            scale_values(B, values, rounded), leaf.indices, leaf.dense_shape, coalesced=leaf.coalesced, padded=False
        )
        grad.data = scaled
    elif len(rounded) == 1 and rounded[0][0] == "mul":
        _in_place(grad, lambda g: g.mul_(rounded[0][1]))
    else:
        _in_place(grad, lambda g: g.copy_(scale_values(B, g, rounded)))


def _in_place(grad: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> None:
    if any(step == 0 and size > 1 for step, size in zip(grad.stride(), grad.shape, strict=True)):
        # an expanded gradient, all of whose elements are one: torch refuses to write to it
        grad.data = grad.clone(memory_format=torch.contiguous_format)
    change(grad)
