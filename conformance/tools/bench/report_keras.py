"""The table of the part "keras"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from islices.conformance.tools.bench.keras_fit import STOCK
from islices.conformance.tools.bench.results import of_part
from islices.conformance.tools.bench.tables import Table, figures, name_of

__all__ = ["tables"]

HEADS = ("backend", "optimizer", "way", "ms a step", "times as fast", "peak MiB", "apart")


def tables(run: dict[str, Any]) -> Iterable[Table]:
    """A line a way, Keras's own first."""
    lines: list[list[str]] = []
    size, version = {}, ""
    for record in of_part(run, "keras"):
        size, version = record["size"], record["keras"]
        start = [name_of(record), record["operation"]]
        for label, ms in record["milliseconds"].items():
            slower, gap = record["ratios"][STOCK].get(label), record["apart"].get(label)
            cells = [label, figures(ms), figures(slower and 1 / slower), figures(record["peaks"][label])]
            lines.append([*start, *cells, "-" if gap is None else f"{gap:.1e}"])
            start = ["", ""]
    if lines:
        title = (
            f"model.fit of Keras {version}: {size['rows']:,} x {size['dim']} float32, {size['batch']} x {size['ids']} "
            f"ids a batch, epochs of {size['steps']} steps; times as fast: as Keras's own; peak: growth of resident "
            "memory in an epoch, beside model and state; apart: the tables' largest distance from Keras's after two "
            "epochs"
        )
        yield Table(title, HEADS, lines, frozenset({"backend", "optimizer", "way"}), ("apart",))
