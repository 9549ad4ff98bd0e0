"""Find backends by an array's type or by name. No framework is imported before it is needed.

The lookup by type tries, in order, the cache of known array types, plug-ins (entry points ``islices.backends``), the
built-in adapters of imported frameworks, and NumPy. A plug-in is tried only after a module with the entry point's
*name* has been imported, so an unused plug-in is not loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from islices.backend import PROTOCOL, Backend
from islices.core.arguments import show
from islices.core.locks import Lock
from islices.core.plugins import claimants, entry_points, load

#: The module of each framework that has a built-in adapter (``islices.backends.<module>``) -> the command that installs
#: the framework.
BUILTIN = {
    "numpy": "pip install numpy",
    "torch": 'pip install "islices[torch]"',
    "tensorflow": 'pip install "islices[tensorflow]"',
    "jax": 'pip install "islices[jax]"',
    "mxnet": 'pip install "islices[mxnet]"',
}
GROUP = "islices.backends"

_lock = Lock()
_loaded: dict[str, Backend] = {}
_by_type: dict[type, Backend] = {}
_broken: dict[str, Exception] = {}


def list_backends() -> list[str]:
    """Return the names of the backends whose framework is installed, built-in backends first. No backend is imported.

    Returns
    -------
    list of str

    Examples
    --------
    >>> import islices
    >>> "numpy" in islices.list_backends()
    True
    """
    names = [name for name in BUILTIN if is_installed(name)]
    return names + [name for name in entry_points(GROUP) if name not in BUILTIN and is_installed(name)]


def get_backend(name_or_array: Any) -> Backend:
    """Return the backend of a name, array, native sparse object or `IndexedSlices`; return a `Backend` unchanged.

    Parameters
    ----------
    name_or_array : str, Backend, IndexedSlices or array
        A backend's name, or an array or sparse object of any framework that islices supports.

    Returns
    -------
    Backend
        There is one backend object per framework; it is loaded when it is first needed.

    Raises
    ------
    ModuleNotFoundError
        The framework of a built-in backend is not installed; the message contains the command that installs it.
    ValueError
        No backend has that name, or several packages claim the name.
    TypeError
        The object belongs to no known framework, or a plug-in's object is not a `Backend`.
    ImportError
        A backend fails to load, or a plug-in was written for another version of the protocol.

    Examples
    --------
    >>> import numpy as np
    >>> get_backend("numpy") is get_backend(np.zeros(3))
    True
    """
    if isinstance(name_or_array, str):
        return _load(name_or_array)
    if isinstance(name_or_array, Backend):
        return name_or_array
    backend = find_backend(name_or_array)
    if backend is None:
        raise TypeError(
            f"no backend knows {describe(name_or_array)}; accepted are arrays and sparse gradients of "
            f"{', '.join(list_backends())}{broken_backends()}"
        )
    return backend


def find_backend(x: object) -> Backend | None:
    """Return the backend of an `IndexedSlices`, or of an imported framework's array or sparse object, else None."""
    kind = type(x)
    backend = _by_type.get(kind)
    if backend is not None:
        return backend
    own = getattr(kind, "_islices_backend", None)
    if own is not None:  # an IndexedSlices: each instance knows its backend, so its type is not cached
        return x.backend  # type: ignore[attr-defined, no-any-return]
    for candidate in loaded_backends():
        if candidate.is_array(x) or candidate.is_native(x):
            _by_type[kind] = candidate
            return candidate
    return None


def find_array_backend(x: object) -> Backend | None:
    """Return the backend of a dense array, or None for any other object."""
    backend = find_backend(x)
    return backend if backend is not None and backend.is_array(x) else None


def loaded_backends() -> Iterator[Backend]:
    """Yield the backends of imported frameworks: first plug-ins, then built-in backends, with NumPy last. Skip backends
    that fail to load."""
    known = [name for name in BUILTIN if name in sys.modules]
    # numpy is always imported and would come first; move it to the end, since other frameworks subclass NumPy's arrays
    known.append(known.pop(0))
    plugins = [name for name in entry_points(GROUP) if name not in BUILTIN and name in sys.modules]
    for name in plugins + known:
        try:
            backend = _load(name)
        except (ImportError, TypeError, ValueError) as error:
            _broken[name] = error  # then only arrays of this backend are not recognised
            continue
        yield backend


def broken_backends() -> str:
    """Return a text for error messages that lists the backends that failed to load, with their errors."""
    return "".join(f" (backend {name!r} failed to load: {error})" for name, error in _broken.items())


def describe(x: object) -> str:
    """Return a short text about an object for error messages.

    The text contains the type, the value of a number or a string, and the dtype and shape of an array.
    """
    kind = type(x)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if x is None:
        return "None"
    if isinstance(x, (bool, int, float, complex, str)):
        return f"{name} {show(x)}"
    sparse = getattr(kind, "_islices_backend", False)
    try:
        values = x.values if sparse else x  # type: ignore[attr-defined]
        owner = next((backend for backend in list(_loaded.values()) if backend.is_array(values)), None)
        if owner is not None:  # arrays of a plug-in may lack the attributes dtype and shape
            shape = x.shape if sparse else owner.shape(x)  # type: ignore[attr-defined]
            return f"{name} of dtype {owner.dtype(values)} and shape {shape}"
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        return name if dtype is None or shape is None else f"{name} of dtype {dtype} and shape {shape}"
    except Exception:  # torch's nested tensors have no shape, a tf.Tensor may have no rank, others may raise any error
        return name


def is_installed(module: str) -> bool:
    """Return True if a module can be found; the module is not imported."""
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(name: str) -> None:
    """Raise ModuleNotFoundError with the install command if the framework of a built-in backend is missing."""
    if not is_installed(name):
        raise ModuleNotFoundError(f"backend {name!r} needs {name}: {BUILTIN[name]}", name=name)


def _load(name: str) -> Backend:
    backend = _loaded.get(name)
    if backend is not None:
        return backend
    with _lock:
        if name in _loaded:
            return _loaded[name]
        points = entry_points(GROUP).get(name, [])
        if name in BUILTIN:
            if points:
                raise ValueError(
                    f"backend {name!r} is built in, and also claimed by {claimants(points)}: uninstall one of them"
                )
            found = importlib.import_module(f"islices.backends.{name}").backend
        elif points:
            found = load("backend", name, points)
            found = found() if isinstance(found, type) else found
        else:
            known = [*BUILTIN, *(n for n in entry_points(GROUP) if n not in BUILTIN)]
            raise ValueError(f"no backend is named {name!r}; known are {', '.join(known)}")
        backend = _loaded[name] = _checked(found, name)
    return backend


def _checked(backend: Any, name: str) -> Backend:
    if not isinstance(backend, Backend):
        raise TypeError(f"backend {name!r} must be an islices.backend.Backend, got {describe(backend)}")
    if backend.protocol != PROTOCOL:
        newer = "islices" if backend.protocol > PROTOCOL else "the adapter (docs/adapter_author.md)"
        raise ImportError(
            f"backend {name!r} was written for protocol {backend.protocol}, islices has {PROTOCOL}: upgrade {newer}"
        )
    return backend
