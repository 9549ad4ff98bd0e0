"""Causes that divide: the numbers that a loss may have been divided by, and a factor that nothing foretells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from islices.porting.compare.cause import Cause, Factor, Lines, both_ways
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.evidence import Interval
from islices.porting.compare.stored import nonzero_rows

__all__ = ["FACTOR", "MEAN"]


def mean(original: Comparison, now: Comparison) -> Iterator[Factor]:
    """Quotients of the numbers that a loss may have been divided by."""
    counts = {1: ["nothing"], **_counts(original)}
    pairs = [(p, q) for p in counts for q in counts if p != q]
    eps = max(x.eps for x in (*original.a, *original.b))
    for p, q in pairs:  # a is divided by p, b by q
        text = "mean against sum: " + " and ".join((_divided("a", p, counts[p]), _divided("b", q, counts[q])))
        details = {"divided_by": [p, q], "names": [counts[p], counts[q]]}
        yield Factor((q / p,) * len(original.a), text, details, 2 * eps, math.log2(len(pairs)))


def _divided(side: str, count: int, names: list[str]) -> str:
    return f"{{{side}}} is a sum" if count == 1 else f"{{{side}}} is divided by {count:,} ({', '.join(names)})"


def _counts(both: Comparison) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}

    def note(count: int, name: str) -> None:
        if count > 1 and name not in found.setdefault(count, []):
            found[count].append(name)

    context = both.context
    if context.batch_size is not None:
        note(context.batch_size, "batch size")
    if context.tokens is not None:
        note(context.tokens, "tokens")
    for side in (both.a, both.b, both.before or ()):
        for x in side:
            if x is None or not x.sparse:
                continue
            ids, slots = x.all_slots
            p = context.padding_row(x)
            padding = 0 if p is None else int((ids == p).sum())
            stored = "tokens: slots stored" if p is None or padding else "non-padding tokens: slots stored"
            note(len(ids), stored)
            if padding:
                note(len(ids) - padding, "non-padding tokens: slots of other rows")
            kept = int(nonzero_rows(slots).sum())
            if kept != len(ids):
                note(kept, "non-padding tokens: slots that are not zeros")
    return {count: names for count, names in found.items() if names}


def _divided_alike(details: Mapping[str, Any]) -> Lines:
    wanted, own = details["divided_by"]
    line = "loss = loss" + f" * {own}" * (own > 1) + f" / {wanted}" * (wanted > 1)
    return both_ways(line)


MEAN = Cause("mean", "mean against sum", 230, foretell=mean, fix=_divided_alike)


def constant(now: Comparison, interval: Interval) -> tuple[str, dict[str, Any]]:
    """A factor that nothing known foretells."""
    c = interval.middle
    text = f"a constant factor: {{a}} is {{b}} times {c:.9g}"
    for shown, power, what in ((c, 1, "{a} is {b} times"), (1 / c, -1, "{b} is {a} times")):
        if round(shown) > 1 and interval.low <= round(shown) ** power <= interval.high:
            counted = "a count that a mean divides by: samples, replicas, accumulated gradients?"
            if round(shown) == 2:
                counted = f"the half of a squared loss, or {counted}"
            text = f"a constant factor: {what} {round(shown):,}, a whole number ({counted})"
    if now.steps:
        text = f"a constant factor: {{a}} steps {c:.9g} times as far as {{b}}, as another learning rate does"
    return text, {"factor": c, "low": interval.low, "high": interval.high, "steps": now.steps}


def _times(details: Mapping[str, Any]) -> Lines:
    """Return the line with the factor, as a whole number or over one where the bounds allow it."""
    factor, low, high = (details[k] for k in ("factor", "low", "high"))
    whole, over = round(factor), round(1 / factor)
    times = f"* {factor:.9g}"
    if whole > 1 and low <= whole <= high:
        times = f"* {whole}"
    elif over > 1 and low <= 1 / over <= high:
        times = f"/ {over}"
    line = f"the learning rate {times}" if details["steps"] else f"loss = loss {times}"
    return both_ways(line)


FACTOR = Cause("factor", "a constant factor", 260, fit=constant, last=True, fix=_times)
