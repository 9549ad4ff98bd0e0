"""Detect torch's transforms, modes and tracers around a call, such as torch.func, fake tensors, torch.jit.trace and
make_fx.

Where one of them is active, NumPy's view of a tensor is no longer just its memory. A transform wraps the tensors that
it sees, and a tracer treats values read from its inputs as constants. May import: `torch`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

PLAIN = (torch.Tensor, torch.nn.Parameter)

_C: Any = torch._C
is_wrapped = _C._functorch.is_functorch_wrapped_tensor
_included = _C._dispatch_tls_local_include_set
#: The bits of all dispatch keys except those that are included in ordinary eager code.
UNUSUAL = ~(
    _C.DispatchKeySet(_C.DispatchKey.BackendSelect).raw_repr()
    | _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView).raw_repr()
)


def at_work() -> bool:
    """Return whether a transform, a mode or a tracer sees the operations of this thread."""
    return bool(_included().raw_repr() & UNUSUAL)


def in_forward_mode() -> bool:
    """Return whether tensors may have tangents, because the thread is within forward_ad.dual_level."""
    return forward_ad._current_level >= 0


def has_tangent(x: torch.Tensor) -> bool:
    """Return whether forward-mode differentiation tracks x."""
    return in_forward_mode() and forward_ad.unpack_dual(x).tangent is not None


def plain_eager() -> bool:
    """Return whether an operation of this thread only computes values, and perhaps records a gradient."""
    return forward_ad._current_level < 0 and not _included().raw_repr() & UNUSUAL


def in_functorch() -> bool:
    """Return whether a transform of torch.func runs."""
    return _C._functorch.peek_interpreter_stack() is not None


def below(x: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor inside the wrappers of torch.func.grad and jvp, or None if vmap's wrapper is among them."""
    while is_wrapped(x):
        if _C._functorch.is_batchedtensor(x):
            return None
        x = _C._functorch.get_unwrapped(x)
    return x


def tracer_of(x: torch.Tensor) -> str | None:
    """Return the name of the tracer that records operations on x, or None if x is a constant for all tracers."""
    if not at_work():
        return None
    if _C._get_tracing_state() is not None and _C._get_value_trace(x).node().kind() != "prim::Constant":
        return "torch.jit.trace"
    key = _C._TorchDispatchModeKey.PROXY
    mode = _C._get_dispatch_mode(key) or torch._ops._get_dispatch_mode_pre_dispatch(key)
    known = None if mode is None else mode.tracer.tensor_tracker.get(below(x))
    return None if known is None or known.constant is not None else "make_fx"


def is_traced(x: torch.Tensor) -> bool:
    """Return whether the contents of x are still unknown.

    Dynamo reads `in_graphs.is_traced` instead, because torch.compiler.is_compiling() answers for all threads.
    """
    if x.is_meta or (type(x) not in PLAIN and hasattr(x, "fake_mode")):
        return True
    return at_work() and (below(x) is None or tracer_of(x) is not None)


@contextlib.contextmanager
def bare() -> Iterator[None]:
    """Disable all transforms and modes, so that a tensor is its memory."""
    with _C._DisableFuncTorch(), _disable_current_modes():
        yield
