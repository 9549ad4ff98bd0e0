"""A picture of a run: losses, and the largest gap between tables beside its bound. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from islices.conformance.tools.bench.plot import OTHERS, STYLES
from islices.figures import new_figure

__all__ = ["draw"]


def draw(run: Mapping[str, Any], path: str) -> None:
    """Write the picture of what `islices.conformance.tools.parity.report.as_json` gave."""
    figure = new_figure(12.4, 4.8)
    losses, gaps = figure.subplots(1, 2)
    _losses(losses, run)
    _gaps(gaps, run)
    for ax in (losses, gaps):
        ax.set_xlabel("step")
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.legend(fontsize=8, frameon=False)
    options = run["options"]
    upstream = {"own": "each with its own autodiff", "shared": "the same upstream gradients for all"}[
        options["upstream"]
    ]
    figure.suptitle(
        f"{options['model']} on {run['text']['name']}, {options['optimizer']}, {len(run['backends'])} backends from "
        f"one start: {upstream}, {run['date']}",
        fontsize=10,
    )  # fmt: skip
    figure.savefig(path)


def _losses(ax: Any, run: Mapping[str, Any]) -> None:
    """The curves lie on each other: each is thinner than the one beneath, and has its own marks."""
    steps = range(1, run["steps"] + 1)
    count = len(run["backends"])
    for k, (name, curve) in enumerate(run["backends"].items()):
        colour, marker = STYLES.get(name, OTHERS)
        every = max(1, run["steps"] // 10)
        ax.plot(
            steps, _numbers(curve["loss"]), color=colour, linewidth=2.0 + 1.6 * (count - 1 - k), marker=marker,
            markersize=5, markevery=(k * every // count, every), label=name, alpha=0.9,
        )  # fmt: skip
    for name, curve in run["own"].items():
        colour, _ = STYLES.get(name, OTHERS)
        ax.plot(
            steps, _numbers(curve["loss"]), color=colour, linewidth=1.2, linestyle="--", label=f"{name}'s own functions"
        )
    ax.set_title("loss of each batch", fontsize=10)


def _gaps(ax: Any, run: Mapping[str, Any]) -> None:
    steps = range(1, run["steps"] + 1)
    ax.set_title("largest difference between two backends' parameters", fontsize=10)
    if not any(run["gap"]) and not any(run["own_gap"]):
        ax.plot(steps, run["gap"], color="#333333", linewidth=2.0, label="any two backends: the same bits, every step")
        ax.set_ylim(-1, 1)
        ax.set_yticks([0], ["0"])
        return
    ax.set_yscale("log")
    if run["own"]:
        ax.plot(
            steps,
            _numbers(run["own_gap"]),
            color="#d55e00",
            linewidth=1.8,
            linestyle="-.",
            label="the frameworks' own functions",
        )
    if any(run["bound"]):
        ax.plot(
            steps,
            _numbers(run["bound"]),
            color="#333333",
            linewidth=1.4,
            linestyle="--",
            label="bound of the element that differs most",
        )
    ax.plot(steps, _numbers(run["gap"]), color="#0072b2", linewidth=2.2, label="islices, any two backends")
    if run["stop"]:
        ax.axvline(run["stop"]["step"], color="#cc79a7", linewidth=1.4, label=f"stopped at step {run['stop']['step']}")


def _numbers(curve: Sequence[float | None]) -> list[float]:
    """A gap of 0 has no place on a logarithmic axis, a loss that is no number none anywhere."""
    return [x or float("nan") for x in curve]
