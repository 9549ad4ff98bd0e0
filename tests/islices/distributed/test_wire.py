"""Test the parts of all_reduce: the layout of bytes, the ranks' agreement, samples of ids, and the choice of a
strategy.

Ranks are threads of this process, and their group sends the same bytes as any other group.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.ranks.threads import run_threads, thread_results
from islices.distributed import Group, RankError, all_reduce, exchange
from islices.distributed.agree import FIXED, WITHIN, Agreement, agree
from islices.distributed.packing import SAMPLED, even_bounds, pack, sample, size_of, splitters, unpack
from islices.distributed.strategy import Cost, choose, costs

#: The number of bytes of the first message of `agree`, which each rank sends to every other rank.
HEADER = 8 * (FIXED + WITHIN)


# ---------------------------------------------------------------------- wire, ranges
DTYPES = ("int32", "int64", "float16", "uint16", "float32", "float64", "uint8")


@pytest.mark.parametrize("seed", [0])
def test_arrays_come_back_from_their_bytes(seed: int) -> None:
    r = np.random.default_rng(seed)
    arrays = []
    for dtype in r.choice(DTYPES, 12):
        shape = tuple(r.integers(0, 4, r.integers(0, 4)))
        arrays.append(r.integers(0, 200, shape).astype(dtype))
    forms = [(x.shape, x.dtype) for x in arrays]
    data = pack(arrays)
    assert data.dtype == np.uint8
    assert len(data) == size_of(forms) == sum(-(-x.nbytes // 8) * 8 for x in arrays[:-1]) + arrays[-1].nbytes
    shifted = np.concatenate([np.zeros(3, np.uint8), data])[3:]
    for got in (unpack(data, forms), unpack(shifted, forms)):
        for x, back in zip(arrays, got, strict=True):
            assert (back.dtype, back.shape) == (x.dtype, x.shape)
            assert back.tobytes() == x.tobytes()


@pytest.mark.parametrize(("count", "parts"), [(0, 2), (3, 4), (17, 4), (10**10, 7)])
def test_even_bounds_cover_everything_once(count: int, parts: int) -> None:
    bounds = even_bounds(count, parts).tolist()
    lengths = [b - a for a, b in itertools.pairwise(bounds)]
    assert (bounds[0], bounds[-1], len(lengths)) == (0, count, parts)
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


# ---------------------------------------------------------------------- agree
@pytest.mark.parametrize("count", [0, WITHIN, WITHIN + 1, 500])
def test_counts_reach_every_rank(count: int) -> None:
    def counts_of(rank: int) -> list[int]:
        return [10**12 * rank + k for k in range(count)]

    def run(group: Group) -> tuple[Agreement, int]:
        return agree(group, "call", {"a": 1}, counts_of(group.rank)), group.traffic.collectives

    for agreed, collectives in thread_results(3, run):
        assert [x.tolist() for x in agreed.counts] == [counts_of(rank) for rank in range(3)]
        assert agreed.each is None, "all said the same"
        assert collectives == (1 if count <= WITHIN else 2)


@pytest.mark.parametrize("text", ["größer als 表 𝛿", "x" * 100_000], ids=["words", "long"])
def test_what_ranks_say_may_be_any_text(text: str) -> None:
    agreed = thread_results(3, lambda group: agree(group, "call", {"text": text, "n": [1, None, [2]]}))
    assert all(one.each is None for one in agreed)

    def differing(group: Group) -> None:
        agree(group, "call", {"text": text if group.rank == 1 else "other"}, [group.rank])

    got = run_threads(3, differing)
    assert {type(error) for error in got} == {ValueError}
    assert len({str(error) for error in got}) == 1, "the same message everywhere"
    assert "text: other on ranks 0, 2, " in str(got[0])
    assert text[:50] in str(got[0])
    assert len(str(got[0])) < 500, "no message as long as the text"


@pytest.mark.parametrize("text", ["y" * 50_000, "lone \udc80 surrogate"], ids=["long", "odd"])
def test_a_rank_that_cannot_is_named_everywhere(text: str) -> None:
    mine = LookupError(text)

    def run(group: Group) -> None:
        agree(group, "call", {"a": group.rank}, [1] * 40, error=mine if group.rank == 2 else None)

    got = run_threads(4, run)
    assert got[2] is mine, "its own error, not a copy"
    for rank in (0, 1, 3):
        assert type(got[rank]) is RankError
        assert got[rank].ranks == (2,)
        assert "rank 2 raised LookupError: " in str(got[rank])


def test_a_stranger_is_not_taken_for_a_rank() -> None:
    def run(group: Group) -> Any:
        if group.rank == 1:  # a program with another protocol
            return group.all_gather(np.frombuffer(random.Random(0).randbytes(HEADER), np.uint8))
        return agree(group, "all_reduce", {})

    got = run_threads(3, run)
    for rank in (0, 2):
        assert type(got[rank]) is RankError
        assert "rank 1 speak" in str(got[rank])
        assert got[rank].ranks == (1,)


def test_what_was_received_is_let_go_before_it_is_summed() -> None:
    """Check that received arrays are freed before the sums are computed, because both may be large. Check that indices
    are sent as int32 if the number of rows allows it."""
    values, ids = np.ones((1, 2), np.float32), np.array([7], np.int32)
    like = exchange.sparse_leaf(values, ids, None)
    received = [list(like.columns), list(like.columns)]
    assert exchange.fold_sparse(like, received).columns[1].tolist() == [[2.0, 2.0]]
    assert received == []

    def travelling(ids: Any, rows: int | None) -> Any:
        return exchange.sparse_leaf(values, ids, rows).columns[0].dtype

    assert [travelling(ids, rows) for rows in (None, 2**31)] == [np.int32] * 2
    wide = ids.astype(np.int64)
    assert [travelling(wide, rows) for rows in (None, 2**31 + 1, 9)] == [np.int64, np.int64, np.int32]


# ---------------------------------------------------------------------- where ranges end


#: distribution of ids -> the unique ids of each of 4 ranks
IDS: dict[str, Callable[[np.random.Generator], list[Any]]] = {
    "uniform": lambda r: [np.unique(r.integers(0, 10**6, 5000)) for _ in range(4)],
    "disjoint": lambda r: [np.arange(k * 10**6, k * 10**6 + 3000) + r.integers(10**9) for k in range(4)],
    "identical": lambda r: [np.unique(r.integers(0, 10**9, 4000))] * 4,
    "one rank has nearly all": lambda r: [np.unique(r.integers(0, 2**40, n)) for n in (9000, 3, 0, 1)],
}


@pytest.mark.parametrize("ids", IDS)
def test_ranges_are_balanced(ids: str) -> None:
    """Check that each range contains nearly the same share of the ids. Samples are evenly spaced, so that the error is
    at most the gaps at the ends of a range."""
    most = 1 / 4 + 2 * 4 / SAMPLED
    shares = []
    for seed in range(20):
        each = IDS[ids](np.random.default_rng([seed, len(ids)]))
        cuts = splitters([sample(x) for x in each], [len(x) for x in each], 4)
        assert cuts.shape == (3,)
        assert (np.diff(cuts) >= 0).all()
        every = np.concatenate(each)
        shares.append(np.bincount(np.searchsorted(cuts, every, side="right"), minlength=4) / len(every))
    assert np.max(shares) < most
    assert np.abs(np.mean(shares, 0) - 1 / 4).max() < 0.06, "no range is larger by its place"


def test_samples_are_ids_and_of_nothing_cuts_are_zeros() -> None:
    ids = np.unique(np.random.default_rng(7).integers(0, 2**31, 3000))
    first = sample(ids)
    assert (first.dtype, first.shape) == (np.int64, (SAMPLED,))
    assert set(first.tolist()) <= set(ids.tolist())
    assert first.tobytes() == sample(ids.astype(np.int32)).tobytes()
    assert sample(ids[:3]).tolist() == [*ids[:3].tolist(), *[-1] * (SAMPLED - 3)]
    assert splitters([sample(ids[:0])] * 2, [0, 0], 4).tolist() == [0, 0, 0]


# ---------------------------------------------------------------------- the modelled bytes are the bytes that move
def moved(ranks: int, each: Sequence[Any], rows: int | None, dim: int, strategy: str) -> float:
    """Return the mean number of bytes that a rank receives in an all_reduce."""

    def run(group: Group) -> int:
        values = np.ones((len(each[group.rank]), dim), np.float32)
        s = islices.IndexedSlices(values, np.asarray(each[group.rank], np.int64), (rows, dim))
        all_reduce(s, group=group, strategy=strategy)
        return group.traffic.received

    return sum(thread_results(ranks, run)) / ranks


def modelled(ranks: int, each: Sequence[Any], dim: int) -> dict[str, Cost]:
    union = len(np.unique(np.concatenate(each)))
    return costs(ranks, row_bytes=4 + 4 * dim, most=sum(map(len, each)) / ranks, union=union)


@pytest.mark.parametrize("ranks", [2, 4])
def test_modelled_bytes_are_those_that_move(ranks: int) -> None:
    """Check that ranks receive the modelled bytes and, in addition, only headers, padding, samples and counts."""
    r, rows, dim = np.random.default_rng(ranks), 9000, 8
    each = [np.unique(r.integers(0, rows, 2000)) for _ in range(ranks)]
    found = modelled(ranks, each, dim)
    others = ranks - 1
    padding = 7 * 2 * others
    gathered = moved(ranks, each, rows, dim, "gather") - HEADER * others
    assert 0 <= gathered - found["gather"].nbytes <= padding
    small = (HEADER + 8 * SAMPLED + 8 + 8) * others  # agreement, samples, counts to owners, counts of sums
    ranges = moved(ranks, each, rows, dim, "ranges") - small
    # ranges have equal shares, apart from the gaps between samples
    uneven = 2 * ranks / SAMPLED * sum(map(len, each)) / ranks * (4 + 4 * dim)
    assert abs(ranges - found["ranges"].nbytes) <= uneven + 2 * padding


#: (ranks, number of rows, which are the same on each rank) -> the cheapest strategy
BEST = {(4, 30_000): "ranges", (4, 20): "gather", (2, 20_000): "gather"}


@pytest.mark.parametrize(("ranks", "rows"), BEST)
def test_auto_takes_what_costs_least(ranks: int, rows: int) -> None:
    each, expected = [np.arange(rows)] * ranks, BEST[ranks, rows]
    assert choose(modelled(ranks, each, 4), ranks) == expected
    assert moved(ranks, each, 10**6, 4, "auto") == moved(ranks, each, 10**6, 4, expected)


def test_a_tree_takes_as_many_collectives_as_a_leaf() -> None:
    s = islices.IndexedSlices(np.ones((3, 2), np.float32), np.array([4, 1, 4]), (9, 2))
    for strategy, expected in (("gather", 2), ("ranges", 6)):
        for tree in (s, [s, np.ones(3), {"deep": [s] * 20}]):
            taken = thread_results(
                3, lambda g, t=tree, n=strategy: (all_reduce(t, group=g, strategy=n), g.traffic.collectives)[1]
            )  # type: ignore[misc]
            assert taken == [expected] * 3
