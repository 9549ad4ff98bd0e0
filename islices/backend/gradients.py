"""Gradients: the framework's differentiation, through functions of islices and of stock layers.

May import: `islices.backend.arrays`, `islices.backend.contract`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from islices.backend.arrays import Arrays
from islices.backend.contract import Array, optional


class Source(NamedTuple):
    """The source of a table's rows: its weights, and the recorder of the differentiation it takes part in.

    A recorder is the adapter's own object, made by `Backend.differentiate`. Its method
    ``lookup(weights, ids, extras, static)`` returns the rows (*ids.shape, *row_shape) that ids name, out-of-range ids
    (traced only) as zeros, and remembers ids, extras (a tuple of integer arrays) and static (hashable) for the
    result's `LookedUp`. ids may have any shape, () included. A method ``bags(weights, ids, extras, static, read)``,
    where there is one, does the same for bags: what it returns and differentiates by is ``read(weights, ids)``. A
    method ``operand(weights)``, where there is one, returns the weights as an array that is differentiated: products
    with it are `ProductUse`s, anything else is a `WholeUse`. An adapter whose recorder binds operations that mean
    nothing outside of a differentiation (JAX) may give it to every traced table: its attribute ``everywhere`` is True.
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
    rows: Array | None = None  # what was looked up, (n, *row_shape), without gradient: where combiner is "max"
    #: something while a backward pass may still bring upstream, None once none can; where it is not told, not given
    awaited: Callable[[], object] | None = None


@dataclass
class ProductUse:
    """One use of a captured weight as an output layer, x @ weights.T; ``upstream`` is set by the backward pass."""

    layer: str  # the embedding layer whose weights they are
    inputs: Array  # x, (..., width)
    upstream: Array | None = None  # the gradient of the product, (..., rows)
    axes: tuple[str, ...] = ()  # as `LookedUp` has them: where there are some, the samples may not lead
    awaited: Callable[[], object] | None = None  # as `LayerUse` has it


class WholeUse(NamedTuple):
    """A use of a differentiated table's weights as an array, other than in a product."""

    gradient: Array  # (rows, *row_shape)


@dataclass
class OtherUse:
    """A use of a captured weight whose gradient cannot be told apart by samples."""

    layer: str
    what: str


#: A function of weights and ids to what is looked up: rows, or bags of them.
Reader = Callable[[Array, Array], Array]
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


class Gradients(Arrays):
    """Gradients: the framework's differentiation, through functions of islices and of stock layers."""

    # ------------------------------------------------------------------ through functions of islices
    @optional("no gradient is recorded")
    def stop_gradient(self, x: Array) -> Array:
        """x as a constant to differentiation; the same memory."""
        return x

    @optional("no gradient is recorded")
    def custom_gradient(self, forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
        """The function ``forward(*arrays)`` with a gradient that is given.

        ``backward(arrays, upstream)`` returns one gradient for each of the arrays, None for those that have none
        (integers). Neither is recorded, unless the framework takes a second derivative.
        """
        return forward

    @optional("`custom_gradient` does it")
    def with_gradient(self, value: Array, arrays: Sequence[Array], backward: GradientOfValue) -> Array:
        """value, which was computed of the arrays as constants, as a function of them with a gradient that is given.

        ``backward(value, arrays, upstream)`` is made of operations that can be differentiated, and linear in
        upstream. Override where the framework has derivatives in forward mode.
        """

        def gradient(given: tuple[Array, ...], upstream: Array) -> tuple[Any, ...]:
            return (None, *backward(given[0], tuple(given[1:]), upstream))

        return self.custom_gradient(_first, gradient)(value, *arrays)

    # ------------------------------------------------------------------ through the user's functions
    @optional("no `value_and_grad`")
    def differentiate(
        self, fn: Transform, variables: Sequence[Array], sources: Sequence[Source]
    ) -> tuple[Array, Any, list[Array], Sequence[Sequence[TableUse]]]:
        """(loss, aux, gradients, lookups) of ``fn(variables, sources) -> (loss, aux)``.

        fn is called with the variables as the framework differentiates them, and with sources of the same weights and
        a recorder of this differentiation. gradients has a dense array for each variable (zeros where the loss does not
        depend on it); lookups has, for each source, its `LookedUp` in order. Nothing of a table's size is allocated:
        the framework differentiates with respect to the rows that the recorder returned. A source may have a recorder
        already, of an outer differentiation: rows are then read through it, so that second derivatives are right, or
        NotImplementedError is raised. A recorder used where its gradient would be wrong (a loop body, a graph traced
        apart) raises TypeError. fn has checked that the loss is one floating-point number, or a vector of them. The sum
        of a vector is differentiated, and the vector is returned.

        A framework that keeps a tape (torch, TensorFlow, MXNet) watches the rows that the recorder returns and asks for
        their gradients behind fn. One that differentiates functions (JAX) first traces fn without a gradient, so that
        each lookup's shape and dtype are known; then it differentiates, with auxiliary results, a function of the
        variables and of one array of zeros for each lookup: what was traced, with the zeros added to the rows. The
        gradients by the zeros are `LookedUp.upstream`. aux, ids and extras are auxiliary results, too: nothing that fn
        makes may leave the trace another way.
        """
        raise self.lacks("differentiate", "the adapter supplies no differentiation")

    @optional("no `value_and_grad` with sparse=")
    def differentiate_rows(
        self, fn: Callable[..., tuple[Array, Any]], tree: Any, sparse: Any, data: Sequence[Array] | None = None
    ) -> tuple[Array, Any, Any]:
        """(loss, aux, gradients) of ``fn(tree) -> (loss, aux)``, where tree holds plain arrays.

        gradients mirrors tree: `IndexedSlices` for the leaves that sparse marks, arrays for other float leaves, None
        for the rest. sparse is a function of a leaf's path, a prefix of tree with bools as leaves, "auto" or "always".
        A marked leaf that fn does not read by rows alone raises TypeError; the last two leave it dense. fn has checked
        the loss.
        """
        raise self.lacks(
            "differentiate_rows",
            "it finds no reads of plain arrays; accepted instead of sparse= is an islices.Table among the arguments, "
            "which fn reads by islices.lookup",
        )

    @optional("no per-sample gradients of dense variables")
    def per_sample_gradients(
        self, fn: Callable[[list[Array], list[Array]], Array], variables: Sequence[Array], data: Sequence[Array]
    ) -> list[Array]:
        """Return for each variable the gradients (B, *shape) of a loss per sample, by the framework's vmap.

        The loss of b < B is ``fn(variables, [x[b:b+1] for x in data])``, of shape (1,).
        """
        raise self.lacks("per_sample_gradients", "the framework has no vmap")

    @optional("fn as it is")
    def user_code(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """fn as the framework runs the user's own code: rewritten, where a compiler rewrites Python (autograph)."""
        return fn

    @optional("there is no such container")
    def flatten_tree(
        self, x: Any, is_leaf: Callable[[Any], bool]
    ) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
        """(leaves, rebuild) of a container only this framework knows (a registered JAX pytree), else None."""
        return None

    # ------------------------------------------------------------------ models
    @optional("there are no models")
    def is_model(self, x: object) -> bool:
        """Whether x is a model of this framework, with embedding layers that `capture` can hook."""
        return False

    @optional("no `capture`")
    def capture(self, model: Any, uses: list[Use]) -> contextlib.AbstractContextManager[dict[str, Array]]:
        """A context in which each call of a stock embedding layer of model appends a `LayerUse` to uses, and the
        backward pass sets its upstream. Yields the layers' weights by name, weights that several share by the first.
        Where a stock output layer shares them, its calls append a `ProductUse`; any other way in which a gradient
        reaches them an `OtherUse`. The model is left as it was, also after an exception; its weights and results are
        the same. What cannot be hooked raises TypeError, and says why."""
        raise self.lacks("capture", "the framework has no stock models")


def _first(value: Array, *arrays: Array) -> Array:
    return value
