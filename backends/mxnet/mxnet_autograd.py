"""Use MXNet's autograd to differentiate functions that look up rows or bags, and to define custom gradients.

This module works around the following properties of MXNet's autograd:

- `autograd.grad` raises an error if the loss does not depend on a variable. `backward` raises no error, but also writes
  to the gradient buffers of other arrays in the graph. So this module calls `autograd.grad` with the loss, and with one
  more head per variable, the size of the variable. The gradient of a size is zero, and MXNet leaves zeros out of the
  sum.
- Without ``retain_graph``, MXNet releases the whole graph, even the part that was recorded outside of the
  differentiated function.
- If a gradient of an `autograd.Function` is unused, MXNet does not set the gradients after it. For this class,
  MXNet also ignores ``grad_req="add"``. And if the forward function raises an error, recording stays off. So
  `record_function` replaces `autograd.Function`.
- A gradient function runs later, in a thread of MXNet's engine. If the function raises an error, the caller that waits
  for the result gets an MXNetError without the cause. The engine's thread does not have the user thread's settings,
  such as np_shape and context variables.

May import: `islices.backend`, this folder. `ndarrays` imports MXNet with a stand-in for NumPy.
"""

from __future__ import annotations

import contextvars
import ctypes
import itertools
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from islices.backend import Backend, Differentiated, Reader, Source, TapeRecorder, Transform
from islices.backends.mxnet.ndarrays import mx

nd = mx.nd
autograd = mx.autograd


def paused() -> AbstractContextManager[Any]:
    """Return a context in which autograd does not record. Training mode stays as it is."""
    return autograd.pause(train_mode=autograd.is_training())  # type: ignore[no-any-return]


def is_recorded(x: Any) -> bool:
    """Return True if autograd is recording and x is in its graph. MXNet's in-place operators raise errors for such
    arrays."""
    if not autograd.is_recording():
        return False
    try:
        x._fresh_grad = x._fresh_grad  # this assignment changes nothing, but raises an error if x is not in the graph
    except mx.base.MXNetError:
        return False
    return True


# ---------------------------------------------------------------------- differentiation by looked-up rows
class GraphReads(TapeRecorder):
    """An object that records the lookups in one table while a function is differentiated."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.thread = threading.get_ident()
        self.open = True

    def bags(self, weights: Any, ids: Any, extras: tuple[Any, ...], static: Any, read: Reader) -> Any:
        """Read rows or bags with the function `read`, and store the lookup. If autograd is recording, the result is a
        new variable, else a constant."""
        if not self.open:
            raise TypeError(
                "table: got one that value_and_grad gave to a function which has returned; accepted is its use within "
                "that function (return the rows, not the Table)"
            )
        if threading.get_ident() != self.thread:
            raise TypeError(
                "table: got a lookup in another thread than value_and_grad runs in, where MXNet records nothing; "
                "accepted is that thread"
            )
        with paused(), mx.util.np_shape(True):
            rows = read(weights, ids)
            leaf = _leaf(rows)
            ids, extras = ids.copy(), tuple(x.copy() for x in extras)  # fn may overwrite these arrays later
        self.found.append((leaf, ids, extras, static))
        return leaf if autograd.is_recording() else rows


class _Watch:
    """The number of gradient functions that one differentiation has recorded, and the errors of those that failed."""

    def __init__(self) -> None:
        self.recorded = 0
        self.errors: list[Exception] = []


class _Current(threading.local):
    watch: _Watch | None = None


_current = _Current()


def differentiate(
    backend: Backend, fn: Transform, variables: Sequence[Any], sources: Sequence[Source]
) -> Differentiated:
    """See `Backend.differentiate`."""
    if autograd.is_recording():
        raise NotImplementedError(
            "value_and_grad: got a call while autograd records (within autograd.record(), or within another "
            "value_and_grad); MXNet cannot differentiate its gradients again. Call it outside of the recording, or "
            "in `with mx.autograd.pause():` where its results are constants to what is recorded"
        )
    if any(source.recorder is not None for source in sources):
        raise NotImplementedError(
            "value_and_grad: got a Table whose gradient is being taken already; MXNet has no second derivatives. Pass "
            "the inner function a Table of the weights, from outside of the outer one"
        )
    recorders = [GraphReads(backend) for _ in sources]
    outer, watch = _current.watch, _Watch()
    _current.watch = watch
    try:
        leaves = [_leaf(x) for x in variables]
        with autograd.record():
            given = [Source(s.weights, r) for s, r in zip(sources, recorders, strict=True)]
            loss, aux = fn(list(leaves), given)
            rows = [leaf for r in recorders for leaf, *_ in r.found]
            _check_untouched([*leaves, *rows])
            gradients = _gradients(loss, [*leaves, *rows])
        _raise_errors(watch, gradients)
    finally:
        _current.watch = outer
        for recorder in recorders:
            recorder.open = False
    upstreams = iter(gradients[len(leaves) :])
    return loss.detach(), aux, gradients[: len(leaves)], [r.looked_up(upstreams) for r in recorders]


def _leaf(x: Any) -> Any:
    """Return a new variable that shares the memory of x. x keeps its gradient buffer and its place in a recorded
    graph."""
    with mx.util.np_shape(True):
        leaf = x.detach()
        leaf.attach_grad()
    return leaf


def _check_untouched(leaves: list[Any]) -> None:
    if any(leaf._fresh_grad for leaf in leaves):
        raise NotImplementedError(
            "fn: got a backward pass within it, through looked-up rows or differentiated arguments; MXNet takes apart "
            "what it has gone through, and has no second derivatives. Compute that gradient by a value_and_grad of its "
            "own before, or of copies of the rows (rows.detach().copy())"
        )


def _gradients(loss: Any, leaves: list[Any]) -> list[Any]:
    """Return the gradients of the loss. A variable on which the loss does not depend gets zeros. Call this
    function within autograd.record()."""
    if not leaves:
        return []
    with mx.util.np_shape(True):
        heads = [loss, *(nd.size_array(leaf) for leaf in leaves)]
        try:
            found = autograd.grad(heads, leaves, retain_graph=True)
        except mx.base.MXNetError as error:
            if "not in a computational graph" not in str(error):
                raise
            return [nd.zeros_like(leaf.detach()) for leaf in leaves]  # the loss depends on no recorded array
        # the gradient of nd.Embedding(sparse_grad=True) is row_sparse even for a dense variable
        return [g.tostype("default") if g.stype != "default" else g for g in found]


def _raise_errors(watch: _Watch, gradients: list[Any]) -> None:
    """Wait until all gradient functions have run. If one failed, raise its error."""
    if not watch.recorded:
        return
    try:
        for g in gradients:
            g.wait_to_read()
    except mx.base.MXNetError:
        if watch.errors:
            raise watch.errors[0] from None
        raise


# ---------------------------------------------------------------------- functions with a given gradient
class _Call:
    """A call that `record_function` has recorded. This object contains the gradient function, and the context variables
    of the thread that made the call."""

    def __init__(self, backward: Callable[[Any], Sequence[Any]]) -> None:
        self.backward = backward
        self.context = contextvars.copy_context()
        self.watch = _current.watch
        self.callbacks: Any = None

    def run(self, upstream: Any, outputs: list[Any], requests: list[int]) -> None:
        with autograd.pause(), mx.util.np_shape(True):
            gradients = self.context.copy().run(self.backward, upstream)  # a context cannot run twice at the same time
            for out, request, gradient in zip(outputs, requests, gradients, strict=True):
                if request == 0 or out.size == 0:  # MXNet needs no gradient, or it is empty
                    continue
                if request == 3:  # add the gradient to the buffer's values
                    if gradient is not None:
                        out += gradient
                elif gradient is None:
                    out[:] = 0
                else:
                    gradient.copyto(out)


_calls: dict[int, _Call] = {}
_keys = itertools.count(1)


def _run_backward(n_upstream: int, n_outputs: int, handles: Any, requests: Any, train: int, key: int) -> bool:
    # this code must free every handle; an NDArray frees its handle
    arrays = [nd.NDArray(ctypes.cast(h, mx.base.NDArrayHandle)) for h in handles[: n_upstream + n_outputs]]
    call = _calls[key]
    try:
        call.run(arrays[0], arrays[n_upstream:], requests[:n_outputs])
    except Exception as error:  # MXNet's engine passes no error on; after False, the waiting caller gets an MXNetError
        if call.watch is None:
            traceback.print_exc()  # the MXNetError does not show the cause
        else:
            call.watch.errors.append(error)
        return False
    return True


def _forget(key: int) -> bool:
    _calls.pop(key, None)
    return True


# All calls share one pair of callbacks. MXNet passes a number that identifies the call.
_CALLBACKS = (
    mx.autograd.Function._bwd_functype(_run_backward),
    mx.autograd.Function._del_functype(_forget),
)
_PLAIN = ctypes.CFUNCTYPE(ctypes.c_int)


def record_function(inputs: Sequence[Any], value: Any, backward: Callable[[Any], Sequence[Any]]) -> Any:
    """Record `value` as the result of a function of `inputs`, which are float arrays. Return the recorded array.

    ``backward(upstream)`` must return a gradient or None for each input. Nothing is copied. Call `record_function` only
    while autograd records.
    """
    out = value.detach()  # a new array, because `value` may also be an input, which must not be in the graph
    call, key = _Call(backward), next(_keys)
    pointers = (_PLAIN * 2)(*(ctypes.cast(c, _PLAIN) for c in _CALLBACKS))
    call.callbacks = mx.base.MXCallbackList(
        2,
        ctypes.cast(pointers, ctypes.POINTER(_PLAIN)),
        ctypes.cast((ctypes.c_void_p * 2)(key, key), ctypes.POINTER(ctypes.c_void_p)),
    )
    _calls[key] = call
    if call.watch is not None:
        call.watch.recorded += 1
    handles = mx.base.c_handle_array
    with mx.util.np_shape(True):
        mx.base.check_call(
            mx.base._LIB.MXCustomFunctionRecord(
                len(inputs), handles(inputs), 1, handles([out]), ctypes.byref(call.callbacks)
            )
        )
    return out
