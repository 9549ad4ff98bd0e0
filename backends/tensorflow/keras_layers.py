"""keras.layers.Embedding within a model: what each layer looked up, and the gradient that arrives at its output.

A layer's `call` is wrapped on the instance for the time of a capture by an identity whose gradient is noted on its way
through. Keras is not imported: a model is one only where Keras has been.
May import: TensorFlow, the core.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from islices.backend import Array, LayerUse
from islices.backends.tensorflow.recording import dense_gradient, here
from islices.locks import Lock
from islices.registry import describe

__all__ = ["capture", "is_model"]


def is_model(x: object) -> bool:
    """Whether x is a layer or model of Keras 3, on any of its backends."""
    keras = sys.modules.get("keras")
    layer = getattr(getattr(keras, "layers", None), "Layer", None)
    return layer is not None and isinstance(x, layer)


@contextlib.contextmanager
def capture(model: Any, uses: list[LayerUse]) -> Iterator[dict[str, Array]]:
    found = _embeddings(model)
    thread = threading.get_ident()
    with contextlib.ExitStack() as stack:
        for name, layer in found.items():
            stack.enter_context(_hooked(layer, _Listener(name, layer, uses, thread)))
        yield {name: layer.embeddings for name, layer in found.items()}


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
            _check_layer(unique, layer, keras.layers.Embedding)
            found[unique] = layer
    if not found:
        raise TypeError(f"model: got {describe(model)} without a keras.layers.Embedding; accepted is one that has some")
    return found


def _walk(layer: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Each layer once, with the names on the way to it (without the model's own)."""
    if id(layer) in seen:
        return
    seen.add(id(layer))
    yield path or layer.name, layer
    for inner in layer._layers:
        yield from _walk(inner, f"{path}/{inner.name}" if path else inner.name, seen)


def _check_layer(name: str, layer: Any, stock: type) -> None:
    if type(layer).call is not stock.call:  # type: ignore[attr-defined]
        what, way = f"a {type(layer).__name__}, whose call is its own", "keras.layers.Embedding as it is"
    elif not layer.built:
        what, way = "a layer that has no weights yet", "a built layer: call the model once before"
    elif layer.quantization_mode is not None:
        what, way = f"a layer quantized to {layer.quantization_mode}", "weights in floating point"
    elif layer.lora_enabled:
        what, way = "a layer with LoRA, whose table is a product", "a layer without it"
    elif layer.embeddings_regularizer is not None:
        what, way = "a layer with embeddings_regularizer, whose gradient does not pass the lookup", "a layer without it"
    else:
        return
    raise TypeError(f"model: layer {name!r}: got {what}; accepted is {way}")


# ---------------------------------------------------------------------- the hook
class _Use(LayerUse):
    """A use whose gradient may belong to a graph; read elsewhere, it says so."""

    _graph: Any = None
    _upstream: Array | None = None

    @property
    def upstream(self) -> Array | None:  # type: ignore[override]
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


def _within(graph: Any) -> bool:
    current = here()
    while current is not None and current is not graph:
        current = getattr(current, "outer_graph", None)
    return current is graph


class _Listener:
    """One capture of one layer, in the thread that asked for it."""

    def __init__(self, name: str, layer: Any, uses: list[LayerUse], thread: int) -> None:
        self.name, self.layer, self.uses, self.thread = name, layer, uses, thread

    def passed(self, ids: Any, rows: Array) -> Array:
        if isinstance(ids, (tf.RaggedTensor, tf.SparseTensor)):
            raise TypeError(
                f"capture: layer {self.name!r} got ids as {describe(ids)}; accepted is a dense tensor (ids.to_tensor())"
            )
        ids = tf.convert_to_tensor(ids)
        if ids.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(ids, tf.int32)  # as the layer does
        use = _Use(self.name, ids, self.layer.input_dim)
        use._graph = here()
        self.uses.append(use)
        dtype = self.layer.variable_dtype  # what embeddings.dtype says depends on the autocast around

        @tf.custom_gradient
        def noted(rows: Array, *_: Array) -> tuple[Array, Any]:
            def gradient(upstream: Any) -> Any:
                dense = tf.cast(dense_gradient(upstream, rows), dtype)
                use._upstream = dense if use._upstream is None else use._upstream + dense
                return [upstream, *(None for _ in _)]

            return tf.identity(rows), gradient

        if self.layer.embeddings.trainable:
            return noted(rows)
        # no tape follows the rows of a frozen layer: one that it watches by itself goes with them
        return noted(rows, tf.convert_to_tensor(_probe()))


_lock = Lock()
_listening: dict[int, list[_Listener]] = {}
_probes: list[tf.Variable] = []


def _probe() -> tf.Variable:
    """A trainable variable without influence; one for the process, as graphs that read it may live as long."""
    with _lock:
        if not _probes:
            with tf.init_scope():
                _probes.append(tf.Variable(0.0, name="islices_probe"))
        return _probes[0]


@contextlib.contextmanager
def _hooked(layer: Any, listener: _Listener) -> Iterator[None]:
    """The layer with its call wrapped; one wrapper serves all captures, so they may end in any order."""
    with _lock:
        active = _listening.setdefault(id(layer), [])
        if not active:
            _wrap(layer, active)
        active.append(listener)
    try:
        yield
    finally:
        with _lock:
            active.remove(listener)
            if not active:
                del _listening[id(layer)]
                # straight from the instance's own attributes: Keras tracks what is set on a layer
                vars(layer).pop("call")


def _wrap(layer: Any, active: list[_Listener]) -> None:
    own = layer.call

    def call(inputs: Any) -> Array:
        rows = own(inputs)
        for listener in tuple(active):
            if listener.thread == threading.get_ident():
                rows = listener.passed(inputs, rows)
        return rows

    vars(layer)["call"] = call
