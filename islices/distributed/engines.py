"""Find the ranks that an argument ``group=`` stands for.

islices finds engines in the same way as backends (`islices.core.registry`). Built-in engines are the modules
``islices.backends.NAME.collectives``. Other packages can add engines with entry points of the group
``islices.engines``. The name of the entry point is the name of the engine, which users pass as ``group=``. The module
that defines the engine's objects must have the same name. If ``group=`` is not a name, an engine is used only after the
module of its objects has been imported. MPI is an exception. If no engine connects processes, MPI is used in processes
that its launcher has started, and for frameworks without an engine. By default, an engine sends the arrays of the
framework with the same name, and MPI sends the arrays of all other frameworks. An entry point refers to a module or an
object with the functions of `Engine`. The module or object may also have these functions:

``inside(x, traced) -> ArrayGroup | None``
    Return the ranks of the current program that `x`, the caller's ``group=``, stands for. Return None if no program is
    running or being traced, or if `x` stands for other ranks. `traced` is True if the arrays to send are traced.
    Frameworks need this function if their programs run on several ranks.
``launched() -> bool``
    Return True if a launcher has started this process together with others, so that `default_group` can start the
    engine. islices calls only the ``launched`` of MPI, not those of other engines.
``start(rank, size, timeout, meeting) -> Group``
    Connect this process with size - 1 other processes on the same machine. `meeting` is the path of a file that does
    not exist yet, in a folder that all these processes can read and write. The conformance suite needs this function to
    test the engine.

No engine is imported before its first use.
"""

from __future__ import annotations

import contextlib
import math
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

#: name of a built-in engine -> the name of the module that defines the engine's objects
BUILTIN = {"torch": "torch", "mpi": "mpi4py", "jax": "jax", "tensorflow": "tensorflow"}
ENTRY_POINTS = "islices.engines"


class Engine(Protocol):
    """The functions that every engine must have."""

    @abstractmethod
    def default_group(self, timeout: float | None) -> Group:
        """Return the group of all ranks that the engine connects. If the engine has not been started, start it
        or raise a RuntimeError that says how to start it."""

    @abstractmethod
    def running(self) -> Group | None:
        """Return the group of all ranks, or None if the engine has not been started. This function must not start the
        engine."""

    @abstractmethod
    def wrap(self, x: Any, timeout: float | None) -> Group | None:
        """Return the group for an object of the engine, such as a torch ProcessGroup or an mpi4py communicator. Return
        None for any other object."""


def list_engines() -> dict[str, str]:
    """Return a dict that maps the names of engines to the names of the modules that define the engines' objects.
    Built-in engines come first. No engine is imported."""
    return BUILTIN | {name: name for name in entry_points(ENTRY_POINTS) if name not in BUILTIN}


def load_engine(name: str) -> Engine:
    """Import an engine. `name` is a key of `list_engines()`.

    Raises
    ------
    ImportError
        The engine cannot be imported.
    TypeError
        The engine lacks a function of `Engine`.
    ValueError
        Several packages define an engine with this name, or a package claims the name of a built-in engine.
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
    """Return the name of the engine that sends a framework's arrays by default."""
    return framework if framework in list_engines() else "mpi"


def get_group(group: Any = None, *, like: Backend | None = None, timeout: float | None = None) -> Group:
    """Return the group of ranks that an argument ``group=`` stands for.

    Parameters
    ----------
    group : None, str, Group or an engine's group object
        A str is the name of an engine: "torch", "mpi", "jax", "tensorflow" or an installed one. A name stands for all
        ranks that this engine connects. Group objects are torch.distributed's ProcessGroup and one-dimensional
        DeviceMesh, mpi4py's intracommunicators, tf.distribute's strategies and replica contexts, and objects of
        installed engines. None stands for the only engine that connects several processes. If no engine does, or
        several engines do, None stands for the framework's engine. The framework's engine has the framework's name;
        frameworks without an engine, such as NumPy and MXNet, use MPI.
    like : Backend, optional
        The backend of the arrays to send, which matters only if `group` is None. If several engines connect processes,
        `like` decides between these engines; without `like`, the function raises ValueError. If no engine connects
        processes, the default without `like` is MPI.
    timeout : float, optional
        The number of seconds to wait for another rank. By default, the engine's timeout applies, or 600 s for MPI. If
        `group` is a Group, `timeout` is checked, but has no effect.

    Returns
    -------
    Group

    Raises
    ------
    TypeError, ValueError
        `group` or `timeout` is invalid, or `group` is None and `like` does not decide between several engines.
    RuntimeError
        The engine has not been started, or cannot connect this process. The message contains the reason.
    ModuleNotFoundError
        The engine is not installed. The message contains the pip command that installs it.

    Notes
    -----
    SPEC clause 25.

    Examples
    --------
    >>> from islices.distributed import Alone, get_group
    >>> get_group(Alone())
    <one process: rank 0 of 1>
    """
    if timeout is not None and not (is_real(timeout) and 0 < timeout < math.inf):
        raise ValueError(f"timeout: got {show(timeout)}; accepted is a finite number of seconds above 0")
    if isinstance(group, Group):
        return group
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
    """Return the ranks that an argument ``group=`` stands for if these leaves are sent.

    If `group` stands for ranks of a program that is running or being traced, the result is an `ArrayGroup`. Otherwise
    the result is a `Group` of processes.

    Parameters
    ----------
    group : None, str, Group or an engine's group object
    leaves : iterable
        The caller's gradients. The first leaf that belongs to a framework determines the engine that looks for ranks of
        a program. This leaf also determines the engine of a `Group` if `group` is None, and no engine or several
        engines connect processes.
    error : Exception or None
        The error in this rank's arguments, if there is one. The caller reports this error to the other ranks later.

    Raises
    ------
    Exception
        The other ranks cannot be found. The function raises `error` or, if `error` is None, the error that `group`
        causes.
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
    """Return the group of processes that an argument ``group=`` stands for. B is the backend of the arrays to send, or
    None if it is unknown.

    If `get_group` raises an error, raise `error` instead, which is an earlier error of this rank. If `error` is None,
    raise the error of `get_group`.
    """
    try:
        return get_group(group, like=B)
    except Exception as raised:
        if error is None:
            raise
        error.add_note(f"(the other ranks have not been told: {raised})")
        raise error from None


def backend_of(x: Any) -> Backend | None:
    """Return the backend of an object. Return None if the object belongs to no framework, or if the search raises an
    error."""
    try:
        return find_backend(x)
    except Exception:  # a later check raises the error, and reports it to the other ranks
        return None


def named_backend(like: Any) -> tuple[Backend | None, Exception | None]:
    """Find the backend that an argument ``like=`` stands for. Return (the backend, None), or (None, the error)."""
    try:
        return get_backend(like), None
    except Exception as error:
        return None, error


# ---------------------------------------------------------------------- where group is None
def _default_group(framework: str | None, timeout: float | None = None) -> Group:
    """Return the group of the only engine that connects several processes.

    If several engines connect processes, return the group of the framework's engine. In this case, raise ValueError if
    `framework` is None or the framework's engine connects no processes. If no engine connects processes, return the
    group of the framework's engine, or of NumPy's engine if `framework` is None. If that engine has not been started,
    its ``default_group`` starts it, or raises a RuntimeError with instructions. SPEC clause 25.
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
    """Yield (name, engine) for each engine whose module has been imported. Skip engines that cannot be loaded."""
    for name in _imported():
        try:
            yield name, load_engine(name)
        except (ImportError, TypeError, ValueError):
            continue


def _connected() -> dict[str, Group]:
    """Return a dict that maps the name of each engine that connects this process with others to the engine's group.

    If no engine connects processes and an MPI launcher has started this process, start MPI.
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
    except Exception:  # a later check raises the error, and reports it to the other ranks
        return False
