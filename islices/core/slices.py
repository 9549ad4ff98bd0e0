"""IndexedSlices, the container of row-sparse gradients, with its validation, repr and operators.

An instance stores the framework's arrays without a copy. Other modules contain the computations, for example
`islices.core.rows`, `islices.core.linear` and `islices.norms.clip`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn, overload

import numpy as np

from islices import kernels
from islices.backend import INDEX_NAMES, INDICES, INTEGERS, Array, Backend, Look, Shape
from islices.core.arguments import LARGEST, check_flag, show
from islices.core.deferred import Deferred
from islices.core.dtypes import host_dtype
from islices.core.registry import describe, find_array_backend, find_backend, get_backend
from islices.core.shapes import MOST_NDIM


class IndexedSlices:
    """A row-sparse gradient, which consists of the gradients of some rows of a table, and of the rows' indices.

    Duplicate rows stand for their sum. An instance stands for a dense array T of shape ``dense_shape``: T[r] is the sum
    of ``values[k]`` over all k with ``indices[k] == r`` (SPEC clause 1). Instances are immutable.
    `islices.testing.assert_equal` compares two instances. ``==`` of two instances raises TypeError, unless both are the
    same object.

    Parameters
    ----------
    values : array, shape (n, *row_shape)
        An array of float16, bfloat16, float32, float64, int32 or int64, of any framework that islices supports. n may
        be 0.
    indices : array, shape (n,)
        An array of int32 or int64, of the same framework. Each index lies in [0, rows). A NumPy array is converted to
        the framework; any other array is stored unchanged.
    dense_shape : sequence of int
        (rows, *row_shape). rows is None if the number of rows is unknown. No upper bound of indices is then checked,
        and `to_dense` raises ValueError.
    coalesced : bool
        If True, the caller declares that indices ascend strictly, except for empty slots at the end. The constructor
        checks the order, but not in traced code or with validate=False.
    padded : bool
        If True, indices may contain the number ``rows``, which marks an empty slot. Traced code with static shapes
        makes such slots.
    validate : bool
        If False, the checks that read the indices are skipped. Shapes and dtypes are always checked.

    Raises
    ------
    TypeError
        values or indices are not arrays, indices belong neither to the framework of values nor to NumPy, or a dtype is
        not supported. Or dense_shape does not consist of ints, or a flag is not a bool.
    ValueError
        Shapes are not valid or do not fit, or indices do not ascend although coalesced is True.
    IndexError
        An index lies outside [0, rows) and does not mark an empty slot; the message names the first such index.

    Examples
    --------
    >>> import numpy as np
    >>> s = IndexedSlices(np.ones((3, 2), np.float32), np.array([1, 4, 1]), (6, 2))
    >>> s
    IndexedSlices(n=3, dense_shape=(6, 2), float32, int64, numpy)
    >>> (s * 2).values[0], (s / 4).values[0]
    (array([2., 2.], dtype=float32), array([0.25, 0.25], dtype=float32))
    """

    __slots__ = ("__weakref__", "_indices", "_values", "backend", "coalesced", "dense_shape", "padded")
    __array_ufunc__ = None  # so NumPy's operators return NotImplemented, and Python calls the operators of this class
    _islices_backend = True

    _values: Array | Deferred
    _indices: Array | Deferred
    dense_shape: Shape
    coalesced: bool
    padded: bool
    backend: Backend

    def __init__(
        self,
        values: Array,
        indices: Array,
        dense_shape: Iterable[int | None],
        *,
        coalesced: bool = False,
        padded: bool = False,
        validate: bool = True,
    ) -> None:
        coalesced, padded = check_flag(coalesced, "coalesced"), check_flag(padded, "padded")
        validate = check_flag(validate, "validate")
        backend = _backend_of(values)
        check_values_dtype(backend, values)
        indices = _same_backend(indices, backend, values)
        shape = check_dense_shape(dense_shape)
        look = backend.look((values, indices), views=False)
        check_arrays(backend, values, indices, shape, look)
        if validate and not look.traced[1]:
            check_indices(backend, indices, shape[0], coalesced=coalesced, padded=padded, look=look)
        IndexedSlices._trusted(backend, values, indices, shape, coalesced=coalesced, padded=padded, self=self)

    @classmethod
    def _trusted(
        cls,
        backend: Backend,
        values: Array | Deferred,
        indices: Array | Deferred,
        dense_shape: Shape,
        *,
        coalesced: bool = False,
        padded: bool = False,
        self: Any = None,
    ) -> IndexedSlices:
        """Return an instance with parts that are known to be valid; `self`, if given, is the instance to fill."""
        if self is None:
            self = object.__new__(cls)
        _backend(self, backend)
        _values(self, values)
        _indices(self, indices)
        _dense_shape(self, dense_shape)
        _coalesced(self, coalesced)
        _padded(self, padded)
        return self  # type: ignore[no-any-return]

    def _like(
        self,
        values: Array | Deferred,
        indices: Array | Deferred | None = None,
        dense_shape: Shape | None = None,
        *,
        coalesced: bool | None = None,
        padded: bool | None = None,
    ) -> IndexedSlices:
        """Return these slices with other values, indices, shape or flags, without checks."""
        return IndexedSlices._trusted(
            self.backend, values, self.indices if indices is None else indices, dense_shape or self.dense_shape,
            coalesced=self.coalesced if coalesced is None else coalesced,
            padded=self.padded if padded is None else padded,
        )  # fmt: skip

    @property
    def values(self) -> Array:
        """Return the stored rows, an array of shape ``(n, *row_shape)``."""
        values = self._values
        return values.read(self, 0) if isinstance(values, Deferred) else values

    @property
    def indices(self) -> Array:
        """Return the row number of each slice, as an array of shape (n,)."""
        indices = self._indices
        return indices.read(self, 1) if isinstance(indices, Deferred) else indices

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"IndexedSlices is immutable: use .replace({name}=...) for a changed copy")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("IndexedSlices is immutable")

    def __getstate__(self) -> tuple[Any, ...]:
        return self.values, self.indices, self.dense_shape, self.coalesced, self.padded

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        values, indices, dense_shape, coalesced, padded = state
        IndexedSlices.__init__(self, values, indices, dense_shape, coalesced=coalesced, padded=padded)

    @property
    def shape(self) -> Shape:
        """Return the shape of the dense array that the slices stand for."""
        return self.dense_shape

    @property
    def dtype(self) -> Any:
        """Return the framework's dtype of the values."""
        return self._held(0).dtype

    @property
    def ndim(self) -> int:
        """Return the number of dimensions of the dense array."""
        return len(self.dense_shape)

    @property
    def num_slices(self) -> int | None:
        """Return the number of stored slices, duplicates and padding included, or None if it is unknown in a trace."""
        return self.backend.shape(self._held(1))[0]

    @property
    def nbytes(self) -> int | None:
        """Return the number of bytes of the values and the indices, or None if `num_slices` is None."""
        n = self.num_slices
        row = math.prod(self.dense_shape[1:])  # type: ignore[arg-type]  # only rows may be None
        value, index = (host_dtype(self.backend.dtype(x)).itemsize for x in map(self._held, range(2)))
        return None if n is None else n * (row * value + index)

    @property
    def device(self) -> Any:
        """Return the framework's device of the values, or "cpu" if the framework's arrays do not have a device."""
        values = self._held(0)
        return getattr(values, "device", getattr(values, "context", "cpu"))

    def _held(self, part: int) -> Any:
        """Return the values (part 0) or the indices (part 1), or the array from which the part is computed."""
        x = (self._values, self._indices)[part]
        return x.held(self, part) if isinstance(x, Deferred) else x

    def astype(self, dtype: Any) -> IndexedSlices:
        """Return the slices with values of another dtype.

        Parameters
        ----------
        dtype : str or dtype of the framework or of NumPy
            One of float16, bfloat16, float32, float64, int32 and int64.

        Returns
        -------
        IndexedSlices
            Conversions to floating dtypes round to nearest, ties to even; float64 may become float32 before it becomes
            a 16-bit dtype. JAX without jax_enable_x64 stores int64 as int32.

        Raises
        ------
        TypeError
            The framework or islices does not support the dtype, for example float64 in JAX without jax_enable_x64.

        Examples
        --------
        >>> import numpy as np
        >>> IndexedSlices(np.ones((1, 2)), np.array([0]), (3, 2)).astype(np.float32)
        IndexedSlices(n=1, dense_shape=(3, 2), float32, int64, numpy)
        """
        named = dtype if isinstance(dtype, str) else getattr(dtype, "name", getattr(dtype, "__name__", dtype))
        name = str(named).rpartition(".")[2]  # torch.float32
        accepted = (*self.backend.float_dtypes, *INTEGERS)
        if name not in accepted:
            raise TypeError(f"dtype: got {show(dtype)}; accepted are {', '.join(accepted)}")
        if host_dtype(name).itemsize == 8:  # without jax_enable_x64, JAX stores no float64, and int64 as int32
            try:
                name = self.backend.dtype(self.backend.asarray(np.zeros(1, name), self.values))
            except TypeError as error:
                raise TypeError(f"dtype: got {show(dtype)}, which {self.backend.name} cannot store: {error}") from None
        with self.backend.scope():
            return self._like(self.backend.astype(self.values, name))

    def replace(
        self,
        *,
        values: Array | None = None,
        indices: Array | None = None,
        dense_shape: Iterable[int | None] | None = None,
    ) -> IndexedSlices:
        """Return a copy with other values, indices or dense_shape. The new parts are checked.

        Parameters
        ----------
        values : array, optional
            New values, perhaps of another dtype. Without new indices, the framework and the length n must stay the
            same.
        indices : array, optional
            New indices. The copy is not marked as `coalesced`.
        dense_shape : sequence of int, optional
            A new shape. The number of rows, if known, must be greater than every index. Without new indices, padded
            slices must keep their number of rows, because this number is the index of their padding.

        Returns
        -------
        IndexedSlices

        Raises
        ------
        TypeError, ValueError, IndexError
            The new parts are not valid; see `IndexedSlices`.

        Examples
        --------
        >>> import numpy as np
        >>> s = IndexedSlices(np.array([[3.0], [-9.0]]), np.array([0, 2]), (4, 1))
        >>> s.replace(values=np.clip(s.values, -5, 5)).values.tolist()
        [[3.0], [-5.0]]
        """
        if indices is not None or dense_shape is not None:
            replaced = IndexedSlices(
                self.values if values is None else values,
                self.indices if indices is None else indices,
                self.dense_shape if dense_shape is None else dense_shape,
                coalesced=self.coalesced and indices is None,
                padded=self.padded,
            )
            if indices is None:
                check_padding(self, replaced.dense_shape)
            return replaced
        new = self.values if values is None else values
        backend = _backend_of(new)
        if backend is not self.backend:
            raise TypeError(f"values: got {describe(new)}; accepted is an array of {self.backend.name}")
        look = backend.look((new, self.indices), views=False)
        check_arrays(backend, new, self.indices, self.dense_shape, look)
        return self._like(new)

    def __repr__(self) -> str:
        values, indices = self._held(0), self._held(1)
        if not (self.backend.is_array(values) and self.backend.is_array(indices)):  # JAX puts any objects in pytrees
            return f"IndexedSlices({values!r}, {indices!r}, {self.dense_shape})"
        n = (*self.backend.shape(indices), None)[0]
        flags = "".join(f", {name}" for name in ("coalesced", "padded") if getattr(self, name))
        dtypes = f"{self.backend.dtype(values)}, {self.backend.dtype(indices)}"
        return f"IndexedSlices(n={n}, dense_shape={self.dense_shape}, {dtypes}, {self.backend.name}{flags})"

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("an IndexedSlices does not turn into a dense array by accident: say islices.to_dense(x)")

    def __array_function__(self, func: Any, *args: Any) -> NoReturn:  # else np.array_equal would return False
        raise TypeError(
            f"numpy.{getattr(func, '__name__', func)}: got an IndexedSlices; accepted are functions of islices, or "
            "dense arrays (islices.to_dense(x))"
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, IndexedSlices):
            return NotImplemented
        raise TypeError("x == y of IndexedSlices is ambiguous: islices.testing.assert_equal compares them")

    __hash__ = object.__hash__

    def __len__(self) -> NoReturn:
        raise TypeError(
            "len() of an IndexedSlices is ambiguous: stored slices are len(x.indices), rows x.dense_shape[0]"
        )

    def __bool__(self) -> NoReturn:
        raise TypeError("the truth value of an IndexedSlices is ambiguous")

    #: `islices.add`, `islices.scale` and division; `islices.core.linear`, which imports this module, sets them
    _add: ClassVar[Callable[..., Any]]
    _scale: ClassVar[Callable[[Any, Any], IndexedSlices]]
    _divide: ClassVar[Callable[[IndexedSlices, Any], IndexedSlices]]

    @overload
    def __add__(self, other: IndexedSlices) -> IndexedSlices: ...
    @overload
    def __add__(self, other: Any) -> Any: ...
    def __add__(self, other: Any) -> Any:
        return IndexedSlices._add(self, other) if _is_operand(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self if isinstance(other, int) and other == 0 else self + other  # sum() starts at 0

    @overload
    def __sub__(self, other: IndexedSlices) -> IndexedSlices: ...
    @overload
    def __sub__(self, other: Any) -> Any: ...
    def __sub__(self, other: Any) -> Any:
        return IndexedSlices._add(self, IndexedSlices._scale(other, -1)) if _is_operand(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return IndexedSlices._add(other, IndexedSlices._scale(self, -1)) if _is_operand(other) else NotImplemented

    def __mul__(self, factor: Any) -> IndexedSlices:
        return IndexedSlices._scale(self, factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> IndexedSlices:
        return IndexedSlices._divide(self, divisor)

    def __rtruediv__(self, other: Any) -> NoReturn:  # without this method torch would multiply by a rounded reciprocal
        raise TypeError(
            f"divisor: got an IndexedSlices below {describe(other)}; accepted is a number or a 0-d array below slices"
        )

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices._scale(self, -1)


IndexedSlices.__module__ = "islices"  # so that pickles refer to the public name

#: the fastest functions that set an attribute of an instance; `IndexedSlices.__setattr__` only raises AttributeError
_backend, _values, _indices, _dense_shape, _coalesced, _padded = (
    vars(IndexedSlices)[name].__set__
    for name in ("backend", "_values", "_indices", "dense_shape", "coalesced", "padded")
)


def _is_operand(x: object) -> bool:
    return isinstance(x, IndexedSlices) or find_backend(x) is not None


# ---------------------------------------------------------------------- slices or a dense array
def parts(leaf: Any) -> tuple[Backend, Array]:
    """Return (backend, values) of slices, or (backend, the array) of a dense array."""
    if isinstance(leaf, IndexedSlices):
        return leaf.backend, leaf.values
    return get_backend(leaf), leaf


def shape_of(leaf: Any) -> Shape:
    """Return the shape of a dense array, or of the dense array that slices stand for."""
    return leaf.dense_shape if isinstance(leaf, IndexedSlices) else get_backend(leaf).shape(leaf)


def shape_with_rows(leaf: Any) -> Shape:
    """Return the shape of a leaf, as `shape_of` does, or raise ValueError for a 0-d array."""
    shape = shape_of(leaf)
    if not shape:
        raise ValueError("x: got a 0-d array; accepted is shape (rows, *row_shape)")
    return shape


def with_values(leaf: Any, values: Array) -> Any:
    """Return slices with other values, without checks; for a dense array, return `values`."""
    return leaf._like(values) if isinstance(leaf, IndexedSlices) else values


# ---------------------------------------------------------------------- validation
def _backend_of(values: object) -> Backend:
    backend = find_array_backend(values)
    if backend is None:
        raise TypeError(f"values: got {describe(values)}; accepted is a dense array of shape (n, *row_shape)")
    return backend


def _same_backend(indices: object, backend: Backend, values: Array) -> Array:
    if backend.is_array(indices):
        return indices
    if isinstance(indices, np.ndarray):
        _check_index_dtype(indices.dtype.name, indices)
        return backend.asarray(indices, values)
    raise TypeError(
        f"indices: got {describe(indices)}; accepted is {INDEX_NAMES} of {backend.name} (as values are) or NumPy"
    )


def _check_index_dtype(dtype: str, indices: Array) -> None:
    if dtype not in INDICES:
        raise TypeError(f"indices: got {describe(indices)}; accepted dtypes are {' and '.join(INDICES)}")


def check_dense_shape(dense_shape: Any) -> Shape:
    try:
        dims: Shape = ()
        for n in itertools.islice(dense_shape, MOST_NDIM + 1):  # an iterator may be endless
            if type(n) is bool:  # operator.index raises for NumPy's bool, not for Python's
                raise TypeError
            dims += (None if n is None else operator.index(n),)
    except Exception:  # a framework's tensors, or the caller's objects, may raise any error
        raise TypeError(
            f"dense_shape: got {show(dense_shape)}; accepted is a tuple of ints (rows, *row_shape), rows may be None"
        ) from None
    known = dims[dims[:1] == (None,) :]  # only rows may be None
    if not 0 < len(dims) <= MOST_NDIM or None in known or (known and not 0 <= min(known) <= max(known) <= LARGEST):  # type: ignore[operator, type-var]
        raise ValueError(
            f"dense_shape: got {show(dims)}; accepted is (rows, *row_shape), at least one long, "
            "no dimension negative or beyond int64, only rows may be None"
        )
    return dims


def is_known(shape: Shape) -> bool:
    """Return True if a shape consists of ints and `check_dense_shape` accepts it unchanged."""
    for n in shape:
        if type(n) is not int or not 0 <= n <= LARGEST:
            return False
    return 0 < len(shape) <= MOST_NDIM


def check_values_dtype(backend: Backend, values: Array, argument: str = "values") -> None:
    dtype = backend.dtype(values)
    if dtype not in backend.float_dtypes and dtype not in INTEGERS:
        raise TypeError(
            f"{argument}: got {describe(values)}; accepted dtypes are {', '.join((*backend.float_dtypes, *INTEGERS))}"
        )


def check_padding(s: IndexedSlices, shape: Shape) -> None:
    """Raise ValueError if s is padded, its number of rows is known, and `shape` has another number of rows. The padding
    slots of s have the number of rows of s as their index, so the other shape might turn them into rows."""
    rows = s.dense_shape[0]
    if s.padded and rows is not None and shape[0] != rows:
        raise ValueError(
            f"dense_shape: got {shape[0]} rows for padded slices of {rows}; accepted is the same number (outside of "
            "traces, islices.coalesce removes padding)"
        )


def check_arrays(backend: Backend, values: Array, indices: Array, dense_shape: Shape, look: Look) -> None:
    dtype, index_dtype = look.dtypes
    if dtype not in backend.float_dtypes:
        check_values_dtype(backend, values)
    if index_dtype not in INDICES:
        _check_index_dtype(index_dtype, indices)
    shape, index_shape = look.shapes
    if len(index_shape) != 1:
        raise ValueError(f"indices: got shape {index_shape}; accepted is one dimension (n,)")
    if not shape:
        raise ValueError("values: got a 0-d array; accepted is shape (n, *row_shape)")
    if None not in (shape[0], index_shape[0]) and shape[0] != index_shape[0]:
        raise ValueError(f"values and indices: got {shape[0]} values and {index_shape[0]} indices; one index a value")
    row_shape, requested = shape[1:], dense_shape[1:]
    unlike = row_shape != requested and (
        len(row_shape) != len(requested) or any(a not in (None, b) for a, b in zip(row_shape, requested, strict=True))
    )
    if unlike:
        raise ValueError(f"values: got rows of shape {row_shape}; dense_shape {dense_shape} asks for {requested}")


def check_indices(
    backend: Backend,
    indices: Array,
    rows: int | None,
    *,
    coalesced: bool = False,
    padded: bool = False,
    argument: str = "indices",
    look: Look | None = None,
) -> None:
    """Raise IndexError for an index out of range. If `coalesced` is True, raise ValueError unless indices strictly
    ascend.

    If `padded` is True, the index `rows` is in range, and may repeat at the end of coalesced indices. `look`, if given,
    is the result of `Backend.look` for values and indices. SPEC clause 2.
    """
    view = look.views[1] if look and look.views else backend.host_view(indices)
    if view is None:
        view = backend.to_numpy(indices)
    if len(view) == 0:
        return
    limit = None if rows is None else rows + bool(padded)
    compiled = kernels.loaded()
    lowest, highest, ascends = compiled.bounds(view) if compiled else (view.min(), view.max(), False)
    if lowest < 0 or (limit is not None and highest >= limit):
        bad = view < 0 if limit is None else (view < 0) | (view >= limit)
        position = int(np.argmax(bad))
        remedy = (
            " (the index equal to rows is legal where padded=True)"
            if view[position] == rows and not padded and argument == "indices"
            else ""
        )
        raise IndexError(
            f"{argument}: got {int(view[position])} at position {position}; "
            f"accepted is 0 <= index < {'inf' if rows is None else rows}{remedy}"
        )
    if coalesced and not ascends:
        ascending = view[1:] > view[:-1]
        if padded:  # several sentinel slots, which are equal, may follow at the end
            ascending |= view[1:] == rows
        if not ascending.all():
            position = int(np.argmin(ascending)) + 1
            raise ValueError(
                f"indices: claimed coalesced, but index {int(view[position])} at position {position} follows "
                f"{int(view[position - 1])}; accepted are strictly ascending indices (or coalesced=False)"
            )
