"""Methods for dense arrays: dtypes and shapes, conversions from and to NumPy, and computations.

May import: `numpy`, `islices.backend.contract`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from islices.backend.contract import FLOATS, Array, Host, Part, Shape, optional, primitive

#: The state of a loop: the arrays that the loop's body replaces.
LoopState = tuple[Array, ...]


class Arrays(Part):
    """The part of `Backend` for dense arrays: dtypes and shapes, conversions from and to NumPy, and computations.

    Attributes
    ----------
    float_dtypes : tuple of str
        The floating dtypes that the framework has.
    host_only : bool
        True if mode framework is the same as mode host, as for NumPy.
    memory_error : str
        A text that the framework's error contains if CPU memory runs out. If an error contains the text, the core
        raises MemoryError instead. The text is empty if the framework itself raises MemoryError.
    """

    float_dtypes: ClassVar[tuple[str, ...]] = FLOATS
    host_only: ClassVar[bool] = False
    memory_error: ClassVar[str] = ""

    # ------------------------------------------------------------------ looking at an array
    def dtype(self, x: Array) -> str:
        """Return the NumPy name of x's dtype, for any dtype of the framework, even one that islices does not accept."""
        raise self._missing("dtype")

    @optional("`x.shape` has it")
    def shape(self, x: Array) -> Shape:
        """Return the shape of x, with None for a dimension that is unknown while tracing. Raise ValueError if the rank
        is unknown."""
        return tuple(x.shape)

    @optional("nothing is traced")
    def is_traced(self, x: Array) -> bool:
        """Return True if the value of x is not known, as inside jax.jit, vmap and tf.function, or for a tensor without
        data. JAX's tracers inside jax.grad count too."""
        return False

    @optional("no gradient is recorded")
    def records_gradient(self, x: Array) -> bool:
        """Return True if the framework is recording operations on x for differentiation right now."""
        return False

    # ------------------------------------------------------------------ in and out
    @optional("`from_host` does it with a copy")
    def asarray(self, array: Host, like: Array | None = None) -> Array:
        """Return a new array with a copy of a NumPy array's values.

        Raise TypeError if the framework cannot store the dtype, and IndexError if it cannot store an integer.

        A bfloat16 input is an array with a dtype of that name (ml_dtypes) or a uint16 array. The conversion never
        narrows silently. If the framework would store int64 as int32, the values are checked; IndexError names the
        position of a value that does not fit. If the framework cannot store float64, TypeError names the setting that
        allows it. For a dtype that a gradient cannot have (text, objects), the method may raise an error. If it returns
        an array of this dtype, the core raises an error.
        """
        bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        copy = np.array(bits, bits.dtype.newbyteorder("="), order="C")
        return self.from_host(copy, like)  # type: ignore[attr-defined]  # of `Memory`

    def to_numpy(self, x: Array) -> Host:
        """Convert an array on any device to a NumPy array, in which uint16 stands for bfloat16. The result may be a
        copy, or may share memory with x."""
        raise self._missing("to_numpy")

    @optional("`asarray` does it")
    def scalar(self, x: Host, like: Array) -> Array:
        """Return a 0-d array of the framework with the value of x, a 0-d NumPy float32 or float64. If the framework
        cannot compute on 0-d arrays, the shape is (1,)."""
        return self.asarray(x, like)

    # ------------------------------------------------------------------ where the arithmetic runs
    @optional("the primitives need no context")
    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for calls of primitives. In the context 64-bit types are on, and arrays of size zero are
        legal.

        Norms of all dtypes are computed in float64. If float64 is switched off in the framework, the context turns it
        on. A framework without float64 leaves it out of `float_dtypes`, and its `astype` does ``raise
        self.lacks("astype", "it has no float64")``. Without float64, the host computes norms, and clips by norms, if
        `host_view` returns a view. In mode framework, norms and clipping by norms need float64.
        """
        return contextlib.nullcontext()

    # ------------------------------------------------------------------ elementwise, and along an axis
    @primitive
    def astype(self, x: Array, dtype: str) -> Array:
        """Return x converted to a dtype, rounded to nearest even. Values that overflow become infinite."""
        raise NotImplementedError

    @primitive
    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        """Return x reshaped to a shape; at most one dimension may be None (unknown while tracing)."""
        raise NotImplementedError

    @primitive
    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        """Return a new array of zeros.

        If traced shapes are dynamic, a dimension may be None; the result then has the length of `like` along that axis.
        """
        raise NotImplementedError

    @optional("`zeros` does it")
    def zeros_like(self, x: Array) -> Array:
        """Return zeros of x's shape and dtype, even if x contains infinities or NaN."""
        return self.zeros(self.shape(x), self.dtype(x), x)  # type: ignore[arg-type]

    @primitive
    def concat(self, arrays: Sequence[Array]) -> Array:
        """Return the arrays concatenated along axis 0. There is at least one array, and all arrays have the same
        dtype."""
        raise NotImplementedError

    @primitive
    def take(self, x: Array, positions: Array) -> Array:
        """Return x[positions] along axis 0. All positions are in range; they may have any integer dtype."""
        raise NotImplementedError

    @primitive
    def where(self, mask: Array, a: Array, b: Array) -> Array:
        """Return a where mask is True, else b. A NaN in the branch that is not selected has no effect.

        Arguments broadcast; a or b may be a Python float. The gradient is selected in the same way: the branch that is
        not selected gets zeros, even if the incoming gradient is infinite or NaN. A framework that multiplies by the
        mask would give NaN, and needs `where` with a custom gradient.

        The core passes only arguments at which the derivative of the unselected branch is finite. Most frameworks
        multiply an infinite derivative, such as that of sqrt at 0, by zero, which gives NaN in spite of `where`.
        """
        raise NotImplementedError

    @primitive
    def abs(self, x: Array) -> Array:
        """Return |x| elementwise; NaN stays NaN."""
        raise NotImplementedError

    @primitive
    def minimum(self, a: Array, b: Array) -> Array:
        """Return the elementwise minimum, or NaN if either is NaN. Arguments broadcast; either may be a Python
        number."""
        raise NotImplementedError

    @primitive
    def maximum(self, a: Array, b: Array) -> Array:
        """Return the elementwise maximum, or NaN if either is NaN. Arguments broadcast; either may be a Python
        number."""
        raise NotImplementedError

    @primitive
    def less_equal(self, a: Array, b: Array) -> Array:
        """Return the mask a <= b, which is False where either is NaN. Arguments broadcast; either may be a Python
        float."""
        raise NotImplementedError

    @primitive
    def isfinite(self, x: Array) -> Array:
        """Return the mask of the elements that are neither infinite nor NaN."""
        raise NotImplementedError

    @primitive
    def sqrt(self, x: Array) -> Array:
        """Return the correctly rounded square root."""
        raise NotImplementedError

    @primitive
    def div(self, a: Array, b: Array) -> Array:
        """Return the correctly rounded a / b, also in traced code. Arguments broadcast; either may be a Python
        float."""
        raise NotImplementedError

    @optional("a * b")
    def round_product(self, a: Array, b: Array | float) -> Array:
        """Return a * b, rounded before further use. The product must never become part of a fused multiply-add."""
        return a * b

    @primitive
    def permute(self, x: Array, order: Sequence[int]) -> Array:
        """Return x with its axes in another order, as `numpy.transpose` does."""
        raise NotImplementedError

    @primitive
    def outer_products(self, g: Array, x: Array) -> Array:
        """Return the sums over t of g[b, t, v] * x[b, t, d], as an array of shape (b, v, d). Terms may be added in any
        order.

        g (b, t, v) and x (b, t, d) are float64; only t may be unknown.
        """
        raise NotImplementedError

    @primitive
    def row_amax(self, x: Array) -> Array:
        """Return the largest absolute value of each row of a float array x (k, m), as an array of shape (k,). The
        result is NaN for a row with NaN, and 0 if m is 0."""
        raise NotImplementedError

    @primitive
    def row_sum(self, x: Array) -> Array:
        """Return the sum of each row of x (k, m), as an array of shape (k,). x and the sums are float32 or float64.

        The elements may be added in any order. A sum is 0 if m is 0.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------ made of the others
    @optional("a loop of Python does it")
    def while_any(self, condition: Callable[..., Array], body: Callable[..., LoopState], state: LoopState) -> LoopState:
        """Repeat ``state = body(*state)`` while the mask ``condition(*state)`` contains True, and return the last
        state.

        Override this method if values are unknown in traced code.
        """
        while self.to_numpy(condition(*state)).any():
            state = body(*state)
        return state

    @optional("NumPy does it, on the host")
    def largest(self, x: Array, k: int) -> Array:
        """Return the positions of the min(k, n) largest numbers of x, as an array of integers that ascend.

        x is a float64 array of shape (n,) without NaN. Of two equal numbers, the first counts as larger.
        """
        order = np.argsort(-self.to_numpy(x), kind="stable")[:k]
        return self.asarray(np.sort(order), x)

    @optional("`astype` does it")
    def widen(self, x: Array) -> Array:
        """Return 16-bit floats as float32, and anything else unchanged."""
        return self.astype(x, "float32") if self.dtype(x) in ("float16", "bfloat16") else x

    @optional("`reshape` does it")
    def as_column(self, x: Array, like: Array) -> Array:
        """Return x with axes of length 1 appended, so that x has the rank of `like`: (k,) becomes (k, 1, ...)."""
        shape = self.shape(x)
        return self.reshape(x, (*shape, *(1,) * (len(self.shape(like)) - len(shape))))

    @optional("a slice does it")
    def columns(self, x: Array, start: int, stop: int) -> Array:
        """Return x[:, start:stop] for x with two axes. A compiler must not reorder sums of these columns.

        Override this method if arrays cannot be sliced.
        """
        return x[:, start:stop]

    @optional("`round_product` and `div` do it")
    def scaled(self, values: Array, steps: Sequence[tuple[str, Any]]) -> Array:
        """Multiply and divide values by scalars, in order. A step is ("mul" or "div", scalar), and each step rounds.

        For 16-bit floats the steps are computed in float32, and the result is rounded to 16 bits once.
        """
        out = self.widen(values)
        for name, c in steps:
            out = self.round_product(out, c) if name == "mul" else self.div(out, c)
        return self.astype(out, self.dtype(values))
