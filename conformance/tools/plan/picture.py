"""Time and bytes of each way against the number of ranks. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from islices.conformance.tools.plan.model import WAYS, Workload, crossovers, make_plan
from islices.conformance.tools.plan.words import of_bytes, of_seconds
from islices.distributed.strategy import Link
from islices.figures import new_figure

__all__ = ["draw"]

#: Told apart by those who see no colours, too.
STYLES = {
    "raw": ("#555555", "--", "raw: slices as they are (Horovod, TensorFlow)"),
    "gather": ("#0072b2", "-", "gather"),
    "ranges": ("#009e73", "-", "ranges"),
    "dense": ("#e69f00", "-.", "dense"),
    "sharded": ("#cc79a7", ":", "ShardedTable, average rank"),
}
POINTS = 48


def draw(work: Workload, link: Link, ranks: Sequence[int], path: str) -> None:
    """Write the picture, from the first of these numbers of ranks, at least two, to the last."""
    places = sorted({round(x) for x in np.geomspace(ranks[0], ranks[-1], POINTS)} | set(ranks))
    plans = [make_plan(work, R, link) for R in places]
    figure = new_figure(12.4, 5.2)
    axes = figure.subplots(1, 2)
    for ax, title in zip(axes, ("time on the network, a step", "bytes that a rank receives, a step"), strict=True):
        timed = title.startswith("time")
        for name in WAYS:
            colour, line, label = STYLES[name]
            curve = [p.ways[name].seconds if timed else p.ways[name].nbytes for p in plans]
            ax.plot(places, curve, color=colour, linestyle=line, linewidth=1.8, label=label)
        taken = [p.ways[p.takes].seconds if timed else p.ways[p.takes].nbytes for p in plans]
        ax.plot(places, taken, color="#000000", linewidth=6, alpha=0.16, label="what all_reduce takes")
        busiest = [p.busiest_seconds if timed else p.busiest * p.ways["sharded"].nbytes for p in plans]
        ax.plot(places, busiest, color="#cc79a7", linewidth=1.0, label="ShardedTable, busiest rank, rows by frequency")
        _axes(ax, title, ranks, of_seconds if timed else of_bytes)
    for R, _, after in crossovers(work, places, link):
        for ax in axes:
            ax.axvline(R, color="#333333", linewidth=0.8, linestyle=(0, (1, 3)))
        axes[0].annotate(
            f"{after} from {R:,} ranks", (R, 1), xycoords=("data", "axes fraction"), xytext=(3, -4), rotation=90,
            textcoords="offset points", fontsize=8, va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    law = f"Zipf {work.exponent:g}" if work.exponent else "uniform"
    figure.suptitle(
        f"{work.rows:,} rows x {work.dim:,} {work.dtype}, {work.ids:,} {law} ids a rank; {of_bytes(link.bandwidth)}/s, "
        f"{of_seconds(link.latency)} a message",
        fontsize=10,
    )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path)


def _axes(ax: Any, title: str, ranks: Sequence[int], words: Callable[[float], str]) -> None:
    ax.set_title(title, fontsize=10)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda y, _: words(y).replace(".00", "").replace(".0", ""))
    ax.set_xlabel("ranks")
    ticks = ranks if len(ranks) <= 12 else [ranks[0], ranks[-1]]
    ax.set_xticks(list(ticks), [f"{R:,}" for R in ticks], fontsize=8)
    ax.minorticks_off()
    ax.grid(color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
