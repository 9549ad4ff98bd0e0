"""Choose how an operation runs: on the host, or with the framework's operations.

An operation is a function ``fn(backend, *arrays, **static)`` that uses the methods of `Backend`, or the name of one
such method. `run` runs an operation. In mode "host", the operation gets `HOST` and views of the arrays' memory. In mode
"framework", and for arrays without views (traced, outside CPU memory, or with recorded operations), the operation gets
the arrays and their backend. On the host, compiled kernels replace some methods (`islices.kernels.operations.KERNELS`)
if kernels are on and support the arguments. NumPy arrays are on the host in both modes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np

from islices import kernels
from islices.backend import TO_DO, Array, Backend, Host, Look, declared
from islices.core.arguments import check_name
from islices.core.host import HostBackend

MODES = ("host", "framework")
HOST = HostBackend()
_mode: ContextVar[str] = ContextVar("islices_execution", default="host")


@contextlib.contextmanager
def execution(mode: str) -> Iterator[None]:
    """Choose how operations run within a ``with`` block. For NumPy arrays, the mode has no effect.

    Parameters
    ----------
    mode : {"host", "framework"}
        In mode "host", the default, NumPy or compiled kernels compute on views of the framework's CPU memory. In mode
        "framework", the framework's operations compute, on any device. Even in mode "host", the framework's operations
        compute on arrays outside CPU memory, and in traced code (jax.jit, tf.function). The same holds for arrays on
        which the framework records operations. This rule has two exceptions. Compiled kernels may run within traced
        code on the CPU. Norms, clipping and bags have custom gradients, so the host computes them even while the
        framework records operations.

    Raises
    ------
    ValueError
        The mode is unknown.

    Notes
    -----
    The choice is local to the current context (`contextvars`): threads and tasks do not affect one another.
    SPEC clause 20.

    Examples
    --------
    >>> import islices
    >>> with islices.config.execution("framework"):
    ...     pass
    """
    mode = check_name(mode, MODES, "mode")
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


def is_traced(backend: Backend, *arrays: Array) -> bool:
    """Return True if the value of any of the arrays is not known, as in traced code or for a tensor without data."""
    return any(map(backend.is_traced, arrays))


def keeps_slots(backend: Backend, *arrays: Array) -> bool:
    """Return True if arrays are traced and slots cannot be dropped. The sentinel index then marks empty slots."""
    return backend.sentinel_padding and is_traced(backend, *arrays)


def on_host() -> bool:
    """Return True if the mode of `execution` is "host"."""
    return _mode.get() == "host"


def look_at(backend: Backend, arrays: Sequence[Array], look: Look | None = None) -> Look:
    """Return the `Look` of arrays, with views only if the host may compute on all of these arrays now.

    `look`, if given, is the result of `Backend.look` for the arrays.
    """
    host = backend.host_only or _mode.get() == "host"
    look = look or backend.look(arrays, views=host)
    return look if host or look.views is None else look._replace(views=None)


def host_views(backend: Backend, arrays: Sequence[Array]) -> list[Host] | None:
    """Return NumPy views of the arrays if the host may compute on all of these arrays now, else None."""
    return look_at(backend, arrays).views


def kernels_on(views: Sequence[Host] | None, work: int = 0) -> ModuleType | None:
    """Return `islices.kernels.operations` if kernels should run on these views, else None.

    `views` are from `look_at`; None means that the host does not compute. `work` is the size of further arrays that the
    operation reads.
    """
    if views is None:
        return None
    for x in views:
        work += x.size
    return kernels.active(work)


def kernels_in_traces() -> ModuleType | None:
    """Return `islices.kernels.operations` if kernels are on and available, and the mode is "host"; else return None."""
    return kernels.active() if on_host() else None


def run(
    fn: str | Callable[..., Any], backend: Backend, arrays: Sequence[Array], look: Look | None = None, **static: Any
) -> Any:
    """Run an operation and return its result: an array of the backend, a tuple of arrays, or Python values.

    `look`, if given, is the result of `Backend.look` for a sequence of arrays that begins with `arrays`.
    """
    views = None
    if backend.host_only or _mode.get() == "host":  # as in `look_at`
        views = (look or backend.look(arrays)).views
    if views is None:
        try:
            with backend.scope():
                return (
                    getattr(backend, fn)(*arrays, **static) if isinstance(fn, str) else fn(backend, *arrays, **static)
                )
        except Exception as error:
            if backend.memory_error and backend.memory_error in str(error):
                raise MemoryError(f"{backend.name}: {backend.memory_error}; {fn}") from error
            raise
    out = compute(fn, views if len(views) == len(arrays) else views[: len(arrays)], **static)
    return _from_host(backend, out, arrays[0])


def _from_host(backend: Backend, out: Any, like: Array) -> Any:
    """Return a result, or a tuple of results, with NumPy arrays converted to the backend's arrays."""
    results = []
    for x in out if isinstance(out, tuple) else (out,):
        if isinstance(x, (np.ndarray, np.generic)):  # NumPy returns np.generic in place of 0-d arrays
            x = backend.from_host(np.asarray(x), like)
        results.append(x)
    return tuple(results) if isinstance(out, tuple) else results[0]


def compute(fn: str | Callable[..., Any], views: Sequence[Host], **static: Any) -> Any:
    """Run an operation on views of host memory, with a kernel or with NumPy, and return its result."""
    compiled = kernels.active(views[0].size) if isinstance(fn, str) else None
    kernel = compiled.KERNELS.get(fn) if compiled else None
    out = kernel(*views, **static) if kernel else None
    if out is None:
        with HOST.scope():
            out = getattr(HOST, fn)(*views, **static) if isinstance(fn, str) else fn(HOST, *views, **static)
    return out


def _stand_in(backend: Backend, primitive: str, *args: Any, **static: Any) -> Any:
    """Run a primitive on the host, with views or copies of the arrays, because the adapter lacks the primitive.

    In mode "framework", raise NotImplementedError.
    """
    if not on_host():
        raise declared(backend.name, primitive, TO_DO)
    found: list[Array] = []

    def view(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return [view(y) for y in x]
        if not backend.is_array(x):
            return x
        found.append(x)
        return backend.to_numpy(x)

    views = [view(x) for x in args]
    with HOST.scope():
        return _from_host(backend, getattr(HOST, primitive)(*views, **static), found[0])


Backend.stand_in = _stand_in
