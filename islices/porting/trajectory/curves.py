"""A picture of two trainings, with their losses and the distance of their tables. Needs matplotlib (extra `plot`).

May import: `islices.porting.reports`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from islices.porting.reports import new_figure

if TYPE_CHECKING:
    from islices.porting.trajectory.trainings import Parity

#: Positions whose distances are drawn if both sides have them.
DRAWN = ("outputs", "gradients", "clipped")


def draw(found: Parity) -> Any:
    """Return the picture."""
    figure = new_figure(12.4, 4.8)
    losses, gaps = figure.subplots(1, 2)
    steps = [s.step for s in found.steps]
    losses.set_title("loss", fontsize=10)
    for k, (name, style) in enumerate(zip(found.names, ("-", "--"), strict=True)):
        losses.plot(steps, [s.loss[k] for s in found.steps], style, label=name)
    gaps.set_title("how far apart", fontsize=10)
    gaps.plot(steps, [s.gap or None for s in found.steps], "o-", markersize=3, label="tables: largest difference")
    for position in DRAWN:
        there = [(s.step, s.positions[position].apart or None) for s in found.steps if position in s.positions]
        if there:
            gaps.plot(*zip(*there, strict=True), "o-", markersize=3, label=f"{position}: of their norm")
    gaps.set_yscale("log")
    for ax in (losses, gaps):
        ax.set_xlabel("step")
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.legend(fontsize=8, frameon=False)
        if found.stop is not None:
            ax.axvline(found.stop.step, color="#cc79a7", linewidth=1.4)
    figure.suptitle(str(found).partition("\n")[0], fontsize=10)
    return figure
