"""Capture the ids of a Gluon model's gluon.nn.Embedding layers, and the gradients of the layers' outputs.

While autograd records, the capture adds an array of -0.0 to each layer's output, which changes no bit. The gradient of
this array is the gradient of the output. MXNet sums this gradient over backward passes, even for frozen layers. Gluon's
forward hooks cannot replace an output, so the capture replaces `forward` on the instance while the context is open.
Other reads of the weights, for example by a tied output layer or a penalty, would contribute to the gradient without
being captured. So while autograd records, `data` and `list_data` of the Parameter raise TypeError outside of the layer.

May import: the core, this folder. `ndarrays` imports MXNet with a stand-in for NumPy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from islices.backend import LayerUse, Use
from islices.backends.mxnet.mxnet_autograd import paused
from islices.backends.mxnet.ndarrays import mx
from islices.embedding.capture import replaced

nd = mx.nd
gluon = mx.gluon
Embedding = gluon.nn.Embedding


class RecordedUse(LayerUse):
    """A captured lookup, whose upstream gradient is read only when it is needed. MXNet may still compute gradients
    after `backward` has returned."""

    delta: Any = None

    @property
    def upstream(self) -> Any:
        if self.delta is None or not self.delta._fresh_grad:  # no backward pass has run
            return None
        return self.delta.grad.copy()  # a copy, because another backward pass would add to this buffer

    @upstream.setter
    def upstream(self, value: Any) -> None:
        if value is not None:
            raise AttributeError("upstream: is set by the backward pass alone")


@contextlib.contextmanager
def capture(model: Any, uses: list[Use]) -> Iterator[dict[str, Any]]:
    """See `Backend.capture`."""
    layers = _embedding_layers(model)
    names: dict[int, str] = {}  # id() of a Parameter -> the name of the first layer that has it
    weights, inside = {}, threading.local()
    with contextlib.ExitStack() as stack:
        for name, layer in layers.items():
            parameter = layer.weight
            if id(parameter) not in names:
                names[id(parameter)] = name
                weights[name] = parameter.list_data()[0].as_nd_ndarray()
                for read in ("data", "list_data"):
                    stack.enter_context(replaced(parameter, read, _guarded(name, getattr(parameter, read), inside)))
            stack.enter_context(replaced(layer, "forward", _following(names[id(parameter)], layer, uses, inside)))
        yield weights


def _guarded(name: str, read: Callable[..., Any], inside: threading.local) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        if mx.autograd.is_recording() and not getattr(inside, "layer", False):
            raise TypeError(
                f"model: got a read of the weights of embedding layer {name!r} outside of the layer while autograd "
                "records, so that a part of their gradient would be missing; accepted are models that read them in "
                "gluon.nn.Embedding alone"
            )
        return read(*args)

    return guarded


def _hybridized(name: str) -> TypeError:
    return TypeError(
        f"model: got embedding layer {name!r} inside of a hybridized block, whose compiled graph does not call the "
        "layer. Call .hybridize(False) on that block for the time of the capture"
    )


def _embedding_layers(model: Any) -> dict[str, Any]:
    """Return a dict that maps names to embedding layers. A layer with several names is listed under the first."""
    layers: dict[int, tuple[str, Any]] = {}

    def visit(block: Any, path: tuple[str, ...], active: bool, seen: frozenset[int]) -> None:
        if id(block) in seen:
            return
        if isinstance(block, Embedding):
            name = ".".join(path) or block.name
            _check_layer(name, block)
            if active:
                raise _hybridized(name)
            layers.setdefault(id(block), (name, block))
            return
        active = active or getattr(block, "_active", False)
        for key, child in block._children.items():
            visit(child, (*path, key), active, seen | {id(block)})

    visit(model, (), False, frozenset())
    return dict(layers.values())


def _check_layer(name: str, layer: Any) -> None:
    kind = type(layer)
    if kind.hybrid_forward is not Embedding.hybrid_forward or kind.forward is not Embedding.forward:
        raise TypeError(
            f"model: got layer {name!r} of class {kind.__name__}, which computes its output in its own way, so that "
            "the gradient of its rows is not that of its output; accepted are gluon.nn.Embedding and classes that "
            "leave its forward as it is"
        )


def _following(name: str, layer: Any, uses: list[Use], inside: threading.local) -> Callable[..., Any]:
    original = layer.forward

    def forward(x: Any, *args: Any) -> Any:
        if not isinstance(x, nd.NDArray):  # x is a Symbol if a block that contains the model is being compiled
            raise _hybridized(name)
        inside.layer = True
        try:
            out = original(x, *args)
        finally:
            inside.layer = False
        with paused(), mx.util.np_shape(True):
            ids = x.as_nd_ndarray().detach().copy()
        use = RecordedUse(layer=name, ids=ids, num_rows=layer._kwargs["input_dim"])
        if mx.autograd.is_recording():
            out, use.delta = _with_delta(out)
        uses.append(use)
        return out

    return forward


def _with_delta(out: Any) -> tuple[Any, Any]:
    """Return (out + delta, delta). All elements of delta are -0.0, so the sum has the same bits as out."""
    rows = out.as_nd_ndarray()
    with mx.util.np_shape(True):
        with paused():
            delta = nd.negative(nd.zeros_like(rows.detach()))
            delta.attach_grad(grad_req="add")
        summed = nd.elemwise_add(rows, delta)
    return (summed.as_np_ndarray() if isinstance(out, mx.np.ndarray) else summed), delta
