"""Clipping: by value, and by norms of the gradient itself.

SPEC clauses 9 to 11. Clipping by the norm of a whole tree begins in `islices.norms.global_norms`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from islices.backend import INTEGERS, Array, Backend
from islices.core import modes
from islices.core.arguments import show
from islices.core.conversion import map_leaves, restored, without_padding
from islices.core.floats import SCALARS
from islices.core.linear import round_float, round_scalar, scale_values, wide_dtype
from islices.core.registry import describe, get_backend
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices
from islices.core.slots import known_times, times
from islices.core.trees import rebuild
from islices.norms import derivatives
from islices.norms.clip_formulas import (
    BY_NORM,
    BY_VALUE,
    ISLICES,
    ClipFormula,
    Semantics,
    Steps,
    islices_formula,
    lookup_formula,
)
from islices.norms.derivatives import Layout, Member
from islices.norms.exact import as_rows, row_norms
from islices.norms.limits import Limit, bound_of, limit_of
from islices.norms.nonfinite import Nonfinite, check_nonfinite, refuse_nonfinite
from islices.norms.norm import Leaf, Total, check_float, each_leaf, norm_dtype, parts, rounded_norms, total_norm
from islices.norms.unitwise import clip_units

__all__ = [
    "attach_rows",
    "clip_by_norm",
    "clip_by_row_norm",
    "clip_by_value",
    "clip_leaves",
    "row_factors",
    "scale_rows",
    "scale_slices",
]

T = TypeVar("T")


# ---------------------------------------------------------------------- clipping by value
def clip_by_value(x: T, lo: float, hi: float, *, semantics: Semantics = "islices") -> T:
    """Every element of a gradient limited to [lo, hi].

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    lo, hi : float
        lo <= 0 <= hi for sparse gradients, whose absent rows are zeros; rounded to the values' type.
    semantics : {"islices", "tensorflow", "keras", "fbgemm"}
        "islices" sums duplicates first (a clipped sparse gradient comes back coalesced); the others clip the stored
        values as those frameworks do.

    Returns
    -------
    same type as x
        NaN stays NaN.

    Raises
    ------
    ValueError
        lo > hi, NaN bounds, or bounds that would change absent rows. SPEC clause 9.

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
    if None not in (least, most) and not least <= most:
        raise ValueError(f"lo and hi: got {show(least)} and {show(most)}; accepted is lo <= hi")
    if any(b is not None and b != b for b in (least, most)):
        raise ValueError(f"lo and hi: got {show(least)} and {show(most)}; accepted is lo <= hi")

    def one(leaf: Any) -> Any:
        sparse = isinstance(leaf, IndexedSlices)
        if sparse and not ((least is None or least <= 0) and (most is None or most >= 0)):
            raise ValueError(
                f"lo and hi: got {show(least)} and {show(most)}; accepted is lo <= 0 <= hi, since other bounds change "
                "the rows that are not stored: densify first, clip_by_value(to_dense(x), lo, hi)"
            )
        if sparse and not raw:
            leaf = coalesce(leaf)
        B, values = parts(leaf)
        clipped = _clamped(B, values, bounds)
        return leaf.replace(values=clipped) if sparse else clipped

    return map_leaves(one, x)


def _clamped(B: Backend, values: Array, bounds: tuple[Limit, Limit]) -> Array:
    for bound in bounds:
        bound.check(B)
    dtype = B.dtype(values)
    traced = next((b for b in bounds if b.number is None), None)
    if traced is not None and dtype in INTEGERS:
        raise TypeError(f"{traced.name}: got {describe(traced.array)}; accepted for {dtype} is an int that is known")
    asked = derivatives.asks(B, values)
    known = derivatives.constant(B, values) if asked else values
    if traced is None:
        lo, hi = (round_scalar(B, values, _within(B, values, b.number), b.name) for b in bounds)
        clipped = modes.run(_clamp, B, (known,), lo=lo, hi=hi)
    else:
        with B.scope():
            lo, hi = (b.of(B, wide_dtype(dtype)) for b in bounds)
            lo, hi = (b if isinstance(b, (int, float)) else B.reshape(b, (1,) * len(B.shape(values))) for b in (lo, hi))
            clipped = _clamp(B, known, lo=lo, hi=hi)
    if dtype in INTEGERS or not asked:
        return clipped
    with B.scope():
        like = B.zeros((1,), wide_dtype(dtype), values)
        constants = [b.as_array(B, like) for b in bounds]
    return derivatives.attach_clamped(B, clipped, values, *constants)


def _within(B: Backend, values: Array, bound: Any) -> Any:
    """A bound beyond the range of integer values, moved to its end."""
    if B.dtype(values) not in INTEGERS:
        return bound
    limit = np.iinfo(B.dtype(values))
    if isinstance(bound, (int, np.integer)):
        return min(max(int(bound), limit.min), limit.max)
    if bound in (math.inf, -math.inf):
        return limit.max if bound > 0 else limit.min
    return bound


def _clamp(B: Backend, values: Array, *, lo: Any, hi: Any) -> Array:
    return B.astype(B.minimum(B.maximum(B.widen(values), lo), hi), B.dtype(values))


# ---------------------------------------------------------------------- clipping by a norm
def clip_by_norm(
    x: T, max_norm: float, *, axes: Any = None, semantics: Semantics = "islices", nonfinite: Nonfinite = "propagate"
) -> T:
    """A gradient scaled down to a norm of at most max_norm; in a tree, each leaf by its own norm.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    max_norm : float
        0 gives zeros, inf changes nothing.
    axes : int, or list or tuple of ints, optional
        Along which norms are taken, of the dense array: (1,) clips each row of a table by itself, (0,) each column
        (over the rows that are stored, since the others are zeros), () each element. None: one norm of everything.
    semantics : {"islices", "tensorflow", "keras"}
        Whose arithmetic; SPEC clause 11.
    nonfinite : {"propagate", "raise", "zero"}
        What a NaN or infinite norm does: every stored value NaN, FloatingPointError, or zeros.

    Returns
    -------
    same type as x
        The bits of x if its norm is within max_norm; the result may share memory with x then. With axes sparse
        gradients come back coalesced, with one of the frameworks' semantics as they are stored.

    Raises
    ------
    ValueError
        max_norm is negative or NaN, axes are not there, or nonfinite="raise" under a trace, where nothing can be
        raised.
    FloatingPointError
        nonfinite="raise" and the norm is NaN or infinite.

    Notes
    -----
    Stored values are multiplied by max_norm / norm, formed in float64 and rounded once to their type. Differentiable
    wherever the framework differentiates, through the norm too; where values stay as they are the gradient is that of
    the identity. SPEC clause 10.

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
            return clip_units(leaf, axes, limit, formula, nonfinite)
        total = total_norm([leaf], raw=formula.raw)
        return _clipped(leaf, _clipper(leaf, total, limit, formula, nonfinite), formula)

    return each_leaf(one, x)


def clip_leaves(
    tree: T, leaves: Sequence[Leaf | None], total: Total, limit: Limit, formula: ClipFormula, nonfinite: str
) -> T:
    """The tree, whose leaves these are, clipped as its total norm asks for."""
    first = next(filter(None, leaves), None)
    if first is None:
        refuse_nonfinite(total.E, total.exact, nonfinite)  # of other ranks' leaves
        return tree
    clip = _clipper(first.adopted, total, limit, formula, nonfinite)
    clipped = []
    for leaf in leaves:
        new = leaf and _clipped(leaf.adopted, clip, formula)
        clipped.append(restored(new, leaf.adopted, leaf.given) if leaf and leaf.adopted is not leaf.given else new)
    return rebuild(tree, iter(clipped))  # type: ignore[no-any-return]


class Clip(NamedTuple):
    """What clipping by one norm does to the leaves it is of."""

    scaled: Callable[[Backend, Array], Array]  # values of one leaf
    #: what that is on the host, where the norm is known: numbers the values are multiplied and divided by
    steps: Sequence[tuple[str, float]] | None
    factor: Any  # what they are multiplied by, in float64, where that is all; a number, or an array of shape (1,)
    #: for their gradient, what `islices.norms.derivatives.attach_scaled` takes; None where the norm is a constant
    attached: tuple[Array, Array, Array] | None
    traced: bool = False  # whether the norm is


def _clipped(leaf: Any, clip: Clip | None, formula: ClipFormula) -> Any:
    """A leaf with what clip makes of its values."""
    if clip is None:
        return leaf
    sparse = isinstance(leaf, IndexedSlices)
    if sparse and leaf._slots is not None and clip.attached is None and clip.factor is not None:
        later = times(leaf, round_scalar(leaf.backend, leaf._arrays[0], clip.factor, "mul"))
        if later is not None:
            return later
    if sparse and clip.attached is None and clip.steps is not None:
        return scale_slices(leaf, clip.steps)
    B, values = (leaf.backend, leaf.values) if sparse else parts(leaf)
    if clip.attached is None:
        clipped = clip.scaled(B, values)
    else:
        clipped = clip.scaled(B, derivatives.constant(B, values))
        member = derivatives.of_leaf(leaf, raw=True)
        clipped = derivatives.attach_scaled(B, clipped, member, *clip.attached, slack=formula.slack)
    if not sparse:
        return clipped
    if clip.traced and clip.factor is not None:
        return known_times(leaf, round_scalar(B, values, clip.factor, "mul"), clipped)
    return IndexedSlices._trusted(
        B, clipped, leaf.indices, leaf.dense_shape, coalesced=leaf.coalesced, padded=leaf.padded
    )


def scale_slices(s: IndexedSlices, steps: Sequence[tuple[str, float]]) -> IndexedSlices:
    """Slices whose values are multiplied and divided by numbers, each rounded to their type."""
    B, look, flags = s.backend, s._look, {"coalesced": s.coalesced, "padded": s.padded}
    adopted = look is not None
    if look is None and B.host_only:
        look = B.look((s.values,), views=True)
    if look is not None and look.views is not None and modes.on_host():
        out = modes.compute("scaled", look.views[:1], steps=_rounded(look.dtypes[0], steps))
        if adopted:
            return IndexedSlices._of_views(s, out, look.views[1], **flags)
        values = B.from_host(out, s.values)
    else:
        values = _scaled(steps, B, s.values)
    return IndexedSlices._trusted(B, values, s.indices, s.dense_shape, **flags)


def _clipper(first: Any, total: Total, limit: Limit, formula: ClipFormula, nonfinite: str) -> Clip | None:
    """What clips leaves of this total norm, first being one; None where the values stay as they are."""
    E, exact = total.E, total.exact
    refuse_nonfinite(E, exact, nonfinite)
    known = E is modes.HOST and formula.wide  # Python's own floats decide, in no context
    if known and math.isfinite(exact[0]) and exact[0] <= limit.number:
        return None
    with contextlib.nullcontext() if known else E.scope():
        norm = exact if formula.wide else E.astype(exact, total.dtype)
        most = limit.number if known else limit.of(E, "float64" if formula.wide else total.dtype)
        if E is modes.HOST:
            zeroed = nonfinite == "zero" and not math.isfinite(exact[0])
            steps = None if zeroed else _known_steps(E, norm, most, formula)
            scaled: Callable[[Backend, Array], Array] = partial(_scaled, steps)
        else:
            finite = E.isfinite(exact) if nonfinite == "zero" else None
            traced = formula.steps(E, norm, most)
            scaled, steps = _traced_scaling(E, traced, finite), None if nonfinite == "zero" else traced
    factor = steps[0][1] if steps and len(steps) == 1 and steps[0][0] == "mul" else None
    attached = None
    if total.attached is not None:
        attached = _ingredients(get_backend(first), E, total.attached, norm, limit, formula, nonfinite)
    return Clip(scaled, steps if E is modes.HOST else None, factor, attached, E is not modes.HOST)


def _known_steps(E: Backend, norm: Array, most: Any, formula: ClipFormula) -> list[tuple[str, float]]:
    """The steps of a formula for a norm that is known, as Python numbers."""
    if formula.wide:
        return formula.steps(SCALARS, float(norm[0]), most)
    return [(name, c if isinstance(c, float) else c.item()) for name, c in formula.steps(E, norm, most)]


def _scaled(steps: Sequence[tuple[str, float]] | None, B: Backend, values: Array) -> Array:
    """Values after the steps, each number rounded to their type; zeros where there are none."""
    if steps is None:
        return modes.run("zeros_like", B, (values,))
    return scale_values(B, values, _rounded(B.dtype(values), steps))


def _rounded(dtype: str, steps: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """The steps, each number rounded to the type of a dtype's sums."""
    rounded = []
    for name, c in steps:
        rounded.append((name, round_float(c, dtype)))
    return rounded


def _ingredients(
    B: Backend, E: Backend, attached: Array, norms: Array, limit: Limit, formula: ClipFormula, nonfinite: str
) -> tuple[Array, Array, Array]:
    """(norms, limit, over) for `attach_scaled`, of norms that decide, arrays of E, and of the same attached."""
    dtype = B.dtype(attached)
    with E.scope():
        over = formula.over(E, norms, limit.of(E, E.dtype(norms)))
        over = E.where(E.isfinite(norms), over, -1.0) if nonfinite == "zero" else over
        over = E.astype(over, dtype)
    with B.scope():
        if E is modes.HOST:
            over = B.asarray(over, attached)
        return attached, limit.as_array(B, attached), over


def _traced_scaling(E: Backend, steps: Steps, finite: Array | None) -> Callable[[Backend, Array], Array]:
    """What scales the values of a leaf, where neither the norm nor whether it is finite is known yet."""

    def scaled(B: Backend, values: Array) -> Array:
        dtype = wide_dtype(B.dtype(values))
        with B.scope():
            rounded = [
                (name, round_scalar(B, values, c, name) if isinstance(c, float) else B.reshape(B.astype(c, dtype), ()))
                for name, c in steps
            ]
            clipped = scale_values(B, values, rounded)
            return clipped if finite is None else B.where(B.reshape(finite, ()), clipped, B.zeros_like(values))

    return scaled


def clip_by_row_norm(x: T, max_norm: float, *, nonfinite: Nonfinite = "propagate") -> T:
    """Every row of a gradient scaled down to a norm of at most max_norm.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    max_norm : float
        0 gives zeros, inf changes nothing.
    nonfinite : {"propagate", "raise", "zero"}
        What a NaN or infinite norm of a row does to that row.

    Returns
    -------
    same type as x
        Slices stay uncoalesced if they were, each multiplied by the factor of its row. Rows within max_norm keep their
        bits. SPEC clause 10.

    Raises
    ------
    ValueError, TypeError
        max_norm is no number >= 0.
    FloatingPointError
        nonfinite="raise" and the norm of a row is NaN or infinite (ValueError under a trace).

    Examples
    --------
    >>> import numpy as np
    >>> clip_by_row_norm(np.array([[3.0, 4.0], [0.0, 1.0]]), 1.0).tolist()
    [[0.6000000000000001, 0.8], [0.0, 1.0]]
    """
    limit = limit_of(max_norm)
    nonfinite = check_nonfinite(nonfinite)
    return each_leaf(lambda leaf: _clip_rows(limit.lift(leaf), limit, nonfinite), x)


def _clip_rows(leaf: Any, limit: Limit, nonfinite: str) -> Any:
    B, values = parts(leaf)
    check_float(B, values)
    if not B.shape(values):
        raise ValueError("x: got a 0-d array; accepted is shape (rows, *row_shape)")
    asked = derivatives.asks(B, values)
    layout = Layout("rows")
    keys: tuple[Array, ...] = ()
    known = derivatives.constant(B, values) if asked else values
    sums, place = known, None
    if isinstance(leaf, IndexedSlices):
        if leaf.padded and not modes.is_traced(B, values, leaf.indices):
            return _clip_rows(without_padding(leaf), limit, nonfinite)
        layout = Layout("rows", True, leaf.dense_shape[0])
        sums, place = modes.run(_row_sums, B, (known, leaf.indices), rows=layout.rows)
        keys = (leaf.indices, place)
    E, norms = row_norms([(B, as_rows(B, sums, B.shape(sums)[0]))], 2.0)
    with E.scope():
        refuse_nonfinite(E, norms, nonfinite)
        if E is modes.HOST and np.isfinite(norms).all() and (norms <= limit.number).all():
            return leaf
        factors = row_factors(E, norms, limit, nonfinite)
    clipped = scale_rows(B, known, E, factors, place)
    if asked:
        member = Member(layout, values, keys)
        rounded = rounded_norms(B, E, norms, norm_dtype([leaf]), values)
        attached = derivatives.attach_norms(B, rounded, [member])
        clipped = attach_rows(B, clipped, member, attached, E, norms, limit, nonfinite)
    return leaf.replace(values=clipped) if isinstance(leaf, IndexedSlices) else clipped


def attach_rows(
    B: Backend, clipped: Array, member: Member, attached: Array, E: Backend, norms: Array, limit: Limit, nonfinite: str
) -> Array:
    """What `scale_rows` made of a member's values, as a function of them and of their attached norms."""
    return derivatives.attach_scaled(
        B, clipped, member, *_ingredients(B, E, attached, norms, limit, ISLICES, nonfinite)
    )


def _row_sums(B: Backend, values: Array, indices: Array, *, rows: int | None) -> tuple[Array, Array]:
    """(sums of the distinct rows, for each slot its place among them)."""
    if B.is_traced(indices) or B.is_traced(values):
        valid = B.in_range(indices, rows)
        values, indices = B.select(values, indices, valid, rows) if B.sentinel_padding else (values, indices)
    ids, place = B.unique(indices, rows)
    sums = B.segment_sum(B.widen(values), place, B.shape(ids)[0])
    return B.astype(sums, B.dtype(values)), place


def row_factors(E: Backend, norms: Array, limit: Limit, nonfinite: str) -> Array:
    """What clips rows of these float64 norms (SPEC clause 10), in float64; with nonfinite "zero", -1 stands for zeros
    where the norm is not finite."""
    ((_, factors),) = islices_formula(E, norms, limit.of(E, "float64"))
    return E.where(E.isfinite(norms), factors, -1.0) if nonfinite == "zero" else factors


def scale_rows(B: Backend, values: Array, E: Backend, factors: Array, place: Array | None) -> Array:
    """Each row times its factor of `row_factors`, arrays of E; place has the factor of each row, its own by default."""
    with E.scope():
        factors = E.astype(factors, wide_dtype(B.dtype(values)))
    if E is modes.HOST:
        factors = B.asarray(factors, values)
    return modes.run(_scale_rows, B, (values, factors) if place is None else (values, factors, place))


def _scale_rows(B: Backend, values: Array, factors: Array, place: Array | None = None) -> Array:
    if place is not None:
        factors = B.take(factors, place)
    column = B.as_column(factors, values)
    scaled = B.astype(B.round_product(B.widen(values), column), B.dtype(values))
    return B.where(B.less_equal(column, -1.0), B.zeros_like(scaled), scaled)
