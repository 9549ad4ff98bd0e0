"""Costs of each strategy of `all_reduce`, and the choice among them.

For R ranks whose coalesced gradients have n_r rows of b bytes (index and values), N = sum of n_r, and U different rows
among them, one rank receives on average

=======  ==========================================  ==============
gather   N b (R - 1) / R                             1 collective
ranges   (N / R + U) b (R - 1) / R                   4 collectives
=======  ==========================================  ==============

bytes. Where ranks store unequal numbers of rows all wait for the one that has most, max n_r, and sends (R - 1) max n_r
by gather: so R max n_r stands for N. Of a dense array of n bytes it is n (R - 1) in 1 collective, and 2 n (R - 1) / R
in 2. A collective costs a latency once for each other rank.

U is not known when a way is chosen: half of all rows are taken to be different. Where all are, ranges move 1 / R more
than gather does; where none are, 2 / R of it. SPEC clause 25.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Strategy: TypeAlias = Literal["auto", "gather", "ranges"]
STRATEGIES = ("gather", "ranges")
#: Bytes that take as long as one more message: 30 microseconds at 1 GB/s. (Of 100 Gbit/s and 5 microseconds it is
#: twice as much, which seldom changes a choice.)
MESSAGE = 30_000.0


class Cost(NamedTuple):
    """The average receipt of one rank: bytes, and the number of collectives after the one in which ranks agree."""

    nbytes: float
    collectives: int


def costs(ranks: int, *, row_bytes: float, most: float, union: float) -> dict[str, Cost]:
    """The cost of each strategy for one sparse leaf.

    Parameters
    ----------
    ranks : int
    row_bytes : float
        Bytes of a row with its index.
    most : float
        Coalesced rows of the rank that has most, for which the others wait.
    union : float
        Different rows of all ranks together.
    """
    share = (ranks - 1) / ranks * row_bytes
    return {"gather": Cost(ranks * most * share, 1), "ranges": Cost((most + union) * share, 4)}


def dense_costs(ranks: int, nbytes: float) -> dict[str, Cost]:
    """The same for a dense leaf, of which every rank has all: by gather, or by equal ranges of its elements."""
    return {"gather": Cost(nbytes * (ranks - 1), 1), "ranges": Cost(2 * nbytes * (ranks - 1) / ranks, 2)}


def choose(found: dict[str, Cost], ranks: int) -> str:
    """The strategy that takes the least time; gather of equal ones."""
    return min(found, key=lambda name: found[name].nbytes + found[name].collectives * (ranks - 1) * MESSAGE)
