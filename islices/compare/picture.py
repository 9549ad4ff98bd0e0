"""A picture of the rows that differ: which, and by how much. Needs matplotlib (extra `plot`)."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from islices.compare.measure import TensorDifference
from islices.compare.stored import Array
from islices.figures import new_figure

if TYPE_CHECKING:
    from islices.compare.difference import Difference

__all__ = ["draw"]

#: Told apart by shape as well as by colour.
STYLES = {"both": ("#0072b2", "o"), "only_a": ("#d55e00", "^"), "only_b": ("#009e73", "v")}
#: More rows than this are drawn by bins: the largest and the median one of each.
POINTS, BINS = 2000, 400
#: More tensors than this are not drawn one by one.
PANELS = 12


def draw(found: Difference, path: Any) -> None:
    """Write the picture: a panel for each tensor that differs, the first twelve; the suffix says the format."""
    differing = [t for t in found.tensors if not t.equal]
    shown = differing[:PANELS]
    figure = new_figure(9.0, 1.6 + 3.2 * max(1, len(shown)), dpi=120)
    axes = figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0]
    for ax, t in zip(axes, shown, strict=False):
        _panel(ax, t, found.names)
    if not shown:
        _say(axes[0], "no row differs" if found.equal else "no tensor that both sides have differs")
    figure.suptitle(_title(found, len(differing) - len(shown)), fontsize=11)
    figure.savefig(path)


def _title(found: Difference, left_out: int) -> str:
    a, b = found.names
    if found.equal:
        return f"{a} and {b} are equal"
    lines = [f"Rows that differ between {a} and {b}"]
    if found.causes:
        lines += _wrapped("; ".join(c.text for c in found.causes[0].causes))
    if left_out:
        lines.append(f"({left_out} more tensors differ)")
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100)


def _say(ax: Any, text: str) -> None:
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
    ax.set_axis_off()


def _panel(ax: Any, t: TensorDifference, names: tuple[str, str]) -> None:
    shape = "x".join("?" if n is None else f"{n:,}" for n in t.shapes[0])
    ax.set_title(f"{t.name or 'the tensor'}  ({t.dtypes[0]}, {shape})", fontsize=10, loc="left")
    if not t.comparable:
        _say(ax, f"rows have shapes {t.shapes[0][1:]} and {t.shapes[1][1:]}")
        return
    labels = {
        "both": "in both, different: |difference|",
        "only_a": f"only in {names[0]}: |value|",
        "only_b": f"only in {names[1]}: |value|",
    }
    kinds = {kind: gaps for kind, gaps in t.row_gaps.items() if len(gaps[0])}
    if not kinds:
        _say(ax, "all rows are the same; types or shapes differ")
        return
    sizes = np.concatenate([gaps[1] for gaps in kinds.values()])
    floor, top = _limits(sizes)
    for kind in sorted(kinds, key=lambda kind: kind == "both"):  # what differs in both lies on top
        rows, gaps = kinds[kind]
        colour, marker = STYLES[kind]
        label = f"{labels[kind]} ({len(rows):,} rows)"
        _points(ax, rows, np.clip(np.nan_to_num(gaps, nan=top, posinf=top), floor, top), colour, marker, label)
    _frame(ax, t, kinds, (floor, top))


def _limits(sizes: Array) -> tuple[float, float]:
    """The vertical range: half a decade below the smallest and above the largest; zeros lie on the lower edge, what is
    not finite on the upper one."""
    real = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not len(real):
        return 0.1, 10.0
    low, high = float(real.min()), float(real.max())
    return 10 ** (math.floor(2 * math.log10(low)) / 2 - 0.5), 10 ** (math.ceil(2 * math.log10(high)) / 2 + 0.5)


def _points(ax: Any, rows: Array, gaps: Array, colour: str, marker: str, label: str) -> None:
    if len(rows) <= POINTS:
        size = 7 if len(rows) <= 60 else 4 if len(rows) <= 500 else 2.5
        ax.plot(rows, gaps, marker, color=colour, markersize=size, linestyle="none", label=label, alpha=0.85)
        return
    edges = np.linspace(rows.min(), rows.max() + 1, BINS + 1)
    place = np.digitize(rows, edges) - 1
    order = np.lexsort([gaps, place])
    bins, starts = np.unique(place[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    ordered, middle = gaps[order], (edges[bins] + edges[bins + 1]) / 2
    ax.plot(middle, ordered[ends - 1], marker, color=colour, markersize=3, linestyle="none", label=label)
    ax.plot(middle, ordered[(starts + ends) // 2], color=colour, linewidth=1.2, label=f"the median row of {BINS} bins")


def _frame(ax: Any, t: TensorDifference, kinds: dict[str, tuple[Array, Array]], limits: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    floor, top = limits
    sizes = np.concatenate([gaps[1] for gaps in kinds.values()])
    ax.set_yscale("log")
    ax.set_ylim(floor / 1.3, top * 1.3)
    count = t.shapes[0][0] if t.shapes[0] else None
    last = max(int(rows.max()) for rows, _ in kinds.values())
    right = last + 1 if count is None or count > 50 * (last + 1) else count
    ax.set_xlim(-0.02 * right - 0.5, 1.02 * right + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.set_xlabel("row")
    ax.set_ylabel("largest in the row")
    if (sizes == 0).any():
        ax.annotate("rows of zeros", (0.005, 0.02), xycoords="axes fraction", fontsize=7, color="#555555")
    if not np.isfinite(sizes).all():
        ax.annotate("not finite", (0.005, 0.94), xycoords="axes fraction", fontsize=7, color="#555555")
    ax.grid(color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
