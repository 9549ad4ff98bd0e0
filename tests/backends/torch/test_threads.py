"""Test kernels in torch's threads. Each part of the work runs once, errors reach the caller, and calls from other
threads do not use torch's threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import islices
from islices.backends.torch import openmp as of_torch
from islices.kernels import threads

pytestmark = pytest.mark.skipif(of_torch._parallel is None, reason="this torch has no OpenMP that can be called")


@pytest.fixture(autouse=True)
def two() -> Iterator[None]:
    before = islices.config.get_num_threads(), torch.get_num_threads()
    islices.config.set_num_threads(2)
    torch.set_num_threads(2)
    of_torch.lend()
    yield
    islices.config.set_num_threads(before[0])
    torch.set_num_threads(before[1])


def test_every_part_once() -> None:
    for most, team in ((2, 2), (2, 3), (3, 2), (5, 1)):
        islices.config.set_num_threads(most)
        torch.set_num_threads(team)
        done: list[int] = []
        seen: set[int] = set()

        def work(k: int, done: list[int] = done, seen: set[int] = seen) -> None:
            seen.add(threading.get_native_id())
            done.append(k)

        for _ in range(20):
            done.clear()
            threads.run_parts(work, [(k,) for k in range(17)])
            assert sorted(done) == list(range(17))
        assert len(seen) <= 20 * most


def test_an_error_reaches_the_caller() -> None:
    def fail(k: int) -> None:
        raise MemoryError(k)

    for _ in range(5):
        with pytest.raises(MemoryError):
            threads.run_parts(fail, [(k,) for k in range(4)])


def test_other_threads_use_the_pool() -> None:
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(of_torch.run_shared(lambda: None, 2)))
    other.start()
    other.join()
    torch.set_num_threads(1)
    assert taken == [False]
    assert not of_torch.run_shared(lambda: None, 2)


def test_within_a_part() -> None:
    """Check that a part can run other parts, because a signal handler or a destructor may call kernels while a part
    runs."""
    found: list[int] = []
    threads.run_parts(lambda k: threads.run_parts(found.append, [(k,), (k + 10,)]), [(k,) for k in range(4)])
    assert sorted(found) == [0, 1, 2, 3, 10, 11, 12, 13]
