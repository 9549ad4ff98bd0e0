"""Causes that divide by the possible divisors of a loss, and a factor without a known origin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from islices.porting.compare.cause import Cause, Factor, Lines, both_directions
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.stored import nonzero_rows


def mean(now: Comparison) -> Iterator[Factor]:
    """Yield quotients of the possible divisors of a loss."""
    counts = {1: ["nothing"], **_counts(now)}
    pairs = [(p, q) for p in counts for q in counts if p != q]
    for p, q in pairs:  # a is divided by p, b by q
        text = "mean against sum: " + " and ".join((_divided("a", p, counts[p]), _divided("b", q, counts[q])))
        details = {"divided_by": [p, q], "names": [counts[p], counts[q]]}
        yield Factor([q / p] * len(now.pairs), text, details, 2 * now.original.eps, math.log2(len(pairs)))


def _divided(side: str, count: int, names: list[str]) -> str:
    return f"{{{side}}} is a sum" if count == 1 else f"{{{side}}} is divided by {count:,} ({', '.join(names)})"


def _counts(both: Comparison) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}

    def note(count: int | None, name: str) -> None:
        if count is not None and count > 1 and name not in found.setdefault(count, []):
            found[count].append(name)

    note(both.context.batch_size, "batch size")
    note(both.context.tokens, "tokens")
    source = both.source
    for side in (source.a, source.b, source.raw):
        for x, pair in zip(side, both.pairs, strict=False):
            if x is not None and x.stored.sparse:
                ids, p = x.stored.slot_ids, pair.padding
                padding = 0 if p is None else int((ids == p).sum())
                note(len(ids), "tokens: slots stored" if p is None or padding else "non-padding tokens: slots stored")
                if padding:
                    note(len(ids) - padding, "non-padding tokens: slots of other rows")
                kept = int(nonzero_rows(x.stored.slots).sum())
                if kept != len(ids):
                    note(kept, "non-padding tokens: slots that are not zeros")
    return found


def _divided_alike(details: Mapping[str, Any]) -> Lines:
    wanted, own = details["divided_by"]
    return both_directions("loss = loss" + f" * {own}" * (own > 1) + f" / {wanted}" * (wanted > 1))


MEAN = Cause("mean", 230, foretell=mean, fix=_divided_alike)


def constant(c: float) -> tuple[str, dict[str, Any]]:
    """Return the text and details of a factor without a known origin."""
    for shown, sides in ((c, "{a} is {b}"), (1 / c, "{b} is {a}")):
        if whole := _whole(shown):
            half = "the half of a squared loss, or " if whole == 2 else ""
            return (
                f"a constant factor: {sides} times {whole:,}, a whole number ({half}a count that a mean divides by: "
                "samples, replicas, accumulated gradients?)"
            ), {"factor": c}
    return f"a constant factor: {{a}} is {{b}} times {c:.9g}", {"factor": c}


def _times(details: Mapping[str, Any]) -> Lines:
    """Return the line with the factor, written as a division if its reciprocal is a whole number."""
    c = details["factor"]
    over = _whole(1 / c)
    return both_directions(f"loss = loss / {over}" if over else f"loss = loss * {c:.9g}")


def _whole(x: float) -> int:
    """Return x if it is a whole number above 1, else 0."""
    n = round(x)
    return n if n > 1 and abs(x - n) <= 1e-12 * n else 0


FACTOR = Cause("factor", 260, fit=constant, fix=_times)
