"""Define Table, a parameter with a row-sparse gradient.

In a function that `value_and_grad` differentiates, `islices.embedding.lookup.lookup` reads a table, so the gradient
stays sparse. In JAX, `Table.weights` may also read a table there; without per_sample, the gradient is then dense.
SPEC clause 12.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NoReturn

from islices.backend import Array, Backend, Source
from islices.core.arguments import check_flag
from islices.core.registry import describe, find_array_backend
from islices.embedding.lookup_gradients import resolve_padding_idx


class Table:
    """A parameter for which `value_and_grad` returns a row-sparse gradient if only lookups read the parameter.

    Parameters
    ----------
    weights : float array, shape (rows, *row_shape)
        An array of any framework, which is not copied: a tf.Variable or a torch Parameter stays the same object.
    padding_idx : int, optional
        The row that gets no gradient; a negative number counts from the end.
    scale_by_freq : bool
        If True, `value_and_grad` divides each slice of the gradient by the number of times that its row occurs in the
        lookup. Padding does not count. The framework's autograd, called directly, does not divide.

    Raises
    ------
    TypeError, ValueError, IndexError
        weights is not a float array, is 0-d or of unknown shape, padding_idx is not a row of weights, or
        scale_by_freq is not a bool. SPEC clause 12.

    Notes
    -----
    A Table is immutable, though its weights need not be. ``table[ids]`` is ``lookup(table, ids)``. For JAX, a Table is
    a pytree.

    Examples
    --------
    >>> import numpy as np
    >>> table = Table(np.arange(6.0).reshape(3, 2), padding_idx=-1)
    >>> table
    Table((3, 2), float64, numpy, padding_idx=2)
    >>> table[np.array([1, 1])].tolist()
    [[2.0, 3.0], [2.0, 3.0]]
    """

    __slots__ = ("__weakref__", "_source", "backend", "padding_idx", "scale_by_freq")
    __array_ufunc__ = None
    __iter__ = None
    _islices_table = True

    _source: Source
    backend: Backend
    padding_idx: int | None
    scale_by_freq: bool

    def __init__(self, weights: Array, *, padding_idx: int | None = None, scale_by_freq: bool = False) -> None:
        scale_by_freq = check_flag(scale_by_freq, "scale_by_freq")
        backend = find_array_backend(weights)
        if backend is None or isinstance(weights, Table):
            raise TypeError(f"weights: got {describe(weights)}; accepted is a dense float array (rows, *row_shape)")
        if backend.dtype(weights) not in backend.float_dtypes:
            raise TypeError(f"weights: got {describe(weights)}; accepted dtypes are {', '.join(backend.float_dtypes)}")
        shape = backend.shape(weights)
        if not shape or None in shape:
            raise ValueError(f"weights: got shape {shape}; accepted is (rows, *row_shape), all of it known")
        _fill(self, backend, Source(weights), resolve_padding_idx(padding_idx, shape[0]), scale_by_freq)

    @classmethod
    def _trusted(cls, backend: Backend, source: Source, padding_idx: int | None, scale_by_freq: bool) -> Table:
        """Return a table with parts that are known to be valid, without checks."""
        self = object.__new__(cls)
        _fill(self, backend, source, padding_idx, scale_by_freq)
        return self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Table is immutable: use .replace(weights) for another {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("Table is immutable")

    def __reduce__(self) -> Any:
        return partial(Table, padding_idx=self.padding_idx, scale_by_freq=self.scale_by_freq), (self.weights,)

    @property
    def weights(self) -> Array:
        """Return the whole table as an array.

        While `value_and_grad` differentiates with respect to this table, only JAX allows reading this attribute;
        without per_sample, the gradient is then dense. With other frameworks, reading the attribute raises TypeError.
        """
        recorder = self._source.recorder
        if recorder is not None:
            operand = getattr(recorder, "operand", None)
            if operand is not None:
                return operand(self._source.weights)
            raise TypeError(
                "table.weights: not accepted inside the function that value_and_grad differentiates, since the "
                "gradient would be dense; use lookup(table, ids), or pass the array itself for a dense gradient"
            )
        return self._source.weights

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the weights, (rows, *row_shape)."""
        return self.backend.shape(self._source.weights)  # type: ignore[return-value]

    @property
    def dtype(self) -> Any:
        """Return the framework's dtype of the weights."""
        return self._source.weights.dtype

    def replace(self, weights: Array) -> Table:
        """Return a table with the same options and other weights.

        Parameters
        ----------
        weights : float array, shape (rows, *row_shape)

        Returns
        -------
        Table

        Examples
        --------
        >>> import numpy as np
        >>> Table(np.zeros((3, 2)), padding_idx=0).replace(np.ones((3, 2)))
        Table((3, 2), float64, numpy, padding_idx=0)
        """
        return Table(weights, padding_idx=self.padding_idx, scale_by_freq=self.scale_by_freq)

    #: `islices.lookup`, set by `islices.embedding.lookup`, which imports this module
    _lookup: ClassVar[Callable[..., Any]]

    def __getitem__(self, ids: Array) -> Array:
        return Table._lookup(self, ids)

    def __repr__(self) -> str:
        options = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        options += ", scale_by_freq=True" if self.scale_by_freq else ""
        weights = self._source.weights
        if not self.backend.is_array(weights):  # JAX has put something other than an array into the pytree
            return f"Table({weights!r}{options})"
        return f"Table({self.shape}, {self.backend.dtype(weights)}, {self.backend.name}{options})"

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "a Table is read by lookup(table, ids) only, so that its gradient stays sparse; table.weights is the "
            "whole array, outside of value_and_grad (a tf.function takes no Table: close over it; a stock layer of JAX "
            "takes plain arrays: see sparse= of islices.value_and_grad)"
        )

    __array__ = __jax_array__ = __len__ = __bool__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __neg__ = __pow__ = __rpow__ = _refuse


def _fill(self: Table, *parts: Any) -> None:
    for name, part in zip(("backend", "_source", "padding_idx", "scale_by_freq"), parts, strict=True):
        object.__setattr__(self, name, part)
