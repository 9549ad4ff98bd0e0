"""Causes that multiply one side by a number: clipping, means, and the numbers they are known by.

Each candidate says what a / b would be, for each tensor, in advance: nothing in it is fitted to the elements. With M
the limit, clipping leaves g * M / N, where the effective norm N is the norm, or the norm of the slots without
duplicates summed, plus a formula's epsilon; so that of two sides clipped to one limit a / b = N_b / N_a.

Norms are sums of squares in the framework's own order; blocked or pairwise over n elements they lose fewer than
4 log2(n) + 16 halves of an eps, which is the tolerance of every candidate that holds a norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from islices.compare.case import Case, Side
from islices.compare.evidence import Interval
from islices.compare.stored import wide
from islices.floats import FLOATS
from islices.presets import BY_GLOBAL_NORM

__all__ = ["Factor", "candidates", "epsilons", "inferred_epsilon"]

FROM, TO = (0, 1), (1, 0)


@dataclass(frozen=True)
class Factor:
    """a / b of each tensor, as a cause foretells it; with_: causes (name, text, details) that it takes for granted."""

    name: str
    text: str
    ratios: tuple[float, ...]
    tolerance: float = 0.0
    cost: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    with_: tuple[tuple[str, str, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class Norms:
    """Norms of one side: of all tensors together and each; raw ones are without duplicates summed, None if unknown."""

    true: float
    raw: float | None
    each: tuple[float, ...]
    raw_each: tuple[float, ...] | None

    def of(self, kind: str) -> float | None:
        return self.true if kind == "true" else self.raw


def candidates(original: Case, now: Case, number: int) -> Iterator[Factor]:
    """All factors that the case allows: original as it came, now after what has been explained already."""
    if original.steps:
        yield from _means(original, number)
        return
    norms = _norms(original)
    tolerance = _tolerance(original)
    yield from _unsummed(original, now, norms, tolerance)
    yield from _means(original, number)
    yield from _clipped(original, norms, tolerance)
    yield from _epsilon(original, number)


# ---------------------------------------------------------------------- norms
def _tolerance(case: Case) -> float:
    n = sum(x.values.size for x in case.a) + 2
    eps = max(x.eps for x in (*case.a, *case.b)) if case.a else 0.0
    return eps * (4 * math.log2(n) + 16) / 2 + case.slack


def _total(side: Side) -> float:
    return math.hypot(*(x.norm for x in side))


def _norm_before(case: Case) -> float | None:
    """The norm of the raw gradient, if all of it is known."""
    if case.before is None or any(x is None for x in case.before):
        return None
    return _total(tuple(x for x in case.before if x is not None))


def _norms(case: Case) -> tuple[Norms, Norms]:
    """Of a and of b; the ratio of raw to true norms is the same for all that are multiples of one gradient."""
    holders = [case.a, case.b]
    if case.before is not None and all(x is not None for x in case.before):
        holders.append(tuple(x for x in case.before if x is not None))
    has_slots = [any(x.slots is not None for x in side) for side in holders]
    out = []
    for which, side in enumerate((case.a, case.b)):
        each = tuple(x.norm for x in side)
        known = next((k for k in (which, 1 - which, 2) if k < len(holders) and has_slots[k]), None)
        if known is None:
            out.append(Norms(_total(side), None, each, None))
            continue
        theirs = holders[known]
        total = _total(theirs)
        ratio = math.hypot(*(x.raw_norm for x in theirs)) / total if total else 1.0
        ratios = [x.raw_norm / x.norm if x.norm else 1.0 for x in theirs]
        raw_each = tuple(n * r for n, r in zip(each, ratios, strict=True))
        out.append(Norms(_total(side), _total(side) * ratio, each, raw_each))
    return out[0], out[1]


# ---------------------------------------------------------------------- clipping
def _unsummed(original: Case, now: Case, norms: tuple[Norms, Norms], tolerance: float) -> Iterator[Factor]:
    """Both sides clipped to one limit by norms that differ: by duplicates, or by what has been explained already."""
    left = _total(now.a), _total(now.b)
    if not all(0 < n < math.inf for n in (*left, norms[0].true, norms[1].true)):
        return
    number = len(original.a)
    kinds: tuple[str, str]
    for kinds in (("true", "raw"), ("raw", "true"), ("true", "true"), ("raw", "raw")):
        known = [side.of(kind) for side, kind in zip(norms, kinds, strict=True)]
        if None in known:
            continue
        sizes = [float(n or 0.0) / own for n, own in zip(known, left, strict=True)]
        ratio = sizes[1] / sizes[0] if sizes[0] > 0 else math.nan
        if kinds[0] != kinds[1]:
            raw = "a" if kinds[0] == "raw" else "b"
            text = f"duplicates: {{{raw}}} has not summed duplicates before it took the norm for clipping"
            yield Factor("duplicates", text, (ratio,) * number, tolerance, 1.0, {"side": raw, "norm": "global"})
        elif now is not original:
            limit = known[0]
            if original.context.max_norm is None or _near(float(limit or 0), original.context.max_norm, tolerance):
                text = f"clip: both were clipped after that, to the same norm {_number(limit)}"
                yield Factor("clip_after", text, (ratio,) * number, tolerance, 1.0, {"limit": limit})
    if number > 1 and norms[0].raw_each is not None and norms[1].raw_each is not None:
        ratios = [raw / n if n else 1.0 for raw, n in zip(norms[1].raw_each, norms[1].each, strict=True)]
        for raw, values in (("b", ratios), ("a", [1 / r if r else 1.0 for r in ratios])):
            text = f"duplicates: {{{raw}}} has not summed duplicates before it took each tensor's norm for clipping"
            yield Factor("duplicates", text, tuple(values), tolerance, 1.0, {"side": raw, "norm": "each tensor"})


def _clipped(original: Case, norms: tuple[Norms, Norms], tolerance: float) -> Iterator[Factor]:
    """One side was clipped to a limit, the other not: the limit is given, or a round number that is a side's norm."""
    given, raw_norm = original.context.max_norm, _norm_before(original)
    for free, bound in (FROM, TO):
        name_free, name_bound = "ab"[free], "ab"[bound]
        loose, tight = norms[free], norms[bound]
        for kind in ("true", "raw"):
            size, whole = tight.of(kind), loose.of(kind)
            if size is None or whole is None:
                continue
            slack = tolerance + (1e-6 / whole if whole > 0 else 0.0)  # torch adds that to the norm it divides by
            limit = given if given is not None else _round_number(size, slack)
            if kind == "raw" and _near(tight.true, size if limit is None else limit, slack):
                continue  # the norm with duplicates summed says it already
            if limit is None or not 0 < limit < whole or not _near(size, limit, slack):
                continue
            if raw_norm is not None and not _near(loose.true, raw_norm, tolerance):
                continue  # the other side is not what came before clipping
            ratio = whole / size
            ratios = (ratio if free == 0 else 1 / ratio,) * len(original.a)
            unsummed = f"duplicates: {{{name_bound}}} has not summed duplicates before it took that norm"
            with_ = () if kind == "true" else (("duplicates", unsummed, {"side": name_bound, "norm": "global"}),)
            cost = 0.0 if given is not None else 8.0
            details = {"side": name_bound, "max_norm": limit}
            yield from _unclipped_by_raw_norm(loose, tight, limit, kind, free, ratios, slack)
            text = (
                f"clipped: {{{name_bound}}} is clipped to the norm {_number(limit)}; {{{name_free}}} is not "
                f"(norm {_number(whole)})"
            )
            yield Factor("clipped", text, ratios, slack, cost, details, with_)
        yield from _clipped_each(original, norms, free, tolerance)


def _unclipped_by_raw_norm(
    loose: Norms, tight: Norms, limit: float, kind: str, free: int, ratios: tuple[float, ...], slack: float
) -> Iterator[Factor]:
    """A limit between the norm with duplicates summed and the one without: only one of them asks for clipping."""
    if loose.raw is None or loose.raw == loose.true:
        return
    name = "ab"[free] if kind == "true" else "ba"[free]
    smaller, larger = (loose.raw, loose.true) if kind == "true" else (loose.true, loose.raw)
    if smaller < limit * (1 - slack) and limit < larger:  # at the limit it would have been clipped to it
        text = (
            f"duplicates: {{{name}}} has not summed duplicates before it compared the norm with {_number(limit)} "
            f"({_number(loose.raw)} so, {_number(loose.true)} summed)"
        )
        yield Factor("duplicates", text, ratios, slack, 1.0, {"side": name, "max_norm": limit, "norm": "global"})


def _clipped_each(original: Case, norms: tuple[Norms, Norms], free: int, tolerance: float) -> Iterator[Factor]:
    """The same, each tensor by its own norm."""
    if len(original.a) < 2:
        return
    loose, tight = norms[free], norms[1 - free]
    given = original.context.max_norm
    largest = max(tight.each)
    limit = given if given is not None else _round_number(largest, tolerance)
    if limit is None or limit <= 0 or not _near(largest, limit, tolerance) or max(loose.each) <= limit:
        return
    ratios = [max(1.0, n / limit) for n in loose.each]
    side = "ba"[free]
    text = f"clipped: {{{side}}} is clipped to {_number(limit)}, each tensor by its own norm; {{{'ab'[free]}}} is not"
    details = {"side": side, "max_norm": limit, "norm": "each tensor"}
    yield Factor(
        "clipped", text, tuple(r if free == 0 else 1 / r for r in ratios), tolerance, 0.0 if given is not None else 8.0,
        details,
    )  # fmt: skip


def _near(x: float, y: float, tolerance: float) -> bool:
    return abs(x - y) <= tolerance * abs(y)


def _round_number(x: float, tolerance: float) -> float | None:
    """x as a decimal of at most two digits, if it is one: what people write for max_norm.

    In 16 bits too many numbers are as near to one; there the limit has to be given.
    """
    if not 0 < x < math.inf or tolerance > 1e-4:
        return None
    short = float(f"{x:.1e}")
    return short if _near(x, short, tolerance) else None


def _number(x: float | None) -> str:
    return f"{x:.6g}"


# ---------------------------------------------------------------------- the epsilon of a formula
def epsilons() -> dict[float, list[str]]:
    """epsilon -> the presets that add it to the norm, read off their formulas (`islices.presets`)."""
    found: dict[float, list[str]] = {}
    for name, formula in BY_GLOBAL_NORM.items():
        factor = 1.0
        for step, c in formula.steps(FLOATS, 1.0, 0.5):
            factor = factor * c if step == "mul" else factor / c
        found.setdefault(float(f"{0.5 / factor - 1.0:.1e}"), []).append(name)
    return found


def _epsilon(case: Case, number: int) -> Iterator[Factor]:
    """With the norm before clipping known, each pair of formulas foretells a / b."""
    norm = _norm_before(case)
    if norm is None:
        return
    known = epsilons()
    pairs = [(p, q) for p in known for q in known if p != q]
    for p, q in pairs:
        if norm > 0:
            ratio = (norm + q) / (norm + p)
            text = f"epsilon of the clip formula: {_divides(p, q, known)}"
            details = {"epsilon": [p, q], "semantics": [known[p], known[q]], "norm": norm}
            yield Factor("epsilon", text, (ratio,) * number, _rounding(case), math.log2(len(pairs)), details)


def _rounding(case: Case) -> float:
    """Sums of squares err alike on both sides; what is left are the roundings of two factors."""
    return 2 * max(x.eps for x in (*case.a, *case.b)) if case.a else 0.0


def _divides(p: float, q: float, known: dict[float, list[str]]) -> str:
    a, b = ((f" + {e:g}" if e else "") + f" ({', '.join(known[e])})" for e in (p, q))
    return f"{{a}} divides by the norm{a}, {{b}} by the norm{b}"


def inferred_epsilon(case: Case, interval: Interval) -> tuple[str, dict[str, Any]] | None:
    """Without the gradient before clipping: the pairs of formulas whose factor this may be, each with the norm before
    clipping that it asks for, which has to exceed the norms after it."""
    c = interval.middle
    norms = [_total(case.a), _total(case.b)]
    known = epsilons()
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for p in known:
        for q in known:
            norm = (q - c * p) / (c - 1.0) if p != q and c != 1.0 else math.nan
            if not norm > max(norms) or not _limits_fit(case, norms, (p, q), norm):
                continue
            found.append({"norm": norm, "epsilon": [p, q], "semantics": [known[p], known[q]]})
            texts.append(f"{_divides(p, q, known)}, if the norm before clipping was {_number(norm)}")
    if not found:
        return None
    return "epsilon of the clip formula: " + "; or ".join(texts), {"candidates": found, "factor": c}


def _limits_fit(case: Case, norms: list[float], epsilon: tuple[float, float], norm: float) -> bool:
    """Whether both clipped norms are those of one limit, the given one if there is one."""
    limits = [n * (norm + e) / norm for n, e in zip(norms, epsilon, strict=True)]
    tolerance = _tolerance(case)
    given = case.context.max_norm
    return all(_near(limit, limits[0] if given is None else given, tolerance) for limit in limits)


# ---------------------------------------------------------------------- means
def _means(case: Case, number: int) -> Iterator[Factor]:
    """Quotients of the numbers that a loss may have been divided by."""
    counts = {1: ["nothing"], **_counts(case)}
    pairs = [(p, q) for p in counts for q in counts if p != q]
    for p, q in pairs:  # a is divided by p, b by q
        text = "mean against sum: " + " and ".join((_divided("a", p, counts[p]), _divided("b", q, counts[q])))
        details = {"divided_by": [p, q], "names": [counts[p], counts[q]]}
        eps = max(x.eps for x in (*case.a, *case.b))
        yield Factor("mean", text, (q / p,) * number, 2 * eps, math.log2(len(pairs)), details)


def _divided(side: str, count: int, names: list[str]) -> str:
    return f"{{{side}}} is a sum" if count == 1 else f"{{{side}}} is divided by {count:,} ({', '.join(names)})"


def _counts(case: Case) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}

    def note(count: int, name: str) -> None:
        if count > 1 and name not in found.setdefault(count, []):
            found[count].append(name)

    context = case.context
    if context.batch_size is not None:
        note(context.batch_size, "batch size")
    if context.tokens is not None:
        note(context.tokens, "tokens")
    for side in (case.a, case.b, case.before or ()):
        for x in side:
            if x is None or not x.sparse:
                continue
            slots = x.values if x.slots is None or x.slot_ids is None else wide(x.slots)
            ids = x.ids if x.slot_ids is None else x.slot_ids
            p = context.padding_row(x)
            padding = 0 if p is None else int((ids == p).sum())
            stored = "tokens: slots stored" if p is None or padding else "non-padding tokens: slots stored"
            note(len(ids), stored)
            if padding:
                note(len(ids) - padding, "non-padding tokens: slots of other rows")
            kept = int((slots != 0).reshape(len(slots), -1).any(axis=1).sum()) if slots.size else 0
            if kept != len(ids):
                note(kept, "non-padding tokens: slots that are not zeros")
    return {count: names for count, names in found.items() if names}
