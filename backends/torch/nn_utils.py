"""Clip gradients like torch.nn.utils, but also for parameters whose gradients are sparse.

For the gradients of ``nn.Embedding(sparse=True)``, clip_grad_norm_, clip_grad_value_ and get_total_norm of
torch.nn.utils raise NotImplementedError. The functions of this module accept the same arguments, and those that clip
change ``p.grad`` in place. Norms and limits of elements apply to the sums of duplicate rows, except for the norm with
semantics="tensorflow" or "keras". For dense gradients and the default semantics, the results are the same as those of
torch.nn.utils, apart from rounding. So you need only change the import in a training script.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from islices.backend import Host
from islices.backends.torch.adapter import FLOATS, backend, check_data, check_inference, shares_elements
from islices.core.conversion import accept, to_native
from islices.core.host import quiet
from islices.core.linear import as_float, round_scalar, scale_values
from islices.core.modes import HOST
from islices.core.registry import describe
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices, parts
from islices.distributed.norms import Question, measure_over
from islices.norms.clip import clip_by_value, scale_by_numbers
from islices.norms.clip_formulas import BY_GLOBAL_NORM, ClipFormula, Semantics, lookup_formula
from islices.norms.limits import check_max_norm
from islices.norms.norm import EXACT, check_float, check_order, look_at, norm_dtype, norm_of

#: The usual argument of `get_total_norm`, which error messages show.
GRADIENTS = "(p.grad for p in model.parameters() if p.grad is not None)"


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    semantics: Semantics = "torch",
    group: Any = None,
    replicated: bool | Sequence[bool] = False,
) -> Tensor:
    """Scale the gradients of all parameters in place, so that their total norm is at most `max_norm`.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Parameters with dense, sparse (COO, one sparse dimension) or no gradients, on any devices.
    max_norm : float, or any object that float() accepts
        A number that is not negative.
    norm_type : float
        The order of the norm: 1, 2 or inf. Without `group` and `replicated`, any number above 0 is accepted.
    error_if_nonfinite : bool
        If True, raise RuntimeError if the norm is NaN or infinite. If False, a norm that is NaN or infinite is used
        like any other norm.
    foreach : bool, optional
        This argument is accepted for compatibility, and has no effect.
    semantics : {"torch", "islices", "tensorflow", "keras", "mxnet", "optax"}
        The library whose formula computes the factor. The default "torch" uses min(1, max_norm / (norm + 1e-6)), so
        that the results of existing trainings do not change. "islices" uses max_norm / norm if the norm exceeds
        max_norm. "tensorflow" and "keras" do not sum duplicates before they compute the norm. SPEC clauses 10 and 11.
    group : str, Group or an engine's group object, optional
        The ranks over which the gradients are distributed, for example the gradients of sharded tables. See
        `islices.distributed.get_group`. Each rank passes its parameters, and scales their gradients. Every rank must
        call the function, even if it has no gradients.
    replicated : bool, or list of bools, one per parameter
        True for parameters whose gradients are the same on every rank, such as dense gradients after an all-reduce.
        These gradients count only once in the norm.

    Returns
    -------
    0-d Tensor
        The norm before clipping, on the device of the first gradient. The norm is float64 if any gradient is float64,
        else float32. If no parameter of this rank has a gradient, the norm is on the CPU. If no rank has gradients, the
        norm is 0.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument or a gradient is invalid. The call changes no gradient.
    RuntimeError
        error_if_nonfinite is True, and the norm is not finite. The call changes no gradient.
    RankError, RankTimeout
        Another rank's arguments are invalid, or another rank did not call the function in time.

    Notes
    -----
    With a group, the norm and the factor have the same bits on every rank, and in a single process that has all
    parameters. For norm_type=2, `islices.clip_by_global_norm` with this group and these semantics computes the same
    bits. SPEC clause 25.

    A sparse gradient stays the same object, and if it is uncoalesced, it stays uncoalesced. If the factor is not 1, the
    gradient gets a new tensor of values, because the old tensor may share memory with other tensors. Rows that the
    gradient does not contain stay zero, even if the norm is NaN.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding(4, 2, sparse=True)
    >>> layer(torch.tensor([1, 1])).sum().backward()
    >>> clip_grad_norm_(layer.parameters(), 1.0)
    tensor(2.8284)
    """
    over = group is not None or replicated is not False
    found: list[Any] = []

    def request() -> Question:
        limit, ord = _number(max_norm, "max_norm"), _order(norm_type, exact=over)
        formula = lookup_formula(BY_GLOBAL_NORM, semantics, "clip_grad_norm_")
        grads, leaves = _gradients(parameters, stacklevel=6)
        found.extend((limit, ord, formula, grads, leaves))
        statement = {"max_norm": limit, "norm_type": ord, "error_if_nonfinite": bool(error_if_nonfinite)}
        return Question(leaves, replicated, ord, formula.raw, {**statement, "semantics": semantics})

    exact, norm = _measured("clip_grad_norm_", request, group, over=over)
    limit, ord, formula, grads, leaves = found
    deciding = exact if formula.wide else norm
    if error_if_nonfinite:
        _check_finite(deciding, ord)
    _scale(grads, leaves, formula, deciding, limit)
    return _as_tensor(norm, grads)


@torch.no_grad()
def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    group: Any = None,
    replicated: bool | Sequence[bool] = False,
) -> Tensor:
    """Return the norm of all tensors together, as if their elements were one vector. The tensors are usually gradients.

    Parameters
    ----------
    tensors : Tensor or iterable of Tensor
        Dense or sparse tensors (COO, one sparse dimension) on any devices. Duplicate rows are summed first.
    norm_type : float
        The order of the norm: 1, 2 or inf. Without `group` and `replicated`, any number above 0 is accepted.
    error_if_nonfinite : bool
        If True, raise RuntimeError if the norm is NaN or infinite.
    foreach : bool, optional
        This argument is accepted for compatibility, and has no effect.
    group : str, Group or an engine's group object, optional
        The ranks over which the gradients are distributed, for example the gradients of sharded tables. See
        `islices.distributed.get_group`. Every rank must call the function, even if it has no tensors.
    replicated : bool, or list of bools, one per tensor
        True for tensors that are the same on every rank, such as dense gradients after an all-reduce. These tensors
        count only once in the norm.

    Returns
    -------
    0-d Tensor
        The norm, on the device of the first tensor. The norm is float64 if any tensor is float64, else float32. If
        this rank has no tensors, the norm is on the CPU. If no rank has tensors, the norm is 0.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid.
    RuntimeError
        error_if_nonfinite is True, and the norm is not finite.
    RankError, RankTimeout
        Another rank's arguments are invalid, or another rank did not call the function in time.

    Notes
    -----
    For the orders 1 and 2, the sum over all elements is exact before it is rounded. So the order of the tensors does
    not matter. SPEC clauses 7 and 8.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding(4, 2, sparse=True)
    >>> layer(torch.tensor([1, 1])).sum().backward()
    >>> get_total_norm([p.grad for p in layer.parameters()])
    tensor(2.8284)
    """
    over = group is not None or replicated is not False
    given: list[Tensor] = []

    def request() -> Question:
        ord = _order(norm_type, exact=over)
        given.extend(_listed(tensors, "tensors", GRADIENTS))
        leaves = [_leaf(x, "tensors: the one", position) for position, x in enumerate(given)]
        facts = {"norm_type": ord, "error_if_nonfinite": bool(error_if_nonfinite)}
        return Question(leaves, replicated, ord, facts=facts)

    _, norm = _measured("get_total_norm", request, group, over=over)
    if error_if_nonfinite:
        _check_finite(norm, _order(norm_type, exact=over))
    return _as_tensor(norm, given)


@torch.no_grad()
def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
    *,
    semantics: Semantics = "torch",
) -> None:
    """Clip the gradients of parameters in place, with a norm that has already been computed. This function is the
    second half of `clip_grad_norm_`.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Parameters with dense, sparse (COO, one sparse dimension) or no gradients, on any devices.
    max_norm : float, or any object that float() accepts
        A number that is not negative.
    total_norm : one-element Tensor, or float
        The result of `get_total_norm`. You may first combine the norms of several processes or pipeline stages. If the
        norm is NaN, the gradients become NaN.
    foreach : bool, optional
        This argument is accepted for compatibility, and has no effect.
    semantics : {"torch", "islices", "tensorflow", "keras", "mxnet", "optax"}
        The library whose formula computes the factor, as for `clip_grad_norm_`.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument or a gradient is invalid. The call changes no gradient.

    Notes
    -----
    With the result of `get_total_norm` and the semantics "torch", "mxnet" or "optax", the gradients get the same bits
    as with `clip_grad_norm_`. This function needs no group, because every rank already knows the norm. With "islices"
    the bits may differ, because `clip_grad_norm_` uses the norm before it is rounded to float32. With "tensorflow" and
    "keras" the results may differ, because `clip_grad_norm_` then does not sum duplicates before it computes the norm.
    SPEC clauses 10 and 11.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding(4, 1, sparse=True)
    >>> layer(torch.tensor([1, 1])).sum().backward()
    >>> clip_grads_with_norm_(layer.parameters(), 1.0, torch.tensor(8.0), semantics="islices")
    >>> layer.weight.grad.to_dense().flatten().tolist()
    [0.0, 0.25, 0.0, 0.0]
    """
    limit, norm = _number(max_norm, "max_norm"), _known_norm(total_norm)
    formula = lookup_formula(BY_GLOBAL_NORM, semantics, "clip_grads_with_norm_")
    grads, leaves = _gradients(parameters)
    _scale(grads, leaves, formula, norm.astype(np.float64) if formula.wide else norm, limit)


@torch.no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Limit every element of the parameters' gradients to [-clip_value, clip_value], in place.

    Parameters
    ----------
    parameters : Tensor or iterable of Tensor
        Parameters with dense, sparse (COO, one sparse dimension) or no gradients, on any devices.
    clip_value : float, or any object that float() accepts
        A number that is not negative.
    foreach : bool, optional
        This argument is accepted for compatibility, and has no effect.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument or a gradient is invalid. The call changes no gradient.

    Notes
    -----
    A sparse gradient stays the same object, but becomes coalesced and gets a new tensor of values, because the limits
    apply to sums of duplicates. SPEC clause 9.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding(4, 1, sparse=True)
    >>> layer(torch.tensor([1, 1])).sum().backward()
    >>> clip_grad_value_(layer.parameters(), 1.5)
    >>> layer.weight.grad.to_dense().flatten().tolist()
    [0.0, 1.5, 0.0, 0.0]
    """
    bound = _number(clip_value, "clip_value")
    grads, _ = _gradients(parameters)
    clipped = [(g, clip_by_value(g, -bound, bound) if g.is_sparse else None) for g in grads if g is not None]
    for grad, sparse in clipped:
        if sparse is not None:
            grad.data = sparse
        else:
            _with_separate_elements(grad).clamp_(-bound, bound)


# ---------------------------------------------------------------------- arguments
def _gradients(parameters: Any, stacklevel: int = 4) -> tuple[list[Any], list[Any]]:
    """Return two lists: the parameters' gradients, and the same gradients as arrays or IndexedSlices. For a parameter
    without a gradient, both lists contain None.

    Check that dense gradients can be changed in place. Warn if `parameters` is an empty or exhausted generator.
    """
    given = _listed(parameters, "parameters", "model.parameters()")
    if isinstance(parameters, types.GeneratorType) and not given:
        statement = "parameters: got a generator with nothing (left) in it; no gradient is clipped"
        warnings.warn(statement, stacklevel=stacklevel)
    grads, leaves = [], list[Any]()
    for position, p in enumerate(given):
        grad = p.grad
        grads.append(grad)
        leaves.append(None if grad is None else _leaf(grad, "parameters: the gradient", position))
        if grad is not None and not grad.is_sparse:  # a sparse gradient gets new data instead
            check_inference(grad, f"parameters: the gradient at position {position}")
    return grads, leaves


def _listed(tensors: Any, argument: str, usual: str) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    try:
        listed = list(tensors)
    except TypeError:
        hint = f": {usual}" if isinstance(tensors, torch.nn.Module) else ""
        raise TypeError(
            f"{argument}: got {describe(tensors)}; accepted is a Tensor or an iterable of them{hint}"
        ) from None
    for position, x in enumerate(listed):
        if not isinstance(x, Tensor):
            raise TypeError(f"{argument}: got {describe(x)} at position {position}; accepted are Tensors")
    return listed


def _number(x: Any, argument: str) -> float:
    return check_max_norm(_float(x, argument, "a number >= 0"), argument)


def _order(norm_type: Any, *, exact: bool) -> float:
    ord = _float(norm_type, "norm_type", "a number > 0, inf included")
    if not ord > 0:
        raise ValueError(f"norm_type: got {ord}; accepted is a number > 0, inf included")
    return check_order(ord, "norm_type") if exact else ord


def _known_norm(total_norm: Any) -> Host:
    """Convert the caller's norm to a float32 or float64 array of shape (1,)."""
    number = _float(total_norm, "total_norm", "a Tensor of one, or a number")
    if number < 0:
        raise ValueError(f"total_norm: got {number}; accepted is a number >= 0")
    single = isinstance(total_norm, Tensor) and total_norm.dtype is not torch.float64
    return np.array([number], np.float32 if single else np.float64)


def _float(x: Any, argument: str, accepted: str) -> float:
    try:
        return x if type(x) is float else as_float(x)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{argument}: got {describe(x)}; accepted is {accepted}") from None


def _leaf(grad: Tensor, subject: str, position: int) -> Any:
    """Check a gradient, and convert it to an array or IndexedSlices. Error messages contain the position of the
    gradient."""
    try:
        leaf = accept(grad, "grad")
        if grad.dtype not in FLOATS:
            check_float(*parts(leaf))
    except (TypeError, ValueError, IndexError) as error:
        raise type(error)(f"{subject} at position {position}: {error}") from None
    return leaf


# ---------------------------------------------------------------------- norms
def _measured(call: str, request: Callable[[], Question], group: Any, *, over: bool) -> tuple[Host, Host]:
    """Return the norm twice, in float64 and in the dtype of the user's result, as arrays of shape (1,). If `over` is
    True, compute the norm over the ranks of `group`; None stands for this rank.

    The function `request` checks all arguments. If `request` raises an error and `group` is not None, the other ranks
    get a report of the error.
    """
    if over:
        total = measure_over(call, request, group)[1]
        exact, dtype = total.exact, total.dtype
    else:
        requested = request()
        exact, dtype = _norm(requested.tree, requested.ord, raw=requested.raw)
    with quiet():
        return exact, exact.astype(dtype)


def _norm(leaves: Sequence[Any], ord: float, *, raw: bool) -> tuple[Host, str]:
    """Return (the norm in float64, the dtype of the user's result)."""
    found = []
    for leaf in leaves:
        if leaf is not None:
            found.append(look_at(leaf))
    if not found:
        return np.zeros(1), "float32"
    if ord not in EXACT:
        return _norm_by_powers([x.leaf for x in found], ord, raw)
    E, exact, dtype = norm_of(found, ord, raw=raw)
    if E is not HOST:
        for x in found:
            check_data(x.values)
        raise NotImplementedError("norms of gradients within torch.compile or torch.func: call it outside")
    return exact, dtype


def _norm_by_powers(leaves: Sequence[Any], ord: float, raw: bool) -> tuple[Host, str]:
    """Compute a norm of an order other than 1, 2 and inf, with powers in float64. Return (the norm, the dtype of the
    user's result)."""
    sums = [leaf if raw else coalesce(leaf) for leaf in leaves]
    sizes = np.concatenate([parts(x)[1].double().abs().cpu().numpy().ravel() for x in sums])
    norm = sizes.max(initial=0.0)
    if 0.0 < norm < np.inf:
        with quiet():
            norm *= ((sizes / norm) ** ord).sum() ** (1.0 / ord)
    return np.array([norm]), norm_dtype(leaves)


def _check_finite(norm: Host, ord: float) -> None:
    if not np.isfinite(norm).all():
        raise RuntimeError(
            f"the norm of order {ord} of the gradients is {float(norm[0])}, so they cannot be clipped; "
            "error_if_nonfinite=False goes on with it"
        )


def _as_tensor(norm: Host, grads: Sequence[Any]) -> Tensor:
    """Return the norm as a 0-d Tensor on the device of the first gradient, or on the CPU if there are no gradients."""
    for grad in grads:
        if grad is not None:
            return backend.scalar(norm.reshape(()), grad)  # type: ignore[no-any-return]
    return torch.tensor(norm[0])


# ---------------------------------------------------------------------- changing a gradient
def _scale(grads: Sequence[Any], leaves: Sequence[Any], formula: ClipFormula, norm: Host, limit: float) -> None:
    """Scale the gradients in place by the factor that the formula computes from the norm."""
    steps, changes = [], False
    with quiet():
        for name, c in formula.steps(HOST, norm, limit):
            number = c if isinstance(c, float) else c.item()
            steps.append((name, number))
            changes = changes or number != 1.0
    if changes:
        for grad, leaf in zip(grads, leaves, strict=True):
            if isinstance(leaf, IndexedSlices):
                grad.data = to_native(scale_by_numbers(leaf, steps))
            elif leaf is not None:
                _scale_dense(grad, steps)


def _scale_dense(grad: Tensor, steps: list[tuple[str, float]]) -> None:
    rounded = [(name, round_scalar(backend, grad, c, name)) for name, c in steps]
    grad = _with_separate_elements(grad)
    if len(rounded) == 1 and rounded[0][0] == "mul":
        grad.mul_(rounded[0][1])
    else:
        grad.copy_(scale_values(backend, grad, rounded))


def _with_separate_elements(grad: Tensor) -> Tensor:
    """Return the gradient. If elements of the gradient share memory, as after expand, first replace its data by a copy.

    Without the copy, torch would raise an error for writes to shared memory, or change an element repeatedly.
    """
    if shares_elements(grad):
        grad.data = grad.clone(memory_format=torch.contiguous_format)
    return grad
