"""A picture of two trainings: losses, and how far the tables are apart. Needs matplotlib (extra `plot`).

May import: `islices.figures`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from islices.figures import new_figure

if TYPE_CHECKING:
    from islices.trajectory.run import Parity

__all__ = ["draw"]

#: position -> colour and mark, told apart by both.
STYLES = {"outputs": ("#009e73", "v"), "gradients": ("#d55e00", "^"), "clipped": ("#cc79a7", "s")}


def draw(found: Parity, path: Any) -> None:
    """Write the picture; the suffix says the format."""
    figure = new_figure(12.4, 4.8)
    losses, gaps = figure.subplots(1, 2)
    _losses(losses, found)
    _gaps(gaps, found)
    for ax in (losses, gaps):
        ax.set_xlabel("step")
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize=8, frameon=False)
        if found.stop is not None:
            ax.axvline(found.stop.step, color="#cc79a7", linewidth=1.4)
    figure.suptitle(str(found).partition("\n")[0], fontsize=10)
    figure.savefig(path)


def _losses(ax: Any, found: Parity) -> None:
    ax.set_title("loss", fontsize=10)
    steps = [s.step for s in found.steps]
    for k, name in enumerate(found.names):
        curve = [s.loss[k] for s in found.steps]
        if not all(map(math.isnan, curve)):
            style = ("#0072b2", 3.6, "-") if k == 0 else ("#111111", 1.4, "--")
            ax.plot(steps, curve, color=style[0], linewidth=style[1], linestyle=style[2], label=name)


def _gaps(ax: Any, found: Parity) -> None:
    ax.set_title("how far apart", fontsize=10)
    curves = {"tables: largest difference": ([(s.step, s.gap) for s in found.steps], "#0072b2", "o")}
    for position, (colour, marker) in STYLES.items():
        points = [(s.step, s.positions[position].apart) for s in found.steps if position in s.positions]
        curves[f"{position}: of their norm"] = (points, colour, marker)
    drawn = False
    for label, (points, colour, marker) in curves.items():
        some = [(k, x) for k, x in points if x > 0 and math.isfinite(x)]
        if some:
            ax.plot(*zip(*some, strict=True), color=colour, marker=marker, markersize=3, linewidth=1.4, label=label)
            drawn = True
    if drawn:
        ax.set_yscale("log")
    else:
        ax.text(0.5, 0.5, "the same bits in every step", ha="center", va="center", transform=ax.transAxes)
