"""Estimate the costs of the strategies of `all_reduce`, and choose one.

For R ranks, the coalesced gradient of rank r has n_r rows of b bytes (index and values). N is the sum of n_r, and U the
number of distinct rows. On average one rank receives

=======  ==========================================  ==============
gather   N b (R - 1) / R                             1 collective
ranges   (N / R + U) b (R - 1) / R                   4 collectives
=======  ==========================================  ==============

bytes. If ranks store unequal numbers of rows, all ranks wait for the rank with most rows, max n_r. The rank with most
rows sends (R - 1) max n_r rows by gather. So the formulas use R max n_r instead of N. For a dense array of n bytes the
costs are n (R - 1) bytes in 1 collective by gather, and 2 n (R - 1) / R bytes in 2 collectives by ranges. A collective
costs one latency for each other rank.

`all_reduce` chooses before it knows U. It assumes that half of the ranks' rows are distinct. If all are distinct,
ranges send 1 / R more bytes than gather. If all ranks have the same rows, ranges send 2 / R of gather's bytes. SPEC
clause 25.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Strategy: TypeAlias = Literal["auto", "gather", "ranges"]
STRATEGIES = ("gather", "ranges")
#: The number of bytes that take as long as one more message: 30 microseconds at 1 GB/s. (For 100 Gbit/s and 5
#: microseconds the number is twice as large, which seldom changes a choice.)
MESSAGE = 30_000.0


class Cost(NamedTuple):
    """The cost for one rank, without the preflight.

    `nbytes` is the number of bytes that the rank receives on average.
    """

    nbytes: float
    collectives: int


def costs(ranks: int, *, row_bytes: float, most: float, union: float, dense: bool = False) -> dict[str, Cost]:
    """Return the cost of each strategy for one leaf.

    Parameters
    ----------
    ranks : int
    row_bytes : float
        Bytes of a row with its index, or of an element of a dense array.
    most : float
        The number of coalesced rows on the rank with most rows; the other ranks wait for this rank.
    union : float
        The number of distinct rows of all ranks together.
    dense : bool
        True for a dense array. Every rank has all elements, and ranges are equal parts of the array.
    """
    share = (ranks - 1) / ranks * row_bytes
    return {"gather": Cost(ranks * most * share, 1), "ranges": Cost((most + union) * share, 2 if dense else 4)}


def choose(found: dict[str, Cost], ranks: int) -> str:
    """Return the name of the strategy that takes the least time; return "gather" if the times are equal."""
    return min(found, key=lambda name: found[name].nbytes + found[name].collectives * (ranks - 1) * MESSAGE)
