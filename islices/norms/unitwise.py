"""Clip by norms along axes, by norms of rows, or by the root mean square of a gradient.

A unit is the part of an array that one norm along some axes covers. Examples are a row, a column, and a filter of a
convolution. SPEC clauses 10 and 11. For clipping by the norms of whole gradients, see `islices.norms.clip`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from islices.backend import FLOATS, Array, Backend, Shape
from islices.core import modes
from islices.core.arguments import show, whole_number
from islices.core.conversion import counted, map_accepted, restored, without_padding
from islices.core.linear import round_scalar, wide_dtype
from islices.core.registry import describe, find_backend
from islices.core.shapes import same_shape, size_of
from islices.core.slices import IndexedSlices, parts, shape_of, shape_with_rows, with_values
from islices.core.trees import aligned, rebuild
from islices.embedding.table import Table
from islices.norms import derivatives
from islices.norms.clip_formulas import (
    ADAPTIVE,
    BY_BLOCK_RMS,
    ISLICES,
    ClipFormula,
    Semantics,
    Steps,
    lookup_formula,
    ones,
)
from islices.norms.derivatives import Layout, Member
from islices.norms.exact import Matrix, array_row_norms, exact_norms, on_host
from islices.norms.limits import Limit, check_max_norm, limit_of, traced_with
from islices.norms.nonfinite import Nonfinite, check_nonfinite, finite_norms, refuse_nonfinite
from islices.norms.norm import (
    Leaf,
    accept_leaves,
    check_float,
    look_at,
    norm_dtype,
    norm_of,
    rounded_norms,
)

T = TypeVar("T")


# ---------------------------------------------------------------------- by the root mean square
def clip_by_block_rms(
    x: T, threshold: float, *, semantics: Semantics = "islices", nonfinite: Nonfinite = "propagate"
) -> T:
    """Scale a gradient down, so that the root mean square of its elements is at most `threshold`. In a tree, clip each
    leaf separately.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
        The mean covers all elements of the dense array. Rows that are not stored count as zeros.
    threshold : float, or 0-d array of the framework
        With semantics "islices" and a finite root mean square, 0 makes all values zero, and inf changes nothing.
    semantics : {"islices", "optax"}
        The library whose arithmetic the function uses. SPEC clause 11.
    nonfinite : {"propagate", "raise", "zero"}
        The effect of a NaN or infinite root mean square: "propagate" makes every stored value NaN, "raise" raises
        FloatingPointError, and "zero" makes all values zero. With "propagate" and semantics "optax", an infinite root
        mean square makes finite values zero.

    Returns
    -------
    same type as x
        Sparse gradients are coalesced. With semantics "islices", outside of traces, a dense or coalesced leaf stays the
        same object if its root mean square is at most threshold.

    Raises
    ------
    TypeError
        threshold is neither a real number nor a 0-d array of the framework, or x contains integers.
    ValueError
        threshold is negative or NaN, the shape is not known, semantics or nonfinite is unknown, or nonfinite is "raise"
        in traced code.
    FloatingPointError
        nonfinite is "raise", and the root mean square is NaN or infinite.

    Notes
    -----
    For sparse gradients, time and memory are proportional to the number of stored rows. SPEC clause 10.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[3.0], [1.0]]), np.array([1, 1]), (4, 1))
    >>> clip_by_block_rms(s, 1.0).values.tolist()  # the root of 16 / 4 is 2
    [[2.0]]
    """
    formula = lookup_formula(BY_BLOCK_RMS, semantics, "clip_by_block_rms")
    limit = limit_of(threshold, "threshold")
    nonfinite = check_nonfinite(nonfinite)

    def one(leaf: Any) -> Any:
        shape = shape_of(leaf)
        if None in shape:
            raise ValueError(f"x: got shape {shape}; accepted is a known number of rows, which the mean is over")
        measured = measure_units(limit.lift(leaf), tuple(range(len(shape))), formula)
        count = math.sqrt(size_of(shape) or 1)
        E = measured.E
        with E.scope():
            rms = E.div(measured.norms, E.round_product(ones(E, measured.norms), count))
        return clip_measured(measured._replace(norms=rms, divisor=count), limit, formula, nonfinite)

    return map_accepted(one, x)


# ---------------------------------------------------------------------- by the parameters' norms
def adaptive_grad_clip(
    x: T,
    params: Any,
    clipping: float,
    *,
    eps: float = 1e-3,
    axes: Any = None,
    semantics: Semantics = "islices",
    nonfinite: Nonfinite = "propagate",
) -> T:
    """Scale every unit of a gradient down to a norm of at most `clipping` times the norm of the same unit of `params`.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    params : Table or dense array for each leaf of x, in the same structure
        Each table or array has the framework and the shape of its leaf.
    clipping : float, or 0-d array of the framework
        The largest accepted ratio of the two norms, at least 0.
    eps : float
        Norms of parameters below eps count as eps, so that parameters that are zero can change.
    axes : int, or list or tuple of ints, optional
        The axes that each norm reduces: (1,) makes each row of a table a unit. The default is the same as in optax: all
        axes, if at most one of them has a length other than 1. Otherwise the default is axis 0 for two and three
        dimensions, so the *columns* of a table are units. For four and five dimensions, the default is all axes except
        the last.
    semantics : {"islices", "optax"}
        The library whose arithmetic the function uses. SPEC clause 11.
    nonfinite : {"propagate", "raise", "zero"}
        The effect of a NaN or infinite norm: "propagate" makes the stored values of its unit NaN, "zero" makes them
        zero, and "raise" raises FloatingPointError. With "propagate" and semantics "optax", an infinite norm
        makes finite values zero.

    Returns
    -------
    same type as x
        Sparse gradients are coalesced. With semantics "islices", outside of traces, a dense or coalesced leaf stays the
        same object if none of its units changes.

    Raises
    ------
    TypeError, ValueError
        params differs from x in structure, framework or shape, x or params contains integers, or axes do not exist or
        occur twice. axes is None, and params have six dimensions or more, at least two of them with a length other than
        1. clipping or eps is not a number >= 0 (clipping may be a 0-d array), or semantics or nonfinite is unknown.
    FloatingPointError
        nonfinite is "raise", and a norm is NaN or infinite. In traced code, "raise" raises ValueError instead.

    Notes
    -----
    If axis 0 is reduced (the default), the whole table is read, since the norm of a column covers all rows. Time is
    then proportional to the table's size. On the CPU, memory is proportional to that size only if the reduced axes are
    not adjacent, such as (0, 2). For other axes and a sparse x, only the rows that x contains are read. Autograd treats
    the norms of params as constants. SPEC clause 10. Brock et al., "High-performance large-scale image recognition
    without normalization", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]])
    >>> s = IndexedSlices(np.array([[30.0, 40.0], [0.3, 0.4]]), np.array([2, 0]), (3, 2))
    >>> adaptive_grad_clip(s, table, 0.5, axes=1).values.tolist()
    [[0.3, 0.4], [3.0, 4.0]]
    """
    formula = lookup_formula(ADAPTIVE, semantics, "adaptive_grad_clip")
    ratio, least = limit_of(clipping, "clipping"), check_max_norm(eps, "eps")
    nonfinite = check_nonfinite(nonfinite)
    leaves = accept_leaves(x, "x")
    tables = _parameters(x, params, leaves)

    def one(leaf: Any, weights: Array) -> Any:
        along = unit_axes(shape_of(weights)) if axes is None else axes
        leaf, B = ratio.lift(leaf), parts(leaf)[0]
        if B.is_traced(weights) and 0 not in B.shape(weights):  # then clipped values of a known leaf are unknown too
            with B.scope():
                some = B.row_amax(B.reshape(weights, (1, None)))
            leaf = traced_with(leaf, some)
        measured = measure_units(leaf, along, formula)
        norms = _parameter_norms(measured, weights)
        E = measured.E
        with E.scope():
            if not formula.wide:
                norms = E.astype(norms, measured.dtype)
            least_norms = E.maximum(norms, least)
        return clip_measured(measured._replace(share=least_norms), ratio, formula, nonfinite)

    pairs = zip(leaves, tables, strict=True)
    clipped = (leaf and restored(one(leaf.accepted, weights), leaf.accepted, leaf.given) for leaf, weights in pairs)
    return rebuild(x, clipped)  # type: ignore[no-any-return]


def unit_axes(shape: Shape) -> tuple[int, ...]:
    """Return the axes that optax's norms reduce for parameters of this shape.

    Raise ValueError if the shape has six dimensions or more, at least two of them with a length other than 1.
    """
    rank = len(shape)
    if sum(n != 1 for n in shape) <= 1:
        return tuple(range(rank))
    if rank > 5:
        raise ValueError(f"axes: got None for parameters of shape {shape}; accepted is None up to five dimensions")
    return tuple(range(1 if rank <= 3 else rank - 1))


def _parameters(x: Any, params: Any, leaves: list[Leaf | None]) -> list[Array]:
    """Return the array of parameters for each leaf of x, and None for a leaf that is None.

    Raise TypeError or ValueError unless structure, framework, dtype and shape fit.
    """
    try:
        given = aligned(x, params)
    except (TypeError, KeyError, ValueError):
        raise ValueError("params: got another structure than x has; accepted is a parameter for each leaf") from None
    found: list[Array | None] = []
    for leaf, p in zip(leaves, given, strict=True):
        if leaf is None:
            found.append(None)
            continue
        B, _ = parts(leaf.accepted)
        weights = p.weights if isinstance(p, Table) else p
        if find_backend(weights) is not B or not B.is_array(weights) or B.dtype(weights) not in FLOATS:
            raise TypeError(f"params: got {describe(p)}; accepted is a Table or a dense float array of {B.name}")
        shape = shape_of(leaf.accepted)
        if not same_shape(B.shape(weights), shape):
            raise ValueError(f"params: got shape {B.shape(weights)} for a gradient of {shape}; accepted is its shape")
        found.append(weights)
    return found


# ---------------------------------------------------------------------- units
class Units(NamedTuple):
    """The units of an array. A unit consists of the elements that one norm along some axes covers."""

    shape: Shape  # the array's shape; None for an unknown number of rows
    axes: tuple[int, ...]  # the reduced axes, ascending

    @property
    def sizes(self) -> Shape:
        """Return the array's shape with 1 for each reduced axis: the shape of an array with one number per unit."""
        return tuple(1 if k in self.axes else n for k, n in enumerate(self.shape))

    @property
    def matrix(self) -> tuple[int | None, int | None]:
        """Return the number of units, and the number of elements per unit."""
        return _product(self.sizes), _product([self.shape[k] for k in self.axes])

    @property
    def order(self) -> tuple[int, ...]:
        """Return the array's axes, reordered so that the kept axes come before the reduced axes."""
        return (*(k for k in range(len(self.shape)) if k not in self.axes), *self.axes)

    def of(self, B: Backend, x: Array) -> Array:
        """Return an array of this shape as a matrix with one row per unit."""
        return B.reshape(self._permuted(B, x, self.order), self.matrix)

    def back(self, B: Backend, x: Array) -> Array:
        """Return the array whose matrix of units is x. This method is the inverse of `of`."""
        x = B.reshape(x, tuple(self.shape[k] for k in self.order))
        return self._permuted(B, x, tuple(int(k) for k in np.argsort(self.order)))

    def _permuted(self, B: Backend, x: Array, order: tuple[int, ...]) -> Array:
        return x if order == tuple(range(len(order))) else B.permute(x, order)


def check_axes(axes: Any, rank: int) -> tuple[int, ...]:
    """Return axes in ascending order, for an array with `rank` dimensions.

    `axes` is an int or several ints; negative axes count from the end. Raise TypeError for other objects, and
    ValueError if an axis does not exist or occurs twice.
    """
    if isinstance(axes, np.ndarray) and axes.dtype.kind in "iu":
        axes = axes.tolist()
    given = axes if isinstance(axes, (list, tuple)) else [axes]
    found = []
    for axis in given:
        number = whole_number(axis)
        if number is None:
            raise TypeError(f"axes: got {show(axes)}; accepted is an int or a list or tuple of ints")
        if not -rank <= number < rank:
            raise ValueError(f"axes: got {show(axes)}; accepted are axes from {-rank} to {rank - 1}")
        found.append(number % rank)
    if len(set(found)) < len(found):
        raise ValueError(f"axes: got {show(axes)}; accepted is each axis once")
    return tuple(sorted(found))


def units_of(shape: Sequence[int | None], axes: Sequence[int]) -> Units:
    """Return the units of an array with this shape, for norms that reduce these axes.

    Raise ValueError if a dimension other than the first is unknown.
    """
    if None in shape[1:]:
        raise ValueError(f"axes: got an array of shape {tuple(shape)} under a trace; accepted is a known shape of rows")
    return Units(tuple(shape), tuple(axes))


def _product(sizes: Sequence[int | None]) -> int | None:
    known = math.prod(n for n in sizes if n is not None)
    return known if None not in sizes else (None if known else 0)


# ---------------------------------------------------------------------- norms along axes
def clip_rows(leaf: Any, limit: Limit, nonfinite: str) -> Any:
    """Return an accepted leaf with each slice scaled by the factor of its row, as by `islices.clip_by_row_norm`."""
    check_float(*parts(leaf))
    shape = shape_with_rows(leaf)
    sparse = isinstance(leaf, IndexedSlices)
    if sparse and not modes.is_traced(leaf.backend, leaf.values, leaf.indices):
        leaf = without_padding(leaf)
    B, values = parts(leaf)
    sums = derivatives.constant(B, values)
    keys: tuple[Array, ...] = ()
    if sparse:
        sums, place = modes.run(_row_sums, B, (sums, leaf.indices), rows=shape[0])
        keys = leaf.indices, place
    E, norms = array_row_norms(B, sums)
    units = Units((*B.shape(values)[:1], *shape[1:]), tuple(range(1, len(shape))))
    measured = Measured(leaf, units, E, norms, norm_dtype([leaf]), keys=keys)
    return clip_measured(measured, limit, ISLICES, nonfinite)


def _row_sums(B: Backend, values: Array, indices: Array, *, rows: int | None) -> tuple[Array, Array]:
    """Return (sums of the distinct rows, the position of each slot's row among these sums)."""
    if B.is_traced(indices) or B.is_traced(values):
        valid = B.in_range(indices, rows)
        values, indices = B.select(values, indices, valid, rows) if B.sentinel_padding else (values, indices)
    ids, place = B.unique(indices, rows)
    sums = B.segment_sum(B.widen(values), place, B.shape(ids)[0])
    return B.astype(sums, B.dtype(values)), place


class Measured(NamedTuple):
    """A leaf to clip, with the norms of the leaf's units."""

    leaf: Any  # coalesced, unless the formula is raw or `keys` are given
    units: Units  # the units of the leaf's values
    E: Backend
    norms: Array  # a float64 array of E, with one norm for each unit
    dtype: str  # the norms' dtype by clause 8
    divisor: float = 1.0  # the number by which the norms have been divided
    share: Array | None = None  # for each unit, a factor of the limit: the norm of the parameters, at least eps
    keys: tuple[Array, ...] = ()  # if rows of slices are the units: (indices, the position of each slot's norm)


def measure_units(leaf: Any, axes: Any, formula: ClipFormula) -> Measured:
    """Return an accepted leaf with its norms along `axes`. Duplicates are summed unless the formula is `raw`."""
    check_float(*parts(leaf))
    along = check_axes(axes, len(shape_of(leaf)))
    if isinstance(leaf, IndexedSlices):
        leaf = counted(leaf, raw=formula.raw)
    B, values = parts(leaf)
    units = units_of(B.shape(values), along)
    E, norms = _unit_norms(B, derivatives.constant(B, values), units)
    return Measured(leaf, units, E, norms, norm_dtype([leaf]))


def _unit_norms(B: Backend, values: Array, units: Units) -> tuple[Backend, Array]:
    """Return (backend, norms) for an array's units.

    The host copies the array only if the reduced axes, or the other axes, are not adjacent.
    """
    if units.matrix[0] == 1:
        E, norms, _ = norm_of([look_at(values)], 2.0, raw=True)
        return E, norms
    B, values = on_host(B, values)
    with B.scope():
        matrix = units.of(B, values if B is modes.HOST else B.widen(values))
    return exact_norms([Matrix(B, matrix)], 2.0)


def _parameter_norms(measured: Measured, weights: Array) -> Array:
    """Return the norms of the parameters' units, as a float64 array of `measured.E`.

    If only the parameters are traced, return an array of the leaf's framework.
    """
    leaf, E = measured.leaf, measured.E
    B, values = parts(leaf)
    weights = derivatives.constant(B, weights)
    if isinstance(leaf, IndexedSlices) and 0 not in measured.units.axes:
        with B.scope():
            weights = B.read_rows(weights, leaf.indices)
        units = measured.units
    else:
        units = units_of(B.shape(weights), measured.units.axes)
    own, norms = _unit_norms(B, weights, units)
    if own is E:
        return norms
    with B.scope():  # only the parameters' norms, or only the gradient's norms, are traced
        return B.asarray(norms, values) if own is modes.HOST else norms


def clip_measured(measured: Measured, limit: Limit, formula: ClipFormula, nonfinite: str) -> Any:
    """Return the leaf with each unit clipped to the limit, or raise the errors of `refuse_nonfinite`."""
    leaf, E, norms = measured.leaf, measured.E, measured.norms
    B, values = parts(leaf)
    with E.scope():
        refuse_nonfinite(E, norms, nonfinite)
        if 0 in B.shape(values):
            return leaf
        known = norms if formula.wide else E.astype(norms, measured.dtype)
        most = limit.of(E, E.dtype(known))  # the limit: a number, or an array of E
        most = most if measured.share is None else E.round_product(measured.share, most)
        if formula.wide and E is modes.HOST and np.isfinite(norms).all() and (norms <= most).all():
            return leaf
        steps = formula.steps(E, known, most)
        finite = finite_norms(E, norms, nonfinite)
    sizes = measured.units.sizes
    clipped = scale_units(B, derivatives.constant(B, values), E, steps, finite, sizes, measured.keys[1:])
    if derivatives.requests(B, values):
        with E.scope():
            over = formula.decided(E, known, most, finite, measured.dtype)
        clipped = _attached(measured, clipped, limit, over, formula.slack)
    return with_values(leaf, clipped)


def _attached(measured: Measured, clipped: Array, limit: Limit, over: Array, slack: float) -> Array:
    """Return clipped values as a differentiable function of the unclipped values and of their norms.

    The norms of the parameters are constants.
    """
    E, norms, dtype, units = measured.E, measured.norms, measured.dtype, measured.units
    B, values = parts(measured.leaf)
    with E.scope():
        multiple = E.zeros_like(norms) + 1.0 if measured.share is None else E.astype(measured.share, "float64")
        multiple = E.astype(E.round_product(multiple, measured.divisor), dtype)
        whole = E.astype(E.round_product(norms, measured.divisor), dtype)
    with B.scope():
        if E is modes.HOST:
            multiple, over = B.asarray(multiple, values), B.asarray(over, values)
        matrix, scaled = (units.of(B, B.widen(x)) for x in (values, clipped))
        layout = Layout(True, bool(measured.keys), (*shape_of(measured.leaf), 1)[0])  # a 0-d leaf is one row
        member = Member(layout, matrix, measured.keys)
        attached = derivatives.attach_norms(B, rounded_norms(B, E, whole, dtype, values), [member])
        limits = multiple * limit.as_array(B, attached)
        out = derivatives.attach_scaled(B, scaled, member, attached, limits, over, slack=slack)
        return B.astype(units.back(B, out), B.dtype(values))


def scale_units(
    B: Backend, values: Array, E: Backend, steps: Steps, finite: Any, sizes: Shape, place: tuple[Array, ...] = ()
) -> Array:
    """Multiply and divide values by the numbers of `steps`: floats, or arrays of E of shape (k,), one number per unit.

    `finite` is None or a mask of shape (k,); where the mask is False, values become zeros. Arrays are reshaped to
    ``sizes``, which broadcasts with values. `place` is empty, or contains one array with the number of each row's unit.
    """
    wide = wide_dtype(B.dtype(values))
    with E.scope():
        arrays = [E.astype(c, wide) for _, c in steps if not isinstance(c, float)]
        if finite is not None:
            arrays.append(E.astype(finite, wide))
    if E is modes.HOST:
        with B.scope():
            arrays = [B.asarray(a, values) for a in arrays]
    rounded = [(name, round_scalar(B, values, c, name) if isinstance(c, float) else None) for name, c in steps]
    return modes.run(
        _scale_units,
        B,
        (values, *arrays, *place),
        sizes=sizes,
        steps=rounded,
        zero=finite is not None,
        placed=bool(place),
    )


def _scale_units(
    B: Backend,
    values: Array,
    *arrays: Array,
    sizes: Shape,
    steps: list[tuple[str, float | None]],
    zero: bool,
    placed: bool,
) -> Array:
    if placed:
        arrays = tuple(B.take(a, arrays[-1]) for a in arrays[:-1])
    numbers = iter([B.reshape(a, sizes) for a in arrays])
    out = B.widen(values)
    for name, c in steps:
        number = next(numbers) if c is None else c
        out = B.round_product(out, number) if name == "mul" else B.div(out, number)
    if zero:
        out = B.where(B.less_equal(next(numbers), 0.0), 0.0, out)
    return B.astype(out, B.dtype(values))
