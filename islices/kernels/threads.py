"""A pool of threads that run one kernel together, since kernels hold no GIL.

numba's threading layers do not suit: one kills forked children, another aborts when two threads call it at once. Here
the caller works too and waits only for parts that have begun, so a busy pool costs speed but never progress. A forked
child (a DataLoader's worker) makes a new pool. A framework whose threads would compete with these may lend them
(`share`). Bits do not depend on the number of threads, since no two parts write the same memory. May import:
`islices.core.locks`.
"""

from __future__ import annotations

import ctypes
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from threading import Semaphore
from typing import TYPE_CHECKING, Any

from islices.core.locks import Lock, without_collector

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

#: the largest number of threads, more than the cores of any machine
MOST = 2**15 - 1

_lock = Lock()
#: the number of threads, in memory that machine code reads too; 0 before it is first needed
_count = ctypes.c_int64(0)
_pool: ThreadPoolExecutor | None = None
#: run(work, n): see `share`.
Shared = Callable[[Callable[[], None], int], bool]
_shared: Shared | None = None
#: returns True if the framework's threads would run work of the caller now
_serves: Callable[[], bool] | None = None


def set_num_threads(n: int) -> None:
    """Set the number of threads that compiled kernels run in, for the whole process.

    Parameters
    ----------
    n : int
        At least 1. The default is the environment variable ISLICES_NUM_THREADS, read when first needed (an invalid one
        gives a warning). Without it, the default is the number of cores that this process may use.

    Raises
    ------
    TypeError, ValueError
        n is not an int, or is below 1.

    Notes
    -----
    Results do not depend on the number of threads. Small calls run only in the calling thread. Once torch is in use,
    kernels that the main thread calls run in torch's threads. They use at most torch.get_num_threads() of them,
    unless that is 1. SPEC clauses 3 and 20.

    Examples
    --------
    >>> import islices
    >>> before = islices.config.get_num_threads()
    >>> islices.config.set_num_threads(1)
    >>> islices.config.get_num_threads()
    1
    >>> islices.config.set_num_threads(before)
    """
    global _pool
    try:
        if type(n).__name__ in ("bool", "bool_"):  # the latter is NumPy's, which is not imported here
            raise TypeError
        count = operator.index(n)
    except Exception:  # an array of several, or of floats
        raise TypeError(f"n: got {type(n).__name__}; accepted is an int >= 1") from None
    if not 1 <= count <= MOST:
        raise ValueError(f"n: got {hex(count)}; accepted is 1 <= n < 2^15")
    with _lock:
        before, _pool = _pool, None
        _count.value = count
    if before is not None:
        before.shutdown(wait=False)


def get_num_threads() -> int:
    """Return the number of threads that compiled kernels run in.

    Examples
    --------
    >>> import islices
    >>> islices.config.get_num_threads() >= 1
    True
    """
    known = _count.value
    if not known:
        given = os.environ.get("ISLICES_NUM_THREADS", "").strip()
        with _lock:
            first = not _count.value
            known = _count.value = _count.value or _number(given) or cores()
        if first and given and _number(given) is None:
            warnings.warn(
                f"ISLICES_NUM_THREADS: got {given[:40]!r}; accepted is 1 <= n < 2^15; {known} threads compute",
                stacklevel=2,
            )
    return known


def address() -> int:
    """Return the memory address of the number of threads, 8 bytes, for compiled code that runs without Python."""
    get_num_threads()
    return ctypes.addressof(_count)


def _number(given: str) -> int | None:
    """Return the number of threads that the environment gives, or None. (Python does not parse very long numbers.)"""
    digits = given.lstrip("0")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MOST)) and int(digits) <= MOST):
        return None
    return int(digits)


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def share(run: Shared | None, serves: Callable[[], bool] | None = None) -> None:
    """Make `run_parts` first try run, which lends a framework's threads.

    run(work, n) calls work in up to n threads at once and returns when all have returned. It returns False without a
    call if it cannot; serves() predicts this.
    """
    global _shared, _serves
    _shared, _serves = run, serves


def run_parts(work: Callable[..., Any], parts: Iterable[tuple[Any, ...]]) -> None:
    """Call work(*part) for every part in the set number of threads. work must not raise."""
    listed = list(parts)
    todo = iter(listed)  # shared, so that each part runs once

    def all_left() -> None:
        for part in todo:
            work(*part)

    threads = min(get_num_threads(), len(listed))
    with without_collector():  # a destructor that ran in a helper might wait for the caller's thread
        if _shared is None or threads == 1 or not _shared(all_left, threads):
            _run_in_pool(work, todo, len(listed), threads)


def _run_in_pool(work: Callable[..., Any], todo: Iterator[tuple[Any, ...]], count: int, threads: int) -> None:
    ended = Semaphore(0)  # counts parts, not helpers: a helper without a thread of the pool may still begin

    def some() -> None:
        for part in todo:
            try:
                work(*part)
            finally:
                ended.release()

    helpers = []
    for _ in range(threads - 1):
        try:
            helpers.append(_workers().submit(some))
        except RuntimeError:  # the interpreter is ending, or the pool was just replaced
            break
    some()
    for _ in range(count):
        ended.acquire()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


def rouse() -> None:
    """Wake the other threads before the caller has parts for them.

    A sleeping core takes a tenth of a millisecond to wake. A framework that lends its threads wakes them itself.
    """
    if _serves is not None and _serves():
        return
    for _ in range(get_num_threads() - 1):
        try:
            _workers().submit(int)
        except RuntimeError:  # as in run_parts
            return


def _workers() -> ThreadPoolExecutor:
    global _pool
    pool = _pool  # read once, since it may be replaced at any moment
    if pool is None:
        with _lock:
            from concurrent.futures import ThreadPoolExecutor  # its import needs as long as that of all of islices

            pool = _pool = _pool or ThreadPoolExecutor(max(1, get_num_threads() - 1), "islices")
    return pool


def _after_fork() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
