"""Use torch's autograd to differentiate with respect to dense tensors and the results of lookups, and to define
functions with custom gradients.

A lookup reads rows outside of the graph, and its result becomes a leaf of the graph. So the table is not part of the
graph, and autograd computes no gradient of the table's size. In a nested differentiation, the result is a view of the
tensor that the outer differentiation recorded. May import: `torch`, `islices.backend`,
`islices.backends.torch.tracers`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from islices.backend import (
    Array,
    Backend,
    Differentiated,
    Gradient,
    Reader,
    SampleLoss,
    Source,
    TapeRecorder,
    Transform,
)
from islices.backends.torch.tracers import has_tangent, in_functorch

#: True within a differentiation. The gradients of a nested differentiation must then be differentiable.
nested: ContextVar[bool] = ContextVar("islices_torch_nested", default=False)


#: (a tensor, its version, its name in error messages)
Noted = tuple[Tensor, int, str]


class LookupRecorder(TapeRecorder):
    """An object that records the lookups in one table during a differentiation."""

    def __init__(self, backend: Backend, source: Source, noted: list[Noted]) -> None:
        super().__init__(backend)
        self.source = source
        self.noted = noted
        self.state = "open"  # then "backward", then "closed"

    def bags(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any, read: Reader) -> Array:
        if self.state == "closed":
            raise TypeError("table: used after the function that value_and_grad differentiated had returned")
        if in_functorch():
            raise NotImplementedError(
                "lookup: got a Table that value_and_grad differentiates, inside torch.func.vmap, grad or the like, "
                "which its autograd does not see into; accepted is a lookup outside of it (ids may have any shape)"
            )
        if self.state == "backward":  # torch.utils.checkpoint reruns parts of fn, and needs only the results
            with torch.no_grad():
                rows = read(self.source.weights, ids)
            return rows.requires_grad_() if torch.is_grad_enabled() else rows
        rows = self._read(ids, extras, static, read)
        if not torch.is_grad_enabled():  # within torch.no_grad, rows are constants
            _refuse_reentrant_checkpoint()
            return rows
        # rows of an outer differentiation are part of its graph, so this differentiation uses a view of the rows
        rows = rows.view_as(rows) if rows.requires_grad else rows.requires_grad_()
        _note(self.noted, rows, "rows")
        # the ids are copied, because fn may reuse their memory for its next lookup
        self.found.append((rows, ids.clone(), tuple(x.clone() for x in extras), static))
        return rows

    def _read(self, ids: Array, extras: tuple[Array, ...], static: Any, read: Reader) -> Tensor:
        weights, outer = self.source
        if outer is not None:
            return outer.bags(weights, ids, extras, static, read)  # type: ignore[no-any-return]
        with torch.no_grad():
            return read(weights, ids)  # type: ignore[no-any-return]


def _note(noted: list[Noted], x: Tensor, subject: str) -> None:
    if not x.is_inference():  # inference tensors have no versions
        noted.append((x, x._version, subject))


def _check_unchanged(noted: Sequence[Noted]) -> None:
    """Raise TypeError if `fn` has changed a tensor in `noted` in place, because the gradients would be wrong."""
    for x, version, subject in noted:
        if x._version != version:
            raise TypeError(
                f"fn: changed {subject} in place, which value_and_grad differentiates by or needs again; accepted "
                "is a new tensor (x = x * 2 instead of x.mul_(2), or x.clone() first)"
            )


def differentiate(
    backend: Backend, fn: Transform, variables: Sequence[Array], sources: Sequence[Source], *, keep_sparse: bool = False
) -> Differentiated:
    """See `Backend.differentiate`. If `keep_sparse` is True, return the variables' gradients as torch does: as dense
    tensors, sparse tensors or None."""
    if in_functorch():
        raise NotImplementedError(
            "value_and_grad inside torch.func.grad, vmap and the like, whose rules its autograd would not follow: "
            "accepted is value_and_grad inside value_and_grad (second derivatives), or per_sample=True"
        )
    _refuse_tangents([*variables, *(s.weights for s in sources)])
    noted: list[Noted] = []
    recorders = [LookupRecorder(backend, source, noted) for source in sources]
    inner, token = nested.get(), nested.set(True)
    try:
        with torch.inference_mode(False), torch.enable_grad():  # the caller may have turned recording off
            recorded = _faces(variables, inner=inner)
            for x in recorded:
                if not x.is_leaf:  # torch itself checks leaves
                    _note(noted, x, "an argument")
            loss, aux = fn(recorded, [Source(s.weights, r) for s, r in zip(sources, recorders, strict=True)])
            _refuse_tangents([loss])
            _check_unchanged(noted)
            for recorder in recorders:
                recorder.state = "backward"
            rows = [row for recorder in recorders for row, *_ in recorder.found]
            gradients = _gradients(loss, [*recorded, *rows], create_graph=inner, keep_sparse=keep_sparse)
    finally:
        nested.reset(token)
        for recorder in recorders:
            recorder.state = "closed"
    dense, rest = gradients[: len(recorded)], iter(_apart(gradients[len(recorded) :], gradients[: len(recorded)]))
    return loss if inner else loss.detach(), aux, dense, [recorder.looked_up(rest) for recorder in recorders]


def _apart(upstreams: list[Tensor], dense: list[Tensor]) -> list[Tensor]:
    """Return the gradients of lookup results. Copy each gradient that shares CPU memory with the gradient of a
    variable.

    If a loss adds a lookup result and a variable, autograd may return the same tensor as the gradient of both. The
    caller may change the variable's gradient in place before the gradient of the lookup result is read.
    """
    if not upstreams:
        return []
    held = {x.untyped_storage().data_ptr() for x in dense if x.device.type == "cpu"}
    return [x.clone() if held and x.untyped_storage().data_ptr() in held else x for x in upstreams]


def _refuse_reentrant_checkpoint() -> None:
    """Raise NotImplementedError if a lookup runs within reentrant checkpointing. Reentrant checkpointing records the
    function only in the backward pass, which is too late for a lookup."""
    checkpointing = sys.modules.get("torch.utils.checkpoint")
    if checkpointing is None:
        return
    code = checkpointing.CheckpointFunction.forward.__code__
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            raise NotImplementedError(
                "lookup: got a Table that value_and_grad differentiates, inside torch.utils.checkpoint with "
                "use_reentrant=True, where its gradient would be lost; accepted is use_reentrant=False"
            )
        frame = frame.f_back  # type: ignore[assignment]


def _refuse_tangents(tensors: Sequence[Tensor]) -> None:
    """Raise NotImplementedError if a tensor has a forward-mode tangent, because `detach` would remove the tangent."""
    if any(map(has_tangent, tensors)):
        raise NotImplementedError(
            "value_and_grad of dual tensors (torch.autograd.forward_ad), whose tangents it would lose; accepted is "
            "value_and_grad inside value_and_grad for second derivatives"
        )


def _faces(variables: Sequence[Tensor], *, inner: bool) -> list[Tensor]:
    """Return the tensors that `fn` gets in place of the variables, so that each variable gets a separate gradient.

    In a nested call (`inner`), `fn` gets views of the variables that require a gradient. Without the views, the
    gradient would include uses of the variable outside of `fn`. In any other call, a leaf that requires a gradient and
    is passed only once stays the same object.

    In place of all other variables, `fn` gets detached tensors with the same memory, or detached copies of inference
    tensors. Without the detached tensors, a variable that is passed twice, or from which another variable is computed,
    would get a sum of gradients.
    """
    times = Counter(map(id, variables))
    faces = []
    for x in variables:
        if inner and x.requires_grad:
            x = x.view_as(x)
        elif not (x.requires_grad and x.is_leaf and times[id(x)] == 1):
            x = _recordable(x).detach().requires_grad_()
        faces.append(x)
    return faces


def _recordable(x: Tensor) -> Tensor:
    """Return x, or a copy if x is an inference tensor, because autograd raises errors for inference tensors."""
    return x.clone() if x.is_inference() else x


def _gradients(loss: Tensor, inputs: list[Tensor], *, create_graph: bool, keep_sparse: bool) -> list[Any]:
    if not inputs:
        return []
    found: Sequence[Any] = [None] * len(inputs)  # the gradients of a loss that depends on none of the inputs
    if loss.requires_grad:
        found = torch.autograd.grad(loss.sum(), inputs, create_graph=create_graph, allow_unused=True)
    return list(found) if keep_sparse else [as_dense(g, x) for g, x in zip(found, inputs, strict=True)]


def as_dense(g: Tensor | None, x: Tensor) -> Tensor:
    """Convert a gradient of `x` to a dense tensor. None, which is the gradient of an unused tensor, becomes zeros."""
    return torch.zeros_like(x) if g is None else g if g.layout is torch.strided else g.to_dense()


def per_sample_gradients(fn: SampleLoss, variables: Sequence[Array], data: Sequence[Array]) -> list[Array]:
    """See `Backend.per_sample_gradients`."""
    if not len(data[0]):  # several operations raise errors under vmap over an empty batch
        return [x.new_zeros((0, *x.shape)) for x in variables]
    if nested.get():
        raise NotImplementedError(
            "per_sample: gradients of dense arrays inside value_and_grad, which would be constants to it; accepted "
            "there are those of tables"
        )

    def one(new: list[Tensor], sample: list[Tensor]) -> Tensor:
        return fn(new, [x.unsqueeze(0) for x in sample]).reshape(())  # type: ignore[no-any-return]

    with torch.inference_mode(False), torch.enable_grad():
        constants, batch = ([_recordable(x).detach() for x in xs] for xs in (variables, data))
        mapped = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0), randomness="different")
        gradients = mapped(constants, batch)
    return [g.detach() for g in gradients]


def custom_gradient(forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
    """See `Backend.custom_gradient`."""

    class Differentiable(torch.autograd.Function):
        generate_vmap_rule = True  # torch.func.vmap runs forward and backward on tensors that count as traced

        @staticmethod
        def forward(*arrays: Tensor) -> Tensor:
            out = forward(*arrays)
            # a returned input would be a view, which may not change in place
            return out.clone() if any(out is x for x in arrays) else out  # type: ignore[no-any-return]

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs, output)

        @staticmethod
        def backward(ctx: Any, upstream: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return backward(ctx.saved_tensors, upstream)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            *arrays, value = ctx.saved_tensors
            with torch.enable_grad():  # `backward` is linear in upstream, and its transpose maps the tangents
                upstream = torch.zeros_like(value, requires_grad=True)
                pulled = zip(backward(tuple(arrays), upstream), tangents, strict=True)
                pairs = [(g, t) for g, t in pulled if g is not None and t is not None]
                outs, given = [g for g, _ in pairs], [t for _, t in pairs]
                (found,) = torch.autograd.grad(outs, [upstream], given, create_graph=True, allow_unused=True)
            return torch.zeros_like(value) if found is None else found

    def call(*arrays: Tensor) -> Tensor:
        if not any(map(is_recorded, arrays)):
            return forward(*arrays)  # type: ignore[no-any-return]
        return Differentiable.apply(*arrays)  # type: ignore[no-any-return, no-untyped-call]

    return call


def is_recorded(x: Tensor) -> bool:
    """See `Backend.records_gradient`."""
    return (x.requires_grad and torch.is_grad_enabled()) or has_tangent(x)
