"""Estimate the costs of the strategies of `all_reduce`, and choose one.

Let R be the number of ranks. The coalesced gradient of rank r has n_r rows, each of b bytes for the index and the
values. N is the sum of all n_r, and U is the number of distinct rows on all ranks. On average, one rank receives this
number of bytes:

=======  ==========================================  ==============
gather   N b (R - 1) / R                             1 collective
ranges   (N / R + U) b (R - 1) / R                   5 collectives
=======  ==========================================  ==============

If the numbers of rows differ, all ranks wait for the rank with the most rows, which sends (R - 1) max n_r rows for
gather. So `costs` uses R max n_r in place of N. For a dense array of n bytes, gather costs n (R - 1) bytes in 1
collective, and ranges costs 2 n (R - 1) / R bytes in 2 collectives. In addition, each collective costs one latency per
other rank.

`all_reduce` must choose before it knows U, so it assumes that half of the ranks' rows are distinct. If all rows are
distinct, ranges sends 1 + 1 / R times as many bytes as gather. If all ranks have the same rows, ranges sends 2 / R
times as many bytes as gather. SPEC clause 25.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Strategy: TypeAlias = Literal["auto", "gather", "ranges"]
STRATEGIES = ("gather", "ranges")
#: One more message takes as long as sending this number of bytes, if a message takes 30 microseconds and the network
#: sends 1 GB/s. For 5 microseconds and 100 Gbit/s the number would be about twice as large, which seldom changes the
#: choice.
MESSAGE = 30_000.0


class Cost(NamedTuple):
    """The cost of a strategy for one rank and one leaf, without the preflight.

    `nbytes` is the number of bytes that the rank receives on average, without the samples and the numbers of rows.
    """

    nbytes: float
    collectives: int


def costs(ranks: int, *, row_bytes: float, most: float, union: float, dense: bool = False) -> dict[str, Cost]:
    """Return the cost of each strategy for one leaf.

    Parameters
    ----------
    ranks : int
    row_bytes : float
        The number of bytes in a row and its index, or in an element of a dense array.
    most : float
        The number of coalesced rows on the rank that has the most rows. The other ranks wait for this rank.
    union : float
        The number of distinct rows of all ranks together.
    dense : bool
        True for a dense array. Every rank then has all elements, and `most` and `union` are the number of elements.
    """
    share = (ranks - 1) / ranks * row_bytes
    return {"gather": Cost(ranks * most * share, 1), "ranges": Cost((most + union) * share, 2 if dense else 5)}


def choose(found: dict[str, Cost], ranks: int) -> str:
    """Return the name of the faster strategy. If the estimated times are equal, return "gather"."""
    return min(found, key=lambda name: found[name].nbytes + found[name].collectives * (ranks - 1) * MESSAGE)
