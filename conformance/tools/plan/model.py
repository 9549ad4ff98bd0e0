"""What each way to reduce a sparse gradient over ranks is expected to move, to take and to hold.

How many rows there are is `zipf`; what moving them costs is `islices.distributed.strategy`, by whose formulas
`all_reduce` chooses. Expectations all through: a rank draws its ids independently of the others. What the ranks tell
one another first is counted, computing is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from islices.conformance.tools.plan.zipf import Zipf
from islices.distributed.agree import FIXED, WITHIN
from islices.distributed.ranges import NARROW
from islices.distributed.sketch import SIZE
from islices.distributed.strategy import STRATEGIES, Cost, Link, choose, costs, other_costs

__all__ = ["ITEM_BYTES", "WAYS", "Plan", "Way", "Workload", "crossovers", "make_plan"]

#: In the order in which they are shown.
WAYS = ("raw", *STRATEGIES, "sharded")
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
#: Bytes that every rank sends to every other before: to agree, and a sketch of its indices where ranges are thought of.
AGREEING, SKETCHING = 8 * (FIXED + WITHIN), 8 * SIZE
#: Agreements that each way takes: a step of a sharded table has one each for lookup, gradient and update. (Where
#: all_reduce chooses itself it sends a sketch with gather and dense too if ranges might pay, which is not counted.)
AGREEMENTS = {"raw": 0, "gather": 1, "ranges": 1, "dense": 1, "sharded": 3}


@dataclass(frozen=True)
class Workload:
    """A step: every rank draws so many ids from a table of rows x dim.

    Parameters
    ----------
    rows, dim, ids : int
    exponent : float
        Of Zipf's law; 0 draws all rows alike.
    dtype : str
        Of values: a key of `ITEM_BYTES`.

    Examples
    --------
    >>> work = Workload(rows=1_000_000, dim=64, ids=65_536, exponent=1.1)
    >>> work.row_bytes, round(work.distinct)
    (260, 17235)
    """

    rows: int
    dim: int
    ids: int
    exponent: float
    dtype: str = "float32"
    zipf: Zipf = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "zipf", Zipf(self.rows, self.exponent))

    @property
    def values_bytes(self) -> int:
        """Of a row."""
        return self.dim * ITEM_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Of a row with its index, which travels as int32 where that is wide enough."""
        return self.values_bytes + _index_bytes(self.rows)

    @property
    def table_bytes(self) -> int:
        return self.rows * self.values_bytes

    @cached_property
    def distinct(self) -> float:
        """Different rows of one rank."""
        return self.zipf.distinct(self.ids)


class Way(NamedTuple):
    """What one rank receives, on average (payload bytes), in how many collectives, the seconds that takes, and the
    bytes it holds for it at its peak, its own slices not counted."""

    nbytes: float
    collectives: int
    seconds: float
    memory: float

    def as_json(self) -> dict[str, float]:
        return {"bytes": self.nbytes, "collectives": self.collectives, "seconds": self.seconds, "memory": self.memory}


class Plan(NamedTuple):
    """The ways for a number of ranks.

    Attributes
    ----------
    ranks : int
    union : float
        Different rows of all ranks together.
    ways : dict of str to Way
        By the names of `WAYS`.
    takes : str
        The strategy that all_reduce takes.
    busiest : float
        What the busiest rank of a sharded table moves, as a multiple of the average, where rows lie in the order of
        how often they come up; 1 where they are scattered.
    busiest_seconds : float
        Of a sharded table then: all wait for that rank.
    """

    ranks: int
    union: float
    ways: dict[str, Way]
    takes: str
    busiest: float
    busiest_seconds: float

    def fewer(self, than: str) -> float:
        """How many times fewer bytes all_reduce moves."""
        return self.ways[than].nbytes / self.ways[self.takes].nbytes

    def faster(self, than: str) -> float:
        return self.ways[than].seconds / self.ways[self.takes].seconds

    def as_json(self) -> dict[str, Any]:
        return {
            "ranks": self.ranks, "union": self.union, "ways": {name: way.as_json() for name, way in self.ways.items()},
            "takes": self.takes, "fewer_bytes": {name: self.fewer(name) for name in ("raw", "dense")},
            "faster": {name: self.faster(name) for name in ("raw", "dense")},
            "busiest": self.busiest, "busiest_seconds": self.busiest_seconds,
        }  # fmt: skip


def make_plan(work: Workload, ranks: int, link: Link) -> Plan:
    """The ways that there are for so many ranks (at least 2)."""
    R, n = ranks, work.distinct
    union = work.zipf.distinct(R * work.ids)
    common = {"row_bytes": work.row_bytes, "values_bytes": work.values_bytes, "stored": R * n}
    strategies = costs(R, rows=work.rows, union=union, **common)
    owned = -(-work.rows // R)  # of a sharded table, by the rank that has most
    others = {"raw": common, "sharded": common | {"row_bytes": work.values_bytes + _index_bytes(owned)}}
    moved = strategies | {name: other_costs(R, slices=R * work.ids, **sizes)[name] for name, sizes in others.items()}
    memory = _memory(work, R, union)
    ways = {}
    for name in WAYS:
        first = _before(name, R)
        cost = moved[name] + first
        ways[name] = Way(cost.nbytes, round(cost.messages / (R - 1)), link.time(*cost), memory[name])
    busiest = R * work.zipf.distinct(work.ids, owned) / n
    slowest = Cost(busiest * moved["sharded"].nbytes, moved["sharded"].messages) + _before("sharded", R)
    return Plan(R, union, ways, choose(strategies, link), busiest, link.time(*slowest))


def crossovers(work: Workload, ranks: Sequence[int], link: Link) -> list[tuple[int, str, str]]:
    """Where all_reduce changes its strategy between the first and the last of these: (ranks from which on, before,
    after). Found between neighbours of the list, so one that comes and goes between them is missed."""
    found = []
    for low, high in itertools.pairwise(ranks):
        before, after = make_plan(work, low, link).takes, make_plan(work, high, link).takes
        while after != before:
            start, stop = low, high
            while stop - start > 1:
                middle = (start + stop) // 2
                start, stop = (middle, stop) if make_plan(work, middle, link).takes == before else (start, middle)
            now = make_plan(work, stop, link).takes
            found.append((stop, before, now))
            low, before = stop, now
    return found


def _before(name: str, ranks: int) -> Cost:
    """What the ranks tell one another before anything is moved."""
    times = AGREEMENTS[name]
    first = Cost(times * AGREEING * (ranks - 1), times * (ranks - 1))
    if name == "ranges":
        return first + Cost(SKETCHING * (ranks - 1), ranks - 1)
    if name == "sharded" and ranks > WITHIN:  # how many rows each has for each: too many numbers to agree with
        return first + Cost(2 * 8 * (ranks - 1), 2 * (ranks - 1))
    return first


def _index_bytes(rows: int) -> int:
    """As what numbers of so many rows travel."""
    return 4 if rows <= NARROW else 8


def _memory(work: Workload, ranks: int, union: float) -> dict[str, float]:
    """What a rank holds at once, its own slices not counted; small things left out."""
    R, n, v, b = ranks, work.distinct, work.values_bytes, work.row_bytes
    table = work.rows * (v + 1 / 8)
    return {
        "raw": R * work.ids * b,
        # its own rows, those as bytes, what came, all of that joined, the sums
        "gather": (2 + 2 * R) * n * b + union * b,
        # the same of a rank's range; or its own rows, and the sums of a range and of all: as bytes, and joined
        "ranges": max(4 * n + union / R, n + 2 * union / R + 2 * union) * b,
        # the table as parts, those as bytes, what came
        "dense": 3 * table + n * b,
        # rows looked up and, as an owner, joined gradients; the gradient, as bytes, what came as an owner, the sums
        "sharded": n * (2 * v + 4 * b),
    }
