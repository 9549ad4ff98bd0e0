"""What came of a run: as JSON, and as a table on a terminal by rich."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from islices import __version__
from islices.conformance.outputs import print_text
from islices.conformance.report.terminal import new_console
from islices.conformance.tools.parity.run import Curve, Parity, Stop
from islices.conformance.tools.parity.text import Text

__all__ = ["as_json", "show"]

#: A bound above this part of a parameter's way proves little: a wrong factor would pass.
VAGUE = 1e-2


def as_json(parity: Parity, options: Mapping[str, Any], text: Text, versions: Mapping[str, str]) -> dict[str, Any]:
    """Everything about a run: what was asked for, and every curve. Numbers that are not finite are None."""
    stop = parity.stop
    return {
        "form": 1,
        "islices": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": dict(versions),
        "options": {k: _finite([v])[0] for k, v in options.items() if k not in ("command", "json", "plot")},
        "text": {"name": text.name, "words": len(text.vocabulary) - 1, "lines": len(text.lines)},
        "steps": len(parity.gap),
        "clipped": parity.clipped,
        "backends": {name: _curve(curve) for name, curve in parity.curves.items()},
        "own": {name: _curve(curve) for name, curve in parity.own.items()},
        **{name: _finite(numbers) for name, numbers in vars(parity).items() if isinstance(numbers, list)},
        "stop": None if stop is None else _stop(stop),
    }


def _stop(stop: Stop) -> dict[str, Any]:
    gap, bound = _finite([stop.gap, stop.bound])
    return {"step": stop.step, "names": list(stop.names), "table": stop.table, "gap": gap, "bound": bound}


def _curve(curve: Curve) -> dict[str, Any]:
    return {name: _finite(x) if isinstance(x, list) else x for name, x in vars(curve).items()}


def _finite(numbers: list[Any]) -> list[Any]:
    return [None if isinstance(x, float) and not math.isfinite(x) else x for x in numbers]


# ---------------------------------------------------------------------- on a terminal
def show(run: Mapping[str, Any], difference: Any = None) -> None:
    """The table, the verdict, and the difference where the run was stopped."""
    console = new_console()
    options, text = run["options"], run["text"]
    max_norm, clipped = options["max_norm"], f"{run['clipped']} of {run['steps']} steps"
    limit = "not clipped" if max_norm is None else f"clipped to a norm of {max_norm:g} in {clipped}"
    semantics = "" if options["semantics"] == "islices" else f" ({options['semantics']} semantics)"
    upstream = {"own": "each with its own autodiff", "shared": "all with the same upstream gradients"}
    lines = [
        f"{options['model']} on {text['name']}: {text['words']:,} words, {text['lines']:,} lines; "
        f"{options['batch_size']} a batch, {options['dim']} columns, seed {options['seed']}",
        f"{options['optimizer']}{semantics}, lr {options['lr']:g}; {limit}; {upstream[options['upstream']]}",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False)
    console.print()
    console.print(_table(run, console))
    console.print(_legend(run), highlight=False, markup=False, style="dim")
    for line in _verdict(run):
        console.print(line, highlight=False, markup=False)
    if difference is not None:
        console.print()
        print_text(str(difference))


#: What a terminal that is too narrow for the table does without, the first first.
SPARED = ("units", "first loss", "at step", "same bits", "last loss")


def _table(run: Mapping[str, Any], console: Any) -> Any:
    """The table, without as many columns as the terminal has no room for."""
    from rich.measure import Measurement

    for count in range(len(SPARED) + 1):
        table = _with_columns(run, SPARED[:count])
        if Measurement.get(console, console.options.update(width=1000), table).maximum <= console.width:
            break
    return table  # pyright: ignore[reportPossiblyUnboundVariable]


def _with_columns(run: Mapping[str, Any], spared: Sequence[str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("backend", no_wrap=True)
    bounded = run["options"]["upstream"] == "own"
    heads = ["first loss", "last loss", "gap", "at step", *(["of bound"] if bounded else []), "units", "same bits"]
    heads = [head for head in heads if head not in spared]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)

    def add(label: str, curves: Mapping[str, Any], name: str) -> None:
        cells = _cells(curves, curves[name])
        table.add_row(label, *(cells.get(head, "") for head in heads))

    for name in run["backends"]:
        add(f"{name} {run['versions'][name].partition('+')[0]}", run["backends"], name)
    table.add_section()
    for name in run["own"]:
        add(f"{name}'s own functions", run["own"], name)
    return table


def _cells(curves: Mapping[str, Any], curve: Mapping[str, Any]) -> dict[str, str]:
    """Column -> what stands there; the first backend is what gaps are measured from, and has none."""
    cells = {"first loss": _loss(curve["loss"][0]), "last loss": _loss(curve["loss"][-1])}
    if curve is next(iter(curves.values())):
        return cells | {"gap": "-"}
    gaps = [math.inf if x is None else x for x in curve["gap"]]
    cells |= {"gap": f"{max(gaps):.2g}", "same bits": str(curve["same_bits"])}
    if max(gaps):
        cells["at step"] = str(gaps.index(max(gaps)) + 1)
    if curve["share"]:
        cells["of bound"] = _percent(_worst(curve["share"]))
    if curve["units"]:
        cells["units"] = _units(_worst(curve["units"]))
    return cells


def _legend(run: Mapping[str, Any]) -> str:
    first, bounded = next(iter(run["backends"])), run["options"]["upstream"] == "own"
    of_bound = "; of bound: of what rounding alone may explain, at most" if bounded else ""
    return f"gap: the largest difference of a parameter from {first}'s{of_bound}; more: islices parity --help"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{share:.3g} x"


def _worst(numbers: Sequence[float | None]) -> float:
    return max(math.inf if x is None else x for x in numbers)


def _units(x: float) -> str:
    return f"{x:,.0f}" if 1000 <= x < 1e9 else f"{x:.3g}"


def _loss(x: float | None) -> str:
    return "nan" if x is None else f"{x:.6f}" if abs(x) < 1e6 else f"{x:.6g}"


def _verdict(run: Mapping[str, Any]) -> list[str]:
    count, steps, stop = len(run["backends"]), run["steps"], run["stop"]
    seconds = f"({run['seconds']:.0f} s)"
    if stop:
        gap = "not a number" if stop["gap"] is None else f"{stop['gap']:.3g}"
        allowed = f"{stop['bound']:.3g}" if stop["bound"] else "no difference"
        a, b = stop["names"]
        return [
            f"stopped at step {stop['step']}: {a} and {b} are {gap} apart in {stop['table']!r}, "
            f"where {allowed} is allowed {seconds}"
        ]
    if run["options"]["upstream"] == "shared":
        lines = [f"the same bits on {count} backends after each of {steps} steps, tables and optimizer state {seconds}"]
    else:
        at = run["share"].index(max(run["share"]))
        lines = [
            f"within the bound for {steps} steps on {count} backends: any two are at most {max(run['gap']):.2g} apart; "
            f"at most {_percent(run['share'][at])} of what is allowed, at step {at + 1} {seconds}",
            *_how_sharp(run),
        ]
    if run["own"]:
        theirs, of_words = _worst(run["own_gap"]), _worst(run["own_gap_of_words"])
        lines.append(
            f"the frameworks' own functions, from the same start: up to {theirs:.2g} apart"
            + (f", {of_words:.2g} without the padding's row" if of_words < theirs else "")
        )
    return lines


def _how_sharp(run: Mapping[str, Any]) -> list[str]:
    """What a bound that holds says: little, where it is as wide as the way that the parameters have come."""
    lost = next((k for k, x in enumerate(zip(*_losses(run), strict=True), start=1) if None in x), None)
    if lost:
        return [f"but losses are no numbers from step {lost} on, where little is compared; try a smaller --lr"]
    typical, way = _worst(run["typical"][-1:]), _worst(run["way"][-1:])
    if typical > VAGUE * way:
        return [
            f"but that says little: half of the trained parameters may be {typical:.2g} apart or more, having come "
            f"{way:.2g} of way; rounding grows that fast in this training; try a smaller --lr"
        ]
    return [f"half of the trained parameters may be {typical:.2g} apart at most"]


def _losses(run: Mapping[str, Any]) -> list[list[float | None]]:
    return [curve["loss"] for curve in run["backends"].values()]
