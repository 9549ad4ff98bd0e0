"""Test that Python's garbage collector is off while a thread holds a lock of islices. The collector could run a
destructor that waits for the lock."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest
from suite_runs import run_code

from islices.core import locks
from islices.kernels import threads


class Cycle:
    """An object in a reference cycle, whose destructor records the thread that collects the object."""

    collected: list[str]

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.collected.append(threading.current_thread().name)


@pytest.fixture
def eager_collector() -> object:
    """Make the garbage collector run after very few allocations."""
    before = gc.get_threshold()
    Cycle.collected = []
    gc.set_threshold(1)
    yield
    gc.set_threshold(*before)


def allocate() -> None:
    for _ in range(100):
        Cycle()
        [[] for _ in range(10)]


@pytest.mark.usefixtures("eager_collector")
def test_no_destructor_runs_under_a_lock() -> None:
    lock, other = locks.Lock(), locks.Lock()
    try:
        with lock, other, lock:
            allocate()
            assert not Cycle.collected
        assert gc.isenabled()
        allocate()
        assert Cycle.collected, "what the test relies on"
    finally:
        locks._locks.remove(lock)
        locks._locks.remove(other)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with locks.without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_nor_while_parts_run_in_other_threads() -> None:
    found: list[bool] = []
    threads.run_parts(lambda k: found.append(gc.isenabled()), [(k,) for k in range(8)])
    assert len(found) == 8
    assert threads.get_num_threads() == 1 or not any(found)
    assert gc.isenabled()


def test_nor_while_numba_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    from numba.core import event

    from islices.kernels.compiling import compile_kernel, vector

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # compiles again, also after earlier runs
    on: list[bool] = []

    class Listener(event.Listener):
        def on_start(self, event: object) -> None:
            on.append(gc.isenabled())

        def on_end(self, event: object) -> None:
            on.append(gc.isenabled())

    with event.install_listener("numba:compile", Listener()):
        compile_kernel(_negated, (vector("float32"),))
    assert on
    assert not any(on)
    assert gc.isenabled()


def _negated(x: object) -> None:
    x[0] = -x[0]  # type: ignore[index]


FORKED = """
    import gc, os, threading, time
    from islices.core import locks

    entered = threading.Event()

    def hold():
        with locks.without_collector():
            entered.set()
            time.sleep(60)

    threading.Thread(target=hold, daemon=True).start()
    entered.wait()
    assert not gc.isenabled()
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() and not locks._collector.holders else 1)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_count_its_parents_threads() -> None:
    run_code(FORKED)
