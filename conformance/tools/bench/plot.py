"""A picture of a run: islices' time over the framework's own, against the number of slices. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from islices.cli import UsageError
from islices.conformance.tools.bench.cases import Benchmark
from islices.conformance.tools.bench.results import of_part
from islices.conformance.tools.bench.rounds import does_less
from islices.figures import new_figure

__all__ = ["draw", "series"]

#: Told apart by those who see no colours, too.
STYLES = {
    "numpy": ("#0072b2", "o"),
    "torch": ("#d55e00", "s"),
    "tensorflow": ("#e69f00", "^"),
    "jax": ("#009e73", "D"),
    "mxnet": ("#cc79a7", "v"),
}
OTHERS = ("#555555", "x")


def series(run: dict[str, Any], operation: str) -> dict[str, list[tuple[int, float, float]]]:
    """backend -> (slices, islices / own, limit / own), ascending: of the dim, ids and types with the most sizes."""
    groups: dict[tuple[Any, ...], dict[str, list[tuple[int, float, float]]]] = {}
    for record in of_part(run, "operations"):
        case = Benchmark(**record["case"])
        if case.operation != operation or not record["own"] or does_less(record["own"][0]):
            continue
        own = record["own"][0]
        limit = record["limit"]["milliseconds"] / record["milliseconds"][own]
        lines = groups.setdefault((case.dim, case.distribution, case.dtype, case.index_dtype), {})
        point = (case.slices, record["ratios"][own]["islices"], limit)
        lines.setdefault(f"{record['backend']} {record['version'].partition('+')[0]}", []).append(point)
    if not groups:
        return {}
    best = max(groups.values(), key=lambda lines: sum(map(len, lines.values())))
    return {name: sorted(points) for name, points in best.items()}


def draw(run: dict[str, Any], path: str) -> None:
    """Write the picture: a panel for each operation that was measured. UsageError where there is nothing to draw."""
    panels = {name: lines for name in ("coalesce", "clip_by_global_norm") if (lines := series(run, name))}
    if not panels:
        raise UsageError("--plot: the run has neither coalesce nor clip_by_global_norm; accepted is one with either")
    figure = new_figure(6.2 * len(panels), 4.8)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (operation, lines) in zip(axes, panels.items(), strict=True):
        _panel(ax, operation, lines)
    axes[0].set_ylabel("time of islices / time of the framework's own\n(below 1: islices is faster)")
    machine = run["machine"]
    figure.suptitle(
        f"islices beside each framework's fastest own formulation: {machine['cores']} cores, {run['threads']} threads, "
        f"{run['date'][:10]}",
        fontsize=10,
    )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path)


def _panel(ax: Any, operation: str, lines: dict[str, list[tuple[int, float, float]]]) -> None:
    for name, points in lines.items():
        colour, marker = STYLES.get(name.split()[0], OTHERS)
        slices, ratios, limits = zip(*points, strict=True)
        ax.plot(slices, ratios, color=colour, marker=marker, markersize=5, linewidth=1.8, label=name)
        ax.plot(slices, limits, color=colour, linestyle=":", linewidth=1.0)
    ax.plot([], [], color="#333333", linestyle=":", linewidth=1.0, label="dotted: the limit, a copy of the bytes")
    ax.axhline(1.0, color="#333333", linewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = sorted({n for points in lines.values() for n, _, _ in points})
    ax.set_xticks(ticks, [_short(n) for n in ticks])
    ax.minorticks_off()
    values = [y for points in lines.values() for _, *both in points for y in both]
    shown = _ticks(min(values), max(values))
    ax.set_yticks(shown, [f"{y:g}" for y in shown])
    ax.grid(color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.set_title(operation, fontsize=10)
    ax.set_xlabel("slices")


def _ticks(low: float, high: float) -> Sequence[float]:
    steps = [m * 10.0**e for e in range(-5, 5) for m in (1, 2, 5)]
    inside = [y for y in steps if low / 2.1 <= y <= high * 2.1]
    return inside if len(inside) <= 10 else [y for y in inside if f"{y:e}".startswith("1")]


def _short(n: int) -> str:
    return f"{n / 2**20:g}M" if n >= 2**20 else f"{n / 2**10:g}k" if n >= 2**10 else str(n)
