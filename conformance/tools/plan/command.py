"""`islices plan`: what is asked, and where the answer goes."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from typing import Any

from islices.cli import Command, UsageError
from islices.conformance.outputs import check_picture, check_writable, need_rich, write
from islices.conformance.progress import bar
from islices.conformance.ranks.launch import absent
from islices.conformance.tools.plan import words
from islices.conformance.tools.plan.measure import fits, measure
from islices.conformance.tools.plan.model import ITEM_BYTES, Plan, Workload, crossovers, make_plan
from islices.conformance.tools.plan.picture import draw
from islices.conformance.tools.plan.show import show, show_measured
from islices.distributed.engines import list_engines
from islices.distributed.strategy import Link

__all__ = ["COMMAND"]

#: Up to 1,024.
POWERS = ",".join(str(2**k) for k in range(1, 11))
#: How many processes are measured.
PROCESSES = (2, 4)

EPILOG = """\
ways
  raw       every rank's slices to every rank as they are: Horovod, TensorFlow
  gather    the same, after every rank has summed its duplicates
  ranges    summed by ranges of rows, a range a rank, then everybody gets the sums
  dense     the whole table, a ring all-reduce
  sharded   no all-reduce: ShardedTable, whose ranks own ranges of rows; ids to owners, rows back, gradients to owners
`islices.distributed.all_reduce` takes gather, ranges or dense, whichever the same formulas say is fastest on the link.

figures
  Ids are drawn independently by Zipf's law: row k with a chance of k^-s; s = 0 draws all rows alike. The expected
  number of different rows is exact within 1e-9 of it and a thousandth of a row.
  Time is bytes / bandwidth + messages * latency: every collective costs a message to each other rank. Computing is
  not in it. Engines that send short messages along trees do better with many ranks than the latency's part says.
  Memory is that of the exchange, at its peak: neither the table nor the optimizer's state is in it.
  "busiest" is the rank of a sharded table that owns the most wanted rows, where rows lie in that order.

measuring
  --measure runs raw, gather, ranges and dense in 2 and 4 processes of this machine over loopback, and between them
  bare collectives, from which the link's bandwidth and latency are taken. Bytes are counted by islices and by the
  system (/proc/net/dev, Linux). Expect bytes within 1 % of the plan, and the network's time 1 to 2.5 times the
  plan's where processes share cores (a rank that computes is late for the others), more where others use them too.

examples
  islices plan                                                 1e6 rows x 64, 2 to 1,024 ranks
  islices plan --rows 1e10 --dim 128 --batch 8192 --ids-per-sample 26 --bandwidth 100Gbit --latency 5us
  islices plan --ranks 16 --zipf 0                             one number of ranks, all ids alike
  islices plan --plot plan.png                                 time and bytes against ranks
  islices plan --measure                                       beside it what 2 and 4 processes really take
  islices plan --measure mpi --json - | python -m json.tool

exit codes: 0 planned, 2 usage, 3 a measured process failed
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--rows", type=words.count, default=10**6, metavar="N", help="of the table (default: 1e6)")
    add("--dim", type=words.count, default=64, metavar="D", help="elements of a row (default: %(default)s)")
    add("--batch", type=words.count, default=65_536, metavar="B", help="samples a rank and step (default: %(default)s)")
    add("--ids-per-sample", type=words.count, default=1, metavar="K", help="ids in each (default: %(default)s)")
    add("--zipf", type=words.exponent, default=1.1, metavar="S", help="exponent of the ids' law (default: %(default)s)")
    add("--dtype", choices=tuple(ITEM_BYTES), default="float32", help="of values (default: %(default)s)")
    add("--ranks", type=words.ranks, default=words.ranks(POWERS), metavar="R,R,...",
        help="(default: powers of two to 1024)")  # fmt: skip
    add("--bandwidth", type=words.bandwidth, default=Link().bandwidth, metavar="X",
        help="what a rank receives in a second: 1.25e9, 1.25GB/s, 10Gbit/s (default: 1GB/s)")  # fmt: skip
    add("--latency", type=words.latency, default=Link().latency, metavar="T",
        help="what a message takes however short it is: 3e-5, 30us (default: 30us)")  # fmt: skip
    add("--measure", nargs="?", const="", metavar="ENGINE",
        help=f"run it too, by {', '.join(list_engines())} (default: the first that is installed)")  # fmt: skip
    add("--rounds", type=words.count, default=7, metavar="N", help="of measuring (default: %(default)s)")
    add("--seed", type=words.seed, default=0, metavar="N", help="of measured ids (default: %(default)s)")
    add("--plot", metavar="FILE.png", help="draw time and bytes against ranks (needs matplotlib)")
    add(
        "--json", metavar="FILE", nargs="?", const="-", help="write everything to FILE (stdout, which then has no text)"
    )


def plan(options: argparse.Namespace) -> int:
    """Work it out, measure it if asked, and show."""
    need_rich()
    ids = options.batch * options.ids_per_sample
    if ids > words.LARGEST:
        raise UsageError(f"--batch, --ids-per-sample: got {ids:.1e} ids a rank; accepted are less than 2^63")
    work = Workload(options.rows, options.dim, ids, options.zipf, options.dtype)
    engine = _checked(options, work)
    link = Link(options.bandwidth, options.latency)
    plans = [make_plan(work, ranks, link) for ranks in options.ranks]
    changes = crossovers(work, options.ranks, link)
    if options.json != "-":
        show(work, link, plans, changes)
    if options.plot:
        draw(work, link, options.ranks, options.plot)
    measured = []
    if engine:
        try:
            measured = _measure(work, engine, options)
        except AssertionError as error:
            print(f"islices plan: could not measure: {error}", file=sys.stderr)
            return 3
    if options.json:
        write("--json", options.json, json.dumps(_as_json(work, link, plans, changes, measured), indent=1) + "\n")
    if measured and options.json != "-":
        show_measured(measured)
    return 0


COMMAND = Command(
    "bytes and time of each way to reduce sparse gradients over many ranks; measured, then tabulated", arguments, plan
)


def _checked(options: argparse.Namespace, work: Workload) -> str | None:
    """The engine to measure by, if any; what stands in the way is said before anything is done."""
    if options.plot:
        if len(options.ranks) < 2:
            raise UsageError(
                "--plot: got one number of ranks; accepted are at least two to draw between: --ranks 2,1024"
            )
        check_picture("--plot", options.plot)
    if options.json:
        check_writable("--json", options.json)
    if options.measure is None:
        return None
    able = [name for name in list_engines() if not absent(name)]
    if not options.measure and not able:
        raise UsageError("--measure: no engine can run here: " + "; ".join(absent(name) for name in list_engines()))
    engine = options.measure or able[0]
    if engine not in list_engines():
        raise UsageError(f"--measure: got {engine!r}; accepted are {', '.join(map(repr, list_engines()))}")
    if absent(engine):
        raise UsageError(f"--measure {engine}: {absent(engine)}")
    if options.dtype == "bfloat16" and importlib.util.find_spec("ml_dtypes") is None:
        raise UsageError('--measure: bfloat16 needs ml_dtypes: pip install "islices[io]"')
    if not fits(work, max(PROCESSES), "raw"):
        raise UsageError(
            f"--measure: {work.ids:,} ids x {work.dim:,} are too many for the free memory of this machine; accepted is "
            "a smaller --batch or --dim (dense, which the table's size decides, is left out where it does not fit)"
        )
    return engine


def _measure(work: Workload, engine: str, options: argparse.Namespace) -> list[Any]:
    found = []
    with bar("", len(PROCESSES), done=-1) as tell:  # told before each
        for ranks in PROCESSES:
            tell(f"{ranks} processes of {engine}")
            found.append(measure(work, engine, ranks, rounds=options.rounds, seed=options.seed))
    return found


def _as_json(
    work: Workload, link: Link, plans: list[Plan], changes: list[tuple[int, str, str]], measured: list[Any]
) -> dict[str, Any]:
    return {
        "workload": {
            "rows": work.rows, "dim": work.dim, "ids": work.ids, "zipf": work.exponent, "dtype": work.dtype,
            "row_bytes": work.row_bytes, "table_bytes": work.table_bytes, "distinct": work.distinct,
            "distinct_error": work.zipf.error(work.ids),
        },
        "link": {"bandwidth": link.bandwidth, "latency": link.latency},
        "plans": [one.as_json() for one in plans],
        "crossovers": [{"ranks": ranks, "before": before, "after": after} for ranks, before, after in changes],
        "measured": [one.as_json() for one in measured],
    }  # fmt: skip
