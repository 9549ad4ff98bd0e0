"""Define the causes that come from clipping: only one side is clipped, or both are clipped, for example with different
norms or epsilons.

If clipping to the limit M changes a gradient g, the result is g * M / N. Here N is a norm plus the epsilon of the
formula. The norm is the norm of g, or the norm of the slots of g before duplicates are summed. So if both sides clip
the same gradient to the same limit, a / b = N_b / N_a.

Frameworks sum the squares of a norm in different orders. The relative error of a blocked or pairwise sum of n elements
is less than (4 log2(n) + 16) eps / 2. The tolerances of factors that contain norms include this bound. Only the factor
of `epsilon` needs less, because its norms have the same errors on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

from islices.norms.clip_formulas import BY_GLOBAL_NORM
from islices.porting.compare.cause import Cause, Factor, Lines
from islices.porting.compare.comparison import Comparison

#: The cost in bits of a factor that is computed from the norms of single tensors. The cost is low because these norms
#: also have to agree with the limit.
COST = 6.0
#: CLIP clips all tensors by their common norm, and EACH clips each tensor by its norm. TOGETHER, ALONE and OPTAX are
#: pairs: the line that adds the clipping, and the line that removes the clipping.
CLIP, EACH = "islices.clip_by_global_norm(grads, {max_norm:.6g})", "islices.clip_by_norm(grads, {max_norm:.6g})"
TOGETHER, ALONE = (f"grads, _ = {CLIP}", f"take `{CLIP}` out"), (f"grads = {EACH}", f"take `{EACH}` out")
OPTAX = (
    "optimizer = optax.chain(optax.clip_by_global_norm({max_norm:.6g}), optimizer)",
    "take `optax.clip_by_global_norm({max_norm:.6g})` out",
)


# ---------------------------------------------------------------------- norms
class Norms(NamedTuple):
    """The norms of one side.

    `true` is the norm of all tensors together. `raw` is the known or estimated norm of all slots before duplicates are
    summed, or None. `each` is a list with the norm of each tensor.
    """

    true: float
    raw: float | None
    each: list[float]


def _norms(both: Comparison) -> tuple[Norms, Norms]:
    """Return the norms of a and b.

    If the slots of a side are unknown, this function estimates their norm from the norm of the side's rows. The
    assumption is that both norms have the same ratio as on the other side or in the raw gradient.
    """
    whole = [math.hypot(*(n.rows for n in side)) for side in both.norms]
    slots = [math.hypot(*(n.rows if n.slots is None else n.slots for n in side)) for side in both.norms]
    known = [k for k, side in enumerate(both.norms) if any(n.slots is not None for n in side)]
    out = []
    for k in (0, 1):
        raw, holder = None, k if k in known else next(iter(known), None)
        if holder is not None:
            raw = whole[k] * (slots[holder] / whole[holder] if whole[holder] else 1.0)
        out.append(Norms(whole[k], raw, [n.rows for n in both.norms[k]]))
    return out[0], out[1]


class Clipping:
    """The norms of both sides, before all changes (`norms`) and after the changes so far (`left`).

    `tolerance` is the relative tolerance of a factor that contains a norm. `before` is the norm of the raw gradient, or
    None if the raw gradient of any tensor is unknown.
    """

    def __init__(self, now: Comparison) -> None:
        first = now.original
        elements = sum(whole.a.values.size for whole in first.source) + 2
        self.tolerance = first.eps * (4 * math.log2(elements) + 16) / 2 + now.slack
        self.norms, self.left, self.given = _norms(first), _norms(now), now.context.max_norm
        self.raw = [None if pair.raw is None else n.rows for pair, n in zip(now.pairs, first.norms[2], strict=True)]
        self.before = None if None in self.raw else math.hypot(*filter(None, self.raw))

    def is_limit(self, norm: float) -> bool:
        """Return True if a norm is finite and positive, and equals the caller's limit within the tolerance. If the
        caller passed no limit, return True for every finite and positive norm."""
        given = self.given
        return 0 < norm < math.inf and (given is None or _near(norm, given, self.tolerance + _added(given)))

    def factor(self, a: float | None, b: float | None) -> float | None:
        """Return the factor between side a and side b that results if both sides were clipped to one limit.

        Return None if a norm is unknown, zero or not finite.

        `a` and `b` are the norms that clipping reduced to the limit: norms of rows, or of unsummed slots.
        """
        left = [side.true for side in self.left]
        if a is None or b is None or not all(0 < n < math.inf for n in (a, b, *left)):
            return None
        return (b / left[1]) / (a / left[0])

    def otherwise(self) -> Iterator[tuple[int, list[float], float, float, float]]:
        """Yield the cases in which one side seems to clip all tensors by their common norm. The caller examines how the
        other side clips.

        A case is a tuple of five items. The first three are the other side, the norms of its tensors, and the limit.
        The last two are the relative tolerance of the limit, and the limit that the report shows.
        """
        for side in (1, 0):
            limit = self.norms[1 - side].true
            near = self.tolerance + _added(limit)
            if self.is_limit(limit) and self.ratios:
                yield side, self.norms[side].each, limit, near, _round_number(limit, near) or limit

    @property
    def ratios(self) -> list[float]:
        """Return, for each tensor, the norm in a divided by the norm in b. Return an empty list if there is only one
        tensor, or if a norm is zero or not finite."""
        a, b = (side.each for side in self.left)
        return [x / y for x, y in zip(a, b, strict=True)] if len(a) > 1 and all(0 < n < math.inf for n in a + b) else []

    def unlike(self, ratios: Sequence[float]) -> bool:
        """Return True if the ratios differ by more than rounding errors in the norms can explain."""
        return max(ratios) > min(ratios) * (1 + 8 * self.tolerance)


def _added(norm: float) -> float:
    """Return the largest relative change of a norm if a clipping formula adds an epsilon to the norm, such as torch's
    1e-6."""
    return 1e-6 / norm if norm > 0 else 0.0


def _near(x: float, y: float, tolerance: float) -> bool:
    return abs(x - y) <= tolerance * abs(y)


def _round_number(x: float, tolerance: float) -> float | None:
    """Return the number of at most two significant digits that is close to x, or None if there is none.

    Users mostly choose a max_norm with few digits. Return None if the tolerance is as large as for 16-bit gradients,
    because then too many numbers are close to a short decimal.
    """
    if not 0 < x < math.inf or tolerance > 1e-4:
        return None
    short = float(f"{x:.1e}")
    return short if _near(x, short, tolerance) else None


# ---------------------------------------------------------------------- both are clipped to one limit
def clipped_after(now: Comparison) -> Iterator[Factor]:
    """Yield the factors that result if both sides are clipped to the same limit after the changes so far. Yield nothing
    if there is no change so far."""
    c = Clipping(now)
    for a, b in ((n.true for n in c.norms), (n.raw for n in c.norms)) if now.chain else ():
        if (ratio := c.factor(a, b)) and a and c.is_limit(a):
            text = f"clip: both were clipped after that, to the same norm {a:.6g}"
            yield Factor([ratio] * len(now.pairs), text, {"limit": a}, c.tolerance, 1.0)


CLIP_AFTER = Cause("clip_after", 220, foretell=clipped_after)


def unsummed(now: Comparison) -> Iterator[Factor]:
    """Yield the factors that result if one side computes the norm for clipping before it sums duplicates."""
    c = Clipping(now)
    (true_a, raw_a, _), (true_b, raw_b, _) = c.norms
    for side, a, b in (("b", true_a, raw_b), ("a", raw_a, true_b)):
        if ratio := c.factor(a, b):
            text = f"duplicates: {{{side}}} has not summed duplicates before it took the norm for clipping"
            yield Factor([ratio] * len(now.pairs), text, {"side": side, "max_norm": a}, c.tolerance, 1.0)


DUPLICATES = Cause(
    "duplicates", 210, foretell=unsummed, subsumes=("clipped",), side_does=True,
    fix=(f"grads, _ = {CLIP[:-1]}, semantics='tensorflow')", TOGETHER[0]),
)  # fmt: skip


def per_tensor(now: Comparison) -> Iterator[Factor]:
    """Yield the factors that result if one side clips all tensors by their common norm, and the other side clips each
    tensor separately."""
    c = Clipping(now)
    for side, own, limit, near, stated in c.otherwise():
        if _near(max(own), limit, near) and c.unlike(c.ratios):
            x, y = "ab"[side], "ba"[side]
            text = (
                f"clipping by tensor: {{{x}}} clips each tensor by its own norm, {{{y}}} all by their common norm, to "
                f"{stated:.6g}"
            )
            details = {"side": x, "norm": "each tensor", "max_norm": stated}
            yield Factor(c.ratios, text, details, c.tolerance, COST)


PER_TENSOR = Cause(
    "per_tensor", 222, foretell=per_tensor, subsumes=("clipped",), side_does=True, fix=(ALONE[0], TOGETHER[0])
)


def left_out(now: Comparison) -> Iterator[Factor]:
    """Yield the factors that result if one side leaves one tensor unclipped and clips all others by their common norm.

    The other side clips all tensors by their common norm.
    """
    c = Clipping(now)
    for side, own, limit, near, stated in c.otherwise():
        for t, pair in enumerate(now.pairs):
            others, norms = ([*x[:t], *x[t + 1 :]] for x in (c.ratios, own))
            if not _near(math.hypot(*norms), limit, near) or c.unlike(others) or not c.unlike([c.ratios[t], others[0]]):
                continue
            raw = c.raw[t]
            if raw is not None and not now.chain and not _near(own[t], raw, c.tolerance):
                continue  # the tensor differs from its raw gradient
            text = (
                f"left out of the norm: {{{'ab'[side]}}} clips to {stated:.6g} without counting "
                f"{pair.name or 'this tensor'}, and does not clip it"
            )
            details = {"side": "ab"[side], "tensor": pair.name, "max_norm": stated}
            yield Factor(c.ratios, text, details, c.tolerance, COST)


LEFT_OUT = Cause(
    "left_out", 224, foretell=left_out, subsumes=("clipped",), side_does=True,
    fix=(
        "grads = {{**islices.clip_by_global_norm({{n: g for n, g in grads.items() if n != {tensor!r}}}, "
        "{max_norm:.6g})[0], {tensor!r}: grads[{tensor!r}]}}", TOGETHER[0],
    ),
)  # fmt: skip


# ---------------------------------------------------------------------- one is clipped
def clipped(now: Comparison) -> Iterator[Factor]:
    """Yield the factors that result if one side is clipped and the other side is not.

    The limit is the caller's `max_norm`. If the caller passed no `max_norm`, the limit must be a round number, or the
    raw gradient must be known.
    """
    c = Clipping(now)
    for norms, bound in product((c.norms, c.left) if now.chain else (c.norms,), (1, 0)):
        tight, loose = norms[bound], norms[1 - bound]
        before = loose.true if c.before is None else c.before
        if not now.chain and not _near(loose.true, before, c.tolerance):
            continue  # the other side is not the gradient before clipping
        # (text for the report, norm of the clipped side, norm of the other side, smallest norm to which the formula
        # adds an epsilon)
        kinds = [("", tight.true, before if now.chain else loose.true, tight.true)]
        if tight.raw is not None and loose.raw is not None and tight.raw != tight.true:
            kinds.append((", without summing duplicates", tight.raw, loose.raw, tight.raw))
        if len(tight.each) > 1:
            kinds.append((", each tensor by its own norm", max(tight.each), max(loose.each), min(tight.each)))
        for kind, size, whole, least in kinds:
            tolerance = c.tolerance + max(_added(whole), _added(least))
            limit = c.given or _round_number(size, tolerance)
            if limit is None and c.before is not None and not now.chain:
                limit = float(f"{size:.6g}")
            if limit is None or not 0 < limit < whole or not _near(size, limit, tolerance):
                continue
            alone = kind.endswith("own norm")
            ratios = [max(1.0, n / limit) if alone else whole / size for n in loose.each]
            x, y = "ab"[bound], "ba"[bound]
            text = f"clipped: {{{x}}} is clipped to the norm {limit:.6g}{kind}; {{{y}}} is not (norm {whole:.6g})"
            details = {"side": x, "max_norm": limit} | ({"norm": "each tensor"} if alone else {})
            ratios = ratios if bound else [1 / r for r in ratios]
            yield Factor(ratios, text, details, tolerance, 0.0 if c.given else 8.0)


def _unclip(details: Mapping[str, Any], framework: str) -> Lines:
    return ALONE if "norm" in details else OPTAX if framework == "jax" else TOGETHER


CLIPPED = Cause("clipped", 240, foretell=clipped, side_does=True, fix=_unclip)


# ---------------------------------------------------------------------- the epsilon of a formula
def epsilon(now: Comparison) -> Iterator[Factor]:
    """Yield the factor a / b for each pair of different epsilons in clipping formulas. Yield nothing if the norm before
    clipping is unknown or zero."""
    c = Clipping(now)
    norm = c.before
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
            "max_norm": c.norms[0].true * (norm + p) / norm,
        }  # fmt: skip
        text = f"epsilon of the clip formula: {{a}} divides by the norm{a}, {{b}} by the norm{b}"
        # sums of squares have equal errors on both sides, so only the roundings of two factors remain
        yield Factor([(norm + q) / (norm + p)] * len(now.pairs), text, details, 2 * now.eps, math.log2(len(pairs)))


def _fix_epsilon(details: Mapping[str, Any], framework: str) -> str:
    """Return the line that clips with the formula of the first side."""
    return f"grads, _ = {CLIP[:-1]}, semantics={details['semantics'][0][0]!r})"


EPSILON = Cause("epsilon", 250, foretell=epsilon, fix=_fix_epsilon)
