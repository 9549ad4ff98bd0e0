"""Causes by which one side was clipped, or both were by norms that differ.

With M the limit, clipping leaves g * M / N, where the effective norm N is the norm, or the norm of the slots without
duplicates summed, plus a formula's epsilon; so that of two sides clipped to one limit a / b = N_b / N_a.

Norms are sums of squares in the framework's own order; blocked or pairwise over n elements they lose fewer than
4 log2(n) + 16 halves of an eps, which is the tolerance of every factor that holds a norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, NamedTuple

from islices.norms.clip_formulas import BY_GLOBAL_NORM, BY_NORM
from islices.porting.compare.cause import Cause, Factor, Lines, both_ways
from islices.porting.compare.comparison import Comparison, Side
from islices.porting.compare.evidence import Interval

__all__ = ["CLIPPED", "CLIP_AFTER", "DUPLICATES", "EPSILON", "added", "near", "norm_tolerance", "round_number"]


#: All tensors clipped by their common norm, each by its own, and both without duplicates summed.
TOGETHER: Lines = {
    "": ("grads, _ = islices.clip_by_global_norm(grads, {max_norm:.6g})",
         "take `islices.clip_by_global_norm(grads, {max_norm:.6g})` out"),
    "jax": ("optimizer = optax.chain(optax.clip_by_global_norm({max_norm:.6g}), optimizer)",
            "take `optax.clip_by_global_norm({max_norm:.6g})` out"),
}  # fmt: skip
EACH: Lines = {
    "": ("grads = islices.clip_by_norm(grads, {max_norm:.6g})",
         "take `islices.clip_by_norm(grads, {max_norm:.6g})` out"),
}  # fmt: skip
UNSUMMED: Lines = {
    "": ("grads, _ = islices.clip_by_global_norm(grads, {max_norm:.6g}, semantics='tensorflow')", TOGETHER[""][0]),
}
UNSUMMED_EACH: Lines = {
    "": ("grads = islices.clip_by_norm(grads, {max_norm:.6g}, semantics='tensorflow')", EACH[""][0]),
}


# ---------------------------------------------------------------------- norms
@dataclass(frozen=True)
class Norms:
    """Norms of one side: of all tensors together and each; raw ones are without duplicates summed, None if unknown."""

    true: float
    raw: float | None
    each: tuple[float, ...]
    raw_each: tuple[float, ...] | None

    def of(self, kind: str) -> float | None:
        return self.true if kind == "true" else self.raw


def norm_tolerance(both: Comparison) -> float:
    """How far a factor that holds a norm may be off, relatively."""
    n = sum(x.size for x in both.a) + 2
    eps = max(x.eps for x in (*both.a, *both.b)) if both.a else 0.0
    return eps * (4 * math.log2(n) + 16) / 2 + both.slack


def added(norm: float) -> float:
    """What an epsilon that a formula adds to a norm, of this size at least, takes off the limit at most, relatively:
    torch's is 1e-6."""
    return 1e-6 / norm if norm > 0 else 0.0


def _total(side: Side) -> float:
    return math.hypot(*(x.norm for x in side))


def _norm_before(both: Comparison) -> float | None:
    """The norm of the raw gradient, if all of it is known."""
    if both.before is None or any(x is None for x in both.before):
        return None
    return _total(tuple(x for x in both.before if x is not None))


def _norms(both: Comparison) -> tuple[Norms, Norms]:
    """Of a and of b; the ratio of raw to true norms is the same for all that are multiples of one gradient."""
    holders = [both.a, both.b]
    if both.before is not None and all(x is not None for x in both.before):
        holders.append(tuple(x for x in both.before if x is not None))
    has_slots = [any(x.slots is not None for x in side) for side in holders]
    out = []
    for which, side in enumerate((both.a, both.b)):
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


# ---------------------------------------------------------------------- both are clipped to one limit
def _by_norms(original: Comparison, now: Comparison, kinds: tuple[str, str]) -> tuple[float, float] | None:
    """(a / b, the limit) where a's and b's norms of these kinds are known, and what is left was clipped by them."""
    norms = _norms(original)
    left = _total(now.a), _total(now.b)
    if not all(0 < n < math.inf for n in (*left, norms[0].true, norms[1].true)):
        return None
    known = [side.of(kind) for side, kind in zip(norms, kinds, strict=True)]
    if known[0] is None or known[1] is None:
        return None
    ratio = (known[1] / left[1]) / (known[0] / left[0]) if known[0] > 0 else math.nan
    return ratio, known[0]


def clipped_after(original: Comparison, now: Comparison) -> Iterator[Factor]:
    """Both sides are clipped to one limit, after what has been explained already."""
    tolerance, given = norm_tolerance(original), original.context.max_norm
    for kind in ("true", "raw"):
        found = _by_norms(original, now, (kind, kind))
        if found and (given is None or near(found[1], given, tolerance + added(given))):
            ratio, limit = found
            text = f"clip: both were clipped after that, to the same norm {_number(limit)}"
            yield Factor((ratio,) * len(original.a), text, {"limit": limit}, tolerance, 1.0)


CLIP_AFTER = Cause(
    "clip_after", "clipped after another cause", 220, foretell=clipped_after, needs=("gradients", "another")
)


# ---------------------------------------------------------------------- one is clipped
class Clip(NamedTuple):
    """One side, clipped by its norm of a kind to a limit that is given, or a round number; the other is not."""

    bound: int  # the side
    kind: str
    limit: float
    loose: Norms  # of the other side
    ratios: tuple[float, ...]
    tolerance: float


def _clips(original: Comparison) -> Iterator[Clip]:
    given, raw_norm, norms = original.context.max_norm, _norm_before(original), _norms(original)
    exact = norm_tolerance(original)
    for bound in (1, 0):
        tight, loose = norms[bound], norms[1 - bound]
        for kind in ("true", "raw"):
            size, whole = tight.of(kind), loose.of(kind)
            if size is None or whole is None:
                continue
            tolerance = exact + added(whole)
            limit = given if given is not None else round_number(size, tolerance)
            if kind == "raw" and near(tight.true, size if limit is None else limit, tolerance):
                continue  # the norm with duplicates summed says it already
            if limit is None or not 0 < limit < whole or not near(size, limit, tolerance):
                continue
            if raw_norm is not None and not near(loose.true, raw_norm, exact):
                continue  # the other side is not what came before clipping
            ratio = whole / size
            ratios = (ratio if bound else 1 / ratio,) * len(original.a)
            yield Clip(bound, kind, limit, loose, ratios, tolerance)


def clipped(original: Comparison, now: Comparison) -> Iterator[Factor]:
    """One side was clipped to a limit, the other not; by the norm of what came, or of what has been explained."""
    cost = 8.0 if original.context.max_norm is None else 0.0
    explained = () if now is original else _clips(replace(now, before=None))
    for c in (*_clips(original), *explained):
        side, free = "ab"[c.bound], "ba"[c.bound]
        text = (
            f"clipped: {{{side}}} is clipped to the norm {_number(c.limit)}; {{{free}}} is not "
            f"(norm {_number(c.loose.of(c.kind))})"
        )
        unsummed = f"duplicates: {{{side}}} has not summed duplicates before it took that norm"
        details = {"side": side, "max_norm": c.limit}
        granted = () if c.kind == "true" else (("duplicates", unsummed, {**details, "norm": "global"}),)
        yield Factor(c.ratios, text, details, c.tolerance, cost, granted)
    for both in (original,) if now is original else (original, now):
        yield from _clipped_each(both, cost)


def _clipped_each(original: Comparison, cost: float) -> Iterator[Factor]:
    """The same, each tensor by its own norm."""
    norms, tolerance, given = _norms(original), norm_tolerance(original), original.context.max_norm
    for bound in (1, 0) if len(original.a) > 1 else ():
        tight, loose = norms[bound].each, norms[1 - bound].each
        top = max(tight)
        limit = given if given is not None else round_number(top, tolerance + added(top))
        if limit is None or limit <= 0 or not near(top, limit, tolerance + added(limit)):
            continue
        if max(loose) <= limit:
            continue
        slack = tolerance + added(min(n for n in loose if n > limit))
        ratios = [max(1.0, n / limit) for n in loose]
        side, free = "ab"[bound], "ba"[bound]
        text = f"clipped: {{{side}}} is clipped to {_number(limit)}, each tensor by its own norm; {{{free}}} is not"
        details = {"side": side, "max_norm": limit, "norm": "each tensor"}
        yield Factor(tuple(r if bound else 1 / r for r in ratios), text, details, slack, cost)


CLIPPED = Cause(
    "clipped", "clipped or not", 240, foretell=clipped, needs=("gradients",), side_does=True,
    fix=lambda details: EACH if details.get("norm") == "each tensor" else TOGETHER,
)  # fmt: skip


# ---------------------------------------------------------------------- duplicates
def unsummed(original: Comparison, now: Comparison) -> Iterator[Factor]:
    """The norm for clipping was taken before duplicates were summed."""
    tolerance = norm_tolerance(original)
    for side, kinds in (("b", ("true", "raw")), ("a", ("raw", "true"))):
        if found := _by_norms(original, now, kinds):
            text = f"duplicates: {{{side}}} has not summed duplicates before it took the norm for clipping"
            details = {"side": side, "norm": "global", "max_norm": found[1]}
            yield Factor((found[0],) * len(original.a), text, details, tolerance, 1.0)
    yield from _unsummed_each(original, now)
    for c in _clips(original):
        true, raw = c.loose.true, c.loose.raw
        if raw is None or raw == true:
            continue
        # a limit between the two norms: only one of them asks for clipping
        side, smaller, larger = ("ba"[c.bound], raw, true) if c.kind == "true" else ("ab"[c.bound], true, raw)
        if smaller < c.limit * (1 - c.tolerance) and c.limit < larger:  # at the limit it would have been clipped to it
            text = (
                f"duplicates: {{{side}}} has not summed duplicates before it compared the norm with "
                f"{_number(c.limit)} ({_number(raw)} so, {_number(true)} summed)"
            )
            details = {"side": side, "max_norm": c.limit, "norm": "global"}
            yield Factor(c.ratios, text, details, c.tolerance, 1.0)


def _unsummed_each(original: Comparison, now: Comparison) -> Iterator[Factor]:
    """The same, each tensor by its own norm."""
    a, b = _norms(original)
    if (
        len(original.a) < 2
        or a.raw_each is None
        or b.raw_each is None
        or not _by_norms(original, now, ("true", "true"))
    ):
        return
    ratios = tuple(raw / n if n else 1.0 for raw, n in zip(b.raw_each, b.each, strict=True))
    for side, values, limit in (
        ("b", ratios, max(a.each)),
        ("a", tuple(1 / r if r else 1.0 for r in ratios), max(b.each)),
    ):
        text = f"duplicates: {{{side}}} has not summed duplicates before it took each tensor's norm for clipping"
        details = {"side": side, "norm": "each tensor", "max_norm": limit}
        yield Factor(values, text, details, norm_tolerance(original), 1.0)


DUPLICATES = Cause(
    "duplicates", "duplicates not summed before clipping", 210, foretell=unsummed, needs=("gradients",),
    subsumes=("clipped",), side_does=True,
    fix=lambda details: UNSUMMED_EACH if details["norm"] == "each tensor" else UNSUMMED,
)  # fmt: skip


def near(x: float, y: float, tolerance: float) -> bool:
    """Whether x is y, to a relative tolerance."""
    return abs(x - y) <= tolerance * abs(y)


def round_number(x: float, tolerance: float) -> float | None:
    """x as a decimal of at most two digits, if it is one: what people write for max_norm.

    In 16 bits too many numbers are as near to one; there the limit has to be given.
    """
    if not 0 < x < math.inf or tolerance > 1e-4:
        return None
    short = float(f"{x:.1e}")
    return short if near(x, short, tolerance) else None


def _number(x: float | None) -> str:
    return f"{x:.6g}"


# ---------------------------------------------------------------------- the epsilon of a formula
def _epsilons() -> dict[float, list[str]]:
    """epsilon -> the formulas that add it to the norm."""
    found: dict[float, list[str]] = {}
    for name, formula in BY_GLOBAL_NORM.items():
        found.setdefault(formula.slack, []).append(name)
    return found


def epsilon(original: Comparison, now: Comparison) -> Iterator[Factor]:
    """With the norm before clipping known, each pair of formulas foretells a / b."""
    norm = _norm_before(original)
    if norm is None or norm <= 0:
        return
    known = _epsilons()
    pairs = list(permutations(known, 2))
    # sums of squares err alike on both sides; what is left are the roundings of two factors
    rounding = 2 * max(x.eps for x in (*original.a, *original.b))
    for p, q in pairs:
        ratio = (norm + q) / (norm + p)
        limit = _total(original.a) * (norm + p) / norm
        details = {"epsilon": [p, q], "semantics": [known[p], known[q]], "norm": norm, "max_norm": limit}
        text = f"epsilon of the clip formula: {_divides(p, q, known)}"
        yield Factor((ratio,) * len(original.a), text, details, rounding, math.log2(len(pairs)))
    yield from _epsilon_each(original, known, rounding)


def _epsilon_each(original: Comparison, known: dict[float, list[str]], rounding: float) -> Iterator[Factor]:
    """The same, each tensor by its own norm, of those that exceed the limit."""
    norms = [0.0 if x is None else x.norm for x in original.before or ()]
    limit = max((x.norm for x in original.a), default=0.0)
    if len(norms) < 2 or not limit > 0 or not any(n > limit for n in norms):
        return
    for p, q in permutations(known, 2):
        ratios = tuple((n + q) / (n + p) if n > limit else 1.0 for n in norms)
        details = {"epsilon": [p, q], "semantics": [known[p], known[q]], "norm": "each tensor", "max_norm": limit}
        text = f"epsilon of the clip formula, each tensor by its own norm: {_divides(p, q, known)}"
        yield Factor(ratios, text, details, rounding, math.log2(2 * len(known) ** 2))


def _divides(p: float, q: float, known: dict[float, list[str]]) -> str:
    a, b = ((f" + {e:g}" if e else "") + f" ({', '.join(known[e])})" for e in (p, q))
    return f"{{a}} divides by the norm{a}, {{b}} by the norm{b}"


def inferred_epsilon(now: Comparison, interval: Interval) -> tuple[str, dict[str, Any]] | None:
    """Without the gradient before clipping: the pairs of formulas whose factor this may be, each with the norm before
    clipping that it asks for, which has to exceed the norms after it."""
    if now.before is not None:
        return None
    c = interval.middle
    norms = [_total(now.a), _total(now.b)]
    known = _epsilons()
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for p, q in permutations(known, 2):
        norm = (q - c * p) / (c - 1.0) if c != 1.0 else math.nan
        if not norm > max(norms) or not _limits_fit(now, norms, (p, q), norm):
            continue
        found.append({"norm": norm, "epsilon": [p, q], "semantics": [known[p], known[q]]})
        texts.append(f"{_divides(p, q, known)}, if the norm before clipping was {_number(norm)}")
    if not found:
        return None
    return "epsilon of the clip formula: " + "; or ".join(texts), {"candidates": found, "factor": c}


def _limits_fit(both: Comparison, norms: list[float], epsilon: tuple[float, float], norm: float) -> bool:
    """Whether both clipped norms are those of one limit, the given one if there is one."""
    limits = [n * (norm + e) / norm for n, e in zip(norms, epsilon, strict=True)]
    tolerance = norm_tolerance(both)
    given = both.context.max_norm
    return all(near(limit, limits[0] if given is None else given, tolerance) for limit in limits)


def _fix_epsilon(details: Mapping[str, Any]) -> Lines:
    """Return the clip by the first side's formula; none where several may be it, or no function clips so."""
    if "semantics" not in details:
        return {}
    formula = details["semantics"][0][0]
    line = f"grads, _ = islices.clip_by_global_norm(grads, {details['max_norm']:.6g}, semantics={formula!r})"
    if details["norm"] == "each tensor":
        if formula not in BY_NORM:
            return {}
        line = f"grads = islices.clip_by_norm(grads, {details['max_norm']:.6g}, semantics={formula!r})"
    return both_ways(line)


EPSILON = Cause(
    "epsilon", "epsilon of a clip formula", 250, foretell=epsilon, fit=inferred_epsilon, needs=("gradients",),
    fix=_fix_epsilon,
)  # fmt: skip
