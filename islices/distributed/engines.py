"""From an array, or an engine's own object, to the `Group` that connects it with other ranks.

An engine is a module with

``default_group(timeout) -> Group``
    The group of all ranks that the engine has been started with; RuntimeError that says how to start it.
``wrap(x, timeout) -> Group | None``
    The group of the engine's own object (a torch ProcessGroup, an mpi4py communicator), None if x is none of its.
``inside(x, traced) -> ArrayGroup | None``, where the framework has programs that run on several ranks
    The ranks of the program that is being run or traced, x being what the caller gave as group; None where there is no
    such program.

Nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import Any

from islices.arguments import is_real, show
from islices.backend import Backend
from islices.distributed.group import ArrayGroup, Group
from islices.registry import describe, find_backend
from islices.slices import IndexedSlices

__all__ = ["ENGINES", "find_group", "get_group"]

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
        MXNet.
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
        group = OF_BACKEND.get(like.name, "mpi") if like is not None else "mpi"
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
    return importlib.import_module(ENGINES[name][0])


def find_group(group: Any, B: Backend | None, leaves: Iterable[Any]) -> Group | ArrayGroup:
    """The ranks that ``group=`` means for leaves of a framework: those of the program that is being run or traced
    where there is one, else a `Group` of processes."""
    if isinstance(group, ArrayGroup):
        return group
    traced = B is not None and any(_is_traced(B, leaf) for leaf in leaves if find_backend(leaf) is B)
    if isinstance(group, Group):
        if traced:
            raise ValueError(
                f"group: got {group!r} for traced arrays, whose bytes it cannot move; accepted is what names ranks "
                "within the program: a mapped axis of JAX, a strategy of TensorFlow"
            )
        return group
    if B is not None and B.name in OF_BACKEND:
        within = getattr(_engine(OF_BACKEND[B.name]), "inside", None)
        found = within(group, traced) if within is not None else None
        if found is not None:
            return found  # type: ignore[no-any-return]
    return get_group(group, like=B)


def _is_traced(B: Backend, leaf: Any) -> bool:
    if isinstance(leaf, IndexedSlices):
        return B.is_traced(leaf.values)
    if not B.is_native(leaf):
        return B.is_traced(leaf)
    try:
        return B.is_traced(B.from_native(leaf).values)
    except (TypeError, ValueError, IndexError):  # it is refused where the other ranks hear of it
        return False
