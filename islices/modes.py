"""How an operation runs: on the host, by the framework's own operations, or inside a trace.

A *kernel* here is a function ``kernel(backend, *arrays, **static)`` written on the primitives of `Backend`.
`run` decides which backend's primitives it gets: those of `HostBackend` on views of the arrays' memory (mode
"host"), or the arrays' own backend (mode "native", and whenever a trace or a gradient is being recorded).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from islices.arguments import check_name
from islices.backend import Array, Backend
from islices.host import HostBackend

__all__ = ["HOST", "execution", "host_views", "is_traced", "keeps_slots", "on_host", "run", "run_on"]

MODES = ("host", "native")
HOST = HostBackend()
_mode: ContextVar[str] = ContextVar("islices_execution", default="host")


@contextlib.contextmanager
def execution(mode: str) -> Iterator[None]:
    """Choose how operations on concrete arrays run within a ``with`` block.

    Parameters
    ----------
    mode : {"host", "native"}
        "host", the default: in NumPy, on views of the framework's CPU memory; arrays elsewhere (an accelerator)
        and arrays whose gradient is being recorded run natively all the same. "native": by the framework's own
        operations, on any device. Traced code (jax.jit, tf.function) always runs natively.

    Raises
    ------
    ValueError
        For another mode.

    Notes
    -----
    The choice belongs to the current context (`contextvars`): threads and tasks do not disturb one another.
    SPEC clause 20.

    Examples
    --------
    >>> import islices
    >>> with islices.execution("native"):
    ...     pass
    """
    check_name(mode, MODES, "mode")
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


def is_traced(backend: Backend, *arrays: Array) -> bool:
    """Whether any of the arrays stands for a value not known yet."""
    return any(map(backend.is_traced, arrays))


def keeps_slots(backend: Backend, *arrays: Array) -> bool:
    """Whether slots that hold nothing stay, marked by the sentinel index, since traced code can drop none."""
    return backend.sentinel_padding and is_traced(backend, *arrays)


def on_host() -> bool:
    """Whether the host computes where it can (`execution`)."""
    return _mode.get() == "host"


def host_views(backend: Backend, arrays: Sequence[Array]) -> list[np.ndarray[Any, Any]] | None:
    """NumPy views of the arrays if the host may compute on them now, else None."""
    if not on_host() and not backend.host_only:
        return None
    views = []
    for x in arrays:
        if backend.is_traced(x) or backend.records_gradient(x):
            return None
        view = backend.host_view(x)
        if view is None:
            return None
        views.append(view)
    return views


def run(kernel: Callable[..., Any], backend: Backend, arrays: Sequence[Array], **static: Any) -> Any:
    """kernel's result as the backend's arrays. A result may be an array, a tuple of them, or Python values."""
    return run_on(host_views(backend, arrays), kernel, backend, arrays, **static)


def run_on(
    views: Sequence[np.ndarray[Any, Any]] | None,
    kernel: Callable[..., Any],
    backend: Backend,
    arrays: Sequence[Array],
    **static: Any,
) -> Any:
    """The same, where the `host_views` of the arrays are known."""
    if views is None:
        with backend.scope():
            return kernel(backend, *arrays, **static)
    with HOST.scope():
        out = kernel(HOST, *views, **static)
    if isinstance(out, tuple):
        return tuple([_give(backend, x, arrays[0]) for x in out])
    return _give(backend, out, arrays[0])


def _give(backend: Backend, x: Any, like: Array) -> Any:
    if isinstance(x, np.ndarray):
        return backend.from_host(x, like)
    return backend.from_host(np.asarray(x), like) if isinstance(x, np.generic) else x  # what NumPy makes of 0-d arrays
