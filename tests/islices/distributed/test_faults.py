"""Test a fault on one rank: a bad argument, an error during the call, or a call from another thread. Ranks are
threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.ranks.threads import run_threads
from islices.distributed import Group, RankError, RankTimeout, all_reduce, exchange


def test_a_rank_that_leaves_a_call_amid_its_collectives_has_broken_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a group accepts no more calls after a rank has left a call. If the group accepted more calls, the
    other ranks would mistake this rank's next message for the rest of the call."""
    here, fold = threading.local(), exchange.fold_sparse

    def failing(like: Any, received: Any) -> Any:
        if here.rank == 1:
            raise MemoryError("no room")
        return fold(like, received)

    monkeypatch.setattr(exchange, "fold_sparse", failing)
    s = islices.IndexedSlices(np.ones((3, 2), np.float32), np.array([4, 1, 4]), (9, 2))

    def run(group: Group) -> list[Exception]:
        here.rank = group.rank
        found: list[Exception] = []
        for _ in range(2):
            try:
                all_reduce(s, group=group, strategy="ranges")
            except (MemoryError, RankError) as error:
                found.append(error)
        return found

    first, failed, last = run_threads(3, run, timeout=0.5)
    assert isinstance(failed[0], MemoryError)
    assert "all_reduce ended amid its collectives, by MemoryError: no room" in str(failed[1])
    for found in (first, last):
        assert [type(error) for error in found] == [RankTimeout, RankError]


def test_two_threads_of_a_rank_do_not_share_a_group() -> None:
    def run(group: Group) -> list[Exception]:
        refused: list[Exception] = []
        gather = group._all_gather

        def other() -> None:
            try:
                all_reduce(np.ones(3), group=group)
            except RuntimeError as error:
                refused.append(error)

        def interrupted(*arguments: Any) -> Any:  # another thread makes a call while this one waits
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            return gather(*arguments)

        group._all_gather = interrupted  # type: ignore[method-assign]
        assert all_reduce(np.ones(3), group=group).tolist() == [2.0] * 3
        return refused

    for refused in run_threads(2, run):
        assert len(refused) == 2  # once in each collective
        assert "got a call while another thread's is under way" in str(refused[0])


def test_a_container_that_fails_on_one_rank_is_told_to_the_others() -> None:
    class Broken(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise OSError("gone")

    def run(group: Group) -> Any:
        return all_reduce((dict, Broken)[group.rank]({"a": np.ones(2)}), group=group)

    other, failed = run_threads(2, run)
    assert isinstance(failed, OSError)
    assert isinstance(other, RankError)
    assert "rank 1 raised OSError: gone" in str(other)


def test_frameworks_are_not_mixed() -> None:
    torch = pytest.importorskip("torch")
    mixed = {"a": np.ones(2), "b": torch.ones(2)}
    for error in run_threads(2, lambda group: all_reduce(mixed, group=group)):
        assert isinstance(error, TypeError)
        assert "x: got arrays of numpy and torch; accepted is one framework" in str(error)
    one, other = run_threads(2, lambda group: all_reduce(mixed if group.rank else {**mixed, "b": None}, group=group))
    assert isinstance(one, RankError)
    assert isinstance(other, TypeError)
