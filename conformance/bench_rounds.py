"""What the bench's tables share: ids, rounds that interleave the ways to do one thing, and Markdown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from islices import get_backend

__all__ = ["blocking", "emit", "figures", "markdown", "measure", "ratio", "zipf_ids"]


def zipf_ids(count: int, rows: int) -> np.ndarray[Any, Any]:
    """Row numbers whose frequencies follow Zipf's law with exponent 1.1, scattered over the table."""
    rng = np.random.default_rng(0)
    cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -1.1)
    ranks = np.searchsorted(cumulated, rng.random(count) * cumulated[-1])
    scattered: np.ndarray[Any, Any] = rng.permutation(rows)[ranks]
    return scattered


def measure(ways: dict[str, Callable[[], Any]], repeat: int) -> dict[str, list[float]]:
    """way -> its milliseconds in each round, after one round that does not count."""
    names = list(ways)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, repeat):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            before = time.perf_counter()
            result = ways[name]()
            elapsed = time.perf_counter() - before
            del result  # giving a table back to the system is not part of the work
            if turn >= 0:
                times[name].append(elapsed * 1e3)
    return times


def blocking(ways: dict[str, Callable[[], Any]], block: Callable[[Any], None]) -> dict[str, Callable[[], Any]]:
    """The ways, each waiting until its result is computed."""

    def wait(way: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            result = way()
            block(result)
            return result

        return call

    return {label: wait(way) for label, way in ways.items()}


def emit(name: str, times: dict[str, list[float]], **more: Any) -> None:
    """Write what was measured on a backend as a line of JSON."""
    record = {
        "backend": name,
        "version": get_backend(name).version(),
        "milliseconds": {label: median(t) for label, t in times.items()},
        "quartiles": {label: [float(q) for q in np.percentile(t, (25, 75))] for label, t in times.items()},
    }
    print(json.dumps(record | more), flush=True)


def ratio(a: list[float], b: list[float]) -> float:
    return median(x / y for x, y in zip(a, b, strict=True))


def figures(number: float | None) -> str:
    """A number with as many digits as it deserves; "-" for none."""
    if number is None:
        return "-"
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.3f}"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]) -> list[str]:
    """The lines of a table; columns in right hold numbers."""
    widths = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True)))
        return f"| {' | '.join(cells)} |"

    rule = ["-" * (w - 1) + ":" if k in right else "-" * w for k, w in enumerate(widths)]
    return [line(heads), f"| {' | '.join(rule)} |", *map(line, rows)]
