"""A tiny array library that takes the place of your library in this example. The library has tensors in NumPy memory,
and a sparse gradient.

The library does not depend on islices. Like a real library, `sample` has unusual names for dtypes and functions, and
properties that an adapter has to handle. Tensors have the operators +, - and *, but no comparisons, and there is no
bfloat16. In half precision, `add_at` rounds after every addition. Row numbers of a gradient always have 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__version__ = "1.0"

KINDS = {"f16": "float16", "f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "bool": "bool"}


class Tensor:
    """A dense array. ``kind`` is the library's name for the array's dtype."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Any, kind: str | None = None) -> None:
        memory = np.asarray(memory, None if kind is None else KINDS[kind])
        if memory.dtype.name not in KINDS.values():
            raise TypeError(f"a Tensor holds {', '.join(KINDS)}, not {memory.dtype.name}")
        self._memory = memory

    @property
    def kind(self) -> str:
        return next(kind for kind, name in KINDS.items() if name == self._memory.dtype.name)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._memory.shape

    def memory(self) -> np.ndarray:
        return self._memory

    def __getitem__(self, place: Any) -> Tensor:
        return Tensor(self._memory[place])

    def __add__(self, other: Any) -> Tensor:
        return Tensor(self._memory + _plain(other, self))

    def __sub__(self, other: Any) -> Tensor:
        return Tensor(self._memory - _plain(other, self))

    def __mul__(self, other: Any) -> Tensor:
        return Tensor(self._memory * _plain(other, self))

    def __neg__(self) -> Tensor:
        return Tensor(-self._memory)

    __radd__, __rmul__ = __add__, __mul__

    def __repr__(self) -> str:
        return f"Tensor({self._memory.tolist()}, {self.kind!r})"


class RowGradient:
    """The library's sparse gradient of a table with the given shape. ``values[k]`` belongs to row ``rows[k]`` of the
    table; a row may occur several times."""

    def __init__(self, values: Tensor, rows: Tensor, shape: tuple[int, ...]) -> None:
        self.values, self.rows, self.shape = values, cast(rows, "i64"), shape


def _plain(x: Any, like: Tensor) -> np.ndarray:
    """Return the memory of a tensor. A number becomes an array with the kind of `like`."""
    return x._memory if isinstance(x, Tensor) else np.asarray(x, like._memory.dtype)


def _both(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    return _plain(a, b), _plain(b, a)


def zeros(shape: tuple[int, ...], kind: str) -> Tensor:
    return Tensor(np.zeros(shape, KINDS[kind]))


def count(n: int) -> Tensor:
    """Return the tensor 0, 1, ... n - 1."""
    return Tensor(np.arange(n), "i64")


def cast(x: Tensor, kind: str) -> Tensor:
    return Tensor(x._memory.astype(KINDS[kind]))


def reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return Tensor(x._memory.reshape(shape))


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    return Tensor(x._memory.transpose(axes))


def products(g: Tensor, x: Tensor) -> Tensor:
    """Return the matrix product of g's transpose and x, for each pair of matrices in the batches g and x."""
    return Tensor(np.matmul(g._memory.transpose(0, 2, 1), x._memory))


def join(tensors: Sequence[Tensor]) -> Tensor:
    return Tensor(np.concatenate([x._memory for x in tensors]))


# ---------------------------------------------------------------------- elementwise
def _of_one(function: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda x: Tensor(function(x._memory))


def _of_two(function: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda a, b: Tensor(function(*_both(a, b)))


absolute, root, finite, negate = map(_of_one, (np.abs, np.sqrt, np.isfinite, np.invert))
smaller, larger, at_most = map(_of_two, (np.minimum, np.maximum, np.less_equal))
equal, divide = map(_of_two, (np.equal, np.divide))


def choose(mask: Tensor, a: Any, b: Any) -> Tensor:
    return Tensor(np.where(mask._memory, *_both(a, b)))


# ---------------------------------------------------------------------- along an axis
def total(x: Tensor) -> Tensor:
    """Return the sum of each row of a matrix."""
    return Tensor(np.sum(x._memory, axis=1))


def peak(x: Tensor) -> Tensor:
    """Return the largest element of each row of a matrix, or 0 if no element of the row is positive."""
    return Tensor(np.max(x._memory, axis=1, initial=0))


# ---------------------------------------------------------------------- rows
def gather(x: Tensor, rows: Tensor) -> Tensor:
    return Tensor(x._memory[rows._memory])


def put(x: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write values into rows of x in place. If a row occurs twice, the last values remain."""
    x._memory[rows._memory] = values._memory


def add_at(x: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add values to rows of x in place, one after the other, and round each sum to x's precision."""
    np.add.at(x._memory, rows._memory, values._memory)


def max_at(x: Tensor, rows: Tensor, values: Tensor) -> None:
    """Replace each element of the given rows of x with the larger of the element and the value, in place."""
    np.maximum.at(x._memory, rows._memory, values._memory)


def distinct(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (the distinct elements in ascending order, the position of each element among these)."""
    found, places = np.unique(x._memory, return_inverse=True)
    return Tensor(found), Tensor(places)


def search(ordered: Tensor, queries: Tensor, side: str) -> Tensor:
    return Tensor(np.searchsorted(ordered._memory, queries._memory, side))


def where_true(mask: Tensor) -> Tensor:
    """Return the positions at which a 1-D mask is True."""
    return Tensor(np.flatnonzero(mask._memory))
