"""Test that a forked child computes without a deadlock, even if another thread runs its first operation during the
fork.

The forks are real. Scripts run in separate interpreters with time limits, so that a deadlock fails the test.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import textwrap
from pathlib import Path

import pytest
from suite_runs import run_code

import islices

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

LIMIT = 90
#: The first lines of each script. If a script or a child does not end in time, SIGALRM prints the stacks of the threads
#: and ends the process.
START = f"""
import faulthandler, os, signal, sys, threading, time, warnings
faulthandler.register(signal.SIGALRM, chain=True)
signal.alarm({LIMIT - 10})
warnings.simplefilter("ignore")  # a fork beside threads, which is what is tested
import numpy as np
import islices
from islices.core import locks

def fork(call, seconds=45):
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        try:
            call()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def small():
    s = islices.IndexedSlices(np.ones((3, 2), np.float32), np.array([1, 4, 1]), (6, 2))
    assert islices.coalesce(s).values.tolist() == [[2, 2], [1, 1]]
"""


def run(code: str, *arguments: str) -> str:
    return run_code(START + textwrap.dedent(code), *arguments, timeout=LIMIT)


@pytest.mark.outside
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_while_another_thread_loads_a_backend(name: str) -> None:
    """Fork while another thread imports a backend's module. Each child loads the same backend."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    run(
        """
        name = sys.argv[1]
        other = threading.Thread(target=islices.get_backend, args=(name,))
        other.start()
        while name not in sys.modules:
            time.sleep(0.001)
        first = fork(lambda: (islices.get_backend(name), small()))
        time.sleep(0.05)
        second = fork(lambda: (small(), islices.get_backend(name)))
        assert ended(first) == ended(second) == 0
        other.join()
        """,
        name,
    )


def test_while_another_thread_loads_the_kernels() -> None:
    pytest.importorskip("numba")
    run(
        """
        other = threading.Thread(target=small)
        other.start()
        while "numba" not in sys.modules:
            time.sleep(0.001)
        children = [fork(small)]
        time.sleep(0.05)
        children.append(fork(lambda: (small(), islices.config.set_num_threads(2), small())))
        assert [ended(pid) for pid in children] == [0, 0]
        other.join()
        """
    )


@pytest.mark.outside
def test_while_another_thread_holds_any_of_the_locks() -> None:
    """Check that a fork waits while another thread holds a lock of islices. Parent and child must then be able to
    acquire the lock."""
    out = run(
        """
        import importlib
        for name in islices.list_backends():
            islices.get_backend(name)
            if name == "torch":
                import islices.backends.torch.hooked_layers
            if name == "tensorflow":
                import islices.backends.tensorflow.keras_layers
        small()
        def take(lock):
            with lock:
                pass
        for lock in locks._locks:
            held = threading.Event()
            def hold():
                with lock:
                    held.set()
                    time.sleep(0.05)
            other = threading.Thread(target=hold)
            other.start()
            held.wait()
            assert ended(fork(lambda: take(lock))) == 0
            take(lock)
            other.join()
        print(len(locks._locks))
        """
    )
    assert int(out) >= 5


def test_a_fork_does_not_wait_for_ever() -> None:
    """Check that a fork stops waiting for a thread that keeps a lock. In the child, all locks are free and islices
    computes."""
    run(
        """
        locks.PATIENCE = 0.2
        first, stuck, last = locks.Lock(), locks.Lock(), locks.Lock()
        over, held = threading.Event(), threading.Event()
        def hold():
            with stuck:
                held.set()
                over.wait()
        other = threading.Thread(target=hold)
        other.start()
        held.wait()
        def child():
            for lock in (first, stuck, last):
                with lock:
                    pass
            small()
        with first:  # held by the thread that forks, too
            pid = fork(child)
        assert ended(pid) == 0
        over.set()
        other.join()
        child()
        """
    )


def test_locks_within_locks_in_any_order_while_threads_fork() -> None:
    run(
        """
        a, b, c = locks.Lock(), locks.Lock(), locks.Lock()
        over = threading.Event()
        def nested(*order):
            while not over.is_set():
                with order[0], order[1], order[2]:
                    time.sleep(0.0005)
                time.sleep(0.0005)
        # the three agree on an order, which is not the one in which they were made
        others = [threading.Thread(target=nested, args=(c, a, b), daemon=True) for _ in range(2)]
        def child():
            with c, a, b, islices.config.use_kernels(False):
                small()
        def forks():
            for _ in range(5):
                assert ended(fork(child)) == 0
            done.append(1)
        done = []
        forking = [threading.Thread(target=forks, daemon=True) for _ in range(2)]
        for thread in (*others, *forking):
            thread.start()
        forks()
        for thread in forking:
            thread.join()
        over.set()
        assert len(done) == 3
        with a, b, c:
            pass
        """
    )


def test_a_lazy_property_holds_no_lock() -> None:
    """Fork while a lazy property computes. functools.cached_property in Python 3.11 would hold one lock for all
    instances."""
    run(
        """
        entered, over = threading.Event(), threading.Event()
        class Slow:
            def __init__(self, wait):
                self.wait = wait
            @locks.lazy_property
            def value(self):
                if self.wait:
                    entered.set()
                    over.wait()
                return [1]
        first = Slow(True)
        other = threading.Thread(target=lambda: first.value)
        other.start()
        entered.wait()
        assert ended(fork(lambda: Slow(False).value)) == 0
        over.set()
        other.join()
        assert first.value is first.value and isinstance(Slow.value, locks.lazy_property)
        """
    )


def test_no_module_has_locks_of_its_own() -> None:
    allowed = {
        ("islices/core/locks.py", "RLock"),
        ("islices/core/locks.py", "cached_property"),  # for type checkers
        ("islices/distributed/group.py", "RLock"),  # a forked process makes a new one
        ("islices/kernels/threads.py", "Semaphore"),  # each call makes a new one
    }
    kinds = {"Lock", "RLock", "Condition", "Event", "Barrier", "Semaphore", "BoundedSemaphore", "cached_property"}
    root = Path(islices.__file__).resolve().parent.parent
    found = set()
    for path in (*root.glob("islices/**/*.py"), *root.glob("backends/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in ("threading", "functools", "multiprocessing"):
                names = [alias.name for alias in node.names]
            else:
                owner = getattr(getattr(node, "value", None), "id", "") if isinstance(node, ast.Attribute) else ""
                names = [node.attr] if isinstance(node, ast.Attribute) and owner in ("threading", "functools") else []
            found |= {(path.relative_to(root).as_posix(), name) for name in names if name in kinds}
    assert found == allowed
