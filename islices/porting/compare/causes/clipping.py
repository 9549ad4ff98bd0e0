"""Causes that clip one side, or clip both by different norms.

With the limit M, clipping leaves g * M / N. The effective norm N is the norm, or the norm of the unsummed slots, plus a
formula's epsilon. So two sides that are clipped to one limit have a / b = N_b / N_a.

Frameworks sum the squares of a norm in different orders. Blocked or pairwise sums over n elements lose less than 4
log2(n) + 16 halves of an eps. This is the tolerance of every factor that contains a norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any, NamedTuple

from islices.norms.clip_formulas import BY_GLOBAL_NORM
from islices.porting.compare.cause import Cause, Factor, Lines, both_directions
from islices.porting.compare.comparison import Comparison

#: The cost of a factor from one tensor's norms: the norms agree on the limit as well.
COST = 6.0
#: All tensors clipped by their common norm, each tensor by its norm, and all with unsummed duplicates.
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


# ---------------------------------------------------------------------- norms
class Norms(NamedTuple):
    """The norm of all tensors of a side, the norm of their slots (None if unknown), and the norm of each tensor."""

    true: float
    raw: float | None
    each: list[float]


def _norms(both: Comparison) -> tuple[Norms, Norms]:
    """Return the norms of a and b. Multiples of one gradient have the same ratio of raw to true norm."""
    holders = [side for side in both.norms if any(n.slots is not None for n in side)]
    out = []
    for side in both.norms[:2]:
        each = [n.rows for n in side]
        true, raw = math.hypot(*each), None
        holder = side if side in holders else next(iter(holders), None)
        if holder is not None:
            total = math.hypot(*(n.rows for n in holder))
            slots = math.hypot(*(n.rows if n.slots is None else n.slots for n in holder))
            raw = true * (slots / total if total else 1.0)
        out.append(Norms(true, raw, each))
    return out[0], out[1]


def _norm_before(both: Comparison) -> float | None:
    """Return the norm of the raw gradient, if all of it is known."""
    return math.hypot(*(n.rows for n in both.norms[2])) if both.has_raw else None


def _tolerance(now: Comparison) -> float:
    """Return the relative tolerance of a factor that contains a norm."""
    n = sum(p.a.size for p in now.original.pairs) + 2
    return now.original.eps * (4 * math.log2(n) + 16) / 2 + now.slack


def _added(norm: float) -> float:
    """Return the largest relative effect on the limit of the epsilon that a formula adds to a norm (torch: 1e-6)."""
    return 1e-6 / norm if norm > 0 else 0.0


def _near(x: float, y: float, tolerance: float) -> bool:
    return abs(x - y) <= tolerance * abs(y)


def _is_limit(now: Comparison, norm: float) -> bool:
    """Return True if a norm may be the given limit, or if no limit is given."""
    given = now.context.max_norm
    return 0 < norm < math.inf and (given is None or _near(norm, given, _tolerance(now) + _added(given)))


def _round_number(x: float, tolerance: float) -> float | None:
    """Return x if it is a decimal of at most two digits, as people write max_norm; else None.

    In 16 bits too many numbers are close to short decimals, so the user must give the limit.
    """
    if not 0 < x < math.inf or tolerance > 1e-4:
        return None
    short = float(f"{x:.1e}")
    return short if _near(x, short, tolerance) else None


# ---------------------------------------------------------------------- both are clipped to one limit
def _by_norms(now: Comparison, kinds: tuple[str, str]) -> tuple[float, float] | None:
    """Return (a / b, the limit) if norms of these kinds are known and explain the clipping of the rest."""
    norms, left = _norms(now.original), [n.true for n in _norms(now)]
    known = [getattr(side, kind) for side, kind in zip(norms, kinds, strict=True)]
    if None in known or not all(0 < n < math.inf for n in (*left, *known)):
        return None
    return (known[1] / left[1]) / (known[0] / left[0]), known[0]


def clipped_after(now: Comparison) -> Iterator[Factor]:
    """Yield the factor between two sides that are clipped to the same limit, after the changes so far."""
    for kind in ("true", "raw") if now.chain else ():
        found = _by_norms(now, (kind, kind))
        if found and _is_limit(now, found[1]):
            ratio, limit = found
            text = f"clip: both were clipped after that, to the same norm {limit:.6g}"
            yield Factor([ratio] * len(now.pairs), text, {"limit": limit}, _tolerance(now), 1.0)


CLIP_AFTER = Cause("clip_after", 220, foretell=clipped_after)


# ---------------------------------------------------------------------- one is clipped
def clipped(now: Comparison) -> Iterator[Factor]:
    """Yield factors for one clipped side and one unclipped side.

    The limit is the given one, a round number, or any number if the other side is the raw gradient.
    """
    given, exact = now.context.max_norm, _tolerance(now)
    for both in (now.original, now) if now.chain else (now,):
        norms, before = _norms(both), _norm_before(both)
        for bound in (1, 0):
            tight, loose = norms[bound], norms[1 - bound]
            if before is not None and now.chain:
                loose = loose._replace(true=before)  # before another cause
            elif before is not None and not _near(loose.true, before, exact):
                continue  # the other side is not the gradient before clipping
            sizes = [("", tight.true, loose.true, tight.true)]
            if tight.raw is not None and loose.raw is not None and tight.raw != tight.true:
                sizes.append((", without summing duplicates", tight.raw, loose.raw, tight.raw))
            if len(tight.each) > 1:
                sizes.append((", each tensor by its own norm", max(tight.each), max(loose.each), min(tight.each)))
            for kind, size, whole, least in sizes:
                tolerance = exact + max(_added(whole), _added(least))
                limit = given or _round_number(size, tolerance)
                if limit is None and before is not None and not now.chain:
                    limit = float(f"{size:.6g}")
                if limit is None or not 0 < limit < whole or not _near(size, limit, tolerance):
                    continue
                alone = kind.endswith("own norm")
                ratios = [max(1.0, n / limit) if alone else whole / size for n in loose.each]
                text = (
                    f"clipped: {{{'ab'[bound]}}} is clipped to the norm {limit:.6g}{kind}; {{{'ba'[bound]}}} is not "
                    f"(norm {whole:.6g})"
                )
                details = {"side": "ab"[bound], "max_norm": limit} | ({"norm": "each tensor"} if alone else {})
                ratios = ratios if bound else [1 / r for r in ratios]
                yield Factor(ratios, text, details, tolerance, 0.0 if given else 8.0)


CLIPPED = Cause(
    "clipped", 240, foretell=clipped, side_does=True,
    fix=lambda details: EACH if "norm" in details else TOGETHER,
)  # fmt: skip


# ---------------------------------------------------------------------- duplicates
def unsummed(now: Comparison) -> Iterator[Factor]:
    """Yield factors for a side that computes the clipping norm before it sums duplicates."""
    for side, kinds in (("b", ("true", "raw")), ("a", ("raw", "true"))):
        if found := _by_norms(now, kinds):
            text = f"duplicates: {{{side}}} has not summed duplicates before it took the norm for clipping"
            details = {"side": side, "max_norm": found[1]}
            yield Factor([found[0]] * len(now.pairs), text, details, _tolerance(now), 1.0)


DUPLICATES = Cause(
    "duplicates", 210, foretell=unsummed,
    subsumes=("clipped",), side_does=True, fix=UNSUMMED,
)  # fmt: skip


# ---------------------------------------------------------------------- norms of other sets of tensors
def _ratios(now: Comparison) -> list[float]:
    """Return a / b of each tensor from the norms, except where a norm is zero."""
    pairs = list(zip(*(n.each for n in _norms(now)), strict=True))
    return [x / y for x, y in pairs] if all(0 < x < math.inf and 0 < y < math.inf for x, y in pairs) else []


def per_tensor(now: Comparison) -> Iterator[Factor]:
    """Yield factors for a side that clips all tensors by their common norm, and one that clips each by its norm."""
    tolerance, norms, ratios = _tolerance(now), _norms(now.original), _ratios(now)
    for each in (1, 0):
        whole, largest = norms[1 - each].true, max(norms[each].each)
        if len(ratios) < 2 or not _is_limit(now, whole) or not _near(largest, whole, tolerance + _added(whole)):
            continue
        if max(ratios) <= min(ratios) * (1 + 8 * tolerance):
            continue
        limit = _round_number(whole, tolerance + _added(whole)) or whole
        text = (
            f"clipping by tensor: {{{'ab'[each]}}} clips each tensor by its own norm, {{{'ba'[each]}}} all by their "
            f"common norm, to {limit:.6g}"
        )
        yield Factor(ratios, text, {"side": "ab"[each], "norm": "each tensor", "max_norm": limit}, tolerance, COST)


PER_TENSOR = Cause(
    "per_tensor", 222, foretell=per_tensor,
    subsumes=("clipped",), side_does=True, fix={"": (EACH[""][0], TOGETHER[""][0])},
)  # fmt: skip


def left_out(now: Comparison) -> Iterator[Factor]:
    """Yield factors for a side that leaves one tensor out of its clip."""
    tolerance, norms, ratios = _tolerance(now), _norms(now.original), _ratios(now)
    for side in (1, 0):
        limit, own = norms[1 - side].true, norms[side].each
        near = tolerance + _added(limit)
        statement = _round_number(limit, near) or limit
        for k, pair in enumerate(now.pairs if len(ratios) > 1 and _is_limit(now, limit) else ()):
            others = [r for t, r in enumerate(ratios) if t != k]
            if not _near(math.hypot(*(n for t, n in enumerate(own) if t != k)), limit, near):
                continue
            if max(others) > min(others) * (1 + 8 * tolerance):
                continue
            raw = now.original.norms[2][k].rows if pair.raw is not None else own[k]
            if _near(ratios[k], others[0], 8 * tolerance) or (not now.chain and not _near(own[k], raw, tolerance)):
                continue  # it is not as it was before clipping
            text = (
                f"left out of the norm: {{{'ab'[side]}}} clips to {statement:.6g} without counting "
                f"{pair.name or 'this tensor'}, and does not clip it"
            )
            yield Factor(
                ratios, text, {"side": "ab"[side], "tensor": pair.name, "max_norm": statement}, tolerance, COST
            )


#: One tensor is left as it is.
ALONE: Lines = {
    "": ("grads = {{**islices.clip_by_global_norm({{n: g for n, g in grads.items() if n != {tensor!r}}}, "
         "{max_norm:.6g})[0], {tensor!r}: grads[{tensor!r}]}}", TOGETHER[""][0]),
}  # fmt: skip
LEFT_OUT = Cause(
    "left_out", 224, foretell=left_out,
    subsumes=("clipped",), side_does=True, fix=ALONE,
)  # fmt: skip


# ---------------------------------------------------------------------- the epsilon of a formula
def epsilon(now: Comparison) -> Iterator[Factor]:
    """Predict a / b by each pair of formulas, given the norm before clipping."""
    norm = _norm_before(now.original)
    if not norm:
        return
    known: dict[float, list[str]] = {}  # epsilon -> the formulas that add it to the norm
    for name, formula in BY_GLOBAL_NORM.items():
        known.setdefault(formula.slack, []).append(name)
    pairs = list(permutations(known, 2))
    for p, q in pairs:
        a, b = ((f" + {e:g}" if e else "") + f" ({', '.join(known[e])})" for e in (p, q))
        details: dict[str, Any] = {
            "epsilon": [p, q], "semantics": [known[p], known[q]], "norm": norm,
            "max_norm": _norms(now.original)[0].true * (norm + p) / norm,
        }  # fmt: skip
        text = f"epsilon of the clip formula: {{a}} divides by the norm{a}, {{b}} by the norm{b}"
        # sums of squares have equal errors on both sides, so only the roundings of two factors remain
        yield Factor([(norm + q) / (norm + p)] * len(now.pairs), text, details, 2 * now.eps, math.log2(len(pairs)))


def _fix_epsilon(details: Mapping[str, Any]) -> Lines:
    """Return the clip by the first side's formula."""
    formula = details["semantics"][0][0]
    return both_directions(f"grads, _ = islices.clip_by_global_norm(grads, {{max_norm:.6g}}, semantics={formula!r})")


EPSILON = Cause("epsilon", 250, foretell=epsilon, fix=_fix_epsilon)
