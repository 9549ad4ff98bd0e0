"""Define an engine whose ranks are threads of one process, for tests with many ranks or many sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from islices.distributed.group import Bytes, Group, RankError, RankTimeout


class ThreadGroup(Group):
    """One rank of a group of threads. All ranks share a board, where each rank puts its data for the others."""

    engine = "threads"

    def __init__(self, rank: int, board: list[Sequence[Bytes]], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(board))
        self._board, self._barrier = board, barrier

    def _all_gather(self, data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        return self._all_to_all([data] * self.size, lengths)

    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        self._board[self.rank] = parts
        self._barrier.wait()
        got = [their[self.rank].copy() for their in self._board]
        self._barrier.wait()  # wait before any rank writes to the board again
        assert [len(x) for x in got] == list(lengths), "lengths are those of the data"
        return got

    def _failure_of(self, error: Exception) -> RankError | None:
        return (
            RankTimeout("threads: another rank did not come")
            if isinstance(error, threading.BrokenBarrierError)
            else None
        )


def run_threads(size: int, fn: Callable[[Group], Any], *, timeout: float = 20.0) -> list[Any]:
    """Run ``fn(group)`` on each rank. Return a list with the result or the exception of each rank."""
    barrier = threading.Barrier(size, timeout=timeout)
    board: list[Sequence[Bytes]] = [()] * size

    def run(rank: int) -> Any:
        try:
            return fn(ThreadGroup(rank, board, barrier))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def thread_results(size: int, fn: Callable[[Group], Any], *, timeout: float = 20.0) -> list[Any]:
    """Run ``fn(group)`` on each rank and return the results. If ranks raised exceptions, raise that of the lowest
    rank."""
    found = run_threads(size, fn, timeout=timeout)
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found
