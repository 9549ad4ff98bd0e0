"""Arguments for hostile calls: good ones, and what makes a good one bad.

A `Draw` belongs to one call. It makes arrays of one backend from a seeded generator, remembers those whose bits must
survive a call that raises, and spoils an argument by what it is: an array by its dtype, shape, layout or framework,
slices by a part of theirs, a number by another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import islices
from islices.backend import Backend
from islices.conformance.properties.hostile_frameworks import oddities
from islices.conformance.properties.hostile_junk import NAMES, NUMBERS, SHAPES, junk

__all__ = ["Draw", "Watched"]

FLOATS = ("float32", "float32", "float64", "float16", "bfloat16")
INTS = ("int32", "int64")
#: Few shapes, because compilers compile each.
ROWS = (6, 6, 6, 1, 0)
ROW_SHAPES = ((3,), (3,), (), (2, 2), (0,))
COUNTS = (3, 3, 0, 1, 8)
BAD_INDICES = (-1, -(2**31), 2**31 - 1, 2**31, 2**62, -(2**63), 2**63 - 1)
SPECIAL = (float("nan"), float("inf"), -float("inf"), 3e38, -1e-30, 0.0, -0.0)


class Watched(NamedTuple):
    """An array whose bits must survive a call that raises."""

    label: str
    array: Any
    backend: Backend
    bits: np.ndarray[Any, Any]  # what it held when it was made


class Draw:
    """What one hostile call is made of; everything follows from the generator."""

    def __init__(self, rng: random.Random, backend: Backend, others: Sequence[Backend], *, wide: bool) -> None:
        self.rng, self.backend, self.others = rng, backend, others
        self.watched: list[Watched] = []
        self.aliased = False
        self.dtype = rng.choice([d for d in FLOATS if d in backend.float_dtypes and (wide or d != "float64")])
        self.index_type = rng.choice(INTS)
        self.rows, self.row_shape = rng.choice(ROWS), rng.choice(ROW_SHAPES)
        self.n = rng.choice(COUNTS) if self.rows else 0

    # ------------------------------------------------------------------ good arguments
    def numbers(self, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
        """NumPy numbers of a dtype (bfloat16 as uint16), now and then one that is not finite."""
        size = int(np.prod(shape))
        if dtype not in ("float16", "bfloat16", "float32", "float64"):
            return np.array([self.rng.randrange(-3, 4) for _ in range(size)], np.int64).astype(dtype).reshape(shape)
        data = [self.rng.randrange(-8, 9) / 4 for _ in range(size)]
        if size and self.rng.random() < 0.2:
            data[self.rng.randrange(size)] = self.rng.choice(SPECIAL)
        x = np.array(data, np.float32).reshape(shape)
        if dtype == "bfloat16":
            return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        with np.errstate(over="ignore"):
            return x.astype(dtype)

    def own(self, array: np.ndarray[Any, Any], label: str, backend: Backend | None = None) -> Any:
        """The array as one of the backend's, watched."""
        B = backend or self.backend
        x = self._laid_out(array, B) if B.host_only and self.rng.random() < 0.2 else B.asarray(array)
        self.watched.append(Watched(label, x, B, array))
        return x

    def read(self, label: str, x: Any, backend: Backend | None = None) -> Watched:
        """An array that somebody else made, watched."""
        B = backend or self.backend
        return Watched(label, x, B, np.array(B.to_numpy(x)))

    def _laid_out(self, array: np.ndarray[Any, Any], backend: Backend) -> Any:
        """The same numbers in NumPy memory of another layout."""
        kind = self.rng.choice(("strided", "reversed", "fortran", "read-only", "swapped", "window"))
        array = backend.asarray(array)
        if not array.ndim:
            return array
        if kind == "strided":
            wide = np.repeat(array, 2, axis=-1)
            self.watched.append(self.read("the memory under a view", wide, backend))
            return wide[..., ::2]
        if kind == "reversed":
            return np.ascontiguousarray(array[::-1])[::-1]
        if kind == "fortran":
            return np.asfortranarray(array)
        if kind == "read-only":
            array.flags.writeable = False
        if kind == "swapped" and array.dtype.kind in "fi":
            return array.astype(array.dtype.newbyteorder())
        if kind == "window":
            base = np.concatenate([array, array])
            self.watched.append(self.read("the memory under a view", base, backend))
            return base[: len(array)]
        return array

    def dense(self, shape: tuple[int, ...] | None = None, dtype: str | None = None, label: str = "dense") -> Any:
        return self.own(self.numbers(shape if shape is not None else self.shape, dtype or self.dtype), label)

    def ids(self, shape: tuple[int, ...] | None = None, label: str = "ids") -> Any:
        shape = (self.n,) if shape is None else shape
        size = int(np.prod(shape)) if self.rows else 0
        data = [self.rng.randrange(self.rows) for _ in range(size)]
        return self.own(np.array(data, self.index_type).reshape(shape if size else (0, *shape[1:])), label)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.row_shape)

    def slices(self) -> Any:
        values, indices = self.dense((self.n, *self.row_shape), label="values"), self.ids(label="indices")
        rows = None if self.rng.random() < 0.05 else self.rows
        return islices.IndexedSlices(values, indices, (rows, *self.row_shape))

    def native(self, s: Any) -> Any:
        """The framework's own sparse object over slices, where it can be had."""
        if s.dense_shape[0] is None or self.backend.dtype(s.values) not in self.backend.native_float_dtypes:
            return s
        try:
            return islices.to_native(s)
        except (ValueError, NotImplementedError):
            return s

    def gradient(self) -> Any:
        kind = self.rng.randrange(4)
        if kind == 0:
            return self.dense()
        s = self.slices()
        return self.native(s) if kind == 1 else s

    def sparse(self) -> Any:
        s = self.slices()
        return self.native(s) if self.rng.randrange(4) == 0 else s

    def tree(self) -> Any:
        kind = self.rng.randrange(4)
        if kind == 0:
            return self.gradient()
        if kind == 1:
            return [self.gradient(), None, (self.gradient(),)]
        return {"a": self.gradient(), "b": [self.gradient()]} if kind == 2 else (self.gradient(), self.gradient())

    def table(self) -> Any:
        """An array that changes in place, where the framework has some."""
        x = self.dense(label="table")
        kind = self.rng.randrange(6)
        if kind < 3:
            return x
        if kind == 3 and self.row_shape is not None:
            return islices.Table(x, padding_idx=self.rng.choice((None, 0)) if self.rows else None)
        variable = self.backend.variable(x, x)
        if variable is not x:
            self.watched.append(self.read("table", variable))
        return variable

    # ------------------------------------------------------------------ bad ones
    def spoil(self, good: Any) -> Any:
        """Something bad in the place of a good argument."""
        rng = self.rng
        if rng.random() < 0.2:
            return junk(rng)
        if rng.random() < 0.2 and (odd := oddities(self.backend.name)):
            return odd[rng.choice(list(odd))]()
        if isinstance(good, islices.IndexedSlices):
            return self._bad_slices(good)
        if isinstance(good, islices.Table):
            return rng.choice((lambda: good.weights, lambda: self._bad_array(good.weights)))()
        if self.backend.is_array(good):
            return self._bad_array(good)
        if self.backend.is_native(good):
            return self._bad_slices(self.slices())
        if isinstance(good, dict):
            return self._bad_dict(good)
        if isinstance(good, (list, tuple)):
            return self._bad_sequence(good)
        if isinstance(good, str):
            return rng.choice(NAMES)
        if isinstance(good, (bool, int, float)):
            return rng.choice(NUMBERS) if rng.random() < 0.8 else self._small_array()
        return rng.choice((lambda: rng.choice(NUMBERS), self._small_array, lambda: rng.choice(NAMES)))()

    def _small_array(self) -> Any:
        return self.dense(self.rng.choice(((), (1,), (3,))), self.rng.choice(("float32", "int32")), "an array")

    def _bad_array(self, good: Any) -> Any:
        B, rng = self.backend, self.rng
        try:
            known, dtype = B.shape(good), B.dtype(good)
        except (TypeError, ValueError, RuntimeError):  # an oddity spoilt once more
            return junk(rng)
        shape = tuple(n for n in known if n is not None)
        if shape != known or np.prod(shape) > 1000:
            return junk(rng)
        integers = dtype in INTS
        kind = rng.randrange(6)
        if kind == 0:  # another shape
            other = rng.choice(((), (1,), (*shape, 1), shape[1:], (*shape[:-1], 2), (0, *shape[1:]), (7, *shape[1:])))
            return self.own(self.numbers(other, dtype), "an array of another shape")
        if kind == 1:  # another dtype
            choices = [*INTS, *B.float_dtypes, "bool", "uint8", "int8", "complex64", "int16", "uint64"]
            return self._of_dtype(self.numbers(shape, "int32"), rng.choice(choices))
        if kind == 2 and integers:  # indices that are no rows
            x = np.abs(self.numbers(shape, "int64"))
            if x.size:
                x.reshape(-1)[rng.randrange(x.size)] = rng.choice((*BAD_INDICES, self.rows, self.rows + 1))
            return self.own(x.astype(dtype, casting="unsafe"), "bad indices")
        if kind == 3 and self.others:  # another framework
            other_backend = rng.choice(self.others)
            return self._of_dtype(self.numbers(shape, "int32"), dtype, other_backend)
        if kind == 4:
            return self.numbers(shape, "float32" if not integers else "int64")  # NumPy's
        return B.to_numpy(good).tolist()

    def _of_dtype(self, x: np.ndarray[Any, Any], dtype: str, backend: Backend | None = None) -> Any:
        """x in a dtype the framework may not have: then NumPy's."""
        B = backend or self.backend
        if dtype == "bfloat16":
            x = (x.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        else:
            x = x.astype(dtype)
        try:
            with B.wide_types():
                return self.own(x, "an array of another dtype", B)
        except (TypeError, ValueError, NotImplementedError, IndexError):
            return x

    def _bad_slices(self, s: Any) -> Any:
        """Slices, IndexedSlices or native, one of whose parts is bad; or the arguments' own error where none can be."""
        rng = self.rng
        values, indices, shape = s.values, s.indices, s.dense_shape
        kind = rng.randrange(7)
        if kind == 0:
            values = self._bad_array(values)
        elif kind == 1:
            indices = self._bad_array(indices)
        elif kind == 2:
            shape = rng.choice(SHAPES)
        elif kind == 3:  # of another table
            shape = (self.rows + 1, *self.row_shape)
        elif kind == 4:  # a part of it is the whole
            return rng.choice((values, indices, [s], (values, indices, shape)))
        elif kind == 5 and self.others:
            other = rng.choice(self.others)
            return self._elsewhere(s, other)
        flags = {"coalesced": rng.random() < 0.3, "padded": rng.random() < 0.2}
        try:
            return islices.IndexedSlices(values, indices, shape, **flags)
        except (TypeError, ValueError, IndexError):
            return junk(rng)

    def _elsewhere(self, s: Any, other: Backend) -> Any:
        """The same slices in another framework."""
        try:
            with other.wide_types():
                return islices.convert(s, other)
        except (TypeError, ValueError, IndexError):
            return junk(self.rng)

    def _bad_sequence(self, good: Any) -> Any:
        items = list(good)
        kind = self.rng.randrange(4)
        if kind == 0 or not items:
            items.append(self.spoil(items[0]) if items else junk(self.rng))
        elif kind == 1:
            items.pop()
        else:
            k = self.rng.randrange(len(items))
            items[k] = self.spoil(items[k])
        return type(good)(items) if type(good) in (list, tuple) else items

    def _bad_dict(self, good: dict[Any, Any]) -> Any:
        bad, kind = dict(good), self.rng.randrange(5)
        if kind == 0 or not bad:
            bad[self.rng.choice(("more", 1, None))] = junk(self.rng)
            return bad
        key = self.rng.choice(list(bad))
        if kind == 1:
            del bad[key]
        elif kind == 2:  # one array twice
            self.aliased = True
            bad[key] = bad[self.rng.choice(list(bad))]
        else:
            bad[key] = self.spoil(bad[key])
        return bad
