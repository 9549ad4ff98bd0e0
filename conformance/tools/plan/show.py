"""Plans as tables on a terminal, of 60 columns and more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from islices.conformance.report.terminal import new_console
from islices.conformance.tools.plan.measure import Measured
from islices.conformance.tools.plan.model import WAYS, Plan, Way, Workload
from islices.conformance.tools.plan.words import of_bytes, of_seconds, three_figures
from islices.distributed.strategy import Link

__all__ = ["show", "show_measured"]

#: What is shown of every way for every number of ranks.
FIGURES: dict[str, Callable[[Way], str]] = {
    "bytes that a rank receives": lambda way: of_bytes(way.nbytes),
    "time on the network": lambda way: of_seconds(way.seconds),
    "memory of a rank beside its own slices": lambda way: of_bytes(way.memory),
}

#: A terminal narrower than this loses the columns that can be worked out from others.
NARROW = 80
#: How many times the average's time the busiest rank of a sharded table takes before it is spoken of.
NOTABLE = 1.5


def show(work: Workload, link: Link, plans: Sequence[Plan], changes: Sequence[tuple[int, str, str]]) -> None:
    """What is asked, then the tables: way by way for one number of ranks, else rank by rank."""
    console = new_console()
    say = _sayer(console)
    say(
        f"{work.rows:,} rows x {work.dim:,} {work.dtype}, {of_bytes(work.table_bytes)}; {work.ids:,} ids a rank and "
        f"step by {_law(work)}: {work.distinct:,.0f} different rows ({of_bytes(work.distinct * work.row_bytes)} of "
        f"{of_bytes(work.ids * work.row_bytes)})"
    )
    say(f"a rank receives {of_bytes(link.bandwidth)}/s, a message takes {of_seconds(link.latency)}")
    say("")
    if len(plans) == 1:
        _one(console, plans[0])
    else:
        _several(console, plans)
    for ranks, before, after in changes:
        say(f"from {ranks:,} ranks on all_reduce takes {after} instead of {before}")
    say("")
    _answer(say, work, plans[-1])
    say("")
    say(
        "bytes, time and memory are a rank's, of one step; time is the network's alone. raw: all-gather of slices as "
        "they are (Horovod, TensorFlow); gather, ranges, dense: all_reduce; sharded: ShardedTable, busiest: its rank "
        "that owns the most wanted rows. More: islices plan --help",
        style="dim",
    )


def _answer(say: Any, work: Workload, plan: Plan) -> None:
    """What a job of so many ranks moves and holds, table on every rank or not, in two sentences."""
    ways, ranks, table = plan.ways, plan.ranks, work.table_bytes
    taken, sharded = ways[plan.takes], ways["sharded"]
    say(
        f"{ranks:,} ranks, the table on each ({of_bytes(table)}): all_reduce takes {plan.takes}, "
        f"{of_bytes(taken.nbytes)} and {of_seconds(taken.seconds)} a step, where raw is {of_bytes(ways['raw'].nbytes)} "
        f"and dense {of_bytes(ways['dense'].nbytes)}"
    )
    text = (
        f"{ranks:,} ranks, a ShardedTable ({of_bytes(table / ranks)} of it on each): {of_bytes(sharded.nbytes)} and "
        f"{of_seconds(sharded.seconds)} a step"
    )
    if plan.busiest_seconds > NOTABLE * sharded.seconds:
        text += (
            f"; {of_seconds(plan.busiest_seconds)} if the rows that come up most often are neighbours: number them in "
            "a random order"
        )
    say(text)


def show_measured(found: Sequence[Measured]) -> None:
    """What was expected of each way, and what came."""
    console = new_console()
    say = _sayer(console)
    say("")
    say(f"measured in processes of this machine, over loopback: {found[0].engine}")
    for run in found:
        factor = run.ways["raw"].received / run.ways[run.plan.takes].received
        say(
            f"{run.plan.ranks} processes: {of_bytes(run.link.bandwidth)}/s, {of_seconds(run.link.latency)} a message, "
            f"{run.distinct:,.0f} different rows a rank; all_reduce takes {run.plan.takes}, which moved "
            f"{three_figures(factor)} times fewer bytes than raw"
        )
    say("")
    console.print(_measured_table(found, console.width))
    say("")
    say(
        "bytes: what a rank received beside the plan; wire: what the loopback carried, headers included, over bytes; "
        "network: time in collectives beside the plan; call: summing and packing included, of the slowest rank",
        style="dim",
    )


# ---------------------------------------------------------------------- tables
def _one(console: Any, plan: Plan) -> None:
    heads = ["\nbytes", "collec-\ntives", "\ntime", "\nmemory", "bytes\nof raw"]
    table = _table([f"\n{plan.ranks:,} ranks", *heads])
    for name in WAYS:
        way = plan.ways[name]
        cells = [of_bytes(way.nbytes), str(way.collectives), of_seconds(way.seconds), of_bytes(way.memory)]
        part = 100 * way.nbytes / plan.ways["raw"].nbytes
        table.add_row(
            name,
            *cells,
            f"{three_figures(part) if part >= 1 else f'{part:.2g}'}%",
            style="bold" if name == plan.takes else None,
        )
    sharded = plan.ways["sharded"]
    table.add_row("  busiest", of_bytes(plan.busiest * sharded.nbytes), "", of_seconds(plan.busiest_seconds), "", "")
    console.print(table)
    say = _sayer(console)
    say("")
    say(f"different rows of all ranks together: {plan.union:,.0f}")


def _several(console: Any, plans: Sequence[Plan]) -> None:
    say = _sayer(console)
    for title, cell in FIGURES.items():
        timed = title.startswith("time")
        say(title, "italic")
        table = _table(["ranks", *WAYS, *(["busiest"] if timed else [])])
        for plan in plans:
            cells = [f"{plan.ranks:,}"]
            for name in WAYS:
                text = cell(plan.ways[name])
                cells.append(f"[bold]{text}[/]" if name == plan.takes else text)
            table.add_row(*cells, *([of_seconds(plan.busiest_seconds)] if timed else []))
        console.print(table)
        say("")
    say("what all_reduce takes; times fewer bytes than raw, dense", "italic")
    table = _table(["ranks", "takes", "bytes", "time", "raw /", "dense /", "all rows"], left=2)
    for plan in plans:
        taken = plan.ways[plan.takes]
        factors = [_factor(plan.fewer(other)) for other in ("raw", "dense")]
        figures = of_bytes(taken.nbytes), of_seconds(taken.seconds), *factors, f"{plan.union:,.0f}"
        table.add_row(f"{plan.ranks:,}", plan.takes, *figures)
    console.print(table)
    say("")


def _measured_table(found: Sequence[Measured], width: int) -> Any:
    heads = ["", "way", "bytes,\nplan", "\ncame", "\nratio", "\nwire", "time,\nplan", "\nnetwork", "\nratio", "\ncall"]
    kept = [k for k in range(len(heads)) if width >= NARROW or k not in (4, 5, 8)]
    table = _table([heads[k] for k in kept], left=2)
    for run in found:
        for name, way in run.ways.items():
            plan = run.plan.ways[name]
            cells = [
                f"{run.plan.ranks}", name, of_bytes(plan.nbytes), of_bytes(way.received),
                f"{way.received / plan.nbytes:.3f}",
                "" if way.on_wire is None else f"{way.on_wire / way.received:.3f}",
                of_seconds(plan.seconds), of_seconds(way.network), f"{way.network / plan.seconds:.2f}",
                of_seconds(way.seconds),
            ]  # fmt: skip
            table.add_row(*(cells[k] for k in kept), style="bold" if name == run.plan.takes else None)
        if "dense" not in run.ways:
            table.add_row(f"{run.plan.ranks}", "dense", "too large")
    return table


def _table(heads: Sequence[str], left: int = 1) -> Any:
    """Without rows; so many of the columns are of words."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for k, head in enumerate(heads):
        table.add_column(head, justify="left" if k < left else "right", no_wrap=True)
    return table


# ---------------------------------------------------------------------- words
def _sayer(console: Any) -> Any:
    return lambda text, style=None: console.print(text, highlight=False, markup=False, style=style)


def _law(work: Workload) -> str:
    return f"Zipf's law, exponent {work.exponent:g}" if work.exponent else "equal chances"


def _factor(x: float) -> str:
    return three_figures(x) if x < 9999.5 else f"{x:.0e}"
