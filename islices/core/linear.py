"""Linear operations that scale, divide, concatenate and add gradients.

Other modules use this module to round scalars (SPEC clause 18) and to multiply values by scalars. `join_arrays` and
`_sum` are operations (see `islices.core.modes`). SPEC clause 6.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np

from islices.backend import FLOATS, INTEGERS, Array, Backend, Shape
from islices.core import modes
from islices.core.arguments import is_real, show
from islices.core.conversion import accept, coalesce_slices, map_accepted, restored
from islices.core.host import bfloat16_to_float32
from islices.core.registry import describe, get_backend
from islices.core.slices import IndexedSlices, check_indices, parts, with_values
from islices.core.trees import aligned, flatten, rebuild

T = TypeVar("T")

#: the dtypes of arrays that `number_of` converts to a number
REAL = (*FLOATS, *INTEGERS, "bool", "int8", "int16", "uint8", "uint16", "uint32", "uint64")


def scale(x: T, c: Any) -> T:
    """Multiply a gradient by a number.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    c : real number, 0-d array of NumPy, or array of the framework of shape () or (1,)
        The factor, which islices first rounds to the values' dtype (float32 for 16-bit values). For integer gradients,
        c must be an integer.

    Returns
    -------
    same type as x
        Sparse gradients are not coalesced. SPEC clauses 6 and 18.

    Raises
    ------
    TypeError
        c is not a real number, x contains integers and c is not an integer, or a leaf is not a gradient.
    ValueError
        x contains integers, and c is out of the range of their dtype.

    Examples
    --------
    >>> import numpy as np
    >>> scale([np.array([1.0, 2.0]), None], 0.5)
    [array([0.5, 1. ]), None]
    """
    return map_accepted(lambda leaf: _scale(leaf, c), x)


def _scale(leaf: Any, c: Any) -> Any:
    B, values = parts(leaf)
    return with_values(leaf, scale_values(B, values, [("mul", round_scalar(B, values, c, "c"))]))


def _divide(s: IndexedSlices, c: Any) -> IndexedSlices:
    B, values = s.backend, s.values
    if B.dtype(values) in INTEGERS:
        raise TypeError(f"values: got {B.dtype(values)}; accepted is a floating dtype, since integers do not divide")
    flag = isinstance(c, (bool, np.bool_)) or (B.is_array(c) and B.dtype(c) == "bool")
    if flag or (isinstance(c, np.ndarray) and c.dtype.kind == "b"):
        raise TypeError(f"divisor: got {describe(c)}; accepted is a real number, and no bool")
    divisor = round_scalar(B, values, c, "divisor")
    return s._like(scale_values(B, values, [("div", divisor)]))


def round_scalar(B: Backend, values: Array, c: Any, argument: str) -> Any:
    """Round a scalar argument as SPEC clause 18 requires.

    Return a Python number that the values' dtype (float32 for 16-bit values) represents exactly. If c is traced, or if
    the framework records operations on c, return an array of that dtype with the shape of c, () or (1,). Raise
    TypeError or ValueError if c is not accepted.
    """
    dtype = B.dtype(values)
    if type(c) is float and dtype in FLOATS:  # nearly always
        return round_float(c, dtype)
    if not isinstance(c, numbers.Real) and not isinstance(c, np.generic):
        c = _zero_d(B, c, argument)
        if not isinstance(c, numbers.Real):
            if dtype in INTEGERS and B.dtype(c) not in (*INTEGERS, "bool"):
                raise TypeError(f"{argument}: got {describe(c)}; accepted is an int, since the values are {dtype}")
            with B.scope():
                return B.astype(c, wide_dtype(dtype))
    if isinstance(c, (bool, np.bool_)):
        c = int(c)
    if not is_real(c):
        raise TypeError(f"{argument}: got {describe(c)}; accepted is a real number")
    if dtype in INTEGERS:
        if not isinstance(c, (int, np.integer)):
            raise TypeError(f"{argument}: got {describe(c)}; accepted is an int, since the values are {dtype}")
        limit = np.iinfo(dtype)
        if not limit.min <= c <= limit.max:
            raise ValueError(f"{argument}: got {show(c)}; accepted is what fits the values' {dtype}")
        return int(c)
    return round_float(as_float(c), dtype)


def round_float(c: float, dtype: str) -> float:
    """Return c rounded to float32, or c itself if `dtype` is "float64". `dtype` is a floating dtype of values.

    If c is out of the range of float32, return an infinity without a warning.
    """
    if dtype == "float64":
        return c
    if -3e38 < c < 3e38:
        return float(np.float32(c))
    with np.errstate(over="ignore"):
        return float(np.float32(c))


def as_float(c: Any) -> float:
    """Return c as a float, or an infinity if c is too large for a float."""
    try:
        return float(c)
    except OverflowError:
        return math.inf if c > 0 else -math.inf


def _zero_d(B: Backend, c: Any, argument: str) -> Any:
    if (B.is_array(c) and B.shape(c) in ((), (1,))) or (isinstance(c, np.ndarray) and c.shape == ()):
        if not isinstance(c, np.ndarray) and (B.is_traced(c) or B.records_gradient(c)):
            return c
        number = c.reshape(()).item() if isinstance(c, np.ndarray) else number_of(B, c)
        if isinstance(number, numbers.Real):
            return number
    raise TypeError(f"{argument}: got {describe(c)}; accepted is a real number or a 0-d array of {B.name}")


def number_of(B: Backend, c: Array) -> Any:
    """Return the only element of an array as a Python number, or None if the array's dtype is not in `REAL`."""
    dtype = B.dtype(c)
    if dtype not in REAL:  # some of the other dtypes have no NumPy form
        return None
    host = B.to_numpy(c)
    return (bfloat16_to_float32(host) if dtype == "bfloat16" else host).reshape(()).item()


@cache
def wide_dtype(dtype: str) -> str:
    """Return the dtype of arithmetic on values of a dtype: float32 for 16-bit floats, else the same dtype."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def scale_values(B: Backend, values: Array, steps: Sequence[tuple[str, Any]]) -> Array:
    """Multiply and divide values by scalars in several steps; a step is ("mul" or "div", scalar).

    Each step rounds. For 16-bit values the steps are computed in float32, and the result is rounded to 16 bits once. A
    scalar is a Python number, or an array of one number that broadcasts with `values`.
    """
    if all(isinstance(c, (int, float)) for _, c in steps):
        return modes.run("scaled", B, (values,), steps=steps)
    with B.scope():
        return B.scaled(values, steps)


# ---------------------------------------------------------------------- add, concat
def concat(xs: Sequence[T]) -> T:
    """Concatenate the slices of sparse gradients of one table. The result stands for the sum of the gradients.

    Parameters
    ----------
    xs : list or tuple of sparse gradients
        One or more gradients with the same framework, dtype and dense_shape (an unknown number of rows matches any).

    Returns
    -------
    same type as the first
        If some gradients have int32 indices and others int64, the result has int64 indices. Duplicates are not summed,
        except in MXNet's sparse type, which cannot have duplicates. SPEC clause 6.

    Raises
    ------
    TypeError, ValueError
        xs is not a list or tuple, is empty, or contains an object that is not a sparse gradient. Or frameworks, dtypes
        or shapes differ.
    IndexError
        An index of a gradient with an unknown number of rows is out of the range of the other gradients' rows.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> a = IndexedSlices(np.ones((1, 2)), np.array([0]), (3, 2))
    >>> concat([a, a]).indices.tolist()
    [0, 0]
    """
    if isinstance(xs, IndexedSlices) or not isinstance(xs, (list, tuple)):
        raise TypeError(f"xs: got {describe(xs)}; accepted is a list or tuple of sparse gradients")
    if not xs:
        raise ValueError("xs: got nothing; accepted is at least one sparse gradient")
    leaves = []
    for x in xs:
        leaf = accept(x, "xs")
        if not isinstance(leaf, IndexedSlices):
            raise TypeError(f"xs: got {describe(x)}; accepted are sparse gradients (add takes dense ones too)")
        leaves.append(leaf)
    return restored(_concat(leaves, "xs"), leaves[0], xs[0])  # type: ignore[no-any-return]


def _concat(leaves: list[IndexedSlices], argument: str) -> IndexedSlices:
    first = leaves[0]
    if len(leaves) == 1:
        return first
    B = first.backend
    shape = first.dense_shape
    for s in leaves[1:]:
        _same_kind(B, first.values, s.backend, s.values, argument)
        shape = _join_shapes(shape, s.dense_shape, argument)
    for s in leaves:
        if s.dense_shape[0] is None and shape[0] is not None and not B.is_traced(s.indices):
            check_indices(B, s.indices, shape[0])
    indices = [s.indices for s in leaves]
    if len({B.dtype(i) for i in indices}) > 1:
        with B.scope():
            indices = [B.astype(i, "int64") for i in indices]
    values = modes.run(join_arrays, B, [s.values for s in leaves])
    return IndexedSlices._trusted(
        B, values, modes.run(join_arrays, B, indices), shape, padded=any(s.padded for s in leaves)
    )


def join_arrays(B: Backend, *arrays: Array) -> Array:
    return B.concat(arrays)


def _same_kind(B: Backend, a: Array, other: Backend, b: Array, argument: str) -> None:
    if other is not B:
        raise TypeError(f"{argument}: got arrays of {B.name} and {other.name}; accepted is one framework (see convert)")
    if B.dtype(a) != B.dtype(b):
        raise TypeError(f"{argument}: got {B.dtype(a)} and {B.dtype(b)}; accepted is one dtype")


def _join_shapes(a: Shape, b: Shape, argument: str) -> Shape:
    if len(a) != len(b) or a[1:] != b[1:] or (a[:1] != b[:1] and None not in (a[0], b[0])):
        raise ValueError(f"{argument}: got dense shapes {a} and {b}; accepted is one shape")
    return b if a and a[0] is None else a


def add(*xs: Any) -> Any:
    """Add gradients. A sum of sparse gradients is their concatenation, as in `concat`; a sum with a dense one is dense.

    Parameters
    ----------
    *xs : sparse gradient, dense array, None, or lists, tuples or dicts of them
        Structures are added leaf by leaf and must have the same containers. None counts as zero.

    Returns
    -------
    structure of the first argument that is not None
        A sum of sparse gradients has the type of the first term. MXNet's sparse type cannot have duplicates, so a sum
        of that type is coalesced. A sum with a dense term is dense.

    Raises
    ------
    TypeError, ValueError
        There is no argument, a leaf is not a gradient, or structures, frameworks, dtypes or shapes differ.
    IndexError
        An index of a gradient with an unknown number of rows is out of the range of the other gradients' rows.

    Notes
    -----
    If some terms are sparse and others dense, the dense terms are first added left to right. The sparse terms are
    concatenated and coalesced, and each of their rows is then added to the dense sum. Other rows of the dense sum keep
    their bits. SPEC clause 6.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[1.0]]), np.array([1]), (2, 1))
    >>> add(s, s).indices.tolist(), add(s, np.array([[10.0], [20.0]])).tolist()
    ([1, 1], [[10.0], [21.0]])
    """
    if not xs:
        raise TypeError("xs: got nothing; accepted is at least one gradient")
    flatten(xs, "xs")  # raises for endless nesting
    trees = [x for x in xs if x is not None]
    if not trees:
        return None
    try:
        columns = list(zip(*(aligned(trees[0], tree) for tree in trees), strict=True))
    except (TypeError, KeyError, ValueError):
        raise ValueError(
            "xs: got structures that differ; accepted are equal nestings of lists, tuples and dicts"
        ) from None
    return rebuild(trees[0], iter([_add_leaves([leaf for leaf in column if leaf is not None]) for column in columns]))


def _add_leaves(xs: list[Any]) -> Any:
    if not xs:
        return None
    leaves = [accept(x, "xs") for x in xs]
    sparse = [leaf for leaf in leaves if isinstance(leaf, IndexedSlices)]
    dense = [leaf for leaf in leaves if not isinstance(leaf, IndexedSlices)]
    if not dense:
        return restored(_concat(sparse, "xs"), leaves[0], xs[0])
    B = get_backend(dense[0])
    shape = B.shape(dense[0])
    for x in dense[1:]:
        _same_kind(B, dense[0], get_backend(x), x, "xs")
        _join_shapes(shape, B.shape(x), "xs")
    total = dense[0] if len(dense) == 1 else modes.run(_sum, B, dense)
    if not sparse:
        return total
    _same_kind(B, total, sparse[0].backend, sparse[0].values, "xs")
    s = _concat(sparse, "xs")
    _join_shapes(s.dense_shape, shape, "xs")
    if s.dense_shape[0] is None and not modes.is_traced(B, s.indices):
        check_indices(B, s.indices, shape[0])
    s = coalesce_slices(s)
    return modes.run("add_rows", B, (total, s.values, s.indices))


def _sum(B: Backend, *arrays: Array) -> Array:
    dtype = B.dtype(arrays[0])
    total = arrays[0]
    for x in arrays[1:]:
        total = B.astype(B.widen(total) + B.widen(x), dtype)
    return total


# ---------------------------------------------------------------------- the operators of IndexedSlices
IndexedSlices._add = staticmethod(add)
IndexedSlices._scale = staticmethod(scale)
IndexedSlices._divide = staticmethod(_divide)
