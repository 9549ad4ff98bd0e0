"""Find the `Group` that connects an array, or an engine's object, with other ranks.

Engines are found like backends (`islices.core.registry`). Built-in engines are ``islices.backends.NAME.collectives``;
others are entry points of the group ``islices.engines``. The entry point's name is the engine's name in ``group=``, and
also the name of the module that defines the engine's objects. Without a name in ``group=``, an engine is used only
after that module has been imported, or, for MPI, if a launcher has started the process. The engine serves the framework
of the same name, and MPI serves every other framework. An entry point refers to a module, or an object, with the
functions of `Engine` and, optionally, these functions:

``inside(x, traced) -> ArrayGroup | None``
    Returns the ranks of the program that runs or is being traced, or None if there is no program. x is the caller's
    group. A framework whose programs run on several ranks needs this function.
``launched() -> bool``
    Returns True if a launcher has started this process together with others, and `default_group` can start the engine.
``start(rank, size, timeout, meeting) -> Group``
    Connects this process with size - 1 others on the same machine. meeting is the path of a file that does not exist
    yet, in a folder that the processes share. The conformance suite needs this function to run the engine.

No engine is imported before its first use.
"""

from __future__ import annotations

import contextlib
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from islices.backend import Backend
from islices.core.arguments import is_real, show
from islices.core.locks import load_module
from islices.core.plugins import claimants, entry_points, load
from islices.core.registry import describe, find_backend, get_backend
from islices.core.slices import IndexedSlices
from islices.distributed.group import ArrayGroup, Group

#: {a built-in engine's name: the module that defines its objects}
BUILTIN = {"torch": "torch", "mpi": "mpi4py", "jax": "jax", "tensorflow": "tensorflow"}
ENTRY_POINTS = "islices.engines"


class Engine(Protocol):
    """The functions of every engine."""

    @abstractmethod
    def default_group(self, timeout: float | None) -> Group:
        """Return the group of all ranks of the engine. If the engine has not been started, raise a RuntimeError that
        says how to start it."""

    @abstractmethod
    def running(self) -> Group | None:
        """Return the group of all ranks, or None if the engine has not been started. Do not start the engine."""

    @abstractmethod
    def wrap(self, x: Any, timeout: float | None) -> Group | None:
        """Return the group of an object of the engine (a torch ProcessGroup, an mpi4py communicator), or None for any
        other object."""


def list_engines() -> dict[str, str]:
    """Return a dict from the names of engines to the modules that define the engines' objects, built-in engines first.
    Import no engine."""
    return BUILTIN | {name: name for name in entry_points(ENTRY_POINTS) if name not in BUILTIN}


def load_engine(name: str) -> Engine:
    """Load the engine with a name that `list_engines` returns.

    Raises
    ------
    ImportError
        The engine cannot be imported.
    TypeError
        The engine does not have every function of `Engine`.
    ValueError
        Several distributions claim the name.
    """
    points = entry_points(ENTRY_POINTS).get(name, [])
    if name in BUILTIN:
        if points:
            raise ValueError(f"engine {name!r} is built in, and also claimed by {claimants(points)}: uninstall them")
        found: Any = load_module(f"islices.backends.{name}.collectives")
        return found  # type: ignore[no-any-return]
    found = load("engine", name, points)
    lacking = [f for f in ("default_group", "running", "wrap") if not callable(getattr(found, f, None))]
    if lacking:
        raise TypeError(f"engine {name!r} ({points[0].value}) lacks {', '.join(lacking)}")
    return found  # type: ignore[no-any-return]


def engine_of(framework: str) -> str:
    """Return the default engine of a framework's arrays."""
    return framework if framework in list_engines() else "mpi"


def get_group(group: Any = None, *, like: Backend | None = None, timeout: float | None = None) -> Group:
    """Return the group of ranks that an argument ``group=`` means.

    Parameters
    ----------
    group : None, str, Group or an engine's own object
        An engine's own object is a torch.distributed ProcessGroup or DeviceMesh, an mpi4py communicator, or a
        tf.distribute strategy of several workers. The name of an engine ("torch", "mpi", "jax", "tensorflow" or an
        installed one) means all ranks that the engine connects. None means the only engine that connects several
        processes. If several engines do, None means the framework's engine: torch.distributed, JAX, TensorFlow, or MPI
        for NumPy and MXNet.
    like : Backend, optional
        The backend of the arrays to send, which decides between several engines. Without `like`, the function raises
        ValueError if several engines are possible.
    timeout : float, optional
        Seconds to wait for another rank. The default is the engine's timeout, or 600 for MPI.

    Returns
    -------
    Group

    Raises
    ------
    TypeError, ValueError
        `group` or `timeout` is none of the values above, or `group` is None and several engines are possible.
    RuntimeError
        The engine has not been started; the message says how.
    ModuleNotFoundError
        The engine is not installed; the message has the pip command.

    Notes
    -----
    SPEC clause 25.

    Examples
    --------
    >>> from islices.distributed import Alone, get_group
    >>> get_group(Alone())
    <one process: rank 0 of 1>
    """
    if isinstance(group, Group):
        return group
    if timeout is not None and not (is_real(timeout) and timeout > 0):
        raise ValueError(f"timeout: got {show(timeout)}; accepted is a number of seconds above 0")
    if group is None:
        return _default_group(None if like is None else like.name, timeout)
    names = ", ".join(map(repr, list_engines()))
    if isinstance(group, str):
        if group not in list_engines():
            raise ValueError(f"group: got {show(group)}; accepted are {names}")
        return load_engine(group).default_group(timeout)
    modules = [f"{base.__module__}." for base in type(group).__mro__]
    for name in _imported():
        if any(m.startswith(f"{list_engines()[name]}.") for m in modules):
            wrapped = load_engine(name).wrap(group, timeout)
            if wrapped is not None:
                return wrapped
    raise TypeError(
        f"group: got {describe(group)}; accepted are None, a Group, the name of an engine ({names}), a torch "
        "ProcessGroup, an mpi4py communicator, a tf.distribute strategy"
    )


def find_group(group: Any, leaves: Iterable[Any], error: Exception | None) -> Group | ArrayGroup:
    """Return the ranks that ``group=`` means for these leaves.

    The ranks are those of the program that runs or is being traced; if there is none, they are a `Group` of processes.

    Parameters
    ----------
    group : None, str, Group or an engine's own object
    leaves : iterable
        The caller's gradients. If group is None and several engines connect ranks, the first leaf that belongs to a
        framework decides the engine.
    error : Exception or None
        The error in this rank's arguments, which the caller then reports to the other ranks.

    Raises
    ------
    Exception
        `error`, or the error in `group`, if the other ranks are unknown.
    """
    known = [(of, leaf) for leaf in leaves if (of := backend_of(leaf)) is not None]
    B = known[0][0] if known else None
    try:
        if isinstance(group, ArrayGroup):
            return group
        traced = any(_is_traced(of, leaf) for of, leaf in known if of is B)
        if isinstance(group, Group) and traced:
            raise ValueError(
                f"group: got {group!r} for traced arrays, whose bytes it cannot move; accepted is what names ranks "
                "within the program: a mapped axis of JAX, a strategy of TensorFlow"
            )
        if not isinstance(group, Group):
            for engine in [engine for _, engine in _usable()] if B is None else [load_engine(engine_of(B.name))]:
                within = getattr(engine, "inside", None)
                found = within(group, traced) if within is not None else None
                if found is not None:
                    return found  # type: ignore[no-any-return]
    except Exception as raised:
        raise error or raised from None
    return find_processes(group, B, error)


def find_processes(group: Any, B: Backend | None, error: Exception | None) -> Group:
    """Return the group of processes that ``group=`` means; B is the backend of the arrays to send, or None.

    If there is no such group, raise `error`, an earlier failure of this rank. If `error` is None, raise the error in
    `group`.
    """
    try:
        return get_group(group, like=B)
    except Exception as raised:
        if error is None:
            raise
        error.add_note(f"(the other ranks have not been told: {raised})")
        raise error from None


def backend_of(x: Any) -> Backend | None:
    """Return the backend of an object. Return None if the object belongs to no framework, or raises an error."""
    try:
        return find_backend(x)
    except Exception:  # a later check raises it, and reports it to the other ranks
        return None


def named_backend(like: Any) -> tuple[Backend | None, Exception | None]:
    """Return (the backend that an argument ``like=`` means, None) or (None, the error)."""
    try:
        return get_backend(like), None
    except Exception as error:
        return None, error


# ---------------------------------------------------------------------- where group is None
def _default_group(framework: str | None, timeout: float | None = None) -> Group:
    """Return the group of the only engine that connects several processes.

    If several engines do, return the group of the framework's engine. Raise ValueError if `framework` is None, or if
    the framework's engine connects none. If no engine does, return the group of the framework's engine (None means
    NumPy). That engine raises an error with instructions unless the engine has been started. SPEC clause 25.
    """
    own, found = engine_of(framework or "numpy"), _connected()
    if len(found) == 1:
        (own,) = found
    elif found and (framework is None or own not in found):
        which = " and ".join(ranks.engine for ranks in found.values())
        raise ValueError(
            f"group: got None, and no leaf tells which engine connects the ranks, of which there are {which}; accepted "
            "is an engine's name, its own object or a Group"
        )
    return load_engine(own).default_group(timeout)


def _imported() -> list[str]:
    return [name for name, module in list_engines().items() if module in sys.modules]


def _usable() -> Iterator[tuple[str, Engine]]:
    """Yield (name, engine) for the engines whose module has been imported, except engines that cannot be loaded."""
    for name in _imported():
        try:
            yield name, load_engine(name)
        except (ImportError, TypeError, ValueError):
            continue


def _connected() -> dict[str, Group]:
    """Return the groups of the engines that connect this process with others, with the engines' names as keys.

    If no engine connects processes, but an MPI launcher has started this process, start MPI.
    """
    groups: dict[str, Group] = {}
    for name, engine in _usable():
        with contextlib.suppress(ImportError):  # the framework may be installed, but fail to load
            if (ranks := engine.running()) is not None and ranks.size > 1:
                groups[name] = ranks
    mpi: Any = load_engine("mpi")
    if not groups and mpi.launched():
        groups["mpi"] = mpi.default_group(None)
    return groups


def _is_traced(B: Backend, leaf: Any) -> bool:
    try:
        if isinstance(leaf, IndexedSlices):
            return B.is_traced(leaf.values)
        return B.is_traced(B.from_native(leaf).values if B.is_native(leaf) else leaf)
    except Exception:  # a later check raises it, and reports it to the other ranks
        return False
