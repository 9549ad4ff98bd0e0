"""Locks that do not block a forked child, and that keep Python's garbage collector off while they are held.

A forked child has only the thread that forked. A lock that another thread holds at the fork would stay locked in the
child for ever. The guarded object, such as a half-imported backend, would stay incomplete. So a fork waits up to
`PATIENCE` seconds for all these locks, and holds them while the process is copied; then both processes release them. In
the child, new locks replace those that were still busy.

Python's garbage collector runs destructors of other packages in whichever thread allocates. A destructor may wait for
a pool of threads, as those of TensorFlow's iterators do. One of these threads may wait for a lock of islices. So the
collector is off while a lock is held. May import: the standard library.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging  # noqa: F401 - it must be imported before the end of this module
import os
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

#: The longest wait of a fork for the locks of islices, in seconds. The wait has a limit, because the forking thread may
#: itself hold a lock for which another thread's import waits.
PATIENCE = 60.0


class Acquirable(Protocol):
    """A lock that a fork can hold."""

    def acquire(self) -> Any: ...
    def release(self) -> Any: ...


class _Collector:
    """A switch that keeps Python's garbage collector off while any thread is between `pause` and `resume`.

    Code under the switch's lock allocates no object that the collector tracks. The methods work even if a signal
    handler interrupts them anywhere and calls islices.
    """

    def __init__(self) -> None:
        self.changing = threading.RLock()
        self.holders: list[int] = []  # for each `pause` without a `resume` so far, the identifier of its thread
        self.was_on = False

    def pause(self) -> None:
        with self.changing:
            first = not self.holders
            self.holders.append(threading.get_ident())
            if first:
                self.was_on = gc.isenabled()
                gc.disable()

    def resume(self) -> None:
        with self.changing:
            if len(self.holders) == 1 and self.was_on:
                gc.enable()
            self.holders.remove(threading.get_ident())

    def after_fork(self) -> None:
        """Remove from the holders the threads that do not exist in a forked child. If no holder is left, restore the
        collector.
        """
        self.changing = threading.RLock()
        had = bool(self.holders)
        self.holders = [holder for holder in self.holders if holder == threading.get_ident()]
        if had and not self.holders and self.was_on:
            gc.enable()


_collector = _Collector()


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's garbage collector off in a ``with`` block during which other threads may wait for this thread."""
    _collector.pause()
    try:
        yield
    finally:
        _collector.resume()


class Lock:
    """A reentrant lock for ``with`` statements that keeps the collector off. A forked child never waits for a thread of
    its parent.

    Make instances only for module variables, since an instance is never garbage collected.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.append(self)

    def __enter__(self) -> None:
        _collector.pause()
        try:
            self._lock.acquire()
        except BaseException:
            _collector.resume()
            raise

    def __exit__(self, *raised: object) -> None:
        self._lock.release()
        _collector.resume()


class _Fork(threading.local):
    """The locks that this thread holds for a fork in progress."""

    held: list[Lock]

    def __init__(self) -> None:
        self.held = []


_locks: list[Lock] = []
_innermost: list[Acquirable] = []
_fork = _Fork()
_loading = Lock()


def load_module(name: str) -> ModuleType:
    """Import and return a module; a fork waits up to `PATIENCE` seconds for the end of the import."""
    with _loading:
        return importlib.import_module(name)


def hold_innermost(lock: Acquirable) -> None:
    """Make every fork also hold a lock of another package. A fork acquires this lock after the locks of islices.

    A thread that holds the other package's lock must not wait for a lock of islices.
    """
    _innermost.append(lock)


def _before() -> None:
    """Acquire the locks of islices, in any order, without holding one while waiting for another.

    While this thread waits, it holds none of the locks that this function acquired, so the function cannot cause a
    deadlock. Skip locks that are still busy after `PATIENCE` seconds. Then acquire the innermost locks.
    """
    _collector.pause()
    held, refused, end = _fork.held, list[Lock](), time.monotonic() + PATIENCE
    while busy := _first_busy(held, refused):
        while held:
            held.pop()._lock.release()
        if busy._lock.acquire(timeout=max(0.0, end - time.monotonic())):
            held.append(busy)
        else:
            refused.append(busy)
    for other in _innermost:
        other.acquire()


def _first_busy(held: list[Lock], refused: list[Lock]) -> Lock | None:
    for lock in tuple(_locks):
        if lock not in refused and lock not in held:
            if not lock._lock.acquire(blocking=False):
                return lock
            held.append(lock)
    return None


def _after_in_parent() -> None:
    for other in reversed(_innermost):
        other.release()
    while _fork.held:
        _fork.held.pop()._lock.release()
    _collector.resume()


def _after_in_child() -> None:
    _collector.after_fork()
    for lock in _locks:
        if lock not in _fork.held:
            lock._lock = threading.RLock()
    _after_in_parent()


if hasattr(os, "register_at_fork"):
    # Functions that run before a fork run in the reverse order of their registration. logging's function holds
    # logging's lock until after the fork. The import above registered logging's function first, so that it runs last,
    # because an import for which `_before` waits may need logging's lock.
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


if TYPE_CHECKING:
    from functools import cached_property

    lazy_property = cached_property
else:

    class lazy_property:  # noqa: N801 - like functools.cached_property, which holds a lock in Python 3.11
        """An attribute that is computed on first read."""

        def __init__(self, function):
            self.function = function
            self.__doc__ = function.__doc__

        def __get__(self, instance, owner):
            if instance is None:
                return self
            value = vars(instance)[self.function.__name__] = self.function(instance)
            return value
