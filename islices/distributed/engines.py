"""From an array, or an engine's own object, to the `Group` that connects it with other ranks.

An engine is a module with

``default_group(timeout) -> Group``
    The group of all ranks that the engine has been started with; RuntimeError that says how to start it.
``running() -> Group | None``
    The same, or None where it has not been started: nothing is started by asking.
``wrap(x, timeout) -> Group | None``
    The group of the engine's own object (a torch ProcessGroup, an mpi4py communicator), None if x is none of its.
``inside(x, traced) -> ArrayGroup | None``, where the framework has programs that run on several ranks
    The ranks of the program that is being run or traced, x being what the caller gave as group; None where there is no
    such program.
``launched() -> bool``, where to be launched is enough for `default_group` to start the engine
    Whether a launcher has started this process beside others.

Nothing is imported before it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from islices.arguments import is_real, show
from islices.backend import Backend
from islices.distributed.group import ArrayGroup, Group
from islices.locks import load_module
from islices.registry import describe, find_backend, get_backend
from islices.slices import IndexedSlices

__all__ = ["ENGINES", "OF_BACKEND", "backend_of", "find_group", "find_processes", "get_group", "named_backend"]

#: Engines by name: the module that speaks to them, and the top module of their own objects.
ENGINES = {
    "torch": ("islices.backends.torch.collectives", "torch"),
    "mpi": ("islices.backends.numpy.collectives", "mpi4py"),
    "jax": ("islices.backends.jax.collectives", "jax"),
    "tensorflow": ("islices.backends.tensorflow.collectives", "tensorflow"),
}
#: The engine of a framework's arrays where none is given; every other framework's bytes go by MPI.
OF_BACKEND = {"torch": "torch", "jax": "jax", "tensorflow": "tensorflow"}


def get_group(group: Any = None, *, like: Backend | None = None, timeout: float | None = None) -> Group:
    """The group of ranks that an argument ``group=`` means.

    Parameters
    ----------
    group : None, str, Group or an engine's own object
        A torch.distributed ProcessGroup or DeviceMesh, an mpi4py communicator, a tf.distribute strategy of several
        workers; the name of an engine ("torch", "mpi", "jax", "tensorflow") for all ranks that it connects; None for
        the engine of the arrays' framework: torch.distributed, JAX's processes, TensorFlow's workers, MPI for NumPy and
        MXNet. See SPEC clause 25 for arrays whose engine has not been started.
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
        found, error = _default_group("numpy" if like is None else like.name, timeout)
        if error is not None:
            raise error
        return found
    if isinstance(group, str):
        if group not in ENGINES:
            raise ValueError(f"group: got {show(group)}; accepted are {', '.join(map(repr, ENGINES))}")
        return _engine(group).default_group(timeout)  # type: ignore[no-any-return]
    for name in _candidates(type(group)):
        found = _engine(name).wrap(group, timeout)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise TypeError(
        f"group: got {describe(group)}; accepted are None, a Group, the name of an engine "
        f"({', '.join(map(repr, ENGINES))}), a torch ProcessGroup, an mpi4py communicator, a tf.distribute strategy"
    )


def _candidates(kind: type) -> list[str]:
    """The engines whose module a type, or one that it extends, comes from."""
    tops = {base.__module__.partition(".")[0] for base in kind.__mro__}
    return [name for name, (_, top) in ENGINES.items() if top in tops and top in sys.modules]


def _engine(name: str) -> Any:
    return load_module(ENGINES[name][0])


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
        None; without one it is the only engine that has been started.
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
            for name in _imported() if B is None else [_engine_of(B.name)]:
                within = getattr(_engine(name), "inside", None)
                found = within(group, traced) if within is not None else None
                if found is not None:
                    return found, error
    except Exception as raised:
        raise error or raised from None
    return find_processes(group, B, error)


def find_processes(group: Any, B: Backend | None, error: Exception | None = None) -> tuple[Group, Exception | None]:
    """`find_group` for what is done between processes alone. B is whose arrays are to be moved, None if not known."""
    try:
        if group is not None:
            return get_group(group, like=B), error
        found, missing = _default_group(None if B is None else B.name)
        return found, error or missing
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
def _default_group(framework: str | None, timeout: float | None = None) -> tuple[Group, Exception | None]:
    """The group for a framework's arrays, by its own engine; where that has not been started, the group of the only
    engine that has, and the error to tell it. None, of no framework: the group of the only engine. SPEC clause 25."""
    if framework is None:
        started = _started()
        if len(started) != 1:
            which = " and ".join(ranks.engine for ranks in started) or "none"
            raise ValueError(
                "group: got None, and no leaf tells which engine connects the ranks, of which there "
                f"{'are' if started else 'is'} {which}; accepted is an engine's name, its own object or a Group"
            )
        return started[0], None
    own = _engine_of(framework)
    try:
        if own == "mpi":
            _check_not_alone()
        return _engine(own).default_group(timeout), None
    except RuntimeError as error:
        others = [ranks for ranks in _started() if ranks.size > 1]
        if len(others) != 1:
            raise
        return others[0], error


def _engine_of(framework: str) -> str:
    return OF_BACKEND.get(framework, "mpi")


def _imported() -> list[str]:
    return [name for name, (_, top) in ENGINES.items() if top in sys.modules]


def _started() -> list[Group]:
    """The groups of the engines that connect this process with others; where there are none, of one it is alone in."""
    groups = {name: ranks for name in _imported() if (ranks := _running(name)) is not None}
    if not groups.keys() - {"mpi"} and _engine("mpi").launched():
        groups["mpi"] = _engine("mpi").default_group(None)
    return [ranks for ranks in groups.values() if ranks.size > 1] or list(groups.values())[:1]


def _running(name: str) -> Group | None:
    try:
        return _engine(name).running()  # type: ignore[no-any-return]
    except ImportError:  # of a framework that is there but does not load: it is nobody's engine
        return None


def _check_not_alone() -> None:
    """RuntimeError where MPI, which is started by being imported, connects nobody, and another engine does."""
    mpi = _engine("mpi").running()
    if mpi is None or mpi.size == 1:
        others = [ranks.engine for ranks in _started() if ranks.size > 1 and ranks is not mpi and ranks.engine != "MPI"]
        if others:
            raise RuntimeError(
                f"group: got None for arrays whose engine is MPI, which connects nobody here, as {' and '.join(others)}"
                " does; start the program by mpiexec and import mpi4py.MPI first, or give group="
            )


def _is_traced(B: Backend, leaf: Any) -> bool:
    try:
        if isinstance(leaf, IndexedSlices):
            return B.is_traced(leaf.values)
        return B.is_traced(B.from_native(leaf).values if B.is_native(leaf) else leaf)
    except Exception:  # it is refused where the other ranks hear of it
        return False
