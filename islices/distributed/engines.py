"""Find the `Group` that connects an array, or an engine's object, with other ranks.

An engine is found as backends are (`islices.core.registry`): built-in ones are ``islices.backends.NAME.collectives``,
others entry points of the group ``islices.engines``, whose name is both what ``group=`` calls the engine and the
module of its own objects, which must have been imported for it to be asked. It is the engine of the arrays of a
framework of its name; every other framework's bytes go by MPI. An entry point leads to a module, or an object, with
the functions of `Engine`, and where they apply

``inside(x, traced) -> ArrayGroup | None``
    The ranks of the program that is being run or traced, x being what the caller gave as group; None where there is no
    such program: for frameworks that have programs which run on several ranks.
``launched() -> bool``
    Whether a launcher has started this process beside others, where that is enough for `default_group` to start it.
``start(rank, size, timeout, meeting) -> Group``
    Joins this process to size - 1 others of this machine, meeting being the path of a file, which is not there yet, in
    a folder that they share: where the conformance suite is to run the engine.

Nothing is imported before it is asked for.
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

#: Built-in engines by name -> the module of their own objects.
BUILTIN = {"torch": "torch", "mpi": "mpi4py", "jax": "jax", "tensorflow": "tensorflow"}
ENTRY_POINTS = "islices.engines"


class Engine(Protocol):
    """The attributes of every engine."""

    @abstractmethod
    def default_group(self, timeout: float | None) -> Group:
        """The group of all ranks that the engine has been started with; RuntimeError that says how to start it."""

    @abstractmethod
    def running(self) -> Group | None:
        """The same, or None where it has not been started: nothing is started by asking."""

    @abstractmethod
    def wrap(self, x: Any, timeout: float | None) -> Group | None:
        """The group of the engine's own object (a torch ProcessGroup, an mpi4py communicator), None if x is none."""


def list_engines() -> dict[str, str]:
    """The engines by name, built-in ones first -> the module of their own objects; none is imported."""
    return BUILTIN | {name: name for name in entry_points(ENTRY_POINTS) if name not in BUILTIN}


def load_engine(name: str) -> Engine:
    """The engine of a name, one of `list_engines`.

    Raises
    ------
    ImportError
        It does not load.
    TypeError
        It lacks a function of `Engine`.
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
    """The engine of a framework's arrays where none is given."""
    return framework if framework in list_engines() else "mpi"


def get_group(group: Any = None, *, like: Backend | None = None, timeout: float | None = None) -> Group:
    """The group of ranks that an argument ``group=`` means.

    Parameters
    ----------
    group : None, str, Group or an engine's own object
        A torch.distributed ProcessGroup or DeviceMesh, an mpi4py communicator, a tf.distribute strategy of several
        workers; the name of an engine ("torch", "mpi", "jax", "tensorflow", one that is installed beside) for all ranks
        that it connects; None for the only engine that connects several processes. Where several do, that of the
        arrays' framework: torch.distributed, JAX's processes, TensorFlow's workers, MPI for NumPy and MXNet.
    like : Backend, optional
        Whose arrays are to be moved; NumPy's by default.
    timeout : float, optional
        Seconds to wait for another rank; by default the engine's own, and 600 of MPI, which has none.

    Returns
    -------
    Group

    Raises
    ------
    TypeError, ValueError
        group or timeout is none of these.
    RuntimeError
        The engine has not been started; the message says how.
    ModuleNotFoundError
        The engine is not installed; the message has the pip line.

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
    for name in _owners(type(group)):
        wrapped = load_engine(name).wrap(group, timeout)
        if wrapped is not None:
            return wrapped
    raise TypeError(
        f"group: got {describe(group)}; accepted are None, a Group, the name of an engine ({names}), a torch "
        "ProcessGroup, an mpi4py communicator, a tf.distribute strategy"
    )


def _owners(kind: type) -> list[str]:
    """The engines whose module a type, or one that it extends, comes from."""
    modules = [f"{base.__module__}." for base in kind.__mro__]
    return [name for name in _imported() if any(m.startswith(f"{list_engines()[name]}.") for m in modules)]


def find_group(
    group: Any, leaves: Iterable[Any], error: Exception | None = None
) -> tuple[Group | ArrayGroup, Exception | None]:
    """The ranks that ``group=`` means for leaves: those of the program that is being run or traced where there is one,
    else a `Group` of processes; and why this rank cannot go on, of which it tells them.

    Parameters
    ----------
    group : None, str, Group or an engine's own object
    leaves : iterable
        Whatever the caller gave for gradients. The first that belongs to a framework tells the engine where group is
        None and several connect ranks.
    error : Exception, optional
        Why this rank's arguments have been refused.

    Raises
    ------
    Exception
        error, or what is wrong with group, where it is not known whom to tell.
    """
    leaves = list(leaves)
    B = next((found for leaf in leaves if (found := backend_of(leaf)) is not None), None)
    try:
        if isinstance(group, ArrayGroup):
            return group, error
        traced = B is not None and any(_is_traced(B, leaf) for leaf in leaves if backend_of(leaf) is B)
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
                    return found, error
    except Exception as raised:
        raise error or raised from None
    return find_processes(group, B, error)


def find_processes(group: Any, B: Backend | None, error: Exception | None = None) -> tuple[Group, Exception | None]:
    """`find_group` for what is done between processes alone. B is whose arrays are to be moved, None if not known."""
    try:
        return get_group(group, like=B), error
    except Exception as raised:
        if error is None:
            raise
        error.add_note(f"(the other ranks have not been told: {raised})")
        raise error from None


def backend_of(x: Any) -> Backend | None:
    """The framework of an object, None also where the object raises when it is asked."""
    try:
        return find_backend(x)
    except Exception:  # it is refused where the other ranks hear of it
        return None


def named_backend(like: Any) -> tuple[Backend | None, Exception | None]:
    """The backend that an argument ``like=`` means, or why it means none."""
    try:
        return get_backend(like), None
    except Exception as error:
        return None, error


# ---------------------------------------------------------------------- where group is None
def _default_group(framework: str | None, timeout: float | None = None) -> Group:
    """The group of the only engine that connects several processes; where several do, of the framework's own. Where
    none does, its own engine's, which says how it is started. None of a framework stands for NumPy. SPEC clause 25."""
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
    """The engines whose module has been imported, without those that do not load: they are nobody's engine."""
    for name in _imported():
        try:
            yield name, load_engine(name)
        except (ImportError, TypeError, ValueError):
            continue


def _connected() -> dict[str, Group]:
    """The groups of the engines that connect this process with others, by the engine's name."""
    groups: dict[str, Group] = {}
    for name, engine in _usable():
        with contextlib.suppress(ImportError):  # of a framework that is there but does not load
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
    except Exception:  # it is refused where the other ranks hear of it
        return False
