"""The tables of a run: for a terminal, or as Markdown."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from islices.conformance.tools.bench import report_embedding, report_keras
from islices.conformance.tools.bench.cases import AXES, OPERATIONS, Benchmark
from islices.conformance.tools.bench.results import of_part
from islices.conformance.tools.bench.small import WAYS
from islices.conformance.tools.bench.steps import report as report_steps
from islices.conformance.tools.bench.tables import Table, figures, is_disturbed, name_of

__all__ = ["markdown", "show", "tables"]


# ---------------------------------------------------------------------- what a run says
def tables(run: dict[str, Any]) -> list[Table]:
    """All tables of a run; the first has no rows, and says where it was made."""
    machine, imports = run["machine"], run["import"]
    text = (
        f"{run['date'][:10]}, {machine['system']}, {machine['processor']}, {machine['cores']} cores, "
        f"{run['threads']} threads, Python {machine['python']}, NumPy {machine['numpy']}, islices {run['islices']}; "
        f"medians, {run['seconds']:.0f} s"
    )
    if imports:
        text += (
            f"\nimport islices {imports['islices'] * 1e3:.0f} ms, import numpy {imports['numpy'] * 1e3:.0f} ms, ratio "
            f"{imports['ratio']:.2f}"
        )
    disturbed = [r for r in run["records"] if is_disturbed(r)]
    if disturbed:
        text += (
            f"\ndisturbed (*): other processes used up to {max(r['others'] for r in disturbed):.1f} cores during "
            f"{len(disturbed)} of {len(run['records'])} measurements"
        )
    found = [
        Table(text, (), []),
        *report_steps.tables(run),
        *_operations(run),
        *_small(run),
        *_updates(run),
        *_memory(run),
    ]
    return [*found, *report_embedding.tables(run), *report_keras.tables(run), *_remarks(run)]


MODES = ("islices", "kernels off", "framework", "compiled")


def _operations(run: dict[str, Any]) -> Iterable[Table]:
    heads = (
        "backend", "slices", "dim", "ids", "types", "islices ms", "kernels off", "framework", "fastest own call",
        "own ms", "islices / own", "limit ms", "islices / limit", "scipy ms",
    )  # fmt: skip
    words = frozenset({"backend", "ids", "types", "fastest own call"})
    records = sorted(of_part(run, "operations"), key=_place(run))
    for operation in OPERATIONS:
        rows = []
        for record in records:
            case = Benchmark(**record["case"])
            if case.operation != operation:
                continue
            times = record["milliseconds"]
            start = [name_of(record), f"{case.slices:,}", str(case.dim), case.distribution]
            start += [f"{case.dtype}, {record['index_dtype']}", *(figures(times.get(mode)) for mode in MODES[:3])]
            end = [figures(record["limit"]["milliseconds"]), _times(record["over_limit"]["islices"])]
            end.append(figures(times.get("scipy csr.T @ v")))
            rows += _lines(record, record["own"], start, ("islices",), end)
        if rows:
            title = f"{operation}, milliseconds"
            yield Table(
                title, heads, rows, words, ("scipy ms", "kernels off", "framework", "limit ms", "islices / limit")
            )


def _place(run: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """By what lines are sorted: backends as they were measured, and of each the sizes in order."""
    backends = list(run["versions"])

    def place(record: dict[str, Any]) -> Any:
        case = Benchmark(**record["case"])
        kinds = (AXES[axis].index(getattr(case, axis)) for axis in ("dtype", "distribution"))
        return backends.index(record["backend"]), *kinds, case.index_dtype != "own", case.dim, case.slices

    return place


def _updates(run: dict[str, Any]) -> Iterable[Table]:
    heads = (
        "backend", "optimizer", "islices ms", "kernels off", "framework", "compiled", "limit ms", "islices / limit",
        "own step", "own ms", "islices / own", "compiled / own",
    )  # fmt: skip
    rows, size = [], {}
    for record in of_part(run, "updates"):
        times, size = record["milliseconds"], record["size"]
        start = [name_of(record), record["operation"], *(figures(times.get(mode)) for mode in MODES)]
        start += [figures(record["limit"]["milliseconds"]), _times(record["over_limit"]["islices"])]
        rows += _lines(record, sorted(record["ratios"], key=times.__getitem__), start, ("islices", "compiled"))
    if rows:
        title = (
            f"a step, uncoalesced gradient in: {size['slices']:,} Zipf(1.1) ids ({size['distinct']:,} distinct) over "
            f"{size['rows']:,} x {size['dim']} float32, milliseconds"
        )
        spare = ("kernels off", "framework", "compiled / own", "compiled", "limit ms")
        yield Table(title, heads, rows, frozenset({"backend", "optimizer", "own step"}), spare)


def _small(run: dict[str, Any]) -> Iterable[Table]:
    heads = ("backend", "operation", *(f"{way} us" for way in WAYS), "own call", "own us",
             *(f"{way} / own" for way in WAYS))  # fmt: skip
    rows, size = [], {}
    for record in of_part(run, "small"):
        times, size = record["milliseconds"], record["size"]
        start = [name_of(record), record["operation"], *(_micro(times.get(way)) for way in WAYS)]
        rows += _lines(record, sorted(record["ratios"], key=times.__getitem__), start, WAYS, time=_micro)
    if rows:
        title = f"small calls, {size['slices']} x {size['dim']} float32, microseconds; inside: builds the IndexedSlices"
        yield Table(title, heads, rows, frozenset({"backend", "operation", "own call"}), ("inside / own", "inside us"))


def _memory(run: dict[str, Any]) -> Iterable[Table]:
    heads = ("backend", "operation", "slices", "peak MiB", "returned MiB", "beside, bytes a slice", "allowed")
    rows = [
        [name_of(r), r["operation"], f"{r['slices']:,}", *(f"{r[k] / 2**20:.1f}" for k in ("peak", "returned")),
         f"{r['a_slice']:.0f}", str(r["allowed"])]
        for r in of_part(run, "memory")
    ]  # fmt: skip
    if rows:
        yield Table("memory that a call needs at its peak", heads, rows, frozenset({"backend", "operation"}))


def _remarks(run: dict[str, Any]) -> Iterable[Table]:
    """What was left out, and why, each once."""
    lines: dict[str, None] = {}
    for record in run["records"]:
        if "skipped" in record:
            lines[f"{record['backend']}, left out: {record['skipped']}"] = None
        for label, reason in record.get("failed", {}).items():
            lines[f"{record['backend']} {Benchmark(**record['case'])}, {label}: {reason}"] = None
    if lines:
        yield Table("\n".join(lines), (), [])


def _lines(
    record: dict[str, Any],
    labels: list[str],
    start: list[str],
    modes: Sequence[str],
    end: Sequence[str] = (),
    time: Callable[[float | None], str] = figures,
) -> list[list[str]]:
    """A line for each of these own ways, with the ratios of islices' modes to it; start and end stand in the first."""
    lines, times = [], record["milliseconds"]
    for label in labels or [""]:
        ratios = record["ratios"].get(label, {})
        lines.append([*start, label or "-", time(times.get(label)), *(_times(ratios.get(m)) for m in modes), *end])
        start, end = [""] * len(start), [""] * len(end)
    return lines


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _micro(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else figures(milliseconds * 1e3)


# ---------------------------------------------------------------------- how it is shown
def show(found: list[Table], options: argparse.Namespace) -> None:
    """Print tables: drawn on a terminal, Markdown elsewhere and where it is asked for. JSON has stdout to itself."""
    stream = sys.stderr if options.json == "-" else sys.stdout
    if stream.isatty() and not options.markdown and importlib.util.find_spec("rich"):
        from rich.console import Console

        console = Console(file=stream)
        for table in found:
            _draw(table, console)
        return
    print("\n\n".join("\n".join(markdown(table)) for table in found), file=stream)


def markdown(table: Table) -> list[str]:
    """The lines of a table, its title first."""
    if not table.heads:
        return table.title.splitlines()
    heads, words = list(table.heads), table.words
    widths = [max(len(row[k]) for row in [heads, *table.rows]) for k in range(len(heads))]

    def line(row: list[str]) -> str:
        place: list[Callable[[str, int], str]] = [str.ljust if head in words else str.rjust for head in heads]
        return f"| {' | '.join(put(c, w) for put, c, w in zip(place, row, widths, strict=True))} |"

    rule = ["-" * w if head in words else "-" * (w - 1) + ":" for head, w in zip(heads, widths, strict=True)]
    return [table.title, "", line(heads), f"| {' | '.join(rule)} |", *map(line, table.rows)]


def _draw(table: Table, console: Any) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table as Drawn

    console.print(escape(table.title), highlight=False)
    if not table.heads:
        console.print()
        return
    left = list(range(len(table.heads)))
    least = [_least(table, k) for k in left]
    for head in table.spare:
        if sum(2 + least[k] for k in left) <= console.width:
            break
        left.remove(table.heads.index(head))
    drawn = Drawn(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for k in left:
        head = table.heads[k]
        drawn.add_column(head, justify="left" if head in table.words else "right", overflow="fold", min_width=least[k])
    for row in table.rows:
        drawn.add_row(*(escape(row[k]) for k in left))
    needed = sum(2 + least[k] for k in left)
    # on a terminal that is too narrow even so, lines run over: nothing is cut off
    console.print(drawn, width=max(console.width, needed), crop=False)


def _least(table: Table, k: int) -> int:
    """The width that a column must have: words are not broken, but the names of own calls go over several lines."""
    head = table.heads[k]
    if head in table.words and head.startswith(("own", "fastest", "way")):
        return 20
    return max(*(len(word) for word in head.split()), *(len(row[k]) for row in table.rows))
