"""Record the lookups of a torch model's embedding layers, and the gradients of the layers' outputs, with hooks.

One hook runs before the layer's forward pass, and one after it. In between, a torch function mode sees all calls of
torch.nn.functional.embedding and embedding_bag with the layer's weight. If an nn.Linear shares the weight, as a tied
output layer does, a mode also sees the call of torch.nn.functional.linear. Hooks on the results of these calls receive
the results' gradients. So a layer with a custom forward (scaled, positional, LoRA) may change ids before the call, and
rows after it. The layer still computes the same results and the same dense or sparse gradient as without hooks. If a
layer is frozen, only its output requires a gradient, not its weights, so autograd computes no gradient of the table's
size.

Captured calls get an alias of the weights, the result of an identity operation in the graph (`Alias`). The gradient of
the alias is the sum over all captured calls. If nothing else uses the weights, the gradient of the weights is the same
tensor object. So `Aliases` compares the identities of the two gradients to detect uses that were not captured. May
import: `torch`, the core, `islices.backends.torch.tracers`.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from islices.backend import Array, LayerUse, OtherUse, ProductUse, Use
from islices.backends.torch.tracers import in_functorch
from islices.core.locks import Lock


@contextlib.contextmanager
def capture(model: nn.Module, uses: list[Use]) -> Iterator[dict[str, Array]]:
    """See `Backend.capture`."""
    weights: dict[str, Any] = {}
    shared: dict[int, str] = {}  # id of a weight -> the name of the first layer that has it
    layers: list[tuple[str, nn.Module]] = []
    for name, layer in model.named_modules():
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            layers.append((shared.setdefault(id(layer.weight), name), layer))
            weights.setdefault(layers[-1][0], layer.weight)
    outputs = [m for m in model.modules() if isinstance(m, nn.Linear)]
    layers += [(shared[id(m.weight)], m) for m in outputs if id(m.weight) in shared]
    with contextlib.ExitStack() as context:
        context.enter_context(_eager)
        aliases = Aliases(uses)
        context.callback(aliases.close)
        for name, layer in layers:
            hook = LayerHook(name, aliases)
            context.callback(hook.close)
            context.callback(layer.register_forward_pre_hook(hook.before, prepend=True).remove)
            # This hook runs before the model's hooks, because they may change the output. If captures are nested, the
            # outermost one sees a call first.
            after = layer.register_forward_hook(hook.after, prepend=True, always_call=True)
            context.callback(after.remove)
        yield weights


#: The message of the error that a capture in compiled code raises.
INSIDE = (
    "capture: got a call inside a function that torch.compile compiles, where layers run no hooks; accepted is a "
    "`with` block around the call of the compiled function, which runs as Python within it"
)


def is_compiled() -> bool:
    """Return True if the caller runs in a function that torch.compile has compiled, or between two graphs of that
    function."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    callback = getattr(frames, "get_eval_frame_callback", lambda: None)()
    return callback is not None and callback is not False


class _Eager:
    """A context in which compiled functions run as ordinary Python code, because compiled code would not run the hooks.
    The effect ends when the last open capture ends.

    The context raises RuntimeError if compiled code enters it. If torch.compiler has no set_stance, or if
    Dynamo has not been imported when the first open capture begins, the context has no other effect.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.count = 0
        self.stance = contextlib.ExitStack()

    def __enter__(self) -> None:
        if is_compiled():
            raise RuntimeError(INSIDE)
        with self.lock:
            set_stance = getattr(torch.compiler, "set_stance", None)  # torch before 2.6 lacks it
            if self.count == 0 and set_stance is not None and "torch._dynamo" in sys.modules:
                self.stance.enter_context(set_stance("force_eager"))
            self.count += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.count -= 1
            if self.count == 0:
                self.stance.close()


_eager = _Eager()


# ---------------------------------------------------------------------- hooks
class LayerHook:
    """The two forward hooks of one layer. Between these hooks, `Watch` sees the functional calls of the layer, unless
    gradients are disabled.

    If the model is copied or saved during a capture, the hooks of the copy or of the saved model do nothing.
    """

    def __init__(self, name: str, aliases: Aliases | None = None) -> None:
        self.name = name
        self.aliases = aliases
        self.running = threading.local()

    def __reduce__(self) -> Any:
        return type(self), (self.name,)

    def close(self) -> None:
        self.aliases = None

    def before(self, layer: Any, args: tuple[Any, ...]) -> None:
        if self.aliases is not None and torch.is_grad_enabled():
            mode = Watch(self.name, layer, self.aliases)
            mode.__enter__()  # type: ignore[no-untyped-call]
            self.running.mode = mode

    def after(self, layer: Any, args: tuple[Any, ...], output: Any) -> None:
        mode = self.running.__dict__.pop("mode", None)
        if mode is None:
            return
        mode.__exit__(None, None, None)
        if output is None or mode.seen or isinstance(layer, nn.Linear):  # output is None if forward raised
            return
        raise TypeError(
            f"model: got layer {self.name!r}, a {type(layer).__name__} whose forward does not look its weight up by "
            "torch.nn.functional.embedding or embedding_bag; accepted are layers that do"
        )


class Watch(TorchFunctionMode):
    """A torch function mode for the forward pass of a layer. The mode records each lookup and each product that uses
    the layer's weight, and replaces the weight in the call by its alias."""

    def __init__(self, name: str, layer: Any, aliases: Aliases) -> None:
        super().__init__()
        self.name = name
        self.layer = layer
        self.aliases = aliases
        self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in SIGNATURES:
            return func(*args, **kwargs)
        given = SIGNATURES[func].bind(*args, **kwargs)
        given.apply_defaults()
        options, weight = given.arguments, given.arguments["weight"]
        if getattr(weight, "_islices_weight", weight) is not self.layer.weight:  # another capture's alias
            return func(*args, **kwargs)
        self.seen = True
        output = func(**{**options, "weight": self.aliases.of(self.name, weight)})
        product = func is functional.linear
        use = ProductUse(self.name, _kept(options["input"])) if product else _use_of_lookup(self.name, options)
        return _await_gradient(self.aliases.uses, use, output)


SIGNATURES: dict[Callable[..., Any], inspect.Signature] = {
    functional.embedding: inspect.signature(functional.embedding),
    functional.embedding_bag: inspect.signature(functional.embedding_bag),
    functional.linear: inspect.signature(lambda input, weight, bias=None: None),
}


def _await_gradient(uses: list[Use], use: LayerUse | ProductUse, output: Tensor) -> Tensor:
    """Append `use` to `uses`, and return the output with a hook. The hook adds the output's gradient to `use.upstream`.

    If the layer is frozen, its output becomes part of a graph, so that it gets a gradient.
    """
    if in_functorch():
        raise NotImplementedError(
            "capture: got a forward pass inside torch.func.grad, vmap and the like; accepted is an ordinary one, with "
            "an ordinary backward pass"
        )
    uses.append(use)
    if not output.requires_grad:
        output = FrozenOutput.apply(torch.empty(0, requires_grad=True), output)  # type: ignore[no-untyped-call]

    def arrived(upstream: Tensor) -> None:
        upstream = upstream.detach()
        if upstream.is_nested:  # the layer's rows for nested ids are nested too
            upstream = upstream.values()
        use.upstream = upstream if use.upstream is None else use.upstream + upstream

    output.register_hook(arrived)
    use.awaited = weakref.ref(arrived)  # the hook lives as long as the graph
    return output


class FrozenOutput(torch.autograd.Function):
    """An autograd function that makes the output of a frozen layer part of a graph. Users may still change the output
    in place. The backward pass of this function sets no .grad."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, output: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, None


# ---------------------------------------------------------------------- the weights
class Alias(torch.autograd.Function):
    """An autograd function that returns an alias of the weights. The backward pass stores the gradient of the alias,
    which comes from all captured uses, in ``running.captured``."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, running: threading.local) -> Tensor:
        ctx.running = running
        return weight.detach()  # not a view, because in-place changes would break a view

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.running.captured = gradient
        return gradient, None


_aliasing = Lock()


class Aliases:
    """The aliases of all weights in one capture. Captured layers use the alias in place of the weight."""

    def __init__(self, uses: list[Use]) -> None:
        self.uses = uses
        self.found: dict[int, tuple[Any, Tensor]] = {}
        self.handles: list[Any] = []

    def of(self, name: str, weight: Tensor) -> Tensor:
        """Return the alias of a weight. Return the weight itself if it requires no gradient, or if a transform of
        torch.func is running."""
        if not weight.requires_grad or in_functorch():
            return weight
        with _aliasing:
            if id(weight) not in self.found:
                running = threading.local()  # a backward pass uses a separate thread for each device

                def arrived(gradient: Tensor) -> None:
                    """Append an `OtherUse` if the gradient of the weight is not the same object as the gradient of the
                    captured uses."""
                    if running.__dict__.pop("captured", None) is not gradient:
                        self.uses.append(OtherUse(name, "were used beside the layers that are captured"))

                before = dict(weight._backward_hooks or {})
                self.handles.append(weight.register_hook(arrived))
                # the model's hooks may change the gradient, so they are registered again and run after this hook
                for number, hook in before.items():
                    del weight._backward_hooks[number]  # type: ignore[union-attr]
                    weight._backward_hooks[number] = hook  # type: ignore[index]
                alias = Alias.apply(weight, running)  # type: ignore[no-untyped-call]
                alias._islices_weight = getattr(weight, "_islices_weight", weight)
                self.found[id(weight)] = weight, alias
            return self.found[id(weight)][1]

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.found.clear()


# ---------------------------------------------------------------------- what was looked up
def _kept(x: Tensor | None) -> Any:
    """Return a detached copy of x, because the user may reuse its memory for the next batch before the gradients are
    read. If x is None, return None."""
    return None if x is None else x.detach().clone()


def _use_of_lookup(name: str, given: dict[str, Any]) -> LayerUse:
    """Return a `LayerUse` that describes a call of torch.nn.functional.embedding or embedding_bag."""
    weight, padding_idx, ids = given["weight"], given["padding_idx"], given["input"]
    if padding_idx is not None:
        padding_idx %= weight.shape[0]
    # only calls of embedding_bag have these arguments
    offsets, weights, to_last = map(given.get, ("offsets", "per_sample_weights", "include_last_offset"))
    if ids.is_nested and ids.layout is torch.jagged:  # the layer, too, joins the rows of nested ids
        ids, offsets, to_last = ids.values(), ids.offsets()[:-1], False
        weights = None if weights is None else weights.values()
    if offsets is not None and to_last:  # with include_last_offset, ids after the last offset are in no bag
        end = int(offsets[-1])
        ids, offsets = ids[:end], offsets[:-1]
        weights = None if weights is None else weights[:end]
    use = LayerUse(name, _kept(ids), weight.shape[0], padding_idx=padding_idx)
    use.scale_by_freq, use.combiner = given["scale_grad_by_freq"], given.get("mode")
    use.offsets, use.weights = _kept(offsets), _kept(weights)
    use.rows = weight.detach()[use.ids.reshape(-1)] if use.combiner == "max" else None
    return use
