"""Clipping: by value, and by norms of the gradient itself.

SPEC clauses 9 to 11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from islices import modes
from islices.arguments import check_name, is_real, show
from islices.backend import INTEGERS, Array, Backend
from islices.floats import FLOATS
from islices.linear import as_float, round_scalar, scale_values, wide_dtype
from islices.native import map_leaves, rebuild, without_padding
from islices.norms import (
    Leaf,
    Total,
    adopt_leaves,
    as_rows,
    check_float,
    of_one_framework,
    parts,
    total_norm,
)
from islices.presets import BY_GLOBAL_NORM, BY_NORM, BY_VALUE, ClipFormula, Steps, islices_formula, lookup_formula
from islices.registry import describe
from islices.rows import coalesce
from islices.slices import IndexedSlices
from islices.sums import row_norms

__all__ = [
    "check_clip",
    "check_max_norm",
    "check_nonfinite",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_row_norm",
    "clip_by_value",
    "clip_leaves",
    "refuse_nonfinite",
    "row_factors",
    "scale_rows",
]

NONFINITE = ("propagate", "raise", "skip")


# ---------------------------------------------------------------------- clipping by value
def clip_by_value(x: Any, lo: float, hi: float, *, semantics: str = "islices") -> Any:
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
    for name, bound in (("lo", lo), ("hi", hi)):
        if not is_real(bound):
            raise TypeError(f"{name}: got {describe(bound)}; accepted is a real number")
    if not lo <= hi:
        raise ValueError(f"lo and hi: got {show(lo)} and {show(hi)}; accepted is lo <= hi")

    def one(leaf: Any) -> Any:
        sparse = isinstance(leaf, IndexedSlices)
        if sparse and not lo <= 0 <= hi:
            raise ValueError(
                f"lo and hi: got {show(lo)} and {show(hi)}; accepted is lo <= 0 <= hi, since other bounds change the "
                "rows that are not stored: densify first, clip_by_value(to_dense(x), lo, hi)"
            )
        if sparse and not raw:
            leaf = coalesce(leaf)
        B, values = parts(leaf)
        bounds = [round_scalar(B, values, _within(B, values, v), name) for name, v in (("lo", lo), ("hi", hi))]
        clipped = modes.run(_clamp, B, (values,), lo=bounds[0], hi=bounds[1])
        return leaf.replace(values=clipped) if sparse else clipped

    return map_leaves(one, x)


def _within(B: Backend, values: Array, bound: Any) -> Any:
    """A bound beyond the range of integer values, moved to its end."""
    if B.dtype(values) not in INTEGERS:
        return bound
    limit = np.iinfo(B.dtype(values))
    if isinstance(bound, float) and math.isinf(bound):
        return limit.max if bound > 0 else limit.min
    if not isinstance(bound, (int, np.integer)):
        return bound
    return min(max(int(bound), limit.min), limit.max)


def _clamp(B: Backend, values: Array, *, lo: Any, hi: Any) -> Array:
    return B.astype(B.minimum(B.maximum(B.widen(values), lo), hi), B.dtype(values))


# ---------------------------------------------------------------------- clipping by a norm
def clip_by_norm(x: Any, max_norm: float, *, semantics: str = "islices", nonfinite: str = "propagate") -> Any:
    """A gradient scaled down to a norm of at most max_norm; in a tree, each leaf by its own norm.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    max_norm : float
        0 gives zeros, inf changes nothing.
    semantics : {"islices", "tensorflow", "keras"}
        Whose arithmetic; SPEC clause 11.
    nonfinite : {"propagate", "raise", "skip"}
        What a NaN or infinite norm does: every stored value NaN, FloatingPointError, or zeros.

    Returns
    -------
    same type as x
        x itself if its norm is within max_norm.

    Raises
    ------
    ValueError
        max_norm is negative or NaN, or nonfinite="raise" under a trace, where nothing can be raised.
    FloatingPointError
        nonfinite="raise" and the norm is NaN or infinite.

    Notes
    -----
    Stored values are multiplied by max_norm / norm, formed in float64 and rounded once to their type. SPEC clause 10.
    Outside traced code the factor is a constant to autograd (clause 20).

    Examples
    --------
    >>> import numpy as np
    >>> clip_by_norm([np.array([3.0, 4.0]), np.array([0.5])], 1.0)
    [array([0.6, 0.8]), array([0.5])]
    """
    formula = lookup_formula(BY_NORM, semantics, "clip_by_norm")
    limit = check_max_norm(max_norm)
    check_nonfinite(nonfinite)

    def one(leaf: Any) -> Any:
        return _with_values(leaf, _clipper(total_norm([leaf], raw=formula.raw), limit, formula, nonfinite))

    return _each(one, x)


def clip_by_global_norm(
    tree: Any,
    max_norm: float,
    *,
    semantics: str = "islices",
    nonfinite: str = "propagate",
    group: Any = None,
    replicated: Any = False,
) -> tuple[Any, Any]:
    """All gradients of a tree scaled down together to a global norm of at most max_norm.

    Parameters
    ----------
    tree : list, tuple or dict, nested, of sparse gradients and dense arrays; None is kept
    max_norm : float
        0 gives zeros, inf changes nothing.
    semantics : {"islices", "tensorflow", "keras", "torch", "mxnet", "optax"}
        Whose arithmetic; SPEC clause 11.
    nonfinite : {"propagate", "raise", "skip"}
        What a NaN or infinite norm does: every stored value NaN, FloatingPointError, or zeros.
    group, replicated
        As in `global_norm`: the norm is over all ranks' leaves, and every rank scales its own.

    Returns
    -------
    (tree, norm)
        The clipped tree, leaves of their own types, and the norm before clipping as `global_norm` gives it.

    Raises
    ------
    ValueError
        max_norm is negative or NaN, or nonfinite="raise" under a trace, where nothing can be raised.
    FloatingPointError
        nonfinite="raise" and the norm is NaN or infinite (on every rank of a group).

    Notes
    -----
    SPEC clauses 10 and 11, with a group 25. What `global_norm` raises is raised here too.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[3.0], [3.0]]), np.array([1, 1]), (4, 1))
    >>> (clipped, dense), norm = clip_by_global_norm([s, np.array([8.0])], 5.0)
    >>> float(norm), clipped.values.tolist(), dense.tolist()
    (10.0, [[1.5], [1.5]], [4.0])
    """
    if group is not None or replicated is not False:
        from islices.distributed.norms import clip_over

        return clip_over(tree, max_norm, semantics, nonfinite, group, replicated)
    formula, limit = check_clip(max_norm, semantics, nonfinite)
    leaves = adopt_leaves(tree, "tree")
    total = total_norm(of_one_framework(leaves), raw=formula.raw)
    return clip_leaves(tree, leaves, total, limit, formula, nonfinite), total.given


def check_clip(max_norm: Any, semantics: str, nonfinite: str) -> tuple[ClipFormula, float]:
    """(formula, max_norm as a float) of clip_by_global_norm, its arguments checked."""
    formula = lookup_formula(BY_GLOBAL_NORM, semantics, "clip_by_global_norm")
    limit = check_max_norm(max_norm)
    check_nonfinite(nonfinite)
    return formula, limit


def clip_leaves(
    tree: Any, leaves: Sequence[Leaf | None], total: Total, limit: float, formula: ClipFormula, nonfinite: str
) -> Any:
    """The tree, whose leaves these are, clipped as its total norm asks for."""
    clip = _clipper(total, limit, formula, nonfinite)
    if all(leaf is None for leaf in leaves):
        return tree
    return rebuild(tree, iter([_apply(lambda x: _with_values(x, clip), leaf) for leaf in leaves]))


def _apply(fn: Callable[[Any], Any], leaf: Leaf | None) -> Any:
    """fn of a leaf as the caller's type; what fn returns as it is stays the caller's own object."""
    if leaf is None:
        return None
    out = fn(leaf.adopted)
    return leaf.given if out is leaf.adopted else leaf.restore(out)


def _each(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Like `map_leaves`, but what fn leaves alone stays the caller's own object."""
    return rebuild(tree, iter([_apply(fn, leaf) for leaf in adopt_leaves(tree, "x")]))


def check_max_norm(max_norm: Any) -> float:
    """max_norm as a float, or TypeError or ValueError."""
    if isinstance(max_norm, bool) or not is_real(max_norm):
        raise TypeError(f"max_norm: got {describe(max_norm)}; accepted is a real number >= 0")
    limit = as_float(max_norm)
    if not limit >= 0:
        raise ValueError(f"max_norm: got {limit}; accepted is a number >= 0 (inf changes nothing)")
    return limit


def check_nonfinite(nonfinite: str) -> None:
    """Raise ValueError for a name that means nothing."""
    check_name(nonfinite, NONFINITE, "nonfinite")


#: What clipping does to the values of one leaf.
Clip = Callable[[Backend, Array], Array]


def _with_values(leaf: Any, clip: Clip | None) -> Any:
    if clip is None:
        return leaf
    B, values = parts(leaf)
    clipped = clip(B, values)
    if not isinstance(leaf, IndexedSlices):
        return clipped
    return IndexedSlices._trusted(
        B, clipped, leaf.indices, leaf.dense_shape, coalesced=leaf.coalesced, padded=leaf.padded
    )


def _clipper(total: Total, limit: float, formula: ClipFormula, nonfinite: str) -> Clip | None:
    """What clips leaves of this total norm; None where the values stay as they are."""
    E, exact = total.E, total.exact
    with E.scope():
        refuse_nonfinite(E, exact, nonfinite)
        if E is not modes.HOST:
            norm = exact if formula.wide else E.astype(exact, total.dtype)
            finite = E.isfinite(exact) if nonfinite == "skip" else None
            return _traced_clip(E, formula.steps(E, norm, limit), finite)
        known = float(exact[0])
        if nonfinite == "skip" and not math.isfinite(known):
            return lambda B, values: modes.run(_zeros, B, (values,))
        if formula.wide:
            if math.isfinite(known) and known <= limit:
                return None
            factors = formula.steps(FLOATS, known, limit)
        else:
            steps = formula.steps(E, E.astype(exact, total.dtype), limit)
            factors = [(name, c if isinstance(c, float) else c.item()) for name, c in steps]

    def clip(B: Backend, values: Array) -> Array:
        return scale_values(B, values, [(name, round_scalar(B, values, c, name)) for name, c in factors])

    return clip


def refuse_nonfinite(E: Backend, norms: Array, nonfinite: str) -> None:
    """Raise FloatingPointError for a norm that is not finite, where nonfinite is "raise"."""
    if nonfinite != "raise":
        return
    if E is not modes.HOST:
        raise ValueError("nonfinite: got 'raise' under a trace; accepted there are 'propagate' and 'skip'")
    if not np.isfinite(norms).all():
        bad = float(norms[~np.isfinite(norms)][0])
        raise FloatingPointError(f"the norm of the gradient is {bad}; nonfinite= accepts 'propagate' and 'skip' too")


def _traced_clip(E: Backend, steps: Steps, finite: Array | None) -> Clip:
    """The same, where neither the norm nor whether it is finite is known yet."""

    def clip(B: Backend, values: Array) -> Array:
        dtype = wide_dtype(B.dtype(values))
        with B.scope():
            rounded = [
                (name, round_scalar(B, values, c, name) if isinstance(c, float) else B.reshape(B.astype(c, dtype), ()))
                for name, c in steps
            ]
            clipped = scale_values(B, values, rounded)
            return clipped if finite is None else B.where(B.reshape(finite, ()), clipped, B.zeros_like(values))

    return clip


def _zeros(B: Backend, values: Array) -> Array:
    return B.zeros_like(values)


def clip_by_row_norm(x: Any, max_norm: float, *, nonfinite: str = "propagate") -> Any:
    """Every row of a gradient scaled down to a norm of at most max_norm.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    max_norm : float
        0 gives zeros, inf changes nothing.
    nonfinite : {"propagate", "raise", "skip"}
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
    limit = check_max_norm(max_norm)
    check_nonfinite(nonfinite)
    return _each(lambda leaf: _clip_rows(leaf, limit, nonfinite), x)


def _clip_rows(leaf: Any, limit: float, nonfinite: str) -> Any:
    B, values = parts(leaf)
    check_float(B, values)
    if not B.shape(values):
        raise ValueError("x: got a 0-d array; accepted is shape (rows, *row_shape)")
    sums, place = values, None
    if isinstance(leaf, IndexedSlices):
        if not modes.is_traced(B, values, leaf.indices):
            leaf = without_padding(leaf)
            values = leaf.values
        sums, place = modes.run(_row_sums, B, (values, leaf.indices), rows=leaf.dense_shape[0])
    E, norms = row_norms([(B, as_rows(B, sums, B.shape(sums)[0]))], 2.0)
    with E.scope():
        refuse_nonfinite(E, norms, nonfinite)
        if E is modes.HOST and np.isfinite(norms).all() and (norms <= limit).all():
            return leaf
        factors = row_factors(E, norms, limit, nonfinite)
    clipped = scale_rows(B, values, E, factors, place)
    return leaf.replace(values=clipped) if isinstance(leaf, IndexedSlices) else clipped


def _row_sums(B: Backend, values: Array, indices: Array, *, rows: int | None) -> tuple[Array, Array]:
    """(sums of the distinct rows, for each slot its place among them)."""
    if B.is_traced(indices) or B.is_traced(values):
        valid = B.in_range(indices, rows)
        values, indices = B.select(values, indices, valid, rows) if B.sentinel_padding else (values, indices)
    ids, place = B.unique(indices, rows)
    sums = B.segment_sum(B.widen(values), place, B.shape(ids)[0])
    return B.astype(sums, B.dtype(values)), place


def row_factors(E: Backend, norms: Array, limit: float, nonfinite: str) -> Array:
    """What clips rows of these float64 norms (SPEC clause 10), in float64; with nonfinite "skip", -1 stands for zeros
    where the norm is not finite."""
    ((_, factors),) = islices_formula(E, norms, limit)
    return E.where(E.isfinite(norms), factors, -1.0) if nonfinite == "skip" else factors


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
