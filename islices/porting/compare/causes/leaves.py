"""Causes by which both sides were clipped to one limit, by norms of other sets of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from islices.porting.compare.cause import Cause, Factor, Lines
from islices.porting.compare.causes.clipping import EACH, TOGETHER, added, near, norm_tolerance, round_number
from islices.porting.compare.comparison import Comparison, Side

__all__ = ["LEFT_OUT", "PER_TENSOR"]

#: What a factor that is read off one tensor's norms costs: the norms agree on the limit besides.
COST = 6.0


def _norms(side: Side) -> list[float]:
    return [x.norm for x in side]


def per_tensor(original: Comparison, now: Comparison) -> Iterator[Factor]:
    """One side clips all tensors by their common norm, the other each tensor by its own."""
    if len(original.a) < 2:
        return
    tolerance, given = norm_tolerance(original), original.context.max_norm
    for each in (1, 0):
        whole = math.hypot(*_norms(original.side(1 - each)))
        largest = max(_norms(original.side(each)))
        if not 0 < whole < math.inf or not near(largest, whole, tolerance + added(whole)):
            continue
        if given is not None and not near(whole, given, tolerance + added(given)):
            continue
        ratios = _ratios(now)
        if ratios is None or max(ratios) <= min(ratios) * (1 + 8 * tolerance):
            continue
        one, other = "ab"[each], "ba"[each]
        limit = round_number(whole, tolerance + added(whole)) or whole
        text = (
            f"clipping by tensor: {{{one}}} clips each tensor by its own norm, {{{other}}} all by their common norm, "
            f"to {limit:.6g}"
        )
        details = {"side": one, "norm": "each tensor", "max_norm": limit}
        yield Factor(ratios, text, details, tolerance, COST)


PER_TENSOR = Cause(
    "per_tensor", "clipped by tensor or together", 222, foretell=per_tensor, needs=("gradients",),
    subsumes=("clipped",), side_does=True, fix={"": (EACH[""][0], TOGETHER[""][0])},
)  # fmt: skip


def left_out(original: Comparison, now: Comparison) -> Iterator[Factor]:
    """One side's norm for clipping does not count one of the tensors, which is clipped with the others or not."""
    if len(original.a) < 2:
        return
    tolerance, given = norm_tolerance(original), original.context.max_norm
    for side in (1, 0):
        limit = math.hypot(*_norms(original.side(1 - side)))
        if not 0 < limit < math.inf or (given is not None and not near(limit, given, tolerance + added(given))):
            continue
        own = _norms(original.side(side))
        ratios, said = _ratios(now), round_number(limit, tolerance + added(limit)) or limit
        for k, name in enumerate(original.context.names):
            if ratios is None or not own[k]:
                continue
            if not near(math.hypot(*(n for t, n in enumerate(own) if t != k)), limit, tolerance + added(limit)):
                continue
            others = [r for t, r in enumerate(ratios) if t != k]
            if max(others) > min(others) * (1 + 8 * tolerance):
                continue
            alike = near(ratios[k], others[0], 8 * tolerance)
            # beside another cause, such as a regulariser, it need not be
            if not alike and now is original and not _is_raw(original, k, own[k], tolerance):
                continue
            does = "clips it by the norm of the others" if alike else "does not clip it"
            text = (
                f"left out of the norm: {{{'ab'[side]}}} clips to {said:.6g} without counting "
                f"{name or 'this tensor'}, and {does}"
            )
            details = {"side": "ab"[side], "tensor": name, "clipped": alike, "max_norm": said}
            yield Factor(ratios, text, details, tolerance, COST)


def _is_raw(both: Comparison, k: int, norm: float, tolerance: float) -> bool:
    """Whether a tensor is as it was before clipping, as far as that is known."""
    raw = both.raw(k)
    return raw is None or near(norm, raw.norm, tolerance)


def left_alone(original: Comparison, now: Comparison) -> Iterator[Factor]:
    """One side is clipped, but for a tensor that its norm does not count; the other is not clipped."""
    yield from left_out(original, now)
    given, ratios = original.context.max_norm, _ratios(now)
    if given is None or ratios is None or len(ratios) < 2:
        return
    tolerance = norm_tolerance(original)
    for side in (1, 0):
        own, loose = _norms(original.side(side)), _norms(now.side(1 - side))
        for k, name in enumerate(original.context.names):
            counted = [n for t, n in enumerate(own) if t != k]
            if not near(math.hypot(*counted), given, tolerance + added(given)) or not near(own[k], loose[k], tolerance):
                continue
            which = name or "one tensor"
            text = f"clipped: {{{'ab'[side]}}} is clipped to {given:.6g}, but for {which}, left out of the norm"
            details = {"side": "ab"[side], "tensor": name, "clipped": False, "max_norm": given}
            yield Factor(ratios, text, details, tolerance, COST)


_OTHERS = "{{n: g for n, g in grads.items() if n != {tensor!r}}}"
#: One tensor is left as it is, or clipped by the norm of the others.
ALONE: Lines = {
    "": ("grads = {{**islices.clip_by_global_norm(" + _OTHERS + ", {max_norm:.6g})[0], {tensor!r}: grads[{tensor!r}]}}",
         TOGETHER[""][0]),
}  # fmt: skip
BY_OTHERS: Lines = {
    "": ("grads = islices.scale(grads, min(1.0, {max_norm:.6g} / float(islices.global_norm(" + _OTHERS + "))))",
         TOGETHER[""][0]),
}  # fmt: skip
LEFT_OUT = Cause(
    "left_out", "a tensor left out of the norm", 224, foretell=left_alone, needs=("gradients",),
    subsumes=("clipped",), side_does=True, fix=lambda details: BY_OTHERS if details["clipped"] else ALONE,
)  # fmt: skip


def _ratios(both: Comparison) -> tuple[float, ...] | None:
    """a / b of each tensor by their norms; None where one is zero."""
    norms: list[Sequence[float]] = [_norms(both.a), _norms(both.b)]
    if not all(0 < n < math.inf for side in norms for n in side):
        return None
    return tuple(x / y for x, y in zip(*norms, strict=True))
