"""Draw arguments for hostile calls, and change good arguments into bad arguments.

Hypothesis makes every choice, so that Hypothesis can shrink a call. A `Draw` belongs to one call, and stores the arrays
that the call must not change if it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import islices
from islices.backend import Backend, Host
from islices.conformance.properties.hostile_junk import JUNK, MAKERS, NAMES, NUMBERS, REFUSING, SHAPES

BAD_INDICES = (-1, -(2**31), 2**31 - 1, 2**31, 2**62, -(2**63), 2**63 - 1)
SPECIAL = (float("nan"), float("inf"), -float("inf"), 3e38, -1e-30, -0.0)
#: The errors that may occur when an argument is made, such as for inconsistent slices or a dtype that the framework
#: does not have.
IMPOSSIBLE = (TypeError, ValueError, IndexError, NotImplementedError, RuntimeError)


class WatchedArray(NamedTuple):
    """An array and a copy of its bytes, which show whether a call has changed the array."""

    label: str
    array: Any
    backend: Backend
    bits: bytes

    @property
    def changed(self) -> str:
        """Return the label of the array if the bytes have changed, or the label and an error's name if the bytes cannot
        be read. Return "" for unchanged bytes."""
        try:
            return "" if self.backend.to_numpy(self.array).tobytes() == self.bits else self.label
        except Exception as error:  # frameworks raise various errors for an array that was deleted
            return f"{self.label} (lost: {type(error).__name__})"


class Draw:
    """A source of arguments for one hostile call. Hypothesis makes all choices."""

    def __init__(self, draw: Callable[..., Any], backend: Backend, others: Sequence[Backend]) -> None:
        self._draw, self.backend, self.others = draw, backend, others
        self.watched: list[WatchedArray] = []
        #: True if two arguments share memory; a successful call may then change both
        self.aliased = False
        self.dtype = self.one(*backend.float_dtypes)
        self.index_type = self.one("int32", "int64")
        # few shapes, because compilers compile again for each shape
        self.rows = self.one(6, 6, 6, 1, 0)
        self.row_shape: tuple[int, ...] = self.one((3,), (3,), (), (2, 2), (0,))
        self.n = self.one(3, 3, 0, 1, 8) if self.rows else 0

    def one(self, *options: Any) -> Any:
        """Draw one of the options. When Hypothesis shrinks a call, it prefers the first option."""
        return options[self._draw(st.integers(0, len(options) - 1))]

    def made(self, *makers: Callable[[], Any]) -> Any:
        return self.one(*makers)()

    def rarely(self, percent: int = 25) -> bool:
        return bool(self._draw(st.integers(0, 99)) >= 100 - percent)

    # ------------------------------------------------------------------ good arguments
    def numbers(self, shape: tuple[int, ...], dtype: str) -> Host:
        """Return a NumPy array of a dtype (uint16 for bfloat16). The first float may be special, such as NaN."""
        if dtype not in ("float16", "bfloat16", "float32", "float64"):
            return np.resize(np.arange(3, -4, -1), shape).astype(dtype)
        x = np.resize(np.arange(-8, 9, dtype=np.float32) / 4, shape)
        if x.size and self.rarely():
            x.reshape(-1)[0] = self.one(*SPECIAL)
        with np.errstate(over="ignore"):
            return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16) if dtype == "bfloat16" else x.astype(dtype)

    def watch(self, label: str, x: Any, backend: Backend | None = None) -> Any:
        B = backend or self.backend
        self.watched.append(WatchedArray(label, x, B, B.to_numpy(x).tobytes()))
        return x

    def own(self, array: Host, label: str, backend: Backend | None = None) -> Any:
        """Convert a NumPy array to the backend, and watch the result for changes."""
        B = backend or self.backend
        x = B.asarray(array)
        return self.watch(label, self._laid_out(x) if B.host_only and x.ndim and self.rarely() else x, B)

    def _laid_out(self, x: Host) -> Any:
        """Return an array that has the same numbers, but is read-only or has another memory layout or byte order."""
        kind = self.one("read-only", "strided", "swapped", "fortran")
        if kind == "strided":
            memory = self.watch("the memory under a view", np.repeat(x, 2, axis=-1), islices.get_backend("numpy"))
            return memory[..., ::2]
        if kind == "swapped" and x.dtype.kind in "fi":
            return x.astype(x.dtype.newbyteorder())
        x.flags.writeable = kind != "read-only"
        return np.asfortranarray(x) if kind == "fortran" else x

    def dense(self, shape: tuple[int, ...] | None = None, dtype: str | None = None, label: str = "dense") -> Any:
        shape = (self.rows, *self.row_shape) if shape is None else shape
        return self.own(self.numbers(shape, dtype or self.dtype), label)

    def ids(self, shape: tuple[int, ...] | None = None, label: str = "ids") -> Any:
        shape = (self.n,) if shape is None else shape
        x = (
            np.resize([self._draw(st.integers(0, self.rows - 1)) for _ in range(3)], shape)
            if self.rows
            else np.zeros(shape)
        )
        return self.own(x.astype(self.index_type), label)

    def slices(self) -> Any:
        values, indices = self.dense((self.n, *self.row_shape), label="values"), self.ids(label="indices")
        return islices.IndexedSlices(values, indices, (None if self.rarely(5) else self.rows, *self.row_shape))

    def native(self) -> Any:
        """Return a sparse gradient of the framework's type. If the framework cannot represent the gradient, return
        slices."""
        s = self.slices()
        try:
            return islices.to_native(s)
        except IMPOSSIBLE:
            return s

    def sparse(self) -> Any:
        return self.made(self.slices, self.slices, self.slices, self.native)

    def gradient(self) -> Any:
        return self.made(self.slices, self.dense, self.native)

    def tree(self) -> Any:
        return self.made(
            self.gradient, lambda: [self.gradient(), None, (self.gradient(),)],
            lambda: {"a": self.gradient(), "b": [self.gradient()]},
        )  # fmt: skip

    def table(self) -> Any:
        """Return a table of weights: an array, a `Table`, or a variable of the framework."""
        x = self.dense(label="table")
        kind = self.one("array", "array", "Table", "variable")
        if kind == "Table":
            return islices.Table(x, padding_idx=self.one(None, 0) if self.rows else None)
        variable = self.backend.variable(x, x) if kind == "variable" else x
        return x if variable is x else self.watch("table", variable)

    # ------------------------------------------------------------------ bad ones
    def junk(self) -> Any:
        """Return an unexpected object or number: an item of `JUNK`, `NUMBERS` or `REFUSING`, or one from `MAKERS`."""
        return self.made(
            lambda: self.one(*JUNK), lambda: self.one(*NUMBERS), lambda: self.one(*REFUSING), lambda: self.made(*MAKERS)
        )

    def spoil(self, good: Any) -> Any:
        """Return a bad argument that replaces a good argument."""
        if self.rarely(40):
            return self.junk()
        if isinstance(good, islices.Table):
            return self.made(lambda: good.weights, lambda: self._bad_array(good.weights))
        if self.backend.is_array(good):
            return self._bad_array(good)
        if isinstance(good, islices.IndexedSlices) or self.backend.is_native(good):
            return self._bad_slices(self.slices())
        if isinstance(good, (dict, list, tuple)):
            return self._bad_container(good)
        if isinstance(good, str):
            return self.one(*NAMES)
        return self.made(lambda: self.one(*NUMBERS), lambda: self.one(*SHAPES), self._small_array)

    def _small_array(self) -> Any:
        return self.dense(self.one((), (1,), (3,)), self.one("float32", "int32"), "an array")

    def _bad_array(self, good: Any) -> Any:
        B = self.backend
        shape: Any
        try:
            shape, dtype = B.shape(good), B.dtype(good)
            if None in shape or np.prod(shape) > 1000:
                return self.junk()
        except IMPOSSIBLE:  # an odd object
            return self.junk()
        kind = self.one("shape", "dtype", "number", "framework", "NumPy", "list")
        if kind == "shape":
            other = self.one((), (1,), (*shape, 1), shape[1:], (*shape[:-1], 2), (0, *shape[1:]), (7, *shape[1:]))
            return self.own(self.numbers(other, dtype), "an array of another shape")
        if kind == "dtype":
            choices = ("int32", "int64", *B.float_dtypes, "bool", "uint8", "int8", "complex64", "int16", "uint64")
            return self._of_dtype(shape, self.one(*choices), B)
        if kind == "number" and dtype in ("int32", "int64"):  # indices that are no row
            x = np.abs(self.numbers(shape, "int64"))
            x.reshape(-1)[:1] = self.one(*BAD_INDICES, self.rows, self.rows + 1)
            return self.own(x.astype(dtype), "bad indices")
        if kind == "framework" and self.others:
            return self._of_dtype(shape, dtype, self.one(*self.others))
        return B.to_numpy(good).tolist() if kind == "list" else self.numbers(shape, "float32")

    def _of_dtype(self, shape: Any, dtype: str, backend: Backend) -> Any:
        """Return an array of the dtype. If the framework does not have the dtype, return a NumPy array."""
        x = self.numbers(shape, dtype)
        try:
            with backend.wide_types():
                return self.own(x, "an array of another dtype", backend)
        except IMPOSSIBLE:
            return x

    def _bad_slices(self, s: Any) -> Any:
        """Return slices with one bad part, some parts of the slices, or slices of another framework. If the drawn
        change is impossible, return junk."""
        values, indices, shape = s.values, s.indices, s.dense_shape
        kind = self.one("shape", "values", "indices", "part", "framework")
        if kind == "part":
            return self.one(values, indices, [s], (values, indices, shape))
        try:
            if kind == "framework" and self.others:
                other = self.one(*self.others)
                with other.wide_types():
                    return islices.convert(s, other)
            if kind == "shape":
                shape = self.one((self.rows + 1, *self.row_shape), *SHAPES)
            elif kind == "values":
                values = self._bad_array(values)
            elif kind == "indices":
                indices = self._bad_array(indices)
            return islices.IndexedSlices(values, indices, shape, coalesced=self.rarely(), padded=self.rarely())
        except IMPOSSIBLE:
            return self.junk()

    def _bad_container(self, good: Any) -> Any:
        """Return a copy of the container with one item spoilt, removed or added."""
        bad: dict[Any, Any] = dict(good) if isinstance(good, dict) else dict(enumerate(good))
        key = self.one(*bad, "more")
        if key == "more":
            bad[key] = self.junk()
        elif self.rarely():
            del bad[key]
        else:
            bad[key] = self.spoil(bad[key])
        return bad if isinstance(good, dict) else type(good)(bad.values()) if type(good) is tuple else [*bad.values()]
