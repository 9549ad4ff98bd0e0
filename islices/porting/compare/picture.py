"""A picture of the differing rows and their differences. Needs matplotlib (extra `plot`)."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from islices.porting.compare.measure import TensorDifference
from islices.porting.reports import new_figure

if TYPE_CHECKING:
    from islices.porting.compare.difference import Difference

#: Kind of row -> colour, marker and label; {} is the side's name.
STYLES = {
    "only_a": ("#d55e00", "^", "only in {}: |value|"),
    "only_b": ("#009e73", "v", "only in {}: |value|"),
    "both": ("#0072b2", "o", "in both, different: |difference|"),
}
#: Tensors that are drawn.
PANELS = 12


def draw(found: Difference) -> Any:
    """Return the picture, with a panel for each of the first twelve tensors that differ."""
    shown = [t for t in found.tensors if not t.equal][:PANELS]
    figure = new_figure(9.0, 1.6 + 3.2 * max(1, len(shown)))
    axes = figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0]
    for ax, t in zip(axes, shown, strict=False):
        _panel(ax, t, found.names)
    a, b = found.names
    title = f"{a} and {b} are equal" if found.equal else f"Rows that differ between {a} and {b}"
    causes = "; ".join(c.text for e in found.causes[:1] for c in e.causes)
    figure.suptitle("\n".join([title, *textwrap.wrap(causes, 100)]), fontsize=11)
    return figure


def _panel(ax: Any, t: TensorDifference, names: tuple[str, str]) -> None:
    """Draw the largest number of each differing row. The axis cannot show zeros and numbers that are not finite."""
    shape = "x".join("?" if n is None else f"{n:,}" for n in t.shapes[0])
    ax.set_title(f"{t.name or 'the tensor'}  ({t.dtypes[0]}, {shape})", fontsize=10, loc="left")
    for kind, (colour, marker, label) in STYLES.items():
        rows, gaps = t.row_gaps.get(kind, (np.zeros(0), np.zeros(0)))
        drawn = np.isfinite(gaps) & (gaps > 0)
        if len(rows):
            label = f"{label.format(names[kind == 'only_b'])} ({len(rows):,} rows)"
            ax.plot(rows[drawn], gaps[drawn], marker, color=colour, markersize=3, alpha=0.85, label=label)
    ax.set_yscale("log")
    ax.set_xlabel("row")
    ax.set_ylabel("largest in the row")
    ax.grid(color="#dddddd", linewidth=0.6)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=8, frameon=False)
