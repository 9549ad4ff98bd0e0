"""Test compiled kernels with threads, forks, environment variables and interrupts.

Tests that may hang run in a separate interpreter with a time limit, so that a deadlock fails the test.
"""

from __future__ import annotations

import os
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from suite_runs import python

import islices

pytest.importorskip("numba")
threads = pytest.importorskip("islices.kernels.threads")
operations = pytest.importorskip("islices.kernels.operations")

LIMIT = 120
#: The first lines of each script: work that several threads share although it is small, and its expected results.
WORK = """
import os, signal, sys, threading, time
import numpy as np
import islices
from islices import IndexedSlices, optim

def gradient(seed=0, n=20_000, rows=5_000, width=8):
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.zipf(1.2, n) - 1, rows - 1)
    return IndexedSlices(rng.standard_normal((n, width), np.float32), ids, (rows, width))

def work(seed=0):
    if (operations := islices.kernels.active()) is not None:
        operations.SHARED = 1 << 14
    s = gradient(seed)
    table = np.ones(s.dense_shape, np.float32)
    optimizer = optim.adam(0.1)
    state = optimizer.init(table)
    for _ in range(2):
        optimizer.step(table, s, state)
    clipped, norm = islices.clip_by_global_norm([s], 1.0)
    c = islices.coalesce(s)
    added = islices.scatter(np.ones(s.dense_shape, np.float32), clipped[0])
    return [c.values, c.indices, norm, clipped[0].values, table, state["m"], state["v"], added]

def right(seed=0):
    with islices.config.use_kernels(False):
        return work(seed)

def check(got, expected):
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_array_equal(g, e)
"""


def run(code: str, **environment: str) -> str:
    """Run `code` in a fresh interpreter, and return its output. The interpreter must end in time, with exit code 0."""
    settings = {"ISLICES_NUM_THREADS": "4", **environment}
    done = python("-W", "always", "-c", WORK + textwrap.dedent(code), timeout=LIMIT, **settings)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Warning" not in done.stderr or "Warning" in code, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(operations, "SHARED", operations.SHARED)  # restores the value after WORK
    monkeypatch.setattr(threads, "_shared", None)  # the tests are about the pool of islices, even if torch is loaded
    before = islices.config.get_num_threads()
    yield
    islices.config.set_num_threads(before)


# ---------------------------------------------------------------------- settings
@pytest.mark.outside
def test_settings_of_the_environment() -> None:
    """Check which values of ISLICES_NUM_THREADS and ISLICES_KERNELS are accepted. A bad number gives one warning, and
    the default applies."""
    code = """
    import warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        islices.config.get_num_threads() if len(os.environ.get("ISLICES_NUM_THREADS", "")) < 99 else work()
        print(islices.config.get_num_threads(), len(os.sched_getaffinity(0)), len(caught), *(x.message for x in caught))
    """
    for given, expected in ((" 007\n", 7), ("", None)):
        got, cores, *warned = run(code, ISLICES_NUM_THREADS=given).split()
        assert (int(got), warned) == (expected or int(cores), ["0"]), f"ISLICES_NUM_THREADS={given!r}"
    for refused in ("0", "32768", "9" * 5000):
        got, cores, *warned = run(code, ISLICES_NUM_THREADS=refused).split()
        assert (got, warned[:4]) == (cores, ["1", "ISLICES_NUM_THREADS:", "got", f"{refused[:40]!r};"]), refused[:40]
    code = "work(); print('numba' in sys.modules)"
    assert run(code, ISLICES_KERNELS="0").split() == ["False"]


# ---------------------------------------------------------------------- several callers
def namespace() -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(WORK, space)
    return space


def test_many_callers_while_the_number_of_threads_changes() -> None:
    space = namespace()
    work, check = space["work"], space["check"]
    expected = [space["right"](seed) for seed in range(8)]
    over = Event()

    def change() -> None:
        k = 0
        while not over.is_set():
            k += 1
            islices.config.set_num_threads(1 + k % 5)

    islices.config.set_num_threads(4)
    with ThreadPoolExecutor(9) as pool:
        changing = pool.submit(change)
        try:
            for _ in range(3):
                for got, e in zip(pool.map(work, range(8)), expected, strict=True):
                    check(got, e)
        finally:
            over.set()
        changing.result()


def test_a_thread_that_cannot_be_started_costs_speed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a call which can start no thread while the pool is busy waits for the parts that the pool begins
    later."""
    islices.config.set_num_threads(3)
    held, ended, may_go = Event(), [], Event()

    def hold(k: int) -> None:
        held.set()
        may_go.wait(LIMIT)

    def slow(k: int) -> None:
        time.sleep(0.2 if threading.current_thread() is not threading.main_thread() else 0.001)
        if k == 3:  # now the thread of the pool takes a part of this work
            may_go.set()
            time.sleep(0.05)
        ended.append(k)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    other = threading.Thread(target=threads.run_parts, args=(hold, [(0,), (1,)]))
    other.start()
    assert held.wait(LIMIT)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads.run_parts(slow, [(k,) for k in range(8)])
    assert sorted(ended) == list(range(8)), "the call returned before its work was done"
    other.join()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_after_an_exception_in_the_caller_the_pool_works(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    islices.config.set_num_threads(3)
    space = namespace()
    expected = space["right"]()

    def fails(*part: int) -> None:
        raise error

    for _ in range(3):
        with pytest.raises(error):
            threads.run_parts(fails, [(k, k + 1) for k in range(6)])
        space["check"](space["work"](), expected)


def test_interrupted_for_real() -> None:
    """Interrupt calls at random moments. Each interrupted call raises KeyboardInterrupt, and the next call is right."""
    run(
        """
        import _thread, random, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
        expected = right()
        check(work(), expected)
        interrupted = 0
        for k in range(40):
            timer = threading.Timer(random.uniform(0, 0.03), _thread.interrupt_main)
            try:
                timer.start()
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    work()
                raise AssertionError("no interrupt came")
            except KeyboardInterrupt:
                interrupted += 1
            timer.join()
            check(work(), expected)
        assert interrupted == 40
        """
    )


# ---------------------------------------------------------------------- processes
fork_only = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

CHILDREN = """
def children(number, call):
    pids = []
    for k in range(number):
        pid = os.fork()
        if pid == 0:
            try:
                call(k)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * number
"""


@fork_only
@pytest.mark.filterwarnings("ignore")
def test_forked_children_after_the_parent_called() -> None:
    run(
        CHILDREN
        + textwrap.dedent(
            """
            expected = right()
            check(work(), expected)
            children(4, lambda k: check(work(), expected))
            check(work(), expected)
            # a child of a child, and one whose parent is calling in another thread at that moment
            children(1, lambda k: (check(work(), expected), children(2, lambda k: check(work(), expected))))
            over = threading.Event()
            def calls():
                while not over.is_set():
                    check(work(), expected)
            others = [threading.Thread(target=calls) for _ in range(2)]
            for other in others: other.start()
            def changed(k):
                islices.config.set_num_threads(2 + k)
                check(work(), expected)
            for _ in range(3):
                children(3, changed)
            over.set()
            for other in others: other.join()
            """
        )
    )


@pytest.mark.outside
@fork_only
def test_a_child_forked_while_another_thread_compiles(tmp_path: Path) -> None:
    """Check that a forked child compiles, although another thread of the parent held numba's lock at the fork."""
    run(
        CHILDREN
        + textwrap.dedent(
            """
            small, double = gradient(n=9), IndexedSlices(np.ones((4, 2)), np.array([3, 1, 3, 3]), (5, 2))
            islices.coalesce(small)
            other = threading.Thread(target=lambda: (islices.norm(small), islices.norm(double)))
            other.start()
            time.sleep(0.2)
            assert other.is_alive(), "it compiles for seconds"
            signal.alarm(60)
            children(1, lambda k: (signal.alarm(45), islices.coalesce(double)))
            other.join()
            """
        ),
        NUMBA_CACHE_DIR=str(tmp_path),
    )


@pytest.mark.outside
def test_calls_while_the_interpreter_ends() -> None:
    """Check that calls work in atexit handlers, and in threads that outlive the main thread."""
    run(
        """
        import atexit
        expected = right()
        atexit.register(lambda: (check(work(), expected), print("at exit", flush=True)))
        check(work(), expected)
        def later():
            time.sleep(0.3)
            check(work(), expected)
            print("later", flush=True)
        threading.Thread(target=later).start()
        """
    )
