"""Write the report of a `Parity` as text, and draw its losses and distances. The picture needs matplotlib (extra
`plot`).

May import: `islices.porting.reports`, this folder.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from islices.porting.reports import columns, new_figure
from islices.porting.trajectory.verdict import ORDER

if TYPE_CHECKING:
    from islices.porting.trajectory.trainings import Parity

#: position -> its description in the report
TITLES = {
    "batch": "the batch", "start": "tables and states before the first step",
    "between": "tables changed since the step before", "outputs": "forward outputs", "loss": "the loss",
    "gradients": "gradients", "clipped": "clipped gradients", "step": "the tables after the step",
    "state": "the optimizer's state after the step",
}  # fmt: skip

#: position -> advice to print if no cause is found at this position or at another position of the step
HINTS = {
    "batch": "hand both sides the same samples in one order: from a file, not shuffled",
    "start": "begin with one start: islices.save(path, tables) here, islices.load(path, backend=...) there",
    "between": "do on both sides what changes tables outside of the optimizer: a projection, a row kept at zero",
    "outputs": "batch and tables agree: the forward pass is another",
}  # fmt: skip
#: The positions whose distances are drawn if both sides have recorded them.
DRAWN = ("outputs", "gradients", "clipped")


def report(found: Parity) -> str:
    lines = [_verdict(found)]
    lines += [f"note: {note}" for note in found.notes]
    lines += ["", *_table(found)]
    stop = found.stop
    if stop is None:
        return "\n".join(lines + _unjudged(found))
    where = f"{TITLES[stop.position]}{f', {stop.tensor!r}' if stop.tensor else ''}"
    lines += ["", f"{where}: {_apart(stop.apart, stop.allowed)}"]
    if stop.position in HINTS and not stop.difference.causes and not stop.also:
        lines.append(f"hint: {HINTS[stop.position]}")
    if stop.position == "loss" and not stop.difference.causes:
        lines.append(
            "loss: " + ", ".join(f"{k} {x:.7g}" for k, x in zip(found.names, found.steps[-1].loss, strict=True))
        )
    else:
        lines += ["", str(stop.difference)]
    for position, more in stop.also.items():
        lines += ["", f"{TITLES[position]} of the same step say more:", "", str(more)]
    return "\n".join(lines)


def _verdict(found: Parity) -> str:
    a, b = found.names
    count = len(found.steps)
    if found.stop is None:
        if found.same_bits == count:
            return f"{a} and {b} are the same to the bit in {_steps(count)}"
        gap = max((s.gap for s in found.steps if not math.isnan(s.gap)), default=None)
        apart = "" if gap is None else f"; tables at most {gap:.2g} apart"
        return f"{a} and {b} are no further apart than rounding explains in {_steps(count)}{apart}"
    stop = found.stop
    before = "" if count == 1 else f"; rounding explains the {_steps(count - 1)} before"
    return f"{a} and {b} differ from step {stop.step}, in {TITLES[stop.position]}{before}"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def _apart(apart: float, allowed: float) -> str:
    if not allowed:
        return "no difference is allowed"
    return f"{apart:.3g} apart; rounding explains at most {allowed:.3g}"


def _table(found: Parity) -> list[str]:
    """Return the lines of a table. Each line below the header shows the distance that uses the largest share of its
    allowance at one position. The line also shows this share and the step."""
    rows = [("position", "largest gap", "of allowed", "at step")]
    for position in ORDER:
        steps = [s for s in found.steps if position in s.positions]
        if not steps:
            continue
        worst = max(steps, key=lambda s: s.positions[position].share if s.positions[position].judged else -1.0)
        at = worst.positions[position]
        if not at.judged:
            rows.append((position, f"{at.apart:.2g}", "not judged", str(worst.step)))
            continue
        share = "" if not at.apart else f"{100 * at.share:.2g} %" if at.share <= 1 else f"{at.share:.3g} x"
        rows.append((position, f"{at.apart:.2g}" if at.apart else "same", share, str(worst.step) if at.apart else ""))
    return columns(rows, "  ", (1, 2, 3))


def _unjudged(found: Parity) -> list[str]:
    first = next((s for s in found.steps if any(not p.judged for p in s.positions.values())), None)
    if first is None:
        return []
    return [
        f"from step {first.step} on the tables are {first.drift:.1e} of their norm apart, by rounding: outputs and "
        "gradients are no longer judged, steps are"
    ]


# ---------------------------------------------------------------------- the picture
def draw(found: Parity) -> Any:
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
