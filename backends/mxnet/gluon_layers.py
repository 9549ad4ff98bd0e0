"""The embedding layers of a Gluon model somebody else wrote: what they were given, and the gradient that arrived.

A layer's rows are followed by the addition of -0.0, which changes no bit: the gradient of that constant is the
gradient of the rows, is summed by MXNet itself over backward passes, and is there for frozen layers, too. A forward
hook could not do it, since Gluon's hooks cannot replace an output; so `forward` is replaced on the instance, for
the time of the context. A Dense layer that shares an embedding's Parameter (``Dense(..., params=embedding.params)``) is
an output layer of the same weights, and followed likewise. Where the Parameter is read apart from these layers while
autograd records, its gradient would be missing: `data` is replaced on the Parameter, too, and says so.

May import: `numpy`, `islices.backend`, this folder. MXNet comes through `memory`, which sees to its stand-in.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from islices.backend import LayerUse, OtherUse, ProductUse, Use
from islices.backends.mxnet.memory import NAMES, mx, share, view
from islices.backends.mxnet.recording import paused

__all__ = ["capture"]

nd = mx.nd
gluon = mx.gluon
Embedding = gluon.nn.Embedding


class _Recorded:
    """A use whose upstream is read when asked for: MXNet computes it later than `backward` returns."""

    delta: Any = None

    @property
    def upstream(self) -> Any:
        if self.delta is None or not self.delta._fresh_grad:  # no backward pass has come by
            return None
        return self.delta.grad.copy()  # another pass adds to the buffer itself

    @upstream.setter
    def upstream(self, value: Any) -> None:
        if value is not None:
            raise AttributeError("upstream: is set by the backward pass alone")


class RecordedUse(_Recorded, LayerUse):
    """Of rows."""


class RecordedProduct(_Recorded, ProductUse):
    """As an output layer."""


@contextlib.contextmanager
def capture(model: Any, uses: list[Use]) -> Iterator[dict[str, Any]]:
    """`Backend.capture`."""
    layers = _embedding_layers(model)
    shared: dict[int, str] = {}  # the first layer's name of each Parameter
    for name, (layer, _) in layers.items():
        shared.setdefault(id(layer.weight), name)
    outputs = _output_layers(model, shared) if shared else []
    weights = {shared[id(x.weight)]: x.weight.list_data()[0].as_nd_ndarray() for x, _ in reversed(layers.values())}
    traced: set[str] = set()
    own = _Own()
    with contextlib.ExitStack() as stack:
        for parameter in {id(x.weight): x.weight for x, _ in layers.values()}.values():
            for read in ("data", "list_data"):
                noticing = _noticing(shared[id(parameter)], getattr(parameter, read), uses, own)
                stack.enter_context(_replaced(parameter, read, noticing))
        for layer, around in layers.values():
            following = _following(shared[id(layer.weight)], layer, around, uses, traced, own)
            stack.enter_context(_replaced(layer, "forward", following))
        for layer in outputs:
            stack.enter_context(_replaced(layer, "forward", _multiplying(shared[id(layer.weight)], layer, uses, own)))
        yield dict(reversed(weights.items()))
    missed = traced - {use.layer for use in uses}
    if missed:  # a block around the model was hybridized: its compiled graph has gone past the layer
        raise _hybridized(missed.pop(), "a block around the model")


@contextlib.contextmanager
def _replaced(x: Any, name: str, by: Any) -> Iterator[None]:
    """An instance with another method for a while."""
    before = {name: vars(x)[name]} if name in vars(x) else {}
    vars(x)[name] = by
    try:
        yield
    finally:
        del vars(x)[name]
        vars(x).update(before)


class _Own(threading.local):
    """Whether a captured layer runs in this thread, which may read its weights."""

    reading = 0

    def __enter__(self) -> None:
        self.reading += 1

    def __exit__(self, *error: object) -> None:
        self.reading -= 1


def _noticing(name: str, read: Callable[..., Any], uses: list[Use], own: _Own) -> Callable[..., Any]:
    def noticed(*args: Any) -> Any:
        if mx.autograd.is_recording() and not own.reading:
            uses.append(OtherUse(name, "were read beside the layers that are captured"))
        return read(*args)

    return noticed


def _hybridized(name: str, where: str) -> TypeError:
    return TypeError(
        f"model: got embedding layer {name!r} inside of {where}, which is hybridized: its compiled graph does not call "
        "the layer. Call .hybridize(False) on it for the time of the capture"
    )


def _embedding_layers(model: Any) -> dict[str, tuple[Any, list[tuple[str, Any]]]]:
    """Each embedding layer once, by the first of its names, with the hybrid blocks around it (by name)."""
    names: dict[int, str] = {}
    layers: dict[str, tuple[Any, list[tuple[str, Any]]]] = {}

    def visit(block: Any, path: tuple[str, ...], around: list[tuple[str, Any]], seen: frozenset[int]) -> None:
        if id(block) in seen:
            return
        name = ".".join(path) or block.name
        if isinstance(block, Embedding):
            _check_layer(name, block)
            layer = layers.setdefault(names.setdefault(id(block), name), (block, []))
            layer[1].extend(around)
            for where, parent in around:
                if parent._active:
                    raise _hybridized(name, f"{type(parent).__name__} {where!r}")
            return
        if isinstance(block, gluon.contrib.nn.SparseEmbedding):
            raise TypeError(
                f"model: got {name!r}, a gluon.contrib.nn.SparseEmbedding, whose weights are row_sparse; accepted is "
                "gluon.nn.Embedding(..., sparse_grad=True)"
            )
        if isinstance(block, gluon.SymbolBlock) and _has_embedding(block):
            raise TypeError(
                f"model: got {name!r}, a SymbolBlock with an Embedding in its compiled graph, where no layer can be "
                "hooked; accepted are models built from gluon.nn.Embedding"
            )
        here = [*around, (name, block)] if isinstance(block, gluon.HybridBlock) else around
        for key, child in block._children.items():
            visit(child, (*path, key), here, seen | {id(block)})

    visit(model, (), [], frozenset())
    return layers


def _output_layers(model: Any, shared: dict[int, str]) -> list[Any]:
    """The stock Dense layers that share an embedding's Parameter, each once."""
    found: dict[int, Any] = {}

    def visit(block: Any, around: Any, seen: frozenset[int]) -> None:
        if id(block) in seen:
            return
        if isinstance(block, gluon.nn.Dense) and id(block.weight) in shared and _is_stock(block):
            hybrid = block if block._active else around
            if hybrid is not None:
                name = shared[id(block.weight)]
                raise _hybridized(name, f"{type(hybrid).__name__} {hybrid.name!r}, an output layer of its weights,")
            found.setdefault(id(block), block)
        active = block if getattr(block, "_active", False) else around
        for child in block._children.values():
            visit(child, active, seen | {id(block)})

    visit(model, None, frozenset())
    return list(found.values())


def _is_stock(layer: Any) -> bool:
    kind, stock = type(layer), gluon.nn.Dense
    return kind.hybrid_forward is stock.hybrid_forward and kind.forward is stock.forward


def _check_layer(name: str, layer: Any) -> None:
    kind = type(layer)
    if kind.hybrid_forward is not Embedding.hybrid_forward or kind.forward is not Embedding.forward:
        raise TypeError(
            f"model: got layer {name!r} of class {kind.__name__}, which computes its output in its own way, so that "
            "the gradient of its rows is not that of its output; accepted are gluon.nn.Embedding and classes that "
            "leave its forward as it is"
        )


def _has_embedding(block: Any) -> bool:
    graph = json.loads(block._cached_graph[1].tojson())
    return any(node["op"] in ("Embedding", "_npx_embedding", "_contrib_SparseEmbedding") for node in graph["nodes"])


def _following(
    name: str, layer: Any, around: list[tuple[str, Any]], uses: list[Use], traced: set[str], own: _Own
) -> Callable[..., Any]:
    original = layer.forward

    def forward(x: Any, *args: Any) -> Any:
        if not isinstance(x, nd.NDArray):  # a Symbol: a graph is being made, or shapes are inferred
            for where, parent in around:
                if parent._active:
                    raise _hybridized(name, f"{type(parent).__name__} {where!r}")
            traced.add(name)
            return original(x, *args)
        with own:
            out = original(x, *args)
        use = RecordedUse(layer=name, ids=_integers(x), num_rows=layer._kwargs["input_dim"])
        if mx.autograd.is_recording():
            out, use.delta = _with_delta(out)
        uses.append(use)
        return out

    return forward


def _multiplying(name: str, layer: Any, uses: list[Use], own: _Own) -> Callable[..., Any]:
    """The forward of an output layer; its activation, which bends the product, comes after what is noted."""
    original = layer.forward

    def forward(x: Any, *args: Any) -> Any:
        if not isinstance(x, nd.NDArray):
            return original(x, *args)
        activation = layer.act
        with own, _replaced(layer, "act", None):
            out = original(x, *args)
        if mx.autograd.is_recording():
            use = RecordedProduct(layer=name, inputs=_inputs(x, flatten=layer._flatten))
            out, use.delta = _with_delta(out)
            uses.append(use)
        return out if activation is None else activation(out)

    return forward


def _inputs(x: Any, *, flatten: bool) -> Any:
    """What a Dense layer multiplies, in memory of its own."""
    with paused(), mx.util.np_shape(True):
        rows = x.as_nd_ndarray().detach().copy()
        return rows.reshape((rows.shape[0], -1)) if flatten and rows.size else rows


def _with_delta(out: Any) -> tuple[Any, Any]:
    """(out + delta, delta): delta is -0.0 everywhere, which leaves every number's bits alone."""
    rows = out.as_nd_ndarray()
    with mx.util.np_shape(True):
        with paused():
            delta = nd.negative(nd.zeros_like(rows.detach()))
            delta.attach_grad(grad_req="add")
        summed = nd.elemwise_add(rows, delta)
    return (summed.as_np_ndarray() if isinstance(out, mx.np.ndarray) else summed), delta


def _integers(x: Any) -> Any:
    """The ids as int32 or int64, in memory of their own. Floats that are no whole numbers are left to the core."""
    ids = x.as_nd_ndarray().detach()
    with paused(), mx.util.np_shape(True):
        if NAMES.get(ids.dtype) in ("int32", "int64"):
            return ids.copy()
        on_host = view(ids if ids.context.device_type.startswith("cpu") else ids.as_in_context(mx.cpu()))
        assert on_host is not None
        if on_host.dtype.kind == "f":
            whole = np.isfinite(on_host).all() and (np.trunc(on_host) == on_host).all() and (abs(on_host) < 2**63).all()
            if not whole:
                return ids.copy()
        return share(on_host.astype(np.int64), ids.context)
