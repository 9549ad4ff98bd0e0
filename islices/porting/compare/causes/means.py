"""Define two causes of a constant factor: the losses have different divisors, or the origin of the factor is
unknown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

from islices.core.conversion import nonzero_rows
from islices.porting.compare.cause import Cause, Factor
from islices.porting.compare.comparison import Comparison
from islices.porting.compare.evidence import fitted
from islices.porting.compare.rows import PRECISION
from islices.porting.compare.stored import Stored


def mean(now: Comparison) -> Iterator[Factor]:
    """Yield the factors that result if the losses of both sides have different divisors, such as the number of samples
    and the number of tokens."""
    counts = {1: ["nothing"], **_counts(now)}
    pairs = list(permutations(counts, 2))
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
    for side in ("a", "b", "raw"):
        for whole in both.source:
            x: Stored | None = getattr(whole, side)
            if x is not None and x.sparse:
                ids, p = x.slot_ids, whole.padding
                padding = 0 if p is None else int((ids == p).sum())
                note(len(ids), "tokens: slots stored" if p is None or padding else "non-padding tokens: slots stored")
                if padding:
                    note(len(ids) - padding, "non-padding tokens: slots of other rows")
                kept = int(nonzero_rows(x.slots).sum())
                if kept != len(ids):
                    note(kept, "non-padding tokens: slots that are not zeros")
    return found


def _divided_alike(details: Mapping[str, Any], framework: str) -> str:
    wanted, own = map(int, details["divided_by"])
    return "loss = loss" + f" * {own}" * (own > 1) + f" / {wanted}" * (wanted > 1)


MEAN = Cause("mean", 230, foretell=mean, fix=_divided_alike)


def constant(now: Comparison) -> Iterator[Factor]:
    """Yield one factor for all tensors, which is estimated from the elements. If a whole number or the reciprocal of a
    whole number fits, yield that number instead. Yield nothing if the sides agree within rounding, or if the estimate
    is not finite and positive."""
    c = fitted(now.elements)
    if not 0 < c < math.inf or now.agree(exact=False):
        return
    text = f"a constant factor: {{a}} is {{b}} times {c:.9g}"
    whole = round(max(c, 1 / c))
    exact = whole if c > 1 else 1 / whole
    if whole > 1 and replace(now, ratios=[exact] * len(now.pairs)).agree(exact=False):
        half = "the half of a squared loss, or " if whole == 2 else ""
        text = (
            f"a constant factor: {'{a} is {b}' if c > 1 else '{b} is {a}'} times {whole:,}, a whole number ({half}a "
            "count that a mean divides by: samples, replicas, accumulated gradients?)"
        )
        c = exact
    cost = max(PRECISION["float32"], *(p.precision for p in now.elements if p is not None))
    yield Factor([c] * len(now.pairs), text, {"factor": c}, cost=cost)


def _times(details: Mapping[str, Any], framework: str) -> str:
    """Return the line of code that multiplies the loss by the factor. If the reciprocal of the factor is a whole
    number, the line divides the loss by this number."""
    c = details["factor"]
    whole = round(1 / c)
    return f"loss = loss / {whole}" if whole > 1 and 1 / whole == c else f"loss = loss * {c:.9g}"


FACTOR = Cause("factor", 260, foretell=constant, fitted=True, fix=_times)
