"""Differentiation by looked-up rows, and functions whose gradient is given, in torch's autograd.

Rows are read outside the graph and made leaves of it, so that autograd stops at them: the table itself never takes
part, and no gradient of its size exists. May import: torch, the core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from islices.backend import Array, Backend, Gradient, LookedUp, Source, Transform

__all__ = ["custom_gradient", "differentiate", "per_sample_gradients"]

#: How many differentiations the current one is nested in: gradients of an inner one are differentiable themselves.
_depth: ContextVar[int] = ContextVar("islices_torch_depth", default=0)


class Recorder:
    """What a differentiation remembers of the lookups in one table."""

    def __init__(self, backend: Backend, source: Source) -> None:
        self.backend = backend
        self.source = source
        self.looked_up: list[tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...], Any]] = []
        self.open = True

    def lookup(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any) -> Array:
        if not self.open:
            raise TypeError("table: used after the function that value_and_grad differentiated had returned")
        if not torch.is_grad_enabled():  # torch.no_grad within fn: these rows count as constants
            return self._read(ids, extras, static)
        rows = self._read(ids, extras, static)
        # rows of an outer differentiation are part of its graph; a second name is what this one differentiates by
        rows = rows.view_as(rows) if rows.requires_grad else rows.requires_grad_()
        self.looked_up.append((rows, ids, extras, static))
        return rows

    def _read(self, ids: Array, extras: tuple[Array, ...], static: Any) -> torch.Tensor:
        weights, outer = self.source
        if outer is not None:
            return outer.lookup(weights, ids, extras, static)  # type: ignore[no-any-return]
        with torch.no_grad():
            return self.backend.read_rows(weights, ids)  # type: ignore[no-any-return]


def differentiate(
    backend: Backend, fn: Transform, variables: Sequence[Array], sources: Sequence[Source]
) -> tuple[Array, Any, list[Array], list[list[LookedUp]]]:
    """See `Backend.differentiate`."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise NotImplementedError(
            "value_and_grad inside torch.func.grad, vmap and the like, whose rules its autograd would not follow: "
            "accepted is value_and_grad inside value_and_grad (second derivatives), or per_sample=True"
        )
    recorders = [Recorder(backend, source) for source in sources]
    inner = _depth.get() > 0
    token = _depth.set(_depth.get() + 1)
    try:
        with torch.enable_grad():
            # a tensor that takes no gradient yet is given another face that does, on the same memory
            recorded = [x if x.requires_grad else x.detach().requires_grad_() for x in variables]
            loss, aux = fn(recorded, [Source(s.weights, r) for s, r in zip(sources, recorders, strict=True)])
    finally:
        _depth.reset(token)
        for recorder in recorders:
            recorder.open = False
    rows = [row for recorder in recorders for row, *_ in recorder.looked_up]
    gradients = _gradients(loss, [*recorded, *rows], create_graph=inner)
    dense, rest = gradients[: len(recorded)], iter(gradients[len(recorded) :])
    lookups = [
        [LookedUp(next(rest), ids, extras, static) for _, ids, extras, static in recorder.looked_up]
        for recorder in recorders
    ]
    return loss if inner else loss.detach(), aux, dense, lookups


def _gradients(loss: torch.Tensor, inputs: list[torch.Tensor], *, create_graph: bool) -> list[torch.Tensor]:
    if not inputs:
        return []
    if not loss.requires_grad:  # it depends on none of them
        return [torch.zeros_like(x) for x in inputs]
    found = torch.autograd.grad(loss.reshape(()), inputs, create_graph=create_graph, allow_unused=True)
    # stock layers with sparse=True hand over sparse gradients of their weights
    return [
        torch.zeros_like(x) if g is None else g.to_dense() if g.layout is not torch.strided else g
        for g, x in zip(found, inputs, strict=True)
    ]


def per_sample_gradients(
    fn: Callable[[list[Array], list[Array]], Array], variables: Sequence[Array], data: Sequence[Array]
) -> list[Array]:
    """See `Backend.per_sample_gradients`."""

    def one(new: list[torch.Tensor], sample: list[torch.Tensor]) -> torch.Tensor:
        return fn(new, [x.unsqueeze(0) for x in sample]).reshape(())

    constants = [x.detach() for x in variables]
    gradients = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0), randomness="different")(constants, list(data))
    return [g.detach() for g in gradients]


def custom_gradient(forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
    """See `Backend.custom_gradient`."""

    class Given(torch.autograd.Function):
        generate_vmap_rule = True  # torch.func.vmap runs both, on tensors that count as traced

        @staticmethod
        def forward(*arrays: torch.Tensor) -> torch.Tensor:
            return forward(*arrays)  # type: ignore[no-any-return]

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, upstream: torch.Tensor) -> Any:
            return backward(ctx.saved_tensors, upstream)

    def call(*arrays: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in arrays):
            return forward(*arrays)  # type: ignore[no-any-return]
        return Given.apply(*arrays)  # type: ignore[no-any-return]

    return call
