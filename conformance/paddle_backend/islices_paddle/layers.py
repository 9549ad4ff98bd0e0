"""Hook the paddle.nn.Embedding layers of a user's model, to record their lookups and the gradients of their outputs.

A forward hook of the layer records the ids, and a hook of the layer's output records the gradient. Neither hook changes
the values of the output. A frozen layer makes no table-sized gradient. The forward hook of a frozen layer returns an
output that requires a gradient. May import: Paddle, the core.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import paddle
from paddle import nn
from paddle.autograd import PyLayer

from islices.backend import Array, LayerUse

__all__ = ["capture"]


@contextlib.contextmanager
def capture(model: nn.Layer, uses: list[LayerUse]) -> Iterator[dict[str, Array]]:
    """See `Backend.capture`."""
    layers = {name: m for name, m in model.named_sublayers(include_self=True) if isinstance(m, nn.Embedding)}
    for name, layer in layers.items():
        if getattr(layer.forward, "__func__", None) is not nn.Embedding.forward:
            raise TypeError(
                f"model: got layer {name!r}, a {type(layer).__name__} with a forward of its own, which may do anything "
                "with its rows; accepted are layers that compute as paddle.nn.Embedding does"
            )
    with contextlib.ExitStack() as context:
        for name, layer in layers.items():
            hook = Hook(name, uses)
            # ahead of the model's hooks, which may change the output
            handle = layer.register_forward_post_hook(hook, prepend=True, with_kwargs=True)
            context.callback(handle.remove)
            context.callback(hook.close)
        yield {name: layer.weight for name, layer in layers.items()}


class Hook:
    """The hook of one layer. If a user copies or saves a model during a capture, the hook in the copy does nothing."""

    def __init__(self, name: str, uses: list[LayerUse] | None) -> None:
        self.name = name
        self.uses = uses

    def __reduce__(self) -> Any:
        return type(self), (self.name, None)

    def __deepcopy__(self, memo: Any) -> Hook:
        return type(self)(self.name, None)

    def close(self) -> None:
        self.uses = None

    def __call__(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if self.uses is None or not paddle.is_grad_enabled():
            return output
        (ids,) = (*args, *kwargs.values())
        rows, padding = layer.weight.shape[0], layer._padding_idx
        use = LayerUse(
            self.name,
            # the caller may reuse the memory of the ids for the next batch before it reads the gradients
            ids.detach().clone(),
            rows,
            padding_idx=None if padding is None else int(padding) % rows,
            scale_by_freq=bool(layer._scale_grad_by_freq),
        )
        self.uses.append(use)
        if output.stop_gradient:
            anchor = paddle.zeros([], device=output.place)
            anchor.stop_gradient = False
            output = Anchor.apply(anchor, output)

        def arrived(upstream: paddle.Tensor) -> None:
            upstream = upstream.detach()
            use.upstream = upstream.clone() if use.upstream is None else use.upstream + upstream

        output.register_hook(arrived)
        return output


class Anchor(PyLayer):
    """A function that makes the output of a frozen layer part of an autograd graph. Unlike a leaf, the output of Anchor
    allows changes in place and has no .grad."""

    @staticmethod
    def forward(ctx: Any, anchor: paddle.Tensor, output: paddle.Tensor) -> paddle.Tensor:
        return paddle.assign(output)

    @staticmethod
    def backward(ctx: Any, upstream: paddle.Tensor) -> tuple[None, None]:
        return None, None
