"""Detect active transforms, dispatch modes and tracers of torch, such as torch.func.vmap, FakeTensorMode,
torch.jit.trace and make_fx.

NumPy must not compute with the memory of tensors that a transform wraps, or whose operations a tracer records. A tracer
would treat values that NumPy reads from this memory as constants. May import: `torch`.
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
#: The dispatch keys that are set in ordinary eager code.
USUAL = _C.DispatchKeySet(_C.DispatchKey.BackendSelect) | _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView)

if hasattr(USUAL, "raw_repr"):
    UNUSUAL = ~USUAL.raw_repr()

    def at_work() -> bool:
        """Return True if a transform, a dispatch mode or a tracer intercepts the operations of this thread."""
        return bool(_included().raw_repr() & UNUSUAL)

    def plain_eager() -> bool:
        """Return True if no transform, dispatch mode or tracer intercepts this thread's operations, and forward-mode
        differentiation is off. Autograd may still record the operations."""
        return forward_ad._current_level < 0 and not _included().raw_repr() & UNUSUAL
else:  # torch before 2.6; these functions take three times as long as those above

    def at_work() -> bool:
        return bool((_included() - USUAL).highestPriorityTypeId() != _C.DispatchKey.Undefined)

    def plain_eager() -> bool:
        return forward_ad._current_level < 0 and not at_work()


def in_forward_mode() -> bool:
    """Return True within forward_ad.dual_level, where tensors may have tangents."""
    return forward_ad._current_level >= 0


def has_tangent(x: torch.Tensor) -> bool:
    """Return True if x has a tangent of forward-mode differentiation."""
    return in_forward_mode() and forward_ad.unpack_dual(x).tangent is not None


def in_functorch() -> bool:
    """Return True if a transform of torch.func is running."""
    return _C._functorch.peek_interpreter_stack() is not None


def below(x: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor inside the wrappers of torch.func.grad and jvp. Return None if a wrapper of vmap is among
    them."""
    while is_wrapped(x):
        if _C._functorch.is_batchedtensor(x):
            return None
        x = _C._functorch.get_unwrapped(x)
    return x


def tracer_of(x: torch.Tensor) -> str | None:
    """Return the name of the tracer that records operations on x. Return None if there is no tracer, or if x is a
    constant for it."""
    if not at_work():
        return None
    if _C._get_tracing_state() is not None and _C._get_value_trace(x).node().kind() != "prim::Constant":
        return "torch.jit.trace"
    key = _C._TorchDispatchModeKey.PROXY
    mode = _C._get_dispatch_mode(key) or torch._ops._get_dispatch_mode_pre_dispatch(key)
    known = None if mode is None else mode.tracer.tensor_tracker.get(below(x))
    return None if known is None or known.constant is not None else "make_fx"


def is_traced(x: torch.Tensor) -> bool:
    """Return True if the values of `x` are not known, if a tracer records operations on `x`, or if torch.func.vmap maps
    over `x`.

    Dynamo traces `in_graphs.is_traced` in place of this function. torch.compiler.is_compiling() is not suitable,
    because its result is the same for all threads.
    """
    if x.is_meta or (type(x) not in PLAIN and hasattr(x, "fake_mode")):
        return True
    return at_work() and (below(x) is None or tracer_of(x) is not None)


@contextlib.contextmanager
def bare() -> Iterator[None]:
    """Disable all transforms and dispatch modes within the context, so that operations run directly on the memory of
    tensors."""
    with _C._DisableFuncTorch(), _disable_current_modes():
        yield
