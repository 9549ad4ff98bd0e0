"""Differentiate with respect to looked-up rows, and define functions with custom gradients, in Paddle's autograd.

The rows are read outside the autograd graph and become leaves of the graph. So the table is not part of the graph, and
no table-sized gradient is allocated. If a gradient function raises an exception, Paddle raises an OSError that quotes
the exception. In a differentiation by islices, this module raises the original exception instead.

May import: Paddle, the core.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any

import paddle
from paddle.autograd import PyLayer

from islices.backend import Array, Gradient, LookedUp, Source, Transform
from islices_paddle import selected_rows

__all__ = ["custom_gradient", "differentiate"]


class Differentiation:
    """One call of `differentiate`: the tensors that must not change during the call, and the errors that gradient
    functions raised."""

    def __init__(self, inner: bool) -> None:
        self.inner = inner
        self.state = "open"  # then "backward", then "closed"
        self.versions: list[tuple[paddle.Tensor, int, str]] = []
        self.errors: list[Exception] = []

    def note(self, x: paddle.Tensor, subject: str) -> None:
        self.versions.append((x, x.inplace_version, subject))

    def check_unchanged(self) -> None:
        for x, version, subject in self.versions:
            if x.inplace_version != version:
                raise TypeError(
                    f"fn: changed {subject} in place, which value_and_grad differentiates by; accepted is a new tensor "
                    "(x = x * 2 instead of x.multiply_(...), or x.clone() first)"
                )


#: The current differentiation. In a nested differentiation, the gradients must be differentiable as well.
_current: ContextVar[Differentiation | None] = ContextVar("islices_paddle_differentiation", default=None)
#: A lock, because two threads that call `paddle.grad` at the same time crash the process. Simultaneous calls of
#: `Tensor.backward` need no lock.
_one_at_a_time = threading.RLock()


class Recorder:
    """The recorder of lookups in one table during a differentiation."""

    def __init__(self, read_rows: Callable[[Array, Array], Array], source: Source, owner: Differentiation) -> None:
        self.read_rows = read_rows
        self.source = source
        self.owner = owner
        self.looked_up: list[tuple[paddle.Tensor, paddle.Tensor, tuple[paddle.Tensor, ...], Any]] = []

    def lookup(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any) -> Array:
        if self.owner.state == "closed":
            raise TypeError("table: used after the function that value_and_grad differentiated had returned")
        if self.owner.state == "backward":  # recompute runs parts of fn again, only for their values
            with paddle.no_grad():
                rows = self.read_rows(self.source.weights, ids)
            rows.stop_gradient = not paddle.is_grad_enabled()
            return rows
        rows = self._read(ids, extras, static)
        if not paddle.is_grad_enabled():  # under paddle.no_grad in fn, rows are constants
            _refuse_reentrant_recompute()
            return rows
        if rows.stop_gradient:
            rows.stop_gradient = False
        else:  # rows of an outer differentiation: differentiate with respect to a copy
            rows = paddle.assign(rows)
        self.owner.note(rows, "rows")
        # copies of the ids, because fn may write new ids into the same memory for its next lookup
        self.looked_up.append((rows, ids.clone(), tuple(x.clone() for x in extras), static))
        return rows

    def _read(self, ids: Array, extras: tuple[Array, ...], static: Any) -> paddle.Tensor:
        weights, outer = self.source
        if outer is not None:
            return outer.lookup(weights, ids, extras, static)
        with paddle.no_grad():
            return self.read_rows(weights, ids)


def _refuse_reentrant_recompute() -> None:
    """Raise NotImplementedError inside a reentrant recompute. Recompute runs its function again in the backward pass,
    when a lookup can no longer be recorded."""
    recomputing = sys.modules.get("paddle.distributed.fleet.recompute.recompute")
    if recomputing is None:
        return
    code = recomputing.RecomputeFunction.forward.__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            raise NotImplementedError(
                "lookup: got a Table that value_and_grad differentiates, inside paddle.distributed's recompute with "
                "use_reentrant=True, where its gradient would be lost; accepted is use_reentrant=False"
            )
        frame = frame.f_back


def differentiate(
    read_rows: Callable[[Array, Array], Array], fn: Transform, variables: Sequence[Array], sources: Sequence[Source]
) -> tuple[Array, Any, list[Array], list[list[LookedUp]]]:
    """See `Backend.differentiate`."""
    run = Differentiation(inner=_current.get() is not None)
    recorders = [Recorder(read_rows, source, run) for source in sources]
    token = _current.set(run)
    try:
        with paddle.enable_grad():
            faces = _faces(variables, run)
            loss, aux = fn(list(faces), [Source(s.weights, r) for s, r in zip(sources, recorders, strict=True)])
            run.check_unchanged()
            run.state = "backward"
            rows = [row for recorder in recorders for row, *_ in recorder.looked_up]
            gradients = _gradients(loss, [*faces, *rows], run)
    finally:
        _current.reset(token)
        run.state = "closed"
    upstreams = iter(gradients[len(faces) :])
    lookups = [[LookedUp(next(upstreams), *subject) for _, *subject in r.looked_up] for r in recorders]
    return loss if run.inner else loss.detach(), aux, gradients[: len(faces)], lookups


def _faces(variables: Sequence[paddle.Tensor], run: Differentiation) -> list[paddle.Tensor]:
    """Return the tensors that fn gets for the variables. Each tensor gets a separate gradient.

    In a nested call, fn gets a copy of each variable that requires a gradient. Otherwise, fn gets the variable itself
    if the variable is a leaf that requires a gradient and occurs once. In all other cases, fn gets a detached tensor.
    Without these new tensors, autograd would mix the gradients of a variable that occurs twice, or of variables that
    depend on each other. In a nested call, autograd would also add gradients through values that fn captures.
    """
    times = Counter(map(id, variables))
    faces = []
    for x in variables:
        if run.inner and not x.stop_gradient:
            face = paddle.assign(x)
        elif x.is_leaf and not x.stop_gradient and times[id(x)] == 1:
            face = x
        else:
            face = x.detach()
            face.stop_gradient = False
        run.note(face, "an argument")
        faces.append(face)
    return faces


def _gradients(loss: paddle.Tensor, inputs: list[paddle.Tensor], run: Differentiation) -> list[paddle.Tensor]:
    if not inputs:
        return []
    try:
        with _one_at_a_time:
            found = paddle.grad([loss], inputs, create_graph=run.inner, allow_unused=True)
    except Exception:
        if run.errors:
            raise run.errors[0] from None
        raise
    # stock layers with sparse=True have sparse gradients of their weights
    return [
        paddle.zeros_like(x) if g is None else selected_rows.to_dense(g) if selected_rows.is_special(g) else g
        for g, x in zip(found, inputs, strict=True)
    ]


def custom_gradient(forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
    """See `Backend.custom_gradient`."""

    class Given(PyLayer):
        @staticmethod
        def forward(ctx: Any, *arrays: paddle.Tensor) -> paddle.Tensor:
            ctx.save_for_backward(*arrays)
            ctx.run = _current.get()
            out = forward(*arrays)
            # if an input is returned, Paddle assumes that it was changed in place
            return paddle.assign(out) if any(out is x for x in arrays) else out

        @staticmethod
        def backward(ctx: Any, upstream: paddle.Tensor) -> Any:
            arrays = ctx.saved_tensor()
            try:
                gradients = backward(arrays, upstream)
            except Exception as error:
                if ctx.run is not None:
                    ctx.run.errors.append(error)
                raise
            # Paddle raises for a gradient of an input that needs none
            return tuple(None if x.stop_gradient else g for x, g in zip(arrays, gradients, strict=True))

    def call(*arrays: paddle.Tensor) -> paddle.Tensor:
        if not paddle.is_grad_enabled() or all(x.stop_gradient for x in arrays):
            return forward(*arrays)
        return Given.apply(*arrays)

    return call
