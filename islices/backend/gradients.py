"""Methods with which a framework differentiates functions of islices, functions of the user, and stock layers.

May import: `islices.backend.arrays`, `islices.backend.contract`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from islices.backend.arrays import Arrays
from islices.backend.contract import Array, optional


class Source(NamedTuple):
    """The source of a table's rows, which consists of the table's weights and, during a differentiation, of a recorder.

    A recorder is an object that the adapter makes, usually in `Backend.differentiate`. The recorder's method
    ``lookup(weights, ids, extras, static)`` returns the rows of ids, as an array of shape ``(*ids.shape, *row_shape)``.
    In traced code, an id may be out of range; its row is then zeros. The method stores ids, extras (a tuple of integer
    arrays) and static (hashable) for the result's `LookedUp`. ids may have any shape, including (). An optional method
    ``bags(weights, ids, extras, static, read)`` does the same for bags: it returns and differentiates ``read(weights,
    ids)``. An optional method ``operand(weights)`` returns the weights as an array that is differentiated. A product
    ``x @ weights.T`` becomes a `ProductUse`, and any other use of that array a `WholeUse`. If a recorder has no effect
    outside of a differentiation, as in JAX, the adapter may give one to every traced table. The recorder's attribute
    ``everywhere`` is then True. `TapeRecorder` is a base class for frameworks with a tape.
    """

    weights: Array
    recorder: Any = None

    @property
    def watched(self) -> bool:
        """Return True if the table has a recorder of a differentiation.

        A recorder that the adapter gives to every traced table does not count.
        """
        return self.recorder is not None and not getattr(self.recorder, "everywhere", False)


class LookedUp(NamedTuple):
    """One lookup in a table, and the gradient of the rows or bags that it returned."""

    upstream: Array  # (*ids.shape, *row_shape), or the shape of the bags; zeros if the loss ignores the rows
    ids: Array
    extras: tuple[Array, ...]
    static: Any
    #: the loops ("scan") and mapped axes ("vmap") that have added leading axes to ids, outermost first
    axes: tuple[str, ...] = ()


@dataclass
class LayerUse:
    """One call of a stock embedding layer within `Backend.capture`; the backward pass sets ``upstream``."""

    layer: str  # the layer's name in the model, as the framework spells it
    ids: Array  # the integers that the layer got
    num_rows: int
    upstream: Array | None = None  # the gradient of the layer's output, summed over backward passes
    padding_idx: int | None = None
    scale_by_freq: bool = False
    # bags
    combiner: str | None = None
    offsets: Array | None = None  # the starts of bags in 1-D ids; without a combiner, the starts of samples
    weights: Array | None = None  # has the shape of ids
    rows: Array | None = None  # if combiner is "max": the looked-up rows, (n, *row_shape), as constants
    #: A function that returns an object while a backward pass may still set upstream, and None afterwards. The field is
    #: None if the framework does not show whether a backward pass may follow.
    awaited: Callable[[], object] | None = None


@dataclass
class ProductUse:
    """One use of a captured weight, or of a differentiated table, as an output layer, x @ weights.T.

    In a capture, the backward pass sets ``upstream``.
    """

    layer: str  # the name of the embedding layer that has the weights; "" for a differentiated table
    inputs: Array  # x, (..., width)
    upstream: Array | None = None  # the gradient of the product, (..., rows)
    axes: tuple[str, ...] = ()  # see `LookedUp`; with axes, the first axis of inputs is not always that of the samples
    awaited: Callable[[], object] | None = None  # see `LayerUse`


class WholeUse(NamedTuple):
    """A use of a differentiated table's weights as an array, other than as an output layer (see `ProductUse`)."""

    gradient: Array  # (rows, *row_shape)


@dataclass
class OtherUse:
    """A use of a captured weight that is neither a `LayerUse` nor a `ProductUse`; the capture lacks its gradient."""

    layer: str
    subject: str


#: A function of weights and ids that returns looked-up rows, or bags of rows.
Reader = Callable[[Array, Array], Array]


class TapeRecorder:
    """A base class of recorders for a framework with a tape. A recorder stores the lookups in one table during a
    differentiation.

    A subclass overrides `bags`. `bags` appends (rows or bags that the tape watches, ids, extras, static) to ``found``.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.found: list[tuple[Array, Array, tuple[Array, ...], Any]] = []

    def lookup(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any) -> Array:
        """Return the rows with these ids; see `Source`."""
        return self.bags(weights, ids, extras, static, self.backend.read_rows)

    def bags(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any, read: Reader) -> Array:
        """Return ``read(weights, ids)``, watched by the tape; see `Source`."""
        raise NotImplementedError

    def looked_up(self, upstreams: Iterator[Array]) -> list[LookedUp]:
        """Return the lookups with their gradients, which are the next items of `upstreams`."""
        return [LookedUp(next(upstreams), *use) for _, *use in self.found]


#: A use of a captured weight.
Use = LayerUse | ProductUse | OtherUse
#: A use of a differentiated table.
TableUse = LookedUp | ProductUse | WholeUse
#: A function of a list of dense arrays and a list of sources that returns (loss, anything else).
Transform = Callable[[list[Array], list[Source]], tuple[Array, Any]]
#: The result of `Gradients.differentiate`: (loss, aux, gradients, lookups).
Differentiated = tuple[Array, Any, list[Array], Sequence[Sequence[TableUse]]]
#: A function of variables and data that returns a loss of shape (1,).
SampleLoss = Callable[[list[Array], list[Array]], Array]
#: A function of (arrays, upstream) that returns the gradient of each array.
Gradient = Callable[[tuple[Array, ...], Array], tuple[Any, ...]]
#: A function of (value, arrays, upstream) that returns the gradient of each array, for a known value.
GradientOfValue = Callable[[Array, tuple[Array, ...], Array], tuple[Any, ...]]


class Gradients(Arrays):
    """The part of `Backend` that differentiates functions of islices, functions of the user, and stock layers."""

    # ------------------------------------------------------------------ through functions of islices
    @optional("no gradient is recorded")
    def stop_gradient(self, x: Array) -> Array:
        """Return x as an array that differentiation treats as a constant. The result shares memory with x."""
        return x

    @optional("no gradient is recorded")
    def custom_gradient(self, forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
        """Return a function that computes ``forward(*arrays)`` and has `backward` as its gradient.

        ``backward(arrays, upstream)`` returns one gradient per array, or None for an array that has no gradient
        (integers). The framework does not record the operations of the two functions, unless it computes a second
        derivative.
        """
        return forward

    @optional("`custom_gradient` does it")
    def with_gradient(self, value: Array, arrays: Sequence[Array], backward: GradientOfValue) -> Array:
        """Return `value` as a function of the arrays that has `backward` as its gradient.

        The framework has not recorded the operations that computed the value from the arrays.
        ``backward(value, arrays, upstream)`` consists of differentiable operations and is linear in upstream. Override
        this method if the framework has forward-mode derivatives that `custom_gradient` does not support.
        """

        def gradient(given: tuple[Array, ...], upstream: Array) -> tuple[Any, ...]:
            return (None, *backward(given[0], tuple(given[1:]), upstream))

        return self.custom_gradient(_first, gradient)(value, *arrays)

    # ------------------------------------------------------------------ through the user's functions
    @optional("no `value_and_grad`")
    def differentiate(self, fn: Transform, variables: Sequence[Array], sources: Sequence[Source]) -> Differentiated:
        """Return (loss, aux, gradients, lookups) of ``fn(variables, sources) -> (loss, aux)``.

        The framework differentiates with respect to the variables that `fn` gets. The sources that `fn` gets have the
        weights of `sources`, and a recorder of this differentiation. `gradients` contains a dense array for each
        variable (zeros if the loss does not depend on the variable). `lookups` contains one list per source, with a
        `LookedUp` per lookup, in order, and a `ProductUse` or `WholeUse` for each other use of the weights. Apart from
        a `WholeUse`, no table-sized array is allocated: the framework differentiates with respect to the rows or bags
        that the recorder returned. If a source already has a recorder of an outer differentiation, that recorder reads
        the rows, so that second derivatives are correct. If the framework has no second derivatives, the method raises
        NotImplementedError for a source with a recorder. A recorder raises TypeError where its gradient would be wrong,
        for example in the body of a tf.while_loop or in a separately traced graph. `fn` has checked that the loss is
        one floating-point number or a vector of such numbers. For a vector the sum is differentiated, and the vector is
        returned.

        A framework with a tape (torch, TensorFlow, MXNet) watches the rows or bags that the recorder returns, and
        computes their gradients after `fn`. A framework that differentiates functions (JAX) first traces `fn` without a
        gradient, so that each lookup's shape and dtype are known. Then JAX differentiates a function of the variables
        and of one array of zeros for each lookup. The differentiated function is the traced one, with the zeros added
        to the rows or bags. The gradients with respect to the zeros are `LookedUp.upstream`. aux, ids and extras are
        auxiliary results of that function. No other value that `fn` makes may leave the trace.
        """
        raise self.lacks("differentiate", "the adapter supplies no differentiation")

    @optional("no `value_and_grad` with sparse=")
    def differentiate_rows(
        self, fn: Callable[..., tuple[Array, Any]], tree: Any, sparse: Any, data: Sequence[Array] | None = None
    ) -> tuple[Array, Any, Any]:
        """Return (loss, aux, gradients) of ``fn(tree) -> (loss, aux)``, where `tree` contains plain arrays.

        `gradients` has the structure of `tree`: `IndexedSlices` for the leaves that `sparse` marks, arrays for other
        float leaves, None for the rest. `sparse` is a function of a leaf's path, a prefix of `tree` with bools as
        leaves, or the string "auto" or "always". A string marks only leaves that `fn` reads only by rows; see
        `islices.embedding.marking.pays`. If `sparse` is not a string and `fn` reads a marked leaf other than by rows,
        the method raises TypeError. `fn` checks the loss before it returns.

        With `data`, the method calls ``fn(tree, [x[b:b+1] for x in data])`` for each sample b. The loss and dense
        gradients then contain one entry per sample, the slices of all samples are concatenated, and aux is None.
        """
        raise self.lacks(
            "differentiate_rows",
            "it finds no reads of plain arrays; accepted instead of sparse= is an islices.Table among the arguments, "
            "which fn reads by islices.lookup",
        )

    @optional("no per-sample gradients of dense variables")
    def per_sample_gradients(self, fn: SampleLoss, variables: Sequence[Array], data: Sequence[Array]) -> list[Array]:
        """Return, for each variable, an array (B, *shape) with the gradient of the loss of each of B samples.

        The loss of sample b is ``fn(variables, [x[b:b+1] for x in data])``, which has the shape (1,). The framework's
        vmap computes the gradients.
        """
        raise self.lacks("per_sample_gradients", "the framework has no vmap")

    @optional("fn as it is")
    def user_code(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return `fn` in the form in which the framework runs users' code.

        If the framework has a compiler that rewrites Python, such as autograph, the result is rewritten code; else it
        is `fn` itself.
        """
        return fn

    @optional("there is no such container")
    def flatten_tree(
        self, x: Any, is_leaf: Callable[[Any], bool]
    ) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
        """Return (leaves, rebuild) of a container that only this framework supports (a JAX pytree), else None."""
        return None

    # ------------------------------------------------------------------ models
    @optional("there are no models")
    def is_model(self, x: object) -> bool:
        """Return True if x is a model for this adapter's `capture`, which may still raise an error for x."""
        return False

    @optional("no `capture`")
    def capture(self, model: Any, uses: list[Use]) -> contextlib.AbstractContextManager[dict[str, Array]]:
        """Return a context in which each call of a stock embedding layer of `model` appends a `LayerUse` to `uses`.

        The backward pass sets ``upstream`` of the `LayerUse`. The context yields {layer's name: weights}, with shared
        weights under the name of the first layer. If a stock output layer shares the weights, a call of that layer
        appends a `ProductUse`, except in MXNet. Any other operation through which a gradient reaches the weights
        appends an `OtherUse` or raises TypeError. The model is restored when the context ends, even after an exception;
        weights and results do not change. If a layer cannot be hooked, the method raises TypeError, whose message names
        the layer and the reason.
        """
        raise self.lacks("capture", "the framework has no stock models")


def _first(value: Array, *arrays: Array) -> Array:
    return value
