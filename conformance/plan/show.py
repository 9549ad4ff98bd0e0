"""Plans as tables on a terminal, of 60 columns and more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from islices.conformance.plan.measure import Measured
from islices.conformance.plan.model import WAYS, Plan, Way, Workload
from islices.conformance.plan.words import of_bytes, of_seconds, three_figures
from islices.conformance.report.terminal import new_console
from islices.distributed.strategy import Link

__all__ = ["show", "show_measured"]

#: What is shown of every way for every number of ranks.
FIGURES: dict[str, Callable[[Way], str]] = {
    "bytes that a rank receives": lambda way: of_bytes(way.nbytes),
    "time on the network": lambda way: of_seconds(way.seconds),
    "memory of a rank at its peak, beside its own slices": lambda way: of_bytes(way.memory),
}

#: A terminal narrower than this loses the columns that can be worked out from others.
NARROW = 80


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
    ends = plans if len(plans) < 3 else (plans[0], plans[-1])
    gains = ", ".join(f"{p.fewer('raw'):.1f} with {p.ranks:,} ranks" for p in ends)
    say(f"all_reduce moves fewer bytes than raw, times: {gains}")
    ranks = plans[-1].ranks
    say(
        f"the table itself: {of_bytes(work.table_bytes)} on every rank; sharded over {ranks:,} "
        f"{of_bytes(work.table_bytes / ranks)}"
    )
    say(
        "raw: all-gather of slices that are not coalesced; sharded: a step of ShardedTable, average over ranks, and "
        "its busiest rank where rows lie in the order of how often they come up. Times are of the network alone.",
        style="dim",
    )


def show_measured(found: Sequence[Measured]) -> None:
    """What was expected of each way, and what came."""
    console = new_console()
    say = _sayer(console)
    for run in found:
        say("")
        say(
            f"measured: {run.plan.ranks} processes, {run.engine}, loopback: {of_bytes(run.link.bandwidth)}/s, "
            f"{of_seconds(run.link.latency)} a message; {run.distinct:,.0f} different rows of a rank"
        )
        console.print(_measured_table(run, console.width))
        raw, taken = run.ways["raw"], run.ways[run.plan.takes]
        factor = raw.received / taken.received
        say(f"{run.plan.takes}, which all_reduce takes, moved {factor:.2f} times fewer bytes than raw")
    say("")
    say(
        "bytes that a rank receives; wire: what the loopback carried, headers included, over bytes; network: time in "
        "collectives, to be compared with the plan; call: with summing and packing, of the slowest rank.",
        style="dim",
    )


# ---------------------------------------------------------------------- tables
def _one(console: Any, plan: Plan) -> None:
    heads = ["bytes", "collectives", "time", "memory", "/ raw"]
    table = _table([f"{plan.ranks:,} ranks", *heads])
    for name in WAYS:
        way = plan.ways[name]
        cells = [of_bytes(way.nbytes), str(way.collectives), of_seconds(way.seconds), of_bytes(way.memory)]
        part = f"{way.nbytes / plan.ways['raw'].nbytes:.3g}"
        table.add_row(name, *cells, part, style="bold" if name == plan.takes else None)
    sharded = plan.ways["sharded"]
    table.add_row("  busiest", of_bytes(plan.busiest * sharded.nbytes), "", of_seconds(plan.busiest_seconds), "", "")
    console.print(table)
    say = _sayer(console)
    say("")
    say(f"all_reduce takes {plan.takes}; {plan.union:,.0f} different rows in all")


def _several(console: Any, plans: Sequence[Plan]) -> None:
    say = _sayer(console)
    for title, cell in FIGURES.items():
        timed = title.startswith("time")
        table = _table(["ranks", *WAYS, *(["busiest"] if timed else [])], title)
        for plan in plans:
            cells = [f"{plan.ranks:,}"]
            for name in WAYS:
                text = cell(plan.ways[name])
                cells.append(f"[bold]{text}[/]" if name == plan.takes else text)
            table.add_row(*cells, *([of_seconds(plan.busiest_seconds)] if timed else []))
        console.print(table)
        say("")
    heads = ["ranks", "all rows", "takes", "fewer:\nraw", "\ndense", "faster:\nraw", "\ndense"]
    table = _table(heads, "all_reduce: how many times fewer bytes, and how many times faster, than")
    for plan in plans:
        factors = [_factor(f(other)) for f in (plan.fewer, plan.faster) for other in ("raw", "dense")]
        table.add_row(f"{plan.ranks:,}", f"{plan.union:,.0f}", plan.takes, *factors)
    console.print(table)
    say("")


def _measured_table(run: Measured, width: int) -> Any:
    heads = ["", "bytes,\nplan", "came", "ratio", "wire", "time,\nplan", "network", "ratio", "call"]
    kept = [k for k in range(len(heads)) if width >= NARROW or k not in (3, 4)]
    table = _table([heads[k] for k in kept])
    for name, way in run.ways.items():
        plan = run.plan.ways[name]
        cells = [
            name, of_bytes(plan.nbytes), of_bytes(way.received), f"{way.received / plan.nbytes:.3f}",
            "" if way.on_wire is None else f"{way.on_wire / way.received:.3f}",
            of_seconds(plan.seconds), of_seconds(way.network), f"{way.network / plan.seconds:.2f}",
            of_seconds(way.seconds),
        ]  # fmt: skip
        table.add_row(*(cells[k] for k in kept), style="bold" if name == run.plan.takes else None)
    if "dense" not in run.ways:
        table.add_row("dense", *("not run: too large" if k == 1 else "" for k in kept[1:]))
    return table


def _table(heads: Sequence[str], title: str | None = None) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="italic", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column(heads[0], no_wrap=True)
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    return table


# ---------------------------------------------------------------------- words
def _sayer(console: Any) -> Any:
    return lambda text, style=None: console.print(text, highlight=False, markup=False, style=style)


def _law(work: Workload) -> str:
    return f"Zipf's law, exponent {work.exponent:g}" if work.exponent else "equal chances"


def _factor(x: float) -> str:
    return three_figures(x) if x < 9999.5 else f"{x:.0e}"
