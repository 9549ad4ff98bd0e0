"""Costs of each strategy of `all_reduce`, and the choice among them.

For R ranks whose coalesced gradients have n_r rows of b bytes (index and values), N = sum of n_r, and U different rows
among them, one rank receives on average

=======  ==========================================  ==============
gather   N b (R - 1) / R                             1 collective
ranges   (N / R + U) b (R - 1) / R                   4 collectives
dense    2 rows (v + 1/8) (R - 1) / R                2 collectives
=======  ==========================================  ==============

bytes, v being the bytes of a row's values, and a bit per row for "touched". Where ranks store unequal numbers of rows
all wait for the one that has most, max n_r, and sends (R - 1) max n_r by gather: so R max n_r stands for N in the first
two lines. A collective costs its link's latency once for each other rank.

SPEC clause 25.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from islices.core.arguments import is_real, show

__all__ = ["COLLECTIVES", "STRATEGIES", "Cost", "Link", "Strategy", "choose", "costs", "dense_costs"]

Strategy: TypeAlias = Literal["auto", "gather", "ranges", "dense"]
STRATEGIES = ("gather", "ranges", "dense")
#: Collectives that a strategy takes, after the one in which the ranks agree.
COLLECTIVES = {"gather": 1, "ranges": 4, "dense": 2}


@dataclass(frozen=True)
class Link:
    """What connects the ranks.

    Parameters
    ----------
    bandwidth : float
        Bytes a second that one rank receives.
    latency : float
        Seconds that one message takes however short it is.

    Examples
    --------
    >>> Link(bandwidth=1e9, latency=1e-5).time(1e6, messages=10)
    0.0011
    """

    bandwidth: float = 1e9
    latency: float = 30e-6

    def __post_init__(self) -> None:
        if not (is_real(self.bandwidth) and 0 < self.bandwidth < float("inf")):
            raise ValueError(f"bandwidth: got {show(self.bandwidth)}; accepted is a number of bytes a second above 0")
        if not (is_real(self.latency) and 0 <= self.latency < float("inf")):
            raise ValueError(f"latency: got {show(self.latency)}; accepted is a number of seconds of at least 0")

    def time(self, nbytes: float, messages: float) -> float:
        """How long it takes one rank to receive something.

        Parameters
        ----------
        nbytes, messages : float

        Returns
        -------
        float
            Seconds.
        """
        return nbytes / self.bandwidth + messages * self.latency


class Cost(NamedTuple):
    """What one rank receives, on average: bytes, and messages."""

    nbytes: float
    messages: float

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(self.nbytes + other.nbytes, self.messages + other.messages)


def costs(
    ranks: int,
    *,
    row_bytes: float,
    values_bytes: float,
    rows: float | None,
    stored: float,
    union: float,
    most: float | None = None,
) -> dict[str, Cost]:
    """The cost of each strategy that there is for one sparse leaf.

    Parameters
    ----------
    ranks : int
    row_bytes, values_bytes : float
        Bytes of a row with its index, and without.
    rows : float or None
        Of the table; None (unknown) rules "dense" out.
    stored : float
        Coalesced rows of all ranks together.
    union : float
        Different rows among them.
    most : float, optional
        Coalesced rows of the rank that has most: what this rank sends, which the others wait for, is then what counts.
        By default the average.
    """
    share = (ranks - 1) / ranks
    each = stored / ranks if most is None else most
    moved = {
        "gather": ranks * each * row_bytes * share,
        "ranges": (each + union) * row_bytes * share,
    }
    if rows is not None:
        moved["dense"] = 2 * rows * (values_bytes + 1 / 8) * share
    return {name: Cost(nbytes, COLLECTIVES[name] * (ranks - 1)) for name, nbytes in moved.items()}


def dense_costs(ranks: int, nbytes: float) -> dict[str, Cost]:
    """The same for a dense leaf, of which every rank has all: by gather, or by equal ranges of its elements."""
    moved = {"gather": nbytes * (ranks - 1), "dense": 2 * nbytes * (ranks - 1) / ranks}
    return {name: Cost(n, COLLECTIVES[name] * (ranks - 1)) for name, n in moved.items()}


def choose(found: dict[str, Cost], link: Link) -> str:
    """The strategy that takes the least time; the first of `STRATEGIES` of equal ones."""
    return min(found, key=lambda name: (link.time(*found[name]), STRATEGIES.index(name)))
