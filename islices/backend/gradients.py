"""Gradients: the framework's differentiation, of functions of islices and of stock layers.

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
    """The source of a table's rows: its weights, and the recorder of the differentiation it takes part in.

    A recorder is an object of the adapter, made by `Backend.differentiate`. Its method ``lookup(weights, ids, extras,
    static)`` returns the rows of ids, (*ids.shape, *row_shape), with zeros for out-of-range ids (traced only). It
    stores ids, extras (a tuple of integer arrays) and static (hashable) for the result's `LookedUp`. ids may have any
    shape, including (). An optional method ``bags(weights, ids, extras, static, read)`` does the same for bags: it
    returns and differentiates ``read(weights, ids)``. An optional method ``operand(weights)`` returns the weights as an
    array that is differentiated: products with it are `ProductUse`s, anything else is a `WholeUse`. An adapter may give
    a recorder to every traced table if its operations mean nothing outside of a differentiation (JAX). The recorder's
    attribute ``everywhere`` is True then. `TapeRecorder` is a base class for frameworks with a tape.
    """

    weights: Array
    recorder: Any = None

    @property
    def watched(self) -> bool:
        """True if the table takes part in a differentiation, as far as that is known."""
        return self.recorder is not None and not getattr(self.recorder, "everywhere", False)


class LookedUp(NamedTuple):
    """One lookup in a table and the gradient that arrived at its rows, or its bags."""

    upstream: Array  # (*ids.shape, *row_shape), of bags as they were read; zeros if the loss does not depend on them
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
    rows: Array | None = None  # the looked-up rows, (n, *row_shape), without gradient: where combiner is "max"
    #: returns an object while a backward pass may still set upstream, else None; not given where that is unknown
    awaited: Callable[[], object] | None = None


@dataclass
class ProductUse:
    """One use of a captured weight as an output layer, x @ weights.T; ``upstream`` is set by the backward pass."""

    layer: str  # the embedding layer whose weights they are
    inputs: Array  # x, (..., width)
    upstream: Array | None = None  # the gradient of the product, (..., rows)
    axes: tuple[str, ...] = ()  # as in `LookedUp`: if there are any, the samples may not be the first axis
    awaited: Callable[[], object] | None = None  # as in `LayerUse`


class WholeUse(NamedTuple):
    """A use of a differentiated table's weights as an array outside of a product."""

    gradient: Array  # (rows, *row_shape)


@dataclass
class OtherUse:
    """A use of a captured weight whose gradient cannot be split by sample."""

    layer: str
    subject: str


#: A function of weights and ids to looked-up rows, or bags of them.
Reader = Callable[[Array, Array], Array]


class TapeRecorder:
    """A base of the recorders of a framework with a tape: the lookups in one table during a differentiation.

    A subclass overrides `bags`, which appends to ``found`` the rows that the tape watches, with ids, extras and static.
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.found: list[tuple[Array, Array, tuple[Array, ...], Any]] = []

    def lookup(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any) -> Array:
        """Return the rows of ids; see `Source`."""
        return self.bags(weights, ids, extras, static, self.backend.read_rows)

    def bags(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any, read: Reader) -> Array:
        """Return ``read(weights, ids)`` as the tape watches it; see `Source`."""
        raise NotImplementedError

    def looked_up(self, upstreams: Iterator[Array]) -> list[LookedUp]:
        """Return the lookups with their gradients, the next ones of an iterator."""
        return [LookedUp(next(upstreams), *use) for _, *use in self.found]


#: A use of a captured weight.
Use = LayerUse | ProductUse | OtherUse
#: A use of a differentiated table.
TableUse = LookedUp | ProductUse | WholeUse
#: A function of a list of dense arrays and a list of sources to (loss, anything else).
Transform = Callable[[list[Array], list[Source]], tuple[Array, Any]]
#: The result of `Gradients.differentiate`: (loss, aux, gradients, lookups).
Differentiated = tuple[Array, Any, list[Array], Sequence[Sequence[TableUse]]]
#: A function of variables and data to a loss of shape (1,).
SampleLoss = Callable[[list[Array], list[Array]], Array]
#: A function of (arrays, upstream) to the gradient of each of the arrays.
Gradient = Callable[[tuple[Array, ...], Array], tuple[Any, ...]]
#: A function of (value, arrays, upstream) to the gradient of each of the arrays, for a known value.
GradientOfValue = Callable[[Array, tuple[Array, ...], Array], tuple[Any, ...]]


class Gradients(Arrays):
    """The part of gradients: the framework's differentiation, of functions of islices and of stock layers."""

    # ------------------------------------------------------------------ through functions of islices
    @optional("no gradient is recorded")
    def stop_gradient(self, x: Array) -> Array:
        """Return x as a constant to differentiation, with the same memory."""
        return x

    @optional("no gradient is recorded")
    def custom_gradient(self, forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
        """Return the function ``forward(*arrays)`` with the given gradient.

        ``backward(arrays, upstream)`` returns one gradient for each of the arrays, None for those without one
        (integers). Neither function is recorded, unless the framework computes a second derivative.
        """
        return forward

    @optional("`custom_gradient` does it")
    def with_gradient(self, value: Array, arrays: Sequence[Array], backward: GradientOfValue) -> Array:
        """Return value as a function of the arrays with the given gradient. It was computed from the arrays as
        constants.

        ``backward(value, arrays, upstream)`` consists of differentiable operations and is linear in upstream.
        Override this if the framework has forward-mode derivatives.
        """

        def gradient(given: tuple[Array, ...], upstream: Array) -> tuple[Any, ...]:
            return (None, *backward(given[0], tuple(given[1:]), upstream))

        return self.custom_gradient(_first, gradient)(value, *arrays)

    # ------------------------------------------------------------------ through the user's functions
    @optional("no `value_and_grad`")
    def differentiate(self, fn: Transform, variables: Sequence[Array], sources: Sequence[Source]) -> Differentiated:
        """Return (loss, aux, gradients, lookups) of ``fn(variables, sources) -> (loss, aux)``.

        fn is called with the variables as the framework differentiates them, and with sources of the same weights and a
        recorder of this differentiation. gradients has a dense array for each variable (zeros where the loss does not
        depend on it). lookups has, for each source, its `LookedUp` in order. No table-sized array is allocated: the
        framework differentiates with respect to the rows that the recorder returned. A source may already have a
        recorder of an outer differentiation. Then rows are read through it, so that second derivatives are right, or
        this raises NotImplementedError. A recorder used where its gradient would be wrong (a loop body, a graph traced
        separately) raises TypeError. fn has checked that the loss is one floating-point number, or a vector of them.
        The sum of a vector is differentiated, and the vector is returned.

        A framework with a tape (torch, TensorFlow, MXNet) watches the rows that the recorder returns and computes their
        gradients after fn. A framework that differentiates functions (JAX) first traces fn without a gradient, so that
        each lookup's shape and dtype are known. Then it differentiates, with auxiliary results, a function of the
        variables and of one array of zeros for each lookup. This function is the traced one, with the zeros added to
        the rows. The gradients with respect to the zeros are `LookedUp.upstream`. aux, ids and extras are auxiliary
        results too: no other value that fn makes may leave the trace.
        """
        raise self.lacks("differentiate", "the adapter supplies no differentiation")

    @optional("no `value_and_grad` with sparse=")
    def differentiate_rows(
        self, fn: Callable[..., tuple[Array, Any]], tree: Any, sparse: Any, data: Sequence[Array] | None = None
    ) -> tuple[Array, Any, Any]:
        """Return (loss, aux, gradients) of ``fn(tree) -> (loss, aux)``, where tree holds plain arrays.

        gradients mirrors tree: `IndexedSlices` for the leaves that sparse marks, arrays for other float leaves, None
        for the rest. sparse is a function of a leaf's path, a prefix of tree with bools as leaves, or "auto" or
        "always" as a string. If fn reads a marked leaf other than by rows, this raises TypeError; with a string the
        leaf stays dense. fn has checked the loss.
        """
        raise self.lacks(
            "differentiate_rows",
            "it finds no reads of plain arrays; accepted instead of sparse= is an islices.Table among the arguments, "
            "which fn reads by islices.lookup",
        )

    @optional("no per-sample gradients of dense variables")
    def per_sample_gradients(self, fn: SampleLoss, variables: Sequence[Array], data: Sequence[Array]) -> list[Array]:
        """Return for each variable the gradients (B, *shape) of a loss per sample, by the framework's vmap.

        The loss of b < B is ``fn(variables, [x[b:b+1] for x in data])``, of shape (1,).
        """
        raise self.lacks("per_sample_gradients", "the framework has no vmap")

    @optional("fn as it is")
    def user_code(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return fn as the framework runs the user's code, rewritten if a compiler such as autograph rewrites
        Python."""
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
        """Return whether x is a model of this framework, with embedding layers that `capture` can hook."""
        return False

    @optional("no `capture`")
    def capture(self, model: Any, uses: list[Use]) -> contextlib.AbstractContextManager[dict[str, Array]]:
        """Return a context in which each call of a stock embedding layer of model appends a `LayerUse` to uses.

        The backward pass sets its upstream. The context yields the layers' weights by name, weights that several layers
        share by the first name. If a stock output layer shares them, its calls append a `ProductUse`. Any other
        operation through which a gradient reaches them appends an `OtherUse`. The model is restored, also after an
        exception; its weights and results are the same. Layers that cannot be hooked raise TypeError, with the reason.
        """
        raise self.lacks("capture", "the framework has no stock models")


def _first(value: Array, *arrays: Array) -> Array:
    return value
