"""Capture the lookups of a model's keras.layers.Embedding layers, and the gradients of the layers' outputs.

During a capture, a wrapper of the layer's `call` passes the output through an identity operation, which records the
gradient. A ReversibleEmbedding may also be an output layer, whose output is a product with the weights. The captured
gradient does not include other reads of the weights that a tape records. So during the capture, the variable gets a
class that detects these other reads (`_watched`). This module need not import Keras, because a model exists only if
Keras has been imported. May import: `tensorflow`, the core, this folder.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from islices.backend import Array, LayerUse, OtherUse, ProductUse, Use
from islices.backends.tensorflow.tapes import dense_gradient, here
from islices.core.registry import describe
from islices.embedding.capture import replaced


def is_model(x: object) -> bool:
    """Return True if x is a layer or a model of the imported package keras. Keras may use any backend."""
    return isinstance(x, getattr(getattr(sys.modules.get("keras"), "layers", None), "Layer", ()))


@contextlib.contextmanager
def capture(model: Any, uses: list[Use]) -> Iterator[dict[str, Array]]:
    weights: dict[str, Array] = {}
    first: dict[int, str] = {}  # id() of a variable -> the name of the first layer that has it
    with contextlib.ExitStack() as stack:
        for name, layer in _embeddings(model).items():
            variable = layer.embeddings
            if id(variable) not in first:
                first[id(variable)] = name
                with _reading_own():
                    weights[name] = variable.value
                stack.enter_context(_watched(variable, OtherUse(name, READ), uses))
            stack.enter_context(replaced(layer, "call", _recording(layer, first[id(variable)], uses)))
        yield weights


# ---------------------------------------------------------------------- which layers
def _embeddings(model: Any) -> dict[str, Any]:
    keras = sys.modules["keras"]
    if keras.backend.backend() != "tensorflow":
        raise TypeError(
            f"model: got a Keras model on the backend {keras.backend.backend()!r}; accepted are Keras models on "
            "'tensorflow' (the environment variable KERAS_BACKEND sets it before Keras is imported)"
        )
    found: dict[str, Any] = {}
    for name, layer in _walk(model, "", set()):
        if isinstance(layer, keras.layers.Embedding):
            unique, count = name, 1
            while unique in found:
                count += 1
                unique = f"{name}_{count}"
            _check_layer(unique, layer)
            found[unique] = layer
    if not found:
        raise TypeError(f"model: got {describe(model)} without a keras.layers.Embedding; accepted is one that has some")
    return found


def _walk(layer: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield (path, layer) for the model and each layer in it, but each layer only once. The path consists of the names
    of the containing layers, without the model, and of the layer's name."""
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield path or layer.name, layer
    for inner in layer._layers:
        yield from _walk(inner, f"{path}/{inner.name}" if path else inner.name, seen)


def _check_layer(name: str, layer: Any) -> None:
    stock = sys.modules["keras"].layers
    reversible = getattr(stock, "ReversibleEmbedding", stock.Embedding)  # some versions of Keras do not have it
    if type(layer).call not in (stock.Embedding.call, reversible.call):
        came = f"a {type(layer).__name__}, whose call is its own"
        accepted = "keras.layers.Embedding or ReversibleEmbedding as they are"
    elif not layer.built:
        came, accepted = "a layer that has no weights yet", "a built layer: call the model once before"
    elif layer.quantization_mode is not None:
        came, accepted = f"a layer quantized to {layer.quantization_mode}", "weights in floating point"
    elif layer.lora_enabled:
        came, accepted = "a layer with LoRA, whose table is a product", "a layer without it"
    elif getattr(layer, "logit_soft_cap", None) is not None:
        came, accepted = "a layer with logit_soft_cap, which is no product", "a layer without it"
    elif layer.embeddings_regularizer is not None:
        came, accepted = (
            "a layer with embeddings_regularizer, whose gradient does not pass the lookup",
            "a layer without it",
        )
    else:
        return
    raise TypeError(f"model: layer {name!r}: got {came}; accepted is {accepted}")


# ---------------------------------------------------------------------- the hook
class _OfGraph:
    """A use whose gradient may be a tensor of a graph. A read of the gradient outside of this graph raises
    TypeError."""

    layer: str
    _graph: Any = None
    _upstream: Array | None = None

    @property
    def upstream(self) -> Array | None:
        if self._graph is not None and not _within(self._graph):
            raise TypeError(
                f"capture: layer {self.layer!r} ran inside a tf.function (model.fit makes one), which has ended, and "
                "its gradient with it; accepted is to read it in the same function, or to run eagerly "
                "(model.compile(..., run_eagerly=True))"
            )
        return self._upstream

    @upstream.setter
    def upstream(self, gradient: Array | None) -> None:
        self._upstream = gradient


class _Lookup(_OfGraph, LayerUse):
    """A captured lookup in the weights."""


class _Product(_OfGraph, ProductUse):
    """A captured product with the weights, as in an output layer."""


def _within(graph: Any) -> bool:
    current = here()
    while current is not None and current is not graph:
        current = getattr(current, "outer_graph", None)
    return current is graph


def _recording(layer: Any, name: str, uses: list[Use]) -> Callable[..., Array]:
    """Return a function that calls the layer, and records lookups in the weights and products with them."""
    inner = layer.call

    def call(inputs: Any, reverse: bool = False) -> Array:
        with _reading_own():
            if reverse:
                logits = inner(inputs, reverse=True)
                product = _Product(name, tf.convert_to_tensor(inputs))
                return _noted(product, layer, logits, uses) if layer.tie_weights else logits
            rows = inner(inputs)
        mask = getattr(rows, "_keras_mask", None)
        rows = _noted(_Lookup(name, _ids(name, inputs), layer.input_dim), layer, rows, uses)
        if mask is not None:  # ReversibleEmbedding sets the mask on its output
            rows._keras_mask = mask
        return rows

    return call


def _ids(name: str, ids: Any) -> Array:
    if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(
            f"capture: layer {name!r} got ids as {describe(ids)}; accepted is a dense tensor (ids.to_tensor())"
        )
    ids = tf.convert_to_tensor(ids)
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int32)  # the layer casts in the same way


def _noted(use: Any, layer: Any, output: Array, uses: list[Use]) -> Array:
    """Append `use` to `uses`, and pass a layer's output through an identity operation. The backward pass adds the
    gradient of the output to the gradient in `use`."""
    use._graph = here()
    uses.append(use)
    dtype = layer.variable_dtype  # embeddings.dtype depends on the current autocast

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def noted(output: Array, *_: Array) -> tuple[Array, Any]:
        def gradient(upstream: Any) -> Any:
            dense = tf.cast(dense_gradient(upstream, output), dtype)
            use._upstream = dense if use._upstream is None else use._upstream + dense
            return [upstream, *(None for _ in _)]

        return tf.identity(output), gradient

    if layer.embeddings.trainable:
        return noted(output)
    # no tape records the rows of a frozen layer, so a trainable variable is a second input
    return noted(output, tf.convert_to_tensor(_probe()))


@cache
def _probe() -> tf.Variable:
    """Return a trainable variable that has no effect on results. The variable is never freed, because graphs that read
    it may live as long as the process."""
    with tf.init_scope():
        return tf.Variable(0.0, name="islices_probe")


# ---------------------------------------------------------------------- other uses of the weights
READ = "were read beside the layers that are captured"
_own: ContextVar[bool] = ContextVar("islices_reading_own", default=False)


@contextlib.contextmanager
def _reading_own() -> Iterator[None]:
    """Mark all reads of weights within the context as reads by a captured layer."""
    token = _own.set(True)
    try:
        yield
    finally:
        _own.reset(token)


@contextlib.contextmanager
def _watched(variable: Any, use: Use, uses: list[Use]) -> Iterator[None]:
    """Change the class of the variable within the context. The new class appends `use` to `uses` for each read of the
    value that a tape may record, except reads by captured layers. A conversion to a tensor counts only if a gradient
    passes through the conversion."""
    kind = type(variable)

    def is_other() -> bool:
        return not _own.get() and record.could_possibly_record()

    def value(self: Any) -> Any:
        if is_other():
            uses.append(use)
        return kind.value.fget(self)

    def as_tensor(self: Any, dtype: Any = None, name: Any = None) -> Any:
        plain = tf.convert_to_tensor(kind.value.fget(self), dtype=dtype, name=name)
        if not is_other():
            return plain

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def noted(x: Array) -> tuple[Array, Any]:
            def gradient(upstream: Any) -> Any:  # a read without a gradient does not count as a use
                uses.append(use)
                return upstream

            return tf.identity(x), gradient

        return noted(plain)

    def handle(self: Any) -> Any:  # a tape identifies the variable by its handle
        return kind.value.fget(self).handle

    replaced = {"value": property(value), "__tf_tensor__": as_tensor, "handle": property(handle)}
    variable.__class__ = type(kind.__name__, (kind,), replaced)
    try:
        yield
    finally:
        variable.__class__ = kind
