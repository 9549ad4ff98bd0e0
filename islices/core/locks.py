"""Locks that do not block a forked child, and under which no destructor runs.

A child has only the thread that forked. A lock that another thread held would stay locked in the child for ever. The
guarded object, such as a backend being imported, would stay half made. So fork waits for these locks and holds them
all while the process is copied; both processes release them.

Python's collector runs other packages' destructors in whichever thread allocates. A destructor may wait for a pool of
threads, as TensorFlow's iterators do, and one of these threads may wait for the lock. So the collector is off while a
lock is held. May import: the standard library.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging  # noqa: F401 - before the end of this module
import os
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

#: The longest wait of a fork in seconds: it may itself hold the lock that another thread's import is waiting for.
PATIENCE = 60.0


class Acquirable(Protocol):
    """A lock that a fork can hold."""

    def acquire(self) -> Any: ...
    def release(self) -> Any: ...


class _Collector:
    """Python's collector of cycles, off while there are holders.

    Code under its lock allocates no object that the collector tracks. A signal handler may interrupt its statements
    anywhere and use islices.
    """

    def __init__(self) -> None:
        self.changing = threading.RLock()
        self.holders: list[int] = []  # a thread's identifier for each block it is in
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
        """Forget the threads of the parent, which the child does not have."""
        self.changing = threading.RLock()
        had = bool(self.holders)
        self.holders = [holder for holder in self.holders if holder == threading.get_ident()]
        if had and not self.holders and self.was_on:
            gc.enable()


_collector = _Collector()


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keep Python's collector off within a ``with`` block during which other threads may wait for this one."""
    _collector.pause()
    try:
        yield
    finally:
        _collector.resume()


class Lock:
    """A `threading.RLock` for ``with`` statements, without the collector, and free in a forked child.

    Use it for module variables only, since it is never garbage collected.
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
    """The locks that the fork under way in this thread holds."""

    held: list[Lock]

    def __init__(self) -> None:
        self.held = []


_locks: list[Lock] = []
_innermost: list[Acquirable] = []
_fork = _Fork()
_loading = Lock()


def load_module(name: str) -> ModuleType:
    """Import a module at its first use; no child is forked while it is half imported."""
    with _loading:
        return importlib.import_module(name)


def hold_innermost(lock: Acquirable) -> None:
    """Make forks also hold another package's lock, after the locks of islices.

    A thread that holds this lock must not wait for a lock of islices.
    """
    _innermost.append(lock)


def _before() -> None:
    """Acquire all locks, in any order. Hold no lock while waiting for another, so that no other thread waits for this
    one."""
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
    # Functions before a fork run in the opposite order of their registration. logging's function, which holds its lock
    # until after the fork, was registered above: the import that this one waits for may need that lock.
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


if TYPE_CHECKING:
    from functools import cached_property

    lazy_property = cached_property
else:

    class lazy_property:  # noqa: N801 - as functools.cached_property, which holds a lock in Python 3.11
        """An attribute that is computed when it is first read."""

        def __init__(self, function):
            self.function = function
            self.__doc__ = function.__doc__

        def __get__(self, instance, owner):
            if instance is None:
                return self
            value = vars(instance)[self.function.__name__] = self.function(instance)
            return value
