"""The ways measured: real processes of an engine on this machine, over loopback, beside what `model` expects."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import numpy as np

from islices.conformance.ranks.launch import run_ranks
from islices.conformance.tools.plan.model import Plan, Workload, make_plan
from islices.distributed import Link, all_reduce
from islices.distributed.exchange import Sparse
from islices.distributed.group import Bytes, Group
from islices.distributed.strategy import STRATEGIES, Strategy
from islices.distributed.wire import pack
from islices.slices import IndexedSlices

__all__ = ["MEASURED", "Measured", "MeasuredWay", "fits", "measure", "measure_rank"]

MEASURED = ("raw", *STRATEGIES)
#: Processes on one machine that would talk through shared memory: over its network, as on many.
ENVIRONMENTS = {"mpi": {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "MPIR_CVAR_NOLOCAL": "1"}}
NETWORK, MEMORY = Path("/proc/net/dev"), Path("/proc/meminfo")
#: Bytes of a short message, and the least and the most of a long one.
SHORT, LONG, LONGEST = 256, 1 << 16, 1 << 25
#: Rounds in which "dense" takes part: it may take seconds.
DENSE_ROUNDS = 3
#: Seconds for everything: a machine may be busy.
DEADLINE = 600.0


class MeasuredWay(NamedTuple):
    """What a way took, medians over rounds.

    Attributes
    ----------
    received : float
        Payload bytes, a rank's average.
    on_wire : float or None
        Bytes that the loopback carried, divided by the ranks; None where the system does not count them.
    collectives : int
    network : float
        Seconds in collectives: of each of them the time of the rank that came last, since others wait for it first.
    seconds : float
        Of the whole call, on the rank that took longest.
    """

    received: float
    on_wire: float | None
    collectives: int
    network: float
    seconds: float


class Measured(NamedTuple):
    """A run of some ranks, and the plan for the link as it was found then.

    ``distinct`` is the average number of different rows that a rank drew.
    """

    engine: str
    link: Link
    plan: Plan
    ways: dict[str, MeasuredWay]
    distinct: float

    def as_json(self) -> dict[str, Any]:
        return {
            "engine": self.engine, "bandwidth": self.link.bandwidth, "latency": self.link.latency,
            "plan": self.plan.as_json(), "ways": {name: way._asdict() for name, way in self.ways.items()},
            "distinct": self.distinct,
        }  # fmt: skip


def fits(work: Workload, ranks: int, name: str) -> bool:
    """Whether half of this machine's free memory holds what so many ranks need for a way, their slices included."""
    needed = ranks * (make_plan(work, ranks, Link()).ways[name].memory + 2 * work.ids * work.row_bytes)
    free = [int(line.split()[1]) * 1024 for line in _lines(MEMORY) if line.startswith("MemAvailable:")]
    return needed <= (free[0] if free else 1 << 33) / 2


def measure(work: Workload, engine: str, ranks: int, *, rounds: int = 7, seed: int = 0) -> Measured:
    """Run every way on so many processes of this machine.

    Parameters
    ----------
    work : Workload
    engine : str
        Of `islices.conformance.ranks`.
    ranks : int
    rounds : int
        In each of them every way runs once; "dense" in `DENSE_ROUNDS` at most.
    seed : int
        Of ids and values.

    Raises
    ------
    AssertionError
        A process failed; the message has its traceback.
    """
    ways = [name for name in MEASURED if name != "dense" or fits(work, ranks, name)]
    keywords = {
        "work": (work.rows, work.dim, work.ids, work.exponent, work.dtype),
        "ways": ways, "rounds": rounds, "seed": seed,
    }  # fmt: skip
    found = run_ranks(
        engine, ranks, f"{__name__}:measure_rank", keywords, timeout=120.0, deadline=DEADLINE,
        environment=ENVIRONMENTS.get(engine),
    ).values  # fmt: skip
    link = _link([each["alone"] for each in found])
    done = {name: _combined([each["ways"][name] for each in found]) for name in ways}
    return Measured(found[0]["engine"], link, make_plan(work, ranks, link), done, _mean([x["distinct"] for x in found]))


def _link(of_ranks: Sequence[Mapping[int, list[list[float]]]]) -> Link:
    """The latency of short collectives, the bandwidth of long ones: of both kinds of collective, the mean."""
    others = len(of_ranks) - 1
    short, long = sorted(of_ranks[0])
    seconds = {}
    for length in (short, long):
        rounds = [_last(times) for times in zip(*(each[length] for each in of_ranks), strict=True)]
        seconds[length] = _mean([median(kind) for kind in zip(*rounds, strict=True)])
    # a busy machine may hold up short ones more than long ones: all of the long ones' time is the bandwidth's then
    beyond = seconds[long] - seconds[short] if seconds[long] > seconds[short] else seconds[long]
    return Link(bandwidth=(long - short) * others / beyond, latency=seconds[short] / others)


def _last(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    """Collective by collective the time of the rank that came last: the shortest one."""
    return [min(times) for times in zip(*of_ranks, strict=True)]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _combined(of_ranks: Sequence[Mapping[str, Any]]) -> MeasuredWay:
    wire = [x for x in of_ranks[0]["on_wire"] if x is not None]  # rank 0 has read it, for all
    return MeasuredWay(
        received=_mean([each["received"] for each in of_ranks]),
        on_wire=median(wire) / len(of_ranks) if wire else None,
        collectives=of_ranks[0]["collectives"],
        network=median(sum(_last(times)) for times in zip(*(each["network"] for each in of_ranks), strict=True)),
        seconds=median(max(times) for times in zip(*(each["seconds"] for each in of_ranks), strict=True)),
    )


# ---------------------------------------------------------------------- what each rank runs
class _Watched(Group):
    """A group that takes the time of every collective."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self.engine, self.group = group.engine, group
        self.times: list[float] = []

    def _all_gather(self, data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        return self._watch(lambda: self.group._all_gather(data, lengths))

    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        return self._watch(lambda: self.group._all_to_all(parts, lengths))

    def _watch(self, collective: Callable[[], list[Bytes]]) -> list[Bytes]:
        started = time.perf_counter()
        got = collective()
        self.times.append(time.perf_counter() - started)
        return got

    def meet(self) -> None:
        """Wait for all ranks."""
        self.group.all_gather(np.zeros(8, np.uint8))


def measure_rank(group: Group, work: tuple[Any, ...], ways: Sequence[str], rounds: int, seed: int) -> dict[str, Any]:
    """The times and bytes of one rank: of collectives alone, then of every way in every round."""
    load, watched = Workload(*work), _Watched(group)
    slices = _gradient(load, np.random.default_rng([seed, group.rank]))
    found: dict[str, Any] = {"engine": group.engine, "distinct": len(np.unique(slices.indices))}
    usual = int(load.distinct * load.row_bytes)  # on every rank alike: messages as long as those to come
    found["alone"] = {SHORT: [], min(LONGEST, max(LONG, usual)): []}
    found["ways"] = {name: {"network": [], "seconds": [], "on_wire": []} for name in ways}
    for number in range(-1, rounds):  # the first one warms up
        for length, times in found["alone"].items():  # amid the rest: a machine is not as busy at all times
            taken = _alone(watched, length)
            times += [taken] if number >= 0 else []
        first = number % len(ways)
        for name in (*ways[first:], *ways[:first]):
            if name == "dense" and number >= DENSE_ROUNDS:
                continue
            seconds, wire = _timed(watched, name, slices)
            record: Any = found["ways"][name]
            traffic = watched.traffic
            record |= {"received": traffic.received, "collectives": traffic.collectives}
            if number >= 0:
                record["network"].append(watched.times)
                record["seconds"].append(seconds)
                record["on_wire"].append(wire)
    return found


def _gradient(work: Workload, rng: np.random.Generator) -> IndexedSlices:
    if work.dtype == "bfloat16":
        import ml_dtypes  # noqa: F401  NumPy has no such type before
    ids = work.zipf.draw(work.ids, rng)
    values = rng.standard_normal((work.ids, work.dim), np.float32).astype(work.dtype)
    return IndexedSlices(values, ids, (work.rows, work.dim))


def _timed(group: _Watched, name: str, slices: IndexedSlices) -> tuple[float, int | None]:
    """(seconds, bytes that this machine's loopback has carried meanwhile); times and traffic of the group are this
    call's."""
    group.meet()
    before = _carried() if group.rank == 0 else None
    group.meet()
    group.times = []
    group.traffic.reset()
    started = time.perf_counter()
    if name == "raw":  # nothing is summed, neither before nor after
        group.all_gather(pack(Sparse(slices.values, slices.indices, slices.dense_shape[0]).arrays()))
    else:
        all_reduce(slices, group=group, strategy=cast("Strategy", name))
    seconds = time.perf_counter() - started
    group.meet()
    after = _carried() if group.rank == 0 else None
    return seconds, None if before is None or after is None else after - before


def _alone(group: _Watched, length: int) -> list[float]:
    """The seconds of an all_gather and of an all_to_all of so many bytes to each rank."""
    data = np.ones(length, np.uint8)
    group.meet()
    group.times = []
    group.all_gather(data)
    group.meet()
    group.all_to_all([data] * group.size, [length] * group.size)
    return group.times


def _carried() -> int | None:
    """Bytes that the loopback has received since this machine started; None where the system does not say."""
    for line in _lines(NETWORK):
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return None


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []
