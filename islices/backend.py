"""What an adapter supplies: the primitives, each with its contract.

Everything the library does is written once, on top of these. An adapter gives a framework's arrays the
names below; the core never imports a framework and never asks which one it has in hand.
May import: `numpy`. An adapter can be read beside this module and nothing else.

How to read the contracts
    Array arguments are dense arrays of the adapter's framework. The core itself uses Python's operators
    ``+ - *`` and unary minus on them, and nothing else: division, square root and comparison are primitives, since
    frameworks do not agree on them. Masks are whatever the adapter's own `where` and `select` take.
    In float64 arithmetic it does so with arrays, or with numbers that any parser reads exactly (2.0).
    Native norms are taken in float64, whatever the values are: a framework without it (or with it switched off) turns
    it on in `scope`, or answers `host_view` and leaves norms to the host.
    A dtype is its NumPy name ("float32", "bfloat16", "int64"). Shapes are tuples of ints; in traced code a
    dimension may be None. ``like`` is an array whose device (and only that) the result shares.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np

__all__ = [
    "PROTOCOL",
    "Array",
    "Backend",
    "Gradient",
    "GradientOfValue",
    "LayerUse",
    "Look",
    "LookedUp",
    "NativeParts",
    "OtherUse",
    "ProductUse",
    "RaggedParts",
    "Source",
    "TableUse",
    "Transform",
    "Use",
    "WholeUse",
    "not_implemented",
]

#: Version of this protocol. It grows when a primitive is added or its contract changes; an adapter states the
#: version it was written for, and the registry refuses one that is newer than the core.
PROTOCOL = 2

#: A dense array of some framework.
Array = Any

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int32", "int64")
#: dtypes of indices, ids and row numbers: others than those of values, though they are the same today.
INDICES = ("int32", "int64")


class NativeParts(NamedTuple):
    """A framework's sparse object, taken apart without letting the framework compute on it.

    What `Backend.from_native` returns; the core validates it by SPEC clauses 1 and 2.

    Parameters
    ----------
    values : array, shape (n, *row_shape)
    indices : array, shape (n,)
    dense_shape : tuple of int
        (rows, *row_shape); rows may be None for unknown.
    coalesced : bool
        The object's own word that its indices are strictly ascending.
    padded : bool
        The index ``rows`` marks slots that hold nothing.

    Examples
    --------
    >>> parts = NativeParts(np.ones((1, 2)), np.array([3]), (4, 2))
    >>> parts.coalesced, parts.padded
    (False, False)
    """

    values: Array
    indices: Array
    dense_shape: tuple[int | None, ...]
    coalesced: bool = False
    padded: bool = False


class Look(NamedTuple):
    """What the core asks of the arrays of a call first: the answer of `Backend.look`, one item an array."""

    dtypes: list[str]
    shapes: list[tuple[int | None, ...]]
    traced: list[bool]
    #: `Backend.host_view` of each; None where one has none, is traced, or has its gradient recorded
    views: list[np.ndarray[Any, Any]] | None


class RaggedParts(NamedTuple):
    """A framework's own array of rows that differ in length, taken apart: what `Backend.take_ragged` returns.

    Rows may be nested: the innermost ones are bags, the outermost ones samples.
    """

    kind: str  # what the framework calls it
    values: Array  # (n, ...): the numbers of all rows, one after the other
    segments: Array  # (n,) integers: the innermost row of each
    bags: Array  # an array as long as there are innermost rows
    samples: Array  # (n,) integers: the outermost row of each
    batch: Array  # an array as long as there are outermost rows
    structure: tuple[Array, ...]  # integers that are equal where rows lie alike
    #: of arrays (n, ..., *row_shape), one a number: the same structure with them in place of the numbers; None if none
    with_rows: Callable[[Array], Any] | None
    #: of arrays (innermost rows, *row_shape), one a bag: what is left of the structure with them
    with_bags: Callable[[Array], Any]


class Source(NamedTuple):
    """Where a table's rows come from: its weights, and the recorder of the differentiation it takes part in.

    A recorder is the adapter's own object, made by `Backend.differentiate`. Its method
    ``lookup(weights, ids, extras, static)`` returns the rows (*ids.shape, *row_shape) that ids name, out-of-range ids
    (traced only) as zeros, and remembers ids, extras (a tuple of integer arrays) and static (hashable) for the
    result's `LookedUp`. ids may have any shape, () included. A method ``operand(weights)``, where there is one, returns
    the weights as an array that is differentiated: products with it are `ProductUse`s, all else together a `WholeUse`.
    """

    weights: Array
    recorder: Any = None


class LookedUp(NamedTuple):
    """One lookup in a table and the gradient that arrived at its rows."""

    upstream: Array  # (*ids.shape, *row_shape), zeros if the loss does not depend on the rows
    ids: Array
    extras: tuple[Array, ...]
    static: Any
    #: the loops ("scan") and mapped axes ("vmap") whose axes lead ids, outermost first
    axes: tuple[str, ...] = ()


@dataclass
class LayerUse:
    """One call of a stock embedding layer within `Backend.capture`; ``upstream`` is set by the backward pass."""

    layer: str  # the layer's name in the model, as its framework spells it
    ids: Array  # as the layer got them, integers
    num_rows: int
    upstream: Array | None = None  # the gradient of the layer's output, summed if more than one backward pass came
    padding_idx: int | None = None
    scale_by_freq: bool = False
    # bags
    combiner: str | None = None
    offsets: Array | None = None  # starts of the bags in 1-D ids; without a combiner, of the samples
    weights: Array | None = None  # of ids' shape
    rows: Array | None = None  # what was looked up, (n, *row_shape), without gradient: where combiner is "max"


@dataclass
class ProductUse:
    """One use of a captured weight as an output layer, x @ weights.T; ``upstream`` is set by the backward pass."""

    layer: str  # the embedding layer whose weights they are
    inputs: Array  # x, (..., width)
    upstream: Array | None = None  # the gradient of the product, (..., rows)
    axes: tuple[str, ...] = ()  # as `LookedUp` has them: where there are some, the samples may not lead


class WholeUse(NamedTuple):
    """Uses of a differentiated table's weights as an array, other than in products."""

    gradient: Array  # (rows, *row_shape), of them all


@dataclass
class OtherUse:
    """A use of a captured weight whose gradient cannot be told apart by samples."""

    layer: str
    what: str


#: What happened to a captured weight.
Use = LayerUse | ProductUse | OtherUse
#: What happened to a differentiated table.
TableUse = LookedUp | ProductUse | WholeUse
#: A function of a list of dense arrays and a list of sources to (loss, anything else).
Transform = Callable[[list[Array], list[Source]], tuple[Array, Any]]
#: A function of (arrays, upstream) to the gradient of each of the arrays.
Gradient = Callable[[tuple[Array, ...], Array], tuple[Any, ...]]
#: A function of (value, arrays, upstream) to the same, for a value that is known.
GradientOfValue = Callable[[Array, tuple[Array, ...], Array], tuple[Any, ...]]


def not_implemented(reason: str) -> Any:
    """Declare a primitive that a backend cannot supply, with the reason its users will read.

    Parameters
    ----------
    reason : str
        Why, and what to do instead.

    Returns
    -------
    descriptor
        For the class body of a `Backend`; calling it raises NotImplementedError. The suite counts a case that ends in
        one as unsupported (SPEC, Outcomes of the suite).

    Examples
    --------
    >>> class Partial(Backend):
    ...     name = "partial"
    ...     segment_sum = not_implemented("partial has no scatter")
    >>> Partial().segment_sum(None, None, 1)
    Traceback (most recent call last):
        ...
    NotImplementedError: partial: segment_sum: partial has no scatter
    """
    return _NotImplementedPrimitive(reason)


def view_span(view: np.ndarray[Any, Any]) -> tuple[int, int]:
    """`Backend.memory_span` of a NumPy array."""
    start = view.__array_interface__["data"][0]
    if view.flags.c_contiguous:
        return start, start + view.nbytes
    if view.size == 0:
        return start, start
    reach = [(size - 1) * step for size, step in zip(view.shape, view.strides, strict=True)]
    return start + sum(x for x in reach if x < 0), start + sum(x for x in reach if x > 0) + view.itemsize


class _NotImplementedPrimitive:
    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.primitive = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.primitive = name

    def __get__(self, instance: Any, owner: type) -> Callable[..., NoReturn]:
        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            error = NotImplementedError(f"{owner.name}: {self.primitive}: {self.reason}")  # type: ignore[attr-defined]
            error.primitive = self.primitive  # type: ignore[attr-defined]  # marks a declaration
            raise error

        return refuse


class Backend:
    """The adapter of one framework. Subclass it, fill in the primitives, and register the module.

    Attributes
    ----------
    name : str
        The framework's name, as given to ``get_backend``.
    module : str
        The module whose import means that the framework is in use.
    pip : str
        The line that installs it, for error messages.
    protocol : int
        The version of this protocol the adapter was written for.
    float_dtypes : tuple of str
        The floating dtypes the framework can hold.
    native_name : str
        What the framework calls its row-sparse object, for messages; empty if it has none.
    sentinel_padding : bool
        True where traced code cannot drop slots, so that `select` moves them to the sentinel row instead.
    host_only : bool
        True where the framework's own operations are the host's (NumPy).
    whole_floats : bool
        True where the framework's own layers take ids and masks as floats that are whole numbers (MXNet).
    own_calls : str
        For a plug-in: its module of the framework's own calls, as `islices.conformance.native` describes them, with
        which the conformance suite takes real gradients; empty if it brings none.

    Notes
    -----
    What the primitives must add up to is SPEC clauses 1 to 20, which the conformance suite checks.

    Examples
    --------
    >>> import islices
    >>> islices.get_backend("numpy").modes()
    ['host']
    """

    name: ClassVar[str]
    module: ClassVar[str]
    pip: ClassVar[str] = ""
    protocol: ClassVar[int] = PROTOCOL
    float_dtypes: ClassVar[tuple[str, ...]] = FLOATS
    native_name: ClassVar[str] = ""
    sentinel_padding: ClassVar[bool] = False
    host_only: ClassVar[bool] = False
    whole_floats: ClassVar[bool] = False
    own_calls: ClassVar[str] = ""

    def __repr__(self) -> str:
        return f"<islices backend {self.name}>"

    # ------------------------------------------------------------------ identity
    def version(self) -> str:
        """The framework's version."""
        raise NotImplementedError

    def devices(self) -> tuple[str, ...]:
        """Names of the devices the framework can compute on here, CPU first."""
        return ("cpu",)

    def is_array(self, x: object) -> bool:
        """Whether x is a dense array of this framework (a variable or parameter counts)."""
        raise NotImplementedError

    def is_native(self, x: object) -> bool:
        """Whether x is this framework's own row-sparse object."""
        return False

    # ------------------------------------------------------------------ looking at an array
    def dtype(self, x: Array) -> str:
        """The NumPy name of x's dtype. Any dtype the framework has, legal in islices or not."""
        raise NotImplementedError

    def shape(self, x: Array) -> tuple[int | None, ...]:
        """The shape; None for a dimension unknown while tracing. Raises ValueError for unknown rank."""
        raise NotImplementedError

    def is_traced(self, x: Array) -> bool:
        """Whether x stands for a value that is not known yet (inside jit, tf.function, vmap, grad)."""
        return False

    def records_gradient(self, x: Array) -> bool:
        """Whether the framework is recording operations on x for differentiation right now."""
        return False

    def host_view(self, x: Array) -> np.ndarray[Any, Any] | None:
        """A NumPy view of x's memory without a copy, bfloat16 as uint16; None if x is not plain CPU memory.

        The core never writes through the view.
        """
        raise NotImplementedError

    def look(self, arrays: Sequence[Array], *, views: bool = True) -> Look:
        """What the primitives of this section say of each array; without views where none are asked for, since they may
        have to wait for what computes the arrays. To be overridden only to say it faster: every call begins with it."""
        dtypes, traced = [self.dtype(x) for x in arrays], [self.is_traced(x) for x in arrays]
        found: list[np.ndarray[Any, Any]] = []
        for x, unknown in zip(arrays, traced, strict=True) if views else ():
            view = None if unknown or self.records_gradient(x) else self.host_view(x)
            if view is None:
                break
            found.append(view)
        whole = len(found) == len(arrays)
        return Look(dtypes, [self.shape(x) for x in arrays], traced, found if whole else None)

    def memory_span(self, x: Array) -> tuple[int, int] | None:
        """The address of the first byte that x's elements lie in, and that behind the last; twice the same one where x
        has none. For arrays that change in place or may be donated: numbers that are equal for two of them where they
        are one will do. None where nothing is known: x is then told from others by its identity."""
        view = None if self.is_traced(x) else self.host_view(x)
        return None if view is None else view_span(view)

    def from_host(self, array: np.ndarray[Any, Any], like: Array) -> Array:
        """The framework's array over a NumPy array that islices made and gives away; uint16 means bfloat16.

        Shares the memory where the framework allows it. Read-only or unaligned input is copied.
        """
        raise NotImplementedError

    def asarray(self, array: np.ndarray[Any, Any], like: Array | None = None) -> Array:
        """A new array with the values of a NumPy array, which stays the caller's (so: copy). What the framework cannot
        hold is refused: TypeError for a dtype, IndexError for an index.

        bfloat16 comes as an array whose dtype is named so (ml_dtypes) or as uint16. Never narrows silently:
        int64 that the framework would store as int32 is range-checked (IndexError names the position),
        float64 it cannot hold raises TypeError naming the setting that allows it.
        """
        raise NotImplementedError

    def to_numpy(self, x: Array) -> np.ndarray[Any, Any]:
        """x as a NumPy array, copied or not, from any device; bfloat16 as uint16."""
        raise NotImplementedError

    def scalar(self, x: np.ndarray[Any, Any], like: Array) -> Array:
        """A 0-d array of the framework holding x, a 0-d NumPy float (float32 or float64)."""
        return self.asarray(x, like)

    # ------------------------------------------------------------------ the framework's sparse form
    def from_native(self, x: Any) -> NativeParts:
        """Take a native sparse object apart without touching its contents; the core validates them.

        Raises ValueError for a native form that is not row-sparse (more than one sparse dimension, a batch).
        """
        raise TypeError(f"{self.name} has no row-sparse type of its own")

    def to_native(
        self,
        values: Array,
        indices: Array,
        dense_shape: tuple[int | None, ...],
        *,
        coalesced: bool,
        padded: bool,
        like: Any = None,
    ) -> Any:
        """Build the native sparse object. ``like``, if given, is the native object this result answers.

        Slots of padded slices have been dropped already unless `sentinel_padding`.
        """
        raise TypeError(f"{self.name} has no row-sparse type of its own")

    #: The floating dtypes the native sparse type can hold.
    native_float_dtypes: ClassVar[tuple[str, ...]] = FLOATS
    #: True if `to_native` takes only coalesced slices (the core coalesces first).
    native_needs_coalesced: ClassVar[bool] = False

    # ------------------------------------------------------------------ where the arithmetic runs
    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which the primitives below run: wide types on, zero-size arrays legal."""
        return contextlib.nullcontext()

    def wide_types(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which the framework's users have 64-bit types (JAX's x64 mode): for the conformance suite."""
        return contextlib.nullcontext()

    def modes(self) -> list[str]:
        """The execution modes there are: "host", "native" unless they are the same, "traced" with a compiler."""
        modes = ["host"] if self.host_only else ["host", "native"]
        return modes if type(self).trace is Backend.trace else [*modes, "traced"]

    def on_device(self, x: Array, device: str) -> Array:
        """x on a device, one of `devices`: for the conformance suite."""
        raise NotImplementedError(f"{self.name}: on_device: the adapter supplies none")

    def trace(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """fn compiled by the framework (jax.jit, tf.function): used by the conformance suite."""
        raise NotImplementedError(f"{self.name}: trace: the framework has no tracing compiler")

    def forget_compiled(self) -> None:
        """Let go of what `trace` and the framework itself have compiled: for the conformance suite, whose thousands of
        programs would exceed what a process may map."""

    # ------------------------------------------------------------------ array primitives
    def astype(self, x: Array, dtype: str) -> Array:
        """x converted, rounded to nearest even. Values that overflow become infinite."""
        raise NotImplementedError

    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        """x with another shape; at most one dimension may be None (unknown while tracing)."""
        raise NotImplementedError

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        """A new array of zeros."""
        raise NotImplementedError

    def zeros_like(self, x: Array) -> Array:
        """Zeros of x's shape and dtype, whatever x holds."""
        return self.zeros(self.shape(x), self.dtype(x), x)  # type: ignore[arg-type]

    def concat(self, arrays: Sequence[Array]) -> Array:
        """The arrays joined along axis 0. At least one array; equal dtypes."""
        raise NotImplementedError

    def take(self, x: Array, positions: Array) -> Array:
        """x[positions] along axis 0; positions are in range, any integer dtype."""
        raise NotImplementedError

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        """a where mask, else b: a selection, so a NaN in the branch not taken is gone. Broadcasts; a or b may
        be a Python float. So it is with gradients: the side not taken gets zeros, whatever its own derivative is there
        (a framework that multiplies by the mask makes NaN of an infinite one)."""
        raise NotImplementedError

    def abs(self, x: Array) -> Array:
        raise NotImplementedError

    def minimum(self, a: Array, b: Array) -> Array:
        """Elementwise; NaN if either is NaN. Broadcasts; either may be a Python float."""
        raise NotImplementedError

    def maximum(self, a: Array, b: Array) -> Array:
        """Elementwise; NaN if either is NaN. Broadcasts; either may be a Python float."""
        raise NotImplementedError

    def less_equal(self, a: Array, b: Array) -> Array:
        """The mask a <= b; False where either is NaN. Broadcasts; either may be a Python float."""
        raise NotImplementedError

    def isfinite(self, x: Array) -> Array:
        """The mask of what is neither infinite nor NaN."""
        raise NotImplementedError

    def sqrt(self, x: Array) -> Array:
        """Correctly rounded square root."""
        raise NotImplementedError

    def div(self, a: Array, b: Array) -> Array:
        """Correctly rounded a / b, in traced code too. Broadcasts; a may be a Python float."""
        raise NotImplementedError

    def round_product(self, a: Array, b: Array | float) -> Array:
        """a * b rounded to its type before it is used further: never contracted into a fused multiply-add."""
        return a * b

    def row_amax(self, x: Array) -> Array:
        """For float x of shape (k, m): the largest |x| of each row, (k,). NaN if the row holds one; 0 if m is 0."""
        raise NotImplementedError

    def row_sum(self, x: Array) -> Array:
        """For x of float32 or float64, shape (k, m): the sum of each row in its type, in any order, (k,). 0 if m is
        0."""
        raise NotImplementedError

    def blocks(self, x: Array) -> Sequence[Array]:
        """x of shape (1, m) cut along axis 1 into pieces that suit the caches; [x] if that brings nothing."""
        return [x]

    # ------------------------------------------------------------------ sparse primitives
    def equal(self, x: Array, value: int | Array) -> Array:
        """The mask of where integers equal value (an int, or an array that broadcasts)."""
        raise NotImplementedError

    def in_range(self, indices: Array, rows: int | None) -> Array:
        """The mask of 0 <= indices < rows (no upper bound if rows is None)."""
        raise NotImplementedError

    def logical_not(self, mask: Array) -> Array:
        """The other slots of a mask that `equal`, `isin` or `in_range` made."""
        raise NotImplementedError

    def isin(self, indices: Array, rows: Array) -> Array:
        """The mask of the indices that occur in rows (1-D integers, any order, duplicates allowed)."""
        raise NotImplementedError

    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        """The slots where the mask keep holds, in order.

        Where `sentinel_padding` and the arrays are traced, no slot can go: the others get index ``rows`` and
        values of zero.
        """
        raise NotImplementedError

    def unique(self, indices: Array, rows: int | None) -> tuple[Array, Array]:
        """(ids, inverse): the distinct indices ascending, in their own dtype, and for each slot its place in ids.

        Traced with static shapes: as many ids as slots, filled up with ``rows`` at the end.
        """
        raise NotImplementedError

    def segment_sum(self, values: Array, segments: Array, count: int | None) -> Array:
        """out[s] = the sum of values[k] over segments[k] == s, added left to right in order of k, shape
        (count, *row_shape). The dtype is values' own (float32, float64 or an integer); count is None only
        where traced shapes are dynamic."""
        raise NotImplementedError

    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        """A dense array of zeros with rows ids (unique, ascending) set to values. Out-of-range ids, possible in
        traced code only, set nothing. Bit for bit the values."""
        raise NotImplementedError

    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        """A new array: dense with values added to rows ids (unique, in range, or dropped while traced).

        dense and values have the same dtype; 16-bit sums are taken in float32 and rounded once.
        """
        raise NotImplementedError

    def arange(self, x: Array) -> Array:
        """0, 1, ... up to the length of x along axis 0, as int32 or int64, shape (n,)."""
        raise NotImplementedError(f"{self.name}: arange: the adapter supplies none")

    def searchsorted(self, ordered: Array, queries: Array, *, right: bool) -> Array:
        """Where each of the queries (1-D) would go in the ascending 1-D integers ``ordered``, as `numpy.searchsorted`
        says for side "right" or "left": int32 or int64, queries' shape. Both may be empty."""
        raise NotImplementedError(f"{self.name}: searchsorted: the adapter supplies none")

    def segment_max(self, values: Array, segments: Array, count: int | None, *, least: float | None = None) -> Array:
        """out[s] = the largest values[k] over segments[k] == s, elementwise, shape (count, *row_shape); NaN if one is.

        values: float32, float64, int32 or int64. An empty segment holds -inf, or the smallest
        integer; or ``least``, asked for of traced floats that are at least that or NaN: then no -inf is made on the
        way. No gradient need pass.
        """
        raise NotImplementedError(f"{self.name}: segment_max: the adapter supplies none")

    def fold_rows(self, op: str, rows: Array, values: Array, segments: Array) -> Array:
        """For traced float32, float64 or integer arrays: rows[s] multiplied (op "mul") or divided ("div") by values[k]
        for each segments[k] == s, one after the other in order of k; segments out of range change nothing. Only for
        adapters that trace."""
        raise NotImplementedError(f"{self.name}: fold_rows: the adapter supplies none")

    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        """The table with rows ids (unique, any order; out of range, possible in traced code only, nowhere) set to
        values, in place and itself where the framework's arrays can change; else a new array, which takes the place
        of a table that is donated. Gradients are not recorded."""
        raise NotImplementedError(f"{self.name}: set_rows: the adapter supplies none")

    def add_in_order(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array | None:
        """For concrete arrays of 32 or 64 bits: the table with values added to rows ids (in range, duplicates allowed),
        one after the other, written as `set_rows` says. None where reading, summing and setting the rows is as fast."""
        return None

    def in_place(self, x: Array) -> bool:
        """Whether `set_rows` writes into x itself. ValueError for an x that it could not write into."""
        raise NotImplementedError(f"{self.name}: in_place: the adapter supplies none")

    def writable(
        self, arrays: Sequence[Array], *, donate: bool = False
    ) -> tuple[list[np.ndarray[Any, Any]], list[Array]] | None:
        """(views, results) for concrete arrays that the host is to write into, or None where there is no such memory.

        The views hold the arrays' values, bfloat16 as uint16, with the arrays' own strides, and may be written through
        until they are dropped, which is before anyone reads the results. Those hold what was written: the arrays
        themselves where they change in place, as after the framework's own update (values read earlier stay, autograd
        notices); else new ones, over memory that was copied, or taken from arrays that are donated and gone
        thereafter. `in_place` was asked of each array before, and no two share memory. None is answered for all of them
        or for none, and nothing has changed then.
        """
        return None

    def variable(self, x: Array, like: Array) -> Array:
        """x, which nobody else holds, as something that changes in place where like does (a tf.Variable)."""
        return x

    def traced_step(
        self,
        recipe: Any,
        values: Array,
        indices: Array,
        numbers: Array,
        tables: Sequence[Array],
        otherwise: Callable[..., Sequence[Array]],
    ) -> Sequence[Array] | None:
        """In traced code: the tables (the weights, then the state's) after an optimizer's step, an
        `islices.kernels.operations.Recipe`, by a compiled kernel; indices out of range name no row. None where none can
        be called. ``otherwise(values, indices, numbers, *tables)`` is the same in the framework's operations."""
        return None

    # ------------------------------------------------------------------ differentiation
    def stop_gradient(self, x: Array) -> Array:
        """x as a constant to differentiation; the same memory."""
        raise NotImplementedError(f"{self.name}: stop_gradient: the adapter supplies none")

    def custom_gradient(self, forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
        """The function ``forward(*arrays)`` with a gradient that is given.

        ``backward(arrays, upstream)`` returns one gradient for each of the arrays, None for those that have none
        (integers). Neither is recorded, unless the framework takes a second derivative.
        """
        raise NotImplementedError(f"{self.name}: custom_gradient: the adapter supplies none")

    def differentiate(
        self, fn: Transform, variables: Sequence[Array], sources: Sequence[Source]
    ) -> tuple[Array, Any, list[Array], Sequence[Sequence[TableUse]]]:
        """(loss, aux, gradients, lookups) of ``fn(variables, sources) -> (loss, aux)``.

        fn is called with the variables as the framework differentiates them, and with sources of the same weights and
        a recorder of this differentiation. (A framework that differentiates functions, as JAX does, gives the recorder
        zeros to add to the rows of each lookup, and takes the loss as a function of variables and of these: their
        gradient is `LookedUp.upstream`. One that keeps a tape watches the rows.) gradients has a dense array for each
        variable (zeros where the loss does not depend on it); lookups has, for each source, its `LookedUp` in order.
        Nothing of a table's size is allocated: the framework differentiates with respect to the rows that the recorder
        returned. A source may have a recorder already, of an outer differentiation: rows are then read through it, so
        that second derivatives are right, or NotImplementedError is raised. A recorder used where its gradient would be
        wrong (a loop body, a graph traced apart) raises TypeError. fn has checked that the loss is one floating-point
        number.
        """
        raise NotImplementedError(f"{self.name}: differentiate: the adapter supplies no differentiation")

    def per_sample_gradients(
        self, fn: Callable[[list[Array], list[Array]], Array], variables: Sequence[Array], data: Sequence[Array]
    ) -> list[Array]:
        """For each variable the gradients (B, *shape) of ``fn(variables, [x[b:b+1] for x in data])`` for b < B, by
        the framework's vmap."""
        raise NotImplementedError(f"{self.name}: per_sample_gradients: the framework has no vmap")

    def user_code(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """fn as the framework runs the user's own code: rewritten, where a compiler rewrites Python (autograph)."""
        return fn

    def flatten_tree(
        self, x: Any, is_leaf: Callable[[Any], bool]
    ) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
        """(leaves, rebuild) of a container only this framework knows (a registered JAX pytree), else None."""
        return None

    # ------------------------------------------------------------------ models
    def is_model(self, x: object) -> bool:
        """Whether x is a model of this framework, with embedding layers that `capture` can hook."""
        return False

    def capture(self, model: Any, uses: list[Use]) -> contextlib.AbstractContextManager[dict[str, Array]]:
        """A context in which each call of a stock embedding layer of model appends a `LayerUse` to uses, and the
        backward pass sets its upstream. Yields the layers' weights by name, weights that several share by the first.
        Where a stock output layer shares them, its calls append a `ProductUse`; any other way in which a gradient
        reaches them an `OtherUse`. The model is left as it was, also after an exception; its weights and results are
        the same. What cannot be hooked raises TypeError, and says why."""
        raise NotImplementedError(f"{self.name}: capture: the framework has no stock models")

    # ------------------------------------------------------------------ composites an adapter may override
    def with_gradient(self, value: Array, arrays: Sequence[Array], backward: GradientOfValue) -> Array:
        """value, which was computed of the arrays as constants, as a function of them with a gradient that is given.

        ``backward(value, arrays, upstream)`` is made of operations that can be differentiated, and linear in
        upstream. Override where the framework has derivatives in forward mode.
        """

        def gradient(given: tuple[Array, ...], upstream: Array) -> tuple[Any, ...]:
            return (None, *backward(given[0], tuple(given[1:]), upstream))

        return self.custom_gradient(_first, gradient)(value, *arrays)

    def read_rows(self, table: Array, ids: Array) -> Array:
        """table[ids], shape (*ids.shape, *row_shape); out-of-range ids, possible in traced code only, read as zeros."""
        rows = self.shape(table)[0]
        if not self.is_traced(ids):
            return self.take(table, ids)
        if rows == 0:
            return self.zeros((*self.shape(ids), *self.shape(table)[1:]), self.dtype(table), table)  # type: ignore[arg-type]
        valid = self.in_range(ids, rows)
        found = self.take(table, self.where(valid, ids, self.zeros_like(ids)))
        return self.where(self.as_column(valid, found), found, self.zeros_like(found))

    def take_ragged(self, x: Any, argument: str) -> RaggedParts | None:
        """The framework's own ragged array, of any dtype, taken apart; None for anything else. ValueError for a form
        that is not rows of numbers, TypeError where there is a better one to ask for, which name the argument."""
        return None

    def running_sum(self, x: Array) -> Array:
        """The sums of the first 1, 2, ... of 1-D integers, in their dtype. To be overridden where traced shapes are
        dynamic."""
        (n,) = self.shape(x)
        assert n is not None, "shapes are known here"
        step = 1
        while step < n:
            head = self.reshape(self.columns(self.reshape(x, (1, n)), 0, n - step), (n - step,))
            x = x + self.concat([self.zeros((step,), self.dtype(x), x), head])
            step *= 2
        return x

    def widen(self, x: Array) -> Array:
        """16-bit floats as float32, anything else as it is."""
        return self.astype(x, "float32") if self.dtype(x) in ("float16", "bfloat16") else x

    def as_column(self, x: Array, like: Array) -> Array:
        """x, of like's leading shape, with as many axes of length 1 behind as like has more: (k,) as (k, 1, ...)."""
        shape = self.shape(x)
        return self.reshape(x, (*shape, *(1,) * (len(self.shape(like)) - len(shape))))

    def permute(self, x: Array, order: Sequence[int]) -> Array:
        """x with its axes in another order, as `numpy.transpose` says. To be overridden where the framework does that
        itself, and where shapes are unknown while tracing."""
        shape = self.shape(x)
        if None in shape:
            raise NotImplementedError(f"{self.name}: permute: the adapter supplies none for shapes that are not known")
        places = np.arange(math.prod(shape)).reshape(shape).transpose(order)  # type: ignore[arg-type]
        flat = self.take(self.reshape(x, (places.size,)), self.asarray(places.ravel(), x))
        return self.reshape(flat, places.shape)

    def columns(self, x: Array, start: int, stop: int) -> Array:
        """x[:, start:stop] of x with two axes; sums of columns are not reordered. To be overridden where arrays have no
        slices."""
        return x[:, start:stop]

    def sum_duplicates(self, values: Array, indices: Array, rows: int | None) -> tuple[Array, Array]:
        """(sums, ids): `unique` then `segment_sum`; override where one pass can do both."""
        ids, inverse = self.unique(indices, rows)
        return self.segment_sum(values, inverse, self.shape(ids)[0]), ids

    def sum_rows(self, values: Array, indices: Array, rows: int | None, *, loose: bool) -> tuple[Array, Array]:
        """(sums, ids) of values' own dtype: `sum_duplicates` of 16-bit floats in float32, rounded once. Where loose,
        indices may be out of range: those slots are left out."""
        if loose:
            values, indices = self.select(values, indices, self.in_range(indices, rows), rows)
        sums, ids = self.sum_duplicates(self.widen(values), indices, rows)
        return self.astype(sums, self.dtype(values)), ids

    def dense_rows(self, values: Array, indices: Array, shape: tuple[int, ...], *, loose: bool) -> Array:
        """Zeros of a shape with the sums of `sum_rows` in their rows."""
        sums, ids = self.sum_rows(values, indices, shape[0], loose=loose)
        return self.scatter_rows(sums, ids, shape)

    def outer_products(self, g: Array, x: Array) -> Array:
        """For float64 g (b, t, v) and x (b, t, d), of which t alone may be unknown: the sum over t of g[b, t, v] *
        x[b, t, d], in any order, shape (b, v, d). To be overridden by a matrix product."""
        (b, t, v), d = self.shape(g), self.shape(x)[2]
        if t is None:
            raise NotImplementedError(f"{self.name}: outer_products: the adapter supplies none for unknown shapes")
        total = self.zeros((b, v, d), "float64", g)  # type: ignore[arg-type]
        left, right = self.reshape(g, (b, t * v)), self.reshape(x, (b, t * d))  # type: ignore[operator]
        for k in range(t):
            column = self.reshape(self.columns(left, k * v, k * v + v), (b, v, 1))  # type: ignore[operator]
            row = self.reshape(self.columns(right, k * d, k * d + d), (b, 1, d))  # type: ignore[operator]
            total = total + self.round_product(column, row)
        return total

    def scaled(self, values: Array, steps: Sequence[tuple[str, Any]]) -> Array:
        """values times ("mul") or over ("div") scalars, one after the other, each step rounded; 16-bit floats in
        float32, rounded to 16 bits once at the end."""
        out = self.widen(values)
        for name, c in steps:
            out = self.round_product(out, c) if name == "mul" else self.div(out, c)
        return self.astype(out, self.dtype(values))


def _first(value: Array, *arrays: Array) -> Array:
    return value
