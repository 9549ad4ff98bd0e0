"""The tables of the parts that are measured when asked for: gradient, samples and growth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from islices.conformance.tools.bench.results import of_part
from islices.conformance.tools.bench.tables import Table, figures, name_of

__all__ = ["tables"]

MAPPED = "vmap(grad) by the gathered rows"


def tables(run: dict[str, Any]) -> list[Table]:
    """Those of the three whose part was measured."""
    return [*_gradient(run), *_samples(run), *_growth(run)]


def _gradient(run: dict[str, Any]) -> Iterable[Table]:
    heads = (
        "backend", "table rows", "ms", "peak MiB", "own sparse way", "own ms", "own peak MiB", "islices / own",
        "dense ms", "dense peak MiB", "floor ms",
    )  # fmt: skip
    rows, size = [], {}
    for r in sorted(of_part(run, "gradient"), key=lambda r: (r["backend"], r["variant"], r["rows"])):
        times, peaks, size = r["milliseconds"], r["peaks"], r["size"]
        own = next(label for label in peaks if label not in ("islices", "dense"))
        cells = [name_of(r), f"{r['rows']:,}", figures(times["islices"]), figures(peaks["islices"]), own]
        cells += [figures(times[own]), figures(peaks[own]), f"{r['ratios'][own]:.2f}"]
        rows.append([*cells, *(figures(x) for x in (times.get("dense"), peaks.get("dense"), times.get("floor")))])
    if rows:
        title = (
            f"gradient step: value_and_grad of sum(lookup(table, ids) * upstream), {size['ids']:,} Zipf(1.1) ids, "
            f"rows x {size['dim']} float32; peak: growth of resident memory in the first call on that table; floor: a "
            "copy of the rows in and of their gradient out"
        )
        spare = ("floor ms", "dense peak MiB", "dense ms", "own peak MiB")
        yield Table(title, heads, rows, frozenset({"backend", "own sparse way"}), spare)


def _samples(run: dict[str, Any]) -> Iterable[Table]:
    heads = ("backend", "islices ms", "backward passes ms", "passes / islices", "vmap(grad) ms", "vmap(grad) / islices")
    rows, size = [], {}
    for r in of_part(run, "samples"):
        times, ratios, size = r["milliseconds"], r["ratios"], r["size"]
        cells = [figures(times["islices"]), figures(times["one by one"]), f"{1 / ratios['one by one']:.1f}"]
        cells += [figures(times.get(MAPPED)), f"{1 / ratios[MAPPED]:.2f}" if MAPPED in ratios else "-"]
        rows.append([name_of(r), *cells])
    if rows:
        title = (
            f"per sample: norms and clipped sum of {size['batch']} samples of {size['ids']} Zipf(1.1) ids, "
            f"{size['rows']:,} x {size['dim']} float32 and a dense {size['dim']} x {size['out']}, against as many "
            "backward passes; MXNet, without a vmap: the table alone"
        )
        yield Table(title, heads, rows, frozenset({"backend"}))


def _growth(run: dict[str, Any]) -> Iterable[Table]:
    records = list(of_part(run, "growth"))
    if not records:
        return
    size = records[0]["size"]
    small, large = map(str, size["rows"])
    heads = ["backend", "optimizer", "way"]
    heads += [f"{int(rows):,} rows {unit}" for rows in (small, large) for unit in ("ms", "peak MiB")]
    rows = []
    for r in records:
        times, peaks = r["milliseconds"], r.get("peaks", {})
        cells = [figures(x) for rows_ in (small, large) for x in (times[rows_], peaks.get(rows_))]
        rows.append([name_of(r), r["operation"], r["mode"], *cells, f"{r['ratios'][large]:.2f}"])
    title = (
        f"a step while the table grows: {size['slices']:,} Zipf(1.1) ids, rows x {size['dim']} float32; peak: growth "
        "of resident memory in the first call on that table"
    )
    yield Table(title, (*heads, "large / small"), rows, frozenset({"backend", "optimizer", "way"}))
