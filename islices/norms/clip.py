"""Clip gradients: by value, by the norm of a gradient, and by norms along axes or of rows.

SPEC clauses 9 to 11. For clipping by the norm of a whole tree, see `islices.norms.global_norms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from islices.backend import INTEGERS, Array, Backend
from islices.core import modes
from islices.core.arguments import show
from islices.core.conversion import coalesce_slices, map_accepted, restored
from islices.core.deferred import NativeIndices, native_look
from islices.core.linear import round_float, round_scalar, wide_dtype
from islices.core.registry import describe, get_backend
from islices.core.slices import IndexedSlices, parts, with_values
from islices.core.slots import known_times, slots_in, times, with_known_values
from islices.core.trees import rebuild
from islices.norms import derivatives
from islices.norms.clip_formulas import (
    BY_NORM,
    BY_VALUE,
    ClipFormula,
    Semantics,
    Steps,
    lookup_formula,
)
from islices.norms.limits import Limit, bound_of, limit_of
from islices.norms.nonfinite import Nonfinite, check_nonfinite, finite_norms, refuse_nonfinite
from islices.norms.norm import Leaf, Total, total_norm
from islices.norms.unitwise import clip_measured, clip_rows, measure_units, scale_units

T = TypeVar("T")


# ---------------------------------------------------------------------- clipping by value
def clip_by_value(x: T, lo: float, hi: float, *, semantics: Semantics = "islices") -> T:
    """Limit every element of a gradient to [lo, hi].

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    lo, hi : float, or 0-d array of the framework
        For sparse gradients lo <= 0 <= hi is required, because absent rows are zeros. Bounds are rounded to the values'
        dtype (float32 for 16-bit values).
    semantics : {"islices", "tensorflow", "keras", "fbgemm"}
        "islices" sums duplicates first, so a clipped sparse gradient is coalesced. With the other names, stored values
        are clipped without summing duplicates, as those libraries do.

    Returns
    -------
    same type as x
        NaN stays NaN.

    Raises
    ------
    ValueError
        lo > hi, a bound is NaN, the bounds would change absent rows, or semantics is unknown. SPEC clause 9.
    TypeError
        A bound is neither a real number nor a 0-d array of the framework. Or x contains integers, and a bound is
        traced, or is neither an int nor infinite.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[3.0], [3.0]]), np.array([1, 1]), (4, 1))
    >>> clip_by_value(s, -3.5, 3.5).values.tolist()
    [[3.5]]
    """
    raw = lookup_formula(BY_VALUE, semantics, "clip_by_value")
    bounds = bound_of(lo, "lo"), bound_of(hi, "hi")
    least, most = (b.number for b in bounds)
    known = [b for b in (least, most) if b is not None]
    if known and not known[0] <= known[-1]:  # also for a NaN
        raise ValueError(f"lo and hi: got {show(least)} and {show(most)}; accepted is lo <= hi")

    def one(leaf: Any) -> Any:
        sparse = isinstance(leaf, IndexedSlices)
        if sparse and not ((least is None or least <= 0) and (most is None or most >= 0)):
            raise ValueError(
                f"lo and hi: got {show(least)} and {show(most)}; accepted is lo <= 0 <= hi, since other bounds change "
                "the rows that are not stored: densify first, clip_by_value(to_dense(x), lo, hi)"
            )
        leaf = leaf if raw else coalesce_slices(leaf)
        return with_values(leaf, _clamped(*parts(leaf), bounds))

    return map_accepted(one, x)


def _clamped(B: Backend, values: Array, bounds: tuple[Limit, Limit]) -> Array:
    for bound in bounds:
        bound.check(B)
    dtype = B.dtype(values)
    traced = next((b for b in bounds if b.number is None), None)
    if traced is not None and dtype in INTEGERS:
        raise TypeError(f"{traced.name}: got {describe(traced.array)}; accepted for {dtype} is an int that is known")
    known = derivatives.constant(B, values)
    if traced is None:
        lo, hi = (round_scalar(B, values, _within(B, values, b.number), b.name) for b in bounds)
        clipped = modes.run(_clamp, B, (known,), lo=lo, hi=hi)
    else:
        with B.scope():
            lo, hi = (b.of(B, wide_dtype(dtype)) for b in bounds)
            lo, hi = (b if isinstance(b, (int, float)) else B.reshape(b, (1,) * len(B.shape(values))) for b in (lo, hi))
            clipped = _clamp(B, known, lo=lo, hi=hi)
    if dtype in INTEGERS or not derivatives.requests(B, values):
        return clipped
    with B.scope():
        like = B.zeros((1,), wide_dtype(dtype), values)
        constants = [b.as_array(B, like) for b in bounds]
    return derivatives.attach_clamped(B, clipped, values, *constants)


def _within(B: Backend, values: Array, bound: Any) -> Any:
    """Return `bound`; if the values and the bound are whole numbers, limit the bound to the range of the dtype.

    An infinite bound counts as a whole number.
    """
    if B.dtype(values) not in INTEGERS:
        return bound
    limit = np.iinfo(B.dtype(values))
    whole = isinstance(bound, (int, np.integer)) or math.isinf(bound)
    return int(min(max(bound, limit.min), limit.max)) if whole else bound


def _clamp(B: Backend, values: Array, *, lo: Any, hi: Any) -> Array:
    return B.astype(B.minimum(B.maximum(B.widen(values), lo), hi), B.dtype(values))


# ---------------------------------------------------------------------- clipping by a norm
def clip_by_norm(
    x: T, max_norm: float, *, axes: Any = None, semantics: Semantics = "islices", nonfinite: Nonfinite = "propagate"
) -> T:
    """Scale a gradient down to a norm of at most max_norm. In a tree, clip each leaf separately.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    max_norm : float, or 0-d array of the framework
        With semantics "islices" and a finite norm, 0 makes all values zero, and inf changes nothing.
    axes : int, or list or tuple of ints, optional
        The axes of the dense array that each norm reduces. (1,) clips each row of a table separately, and () clips each
        element. (0,) clips each column; its norm needs only the stored rows, since other rows are zeros. None means one
        norm of all elements.
    semantics : {"islices", "tensorflow", "keras"}
        The library whose arithmetic the function uses. SPEC clause 11.
    nonfinite : {"propagate", "raise", "zero"}
        The effect of a NaN or infinite norm: "propagate" makes every stored value NaN, "raise" raises
        FloatingPointError, and "zero" makes all values zero. With axes, "propagate" and "zero" change only the values
        that the NaN or infinite norm covers. With "propagate" and semantics "tensorflow" or "keras", the framework's
        formula decides: an infinite norm makes finite values zero.

    Returns
    -------
    same type as x
        With semantics "islices", the result has the bits of x where the norm is at most max_norm, and may share memory
        with x. If axes are given, semantics "islices" coalesces sparse gradients; in all other cases sparse gradients
        keep their slices.

    Raises
    ------
    TypeError
        max_norm is neither a real number nor a 0-d array of the framework, axes are not ints, or x contains integers.
    ValueError
        max_norm is negative or NaN, axes do not exist or occur twice, semantics or nonfinite is unknown, or nonfinite
        is "raise" in traced code.
    FloatingPointError
        nonfinite is "raise", and a norm is NaN or infinite.

    Notes
    -----
    With semantics "islices", stored values are multiplied by the factor max_norm / norm if norm exceeds max_norm. The
    factor is computed in float64 and rounded once to the values' dtype (float32 for 16-bit values). The result is
    differentiable wherever the framework differentiates, and the derivative includes that of the norm. Values that do
    not change have the derivative 1. SPEC clause 10.

    Examples
    --------
    >>> import numpy as np
    >>> clip_by_norm([np.array([3.0, 4.0]), np.array([0.5])], 1.0)
    [array([0.6, 0.8]), array([0.5])]
    >>> clip_by_norm(np.array([[3.0, 0.5], [4.0, 0.0]]), 1.0, axes=0).tolist()
    [[0.6000000000000001, 0.5], [0.8, 0.0]]
    """
    formula = lookup_formula(BY_NORM, semantics, "clip_by_norm")
    limit = limit_of(max_norm)
    nonfinite = check_nonfinite(nonfinite)

    def one(leaf: Any) -> Any:
        leaf = limit.lift(leaf)
        if axes is not None:
            return clip_measured(measure_units(leaf, axes, formula), limit, formula, nonfinite)
        return clipping_by(total_norm([leaf], raw=formula.raw), limit, formula, nonfinite)(leaf)

    return map_accepted(one, x)


def clip_leaves(
    tree: T, leaves: Sequence[Leaf | None], total: Total, limit: Limit, formula: ClipFormula, nonfinite: str
) -> T:
    """Return the tree with its leaves clipped by the norm of all leaves. `leaves` are the leaves of the tree."""
    clip = clipping_by(total, limit, formula, nonfinite)
    clipped = []
    for leaf in leaves:
        clipped.append(leaf and restored(clip(leaf.accepted), leaf.accepted, leaf.given))
    return rebuild(tree, iter(clipped))  # type: ignore[no-any-return]


def clipping_by(total: Total, limit: Limit, formula: ClipFormula, nonfinite: str) -> Callable[[Any], Any]:
    """Return a function that clips an accepted leaf by a norm.

    If the norm is known, the returned function scales by numbers; under a trace it scales by arrays. The errors of
    `refuse_nonfinite` come from `clipping_by` itself.
    """
    E, exact, scale = total.E, total.exact, _unchanged
    refuse_nonfinite(E, exact, nonfinite)
    if E is modes.HOST:
        if limit.number is None:  # only if there is no leaf
            return scale
        numbers = _known_steps(float(exact[0]), total.dtype, limit.number, formula, nonfinite)
        if numbers is None:
            return scale
        scale = partial(scale_by_numbers, steps=numbers)
        if total.attached is None:
            return scale
    with E.scope():
        norm = exact if formula.wide else E.astype(exact, total.dtype)
        most = limit.of(E, E.dtype(norm))
        finite = finite_norms(E, exact, nonfinite)
        if E is not modes.HOST:
            scale = partial(_scale_traced, E=E, steps=formula.steps(E, norm, most), finite=finite)
        if total.attached is None:
            return scale
        over = formula.decided(E, norm, most, finite, total.dtype)

    def attached(leaf: Any) -> Any:
        """Return the scaled leaf as a differentiable function of `leaf` and of the norm."""
        norm, (B, _) = total.attached, parts(leaf)
        scaled = scale(derivatives.constant(B, leaf))
        with B.scope():
            decided = B.asarray(over, norm) if E is modes.HOST else over
            most = limit.as_array(B, norm)
        member = derivatives.of_leaf(leaf, raw=True)
        values = derivatives.attach_scaled(B, parts(scaled)[1], member, norm, most, decided, slack=formula.slack)
        return with_known_values(scaled, values) if isinstance(scaled, IndexedSlices) else values

    return attached


def _unchanged(leaf: Any) -> Any:
    return leaf


# ---------------------------------------------------------------------- by a norm that is known
def _known_steps(
    norm: float, dtype: str, limit: float, formula: ClipFormula, nonfinite: str
) -> list[tuple[str, float]] | None:
    """Return the steps ("mul" or "div", number) to apply to values.

    Return None if the values stay unchanged, and an empty list if they become zeros.
    """
    finite = math.isfinite(norm)
    if formula.wide and finite and norm <= limit:
        return None
    if nonfinite == "zero" and not finite:
        return []
    if formula.wide:
        return [("mul", limit / norm if finite else math.nan)]
    with modes.HOST.scope():
        steps = formula.steps(modes.HOST, np.array((norm,)).astype(dtype), limit)
        return [(name, c if isinstance(c, float) else c.item()) for name, c in steps]


def scale_by_numbers(leaf: Any, steps: Sequence[tuple[str, float]]) -> Any:
    """Return a leaf with its values multiplied and divided by numbers. If `steps` is empty, the values become zeros.

    The numbers are rounded to the values' dtype (float32 for 16-bit values).
    """
    sparse = isinstance(leaf, IndexedSlices)
    B, look = (leaf.backend, native_look(leaf)) if sparse else (get_backend(leaf), None)
    slots = slots_in(leaf) if sparse and look is None else None
    if slots is not None and len(steps) == 1 and steps[0][0] == "mul":
        later = times(leaf, round_float(steps[0][1], B.dtype(slots.values)))
        if later is not None:
            return later
    values = leaf.values if sparse else leaf
    dtype, rounded = look.dtypes[0] if look else B.dtype(values), []
    for name, c in steps:
        rounded.append((name, round_float(c, dtype)))
    if look is not None and look.views is not None and modes.on_host() and steps:
        view = modes.compute("scaled", look.views[:1], steps=rounded)
        indices = NativeIndices(look._replace(views=[view, look.views[1]], spans=None))
        return leaf._like(B.from_host(view, values), indices)
    new = modes.run("scaled", B, (values,), steps=rounded) if steps else modes.run("zeros_like", B, (values,))
    return leaf._like(new) if sparse else new


# ---------------------------------------------------------------------- by a norm that is traced
def _scale_traced(leaf: Any, E: Backend, steps: Steps, finite: Any) -> Any:
    """Return a leaf with its values multiplied and divided by arrays of E. If `finite` is False, values become zeros.

    `finite` is a mask of shape (1,), or None.
    """
    B, values = parts(leaf)
    clipped = scale_units(B, values, E, steps, finite, (1,) * len(B.shape(values)))
    if not isinstance(leaf, IndexedSlices):
        return clipped
    if finite is not None or len(steps) != 1 or steps[0][0] != "mul":
        return leaf._like(clipped)
    return known_times(leaf, round_scalar(B, values, steps[0][1], "mul"), clipped)


def clip_by_row_norm(x: T, max_norm: float, *, nonfinite: Nonfinite = "propagate") -> T:
    """Scale every row of a gradient down to a norm of at most max_norm.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    max_norm : float, or 0-d array of the framework
        If a row's norm is finite, 0 makes the row's values zero, and inf does not change them.
    nonfinite : {"propagate", "raise", "zero"}
        The effect of a NaN or infinite norm: "propagate" makes the stored values of its row NaN, "zero" makes them
        zero, and "raise" raises FloatingPointError.

    Returns
    -------
    same type as x
        Slices are not coalesced; each slice is multiplied by the factor of its row. Rows whose norm is at most max_norm
        keep their bits. SPEC clause 10.

    Raises
    ------
    ValueError, TypeError
        max_norm is neither a number >= 0 nor a 0-d array of the framework, x contains integers or is 0-d, or nonfinite
        is unknown.
    FloatingPointError
        nonfinite is "raise", and the norm of a row is NaN or infinite. In traced code, "raise" raises ValueError
        instead.

    Examples
    --------
    >>> import numpy as np
    >>> clip_by_row_norm(np.array([[3.0, 4.0], [0.0, 1.0]]), 1.0).tolist()
    [[0.6000000000000001, 0.8], [0.0, 1.0]]
    """
    limit = limit_of(max_norm)
    nonfinite = check_nonfinite(nonfinite)
    return map_accepted(lambda leaf: clip_rows(limit.lift(leaf), limit, nonfinite), x)
