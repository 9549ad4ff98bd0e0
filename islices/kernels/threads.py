"""Run the parts of a kernel in a pool of threads; kernels release the GIL.

numba's threading layers are not suitable: one kills forked children, another aborts when two threads call it at once.
In this pool, the calling thread works too, and waits only for parts that have begun. A busy pool therefore makes a call
slower but never blocks it. A forked child process (a DataLoader's worker) makes a new pool. A framework's threads would
compete with the threads of the pool; `share` makes kernels run in the framework's threads instead. Results do not
depend on the number of threads. One thread computes each sum of rows, and the sums for norms do not depend on the order
of terms. May import: `islices.core.locks`.
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
#: the number of threads, stored where machine code can read it; 0 before the number is first needed
_count = ctypes.c_int64(0)
_pool: ThreadPoolExecutor | None = None
#: the type of the function run(work, n) that `share` accepts
Shared = Callable[[Callable[[], None], int], bool]
_shared: Shared | None = None
#: returns True if the framework's threads would now run work for the calling thread
_serves: Callable[[], bool] | None = None


def set_num_threads(n: int) -> None:
    """Set the number of threads in which compiled kernels run, for the whole process.

    Parameters
    ----------
    n : int
        A number from 1 to 2^15 - 1. The default is the environment variable ISLICES_NUM_THREADS, which is read on first
        use; an invalid value gives a warning. Without a valid value, the default is the number of cores that this
        process may use.

    Raises
    ------
    TypeError, ValueError
        n is not an int, is below 1, or is 2^15 or more.

    Notes
    -----
    Results do not depend on the number of threads. Small calls run only in the calling thread. Once torch is in use,
    kernels that the main thread calls run in torch's OpenMP threads, if there are any. These kernels use at most
    torch.get_num_threads() threads. If torch.get_num_threads() is 1, kernels run in threads of islices instead.
    SPEC clauses 3 and 20.

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
        if type(n).__name__ in ("bool", "bool_"):  # "bool_" is NumPy's type; this module does not import NumPy
            raise TypeError
        count = operator.index(n)
    except Exception:  # for example for an array of several numbers, or of floats
        raise TypeError(f"n: got {type(n).__name__}; accepted is an int >= 1") from None
    if not 1 <= count <= MOST:
        raise ValueError(f"n: got {hex(count)}; accepted is 1 <= n < 2^15")
    with _lock:
        before, _pool = _pool, None
        _count.value = count
    if before is not None:
        before.shutdown(wait=False)


def get_num_threads() -> int:
    """Return the number of threads in which compiled kernels run.

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
    """Return the memory address of the number of threads, an int64, for compiled code that runs without Python."""
    get_num_threads()
    return ctypes.addressof(_count)


def _number(given: str) -> int | None:
    """Return the number of threads in an environment variable's text, or None if the text is not a valid number.

    Python raises for the text of a very long number, so the length is checked first.
    """
    digits = given.lstrip("0")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(MOST)) and int(digits) <= MOST):
        return None
    return int(digits)


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows lack the function
        return os.cpu_count() or 1


def share(run: Shared | None, serves: Callable[[], bool] | None = None) -> None:
    """Make `run_parts` first try `run`, a function that runs work in a framework's threads.

    `run(work, n)` calls `work` in up to n threads at once, waits for all calls and returns True. If the framework's
    threads cannot run the work, `run` returns False without calling `work`. `serves()` predicts the result of `run`.
    If `run` is None, `run_parts` uses only the pool.
    """
    global _shared, _serves
    _shared, _serves = run, serves


def run_parts(work: Callable[..., Any], parts: Iterable[tuple[Any, ...]]) -> None:
    """Call `work(*part)` for every part, in up to `get_num_threads` threads. `work` must not raise an error."""
    listed = list(parts)
    todo = iter(listed)  # all threads share this iterator, so that each part runs once

    def all_left() -> None:
        for part in todo:
            work(*part)

    threads = min(get_num_threads(), len(listed))
    with without_collector():  # a destructor that ran in another thread might wait for the calling thread
        if _shared is None or threads == 1 or not _shared(all_left, threads):
            _run_in_pool(work, todo, len(listed), threads)


def _run_in_pool(work: Callable[..., Any], todo: Iterator[tuple[Any, ...]], count: int, threads: int) -> None:
    ended = Semaphore(0)  # counts parts, not helpers: a helper that waits in the pool's queue may begin later

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
    """Wake the pool's threads before the calling thread has parts for them.

    A sleeping core takes a tenth of a millisecond to wake. If a framework's threads will run the parts, this function
    wakes no thread.
    """
    if _serves is not None and _serves():
        return
    for _ in range(get_num_threads() - 1):
        try:
            _workers().submit(int)
        except RuntimeError:  # the interpreter is ending, or the pool was just replaced
            return


def _workers() -> ThreadPoolExecutor:
    global _pool
    pool = _pool  # read once, since it may be replaced at any moment
    if pool is None:
        with _lock:
            from concurrent.futures import ThreadPoolExecutor  # this import takes as long as `import islices`

            pool = _pool = _pool or ThreadPoolExecutor(max(1, get_num_threads() - 1), "islices")
    return pool


def _after_fork() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
