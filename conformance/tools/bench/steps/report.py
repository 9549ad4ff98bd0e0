"""The tables of the part "step"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from islices.conformance.tools.bench.results import of_part
from islices.conformance.tools.bench.tables import Table, figures, name_of

__all__ = ["tables"]

HEADS = ("backend", "step", "way", "ms", "x copy", "x own")
WORDS = frozenset({"backend", "step", "way"})


def tables(run: dict[str, Any]) -> Iterable[Table]:
    """One a model, a line a way, the fastest first; x copy: times the copy of the bytes that must move; x own: how many
    times as fast as the fastest own way of the same step."""
    models: dict[str, list[dict[str, Any]]] = {}
    for record in of_part(run, "step"):
        models.setdefault(_described(record), []).append(record)
    for title, records in models.items():
        lines = [line for record in records for line in _lines(record)]
        yield Table(title, HEADS, lines, WORDS, ("step",))
    remarks = {
        f"{record['backend']} {record['operation']}, {label}: {said}": None
        for record in of_part(run, "step")
        for label, said in record["remarks"].items()
    }
    if remarks:
        yield Table("\n".join(remarks), (), [])


def _described(record: dict[str, Any]) -> str:
    model = record["case_of"]["model"]
    rows = model["rows"]
    tables = f"{rows[0]:,} x {model['dim']}" if len(rows) == 1 else (
        f"{len(rows)} tables of {rows[0]:,} to {rows[-1]:,} rows x {model['dim']}"
    )  # fmt: skip
    ids = "one Zipf(1.1) id each" if model["ids"] == 1 else f"{model['ids']} Zipf(1.1) ids each"
    return (
        f"whole steps: lookup, loss, gradient, optimizer; {tables} float32, {model['bags']:,} bags of {ids}; x copy: "
        "times a copy of the bytes that must move; x own: times as fast as the fastest own way of the same step"
    )


def _lines(record: dict[str, Any]) -> list[list[str]]:
    start = [name_of(record), record["operation"]]
    lines, times = [], record["milliseconds"]
    for label in sorted(times, key=times.__getitem__):
        cells = [label, figures(times[label]), f"{record['over_limit'][label]:.1f}"]
        lines.append([*start, *cells, f"{record['times_as_fast'][label]:.2f}"])
        start = ["", ""]
    limit = record["limit"]
    lines.append([*start, f"a copy of {limit['bytes'] / 1e6:.1f} MB", figures(limit["milliseconds"]), "1.0", ""])
    return lines
