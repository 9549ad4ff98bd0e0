"""The bound of clause 28: hand-checked cases, random float32 evaluations within it, and a second derivation."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from islices.conformance.formulas import rules
from islices.conformance.formulas.bounded import CONTEXT, TINY, Real, U, mean, shrink
from islices.conformance.formulas.evaluate import Trajectory, bounded_steps
from islices.conformance.formulas.inputs import Inputs, inputs
from islices.conformance.formulas.numbers import BoundedNumbers, Numbers
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.trajectories import trajectories

single = np.float32


def real(x: float) -> Real:
    return Real.of(float(single(x)))


# ---------------------------------------------------------------------- by hand
@pytest.mark.parametrize(
    ("made", "value", "error"),
    [
        (lambda: real(3.0) * real(5.0), 15.0, 15.0 * U),
        (lambda: real(3.0) + real(5.0), 8.0, 8.0 * U),
        (lambda: real(3.0) - real(3.0), 0.0, 6.0 * U),
        (lambda: real(1.0) + real(2.0) + real(4.0), 7.0, 2 * 7.0 * U),  # two roundings, whatever the association
        (lambda: real(0.0) + real(5.0), 5.0, 0.0),
        (lambda: real(0.0) * real(5.0), 0.0, 0.0),
        (lambda: real(15.0) / real(5.0), 3.0, 2 * 3.0 * U),
        (lambda: real(9.0).sqrt(), 3.0, 2 * 3.0 * U),
        (lambda: abs(real(-2.0)), 2.0, 0.0),
        (lambda: real(-2.0).sign(), -1.0, 0.0),
        (lambda: (real(3.0) - real(3.0)).sign(), 1.0, 2.0),  # it may be any of -1, 0, 1
        (lambda: shrink(real(3.0), real(1.0)), 2.0, 2.0 * U),
        (lambda: shrink(real(-0.5), real(1.0)), 0.0, 0.0),
        (lambda: real(2.0).maximum(real(3.0)), 3.0, 0.0),
    ],
)
def test_an_operation_by_hand(made: Any, value: float, error: float) -> None:
    with localcontext(CONTEXT):
        found = made()
    assert float(found.value) == value
    assert error <= found.error <= error * (1 + 1e-5) + 2 * TINY * (error > 0)


@pytest.mark.parametrize(
    "made",
    [
        lambda: real(1.0) / (real(1.0) - real(1.0)),
        lambda: real(3e38) * real(2.0),
        lambda: real(3e38) + real(3e38),
        lambda: (real(1.0) - real(1.0)).sqrt(positive=False),
        lambda: real(-1.0).sqrt(),
    ],
)
def test_what_may_overflow_or_be_nan_is_not_judged(made: Any) -> None:
    with localcontext(CONTEXT):
        assert math.isinf(made().error)


# ---------------------------------------------------------------------- float32, every way
class Rounding(Numbers):
    """float32 in an order, with or without FMA, chosen at random at each operation.

    Arrays are float64 and hold float32 numbers; sums of three are not among its operations, since rules write them as
    two, whose order is the rule's here and the sampled one in `test_sums_in_any_order`.
    """

    def __init__(self, h: Any, t: int, squares: Any = None, *, source: random.Random, grade: int) -> None:
        super().__init__(h, t, squares)
        self.source, self.grade = source, grade

    def number(self, value: float, operations: int = 0) -> Any:
        return Element(single(value), self.source)

    def gain(self, name: str) -> Any:
        x = self.h[name]
        return Element(single(1.0 - x) if self.grade == 1 else single(1.0) - single(x), self.source)

    def power(self, name: str, t: int) -> Any:
        if self.grade == 1:
            return Element(single(self.h[name] ** t), self.source)
        found = single(1.0)
        for _ in range(t):
            found = found * single(self.h[name])
        return Element(found if self.source.random() < 0.5 else single(single(self.h[name]) ** single(t)), self.source)

    def correction(self, name: str, t: int | None = None) -> Any:
        t = self.t if t is None else t
        if self.grade == 1:
            return Element(single(1.0 - self.h[name] ** t), self.source)
        return Element(single(1.0) - self.power(name, t).x, self.source)

    def mean(self, name: str, old: Any, new: Any) -> Any:
        beta, gain = self[name], self.gain(name)
        return _mean(beta, gain, old, new)

    def sqrt(self, x: Any, *, positive: bool = True) -> Any:
        return _sqrt(x)

    def maximum(self, x: Any, y: Any) -> Any:
        return _maximum(x, y)

    def sign(self, x: Any) -> Any:
        return _sign(x)

    def shrink(self, x: Any, threshold: Any) -> Any:
        return _shrink(x, threshold)

    def off_by(self, x: Any, count: int) -> Any:
        return x


class Element:
    """A float32; a product that has not been rounded yet may be fused into the next sum."""

    def __init__(self, x: Any, source: random.Random, product: float | None = None) -> None:
        self.x, self.source, self.product = x, source, product

    def made(self, x: Any, product: float | None = None) -> Element:
        return Element(single(x), self.source, product)

    def __neg__(self) -> Element:
        return Element(-self.x, self.source, None if self.product is None else -self.product)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Element):
            return NotImplemented
        x, y = float(self.x), float(other.x)
        if self.source.random() < 0.5:  # FMA: of one of the two, the product is exact
            if self.product is not None:
                x = self.product
            elif other.product is not None:
                y = other.product
        return self.made(x + y)

    def __sub__(self, other: Any) -> Any:
        return self + (-other) if isinstance(other, Element) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, Element):
            return NotImplemented
        exact = float(self.x) * float(other.x)
        return self.made(exact, exact)

    def __truediv__(self, other: Any) -> Any:
        if not isinstance(other, Element):
            return NotImplemented
        if self.source.random() < 0.3:
            return self.made(self.x * (single(1.0) / other.x))
        return self.made(self.x / other.x)

    def __abs__(self) -> Element:
        return self.made(abs(self.x))


def _mean_of(beta: Element, gain: Element, old: Element, new: Element) -> Element:
    way = old.source.random()
    if way < 0.4:
        return beta * old + gain * new
    if way < 0.8 or gain.x < 0.5:
        return old + gain * (new - old)
    return new - beta * (new - old)


_mean = np.frompyfunc(_mean_of, 4, 1)
_sqrt = np.frompyfunc(lambda x: x.made(np.sqrt(x.x)), 1, 1)
_maximum = np.frompyfunc(lambda x, y: x.made(max(x.x, y.x)), 2, 1)
_sign = np.frompyfunc(lambda x: x.made(np.sign(x.x)), 1, 1)
_shrink = np.frompyfunc(lambda x, l: x.made(np.copysign(max(abs(x.x) - l.x, single(0)), x.x)), 2, 1)  # noqa: E741


def few(made: Inputs, steps: int) -> Inputs:
    return Inputs(made.weights, made.gradients[:steps])


def rounded_steps(trajectory: Trajectory, made: Inputs, source: random.Random, grade: int) -> Any:
    from islices.conformance.formulas.evaluate import steps

    lift = np.frompyfunc(lambda x: Element(single(x), source), 1, 1)
    return steps(
        trajectory.formula, trajectory, made, lambda h, t, s=None: Rounding(h, t, s, source=source, grade=grade), lift
    )


SAMPLES = [
    ("torch.AdamW", "sizes"), ("torch.Adam", "amsgrad"), ("torch.SGD", "decay and momentum"),
    ("torch.RMSprop", "centered"), ("torch.Adadelta", "decay"), ("torch.Adamax", "betas and schedule"),
    ("keras.Lion", "decay"), ("keras.Ftrl", "l1"), ("fbgemm.EXACT_ROWWISE_ADAGRAD", "decay"),
    ("mxnet.SGD sparse", "decay and momentum"), ("sparsecore.laprop", "sizes"),
    ("tensorflow.RMSProp sparse", "momentum and schedule"), ("keras.Adam sparse", "betas and schedule"),
]  # fmt: skip
DECAYS = [
    ("torch.AdamW", "decay"), ("torch.AdamW", "betas and schedule"), ("keras.Lion", "decay"), ("mxnet.SGD", "decay"),
    ("fbgemm.EXACT_ROWWISE_ADAGRAD", "decay"),
]  # fmt: skip


def as_factor(n: Numbers, w: Any, c: Any) -> Any:
    """w - c w as (1 - c) w, which clause 28 admits."""
    return (n.number(1.0) - c) * w


def sample(name: str, trajectory: str) -> Trajectory:
    return next(x for x in trajectories(FORMULAS[name]) if x.name == trajectory)


@pytest.mark.parametrize("grade", [1, 2])
@pytest.mark.parametrize(
    ("name", "trajectory", "factor"), [*((*x, False) for x in SAMPLES), *((*x, True) for x in DECAYS)]
)
def test_every_float32_evaluation_is_within_the_bound(
    name: str, trajectory: str, factor: bool, grade: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sample(name, trajectory)
    made = few(inputs(one.inputs), 4)
    bounds = bounded_steps(one, grade, made)
    if factor:
        monkeypatch.setattr(rules, "shrunk", as_factor)
    source = random.Random(f"{name} {grade}")
    with np.errstate(all="ignore"):
        for (w, state), (right, right_state) in zip(rounded_steps(one, made, source, grade), bounds, strict=True):
            for array, x, r in [("weights", w, right), *((k, state[k], right_state[k]) for k in state)]:
                for got, real in zip(x.ravel(), r.ravel(), strict=True):
                    error = abs(float(got.x) - float(real.value))
                    assert math.isinf(real.error) or error <= real.error, (array, float(got.x), real)


def test_decay_as_a_factor_needs_its_rounding() -> None:
    """(1 - c) w - s, each step rounded: further off than the roundings of w - c w - s allow."""
    rate, decay, w, s = (
        single(float.fromhex(x)) for x in ("0x1.99999ap-3", "0x1.47ae14p-7", "0x1.009e32p+0", "0x1.07afe6p-12")
    )
    with localcontext(CONTEXT):
        c, numbers = real(rate) * real(decay), BoundedNumbers({}, 1)
        terms = real(w) - c * real(w) - real(s)
        bound = rules.shrunk(numbers, np.array([[real(w)]], object), c)[0, 0] - real(s)
        exact = (1 - Decimal(float(rate)) * Decimal(float(decay))) * Decimal(float(w)) - Decimal(float(s))
        got = single(1.0 - float(rate) * float(decay)) * w - s
        error = abs(Decimal(float(got)) - exact)
    assert terms.error < error <= bound.error


@pytest.mark.parametrize("seed", range(20))
def test_sums_in_any_order(seed: int) -> None:
    source = random.Random(seed)
    terms = [single(source.uniform(-1, 1) * 10.0 ** source.randint(-8, 8)) for _ in range(7)]
    with localcontext(CONTEXT):
        exact = real(0.0)
        for term in terms:
            exact = exact + real(float(term))
        left = list(terms)
        while len(left) > 1:
            a = left.pop(source.randrange(len(left)))
            b = left.pop(source.randrange(len(left)))
            left.append(a + b)
        assert abs(Decimal(float(left[0])) - exact.value) <= Decimal(exact.error)


# ---------------------------------------------------------------------- a second derivation
mpmath = pytest.importorskip("mpmath")
iv = mpmath.iv


class Hull:
    """All values that float32 evaluations may have, as an interval of 200 bits, outwards."""

    def __init__(self, x: Any, terms: int = 1, size: Any = None) -> None:
        self.x, self.terms, self.size = x, terms, size

    def closed(self) -> Any:
        """With the roundings of its sum."""
        if self.terms == 1:
            return self.x
        spread = (iv.mpf(1) + iv.mpf(U)) ** (self.terms - 1) - 1
        off = (spread * self.size).b + (self.terms - 1) * TINY
        return self.x + iv.mpf([-off, off])

    @staticmethod
    def rounded(x: Any, count: int) -> Hull:
        spread = ((iv.mpf(1) + iv.mpf(U)) ** count).b - 1
        return Hull(x + iv.mpf([-TINY, TINY]) * count + x * iv.mpf([-spread, spread]))

    def zero(self) -> bool:
        x = self.closed()
        return bool(x.a == 0 and x.b == 0)

    def __neg__(self) -> Hull:
        return Hull(-self.x, self.terms, self.size)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, Hull):
            return NotImplemented
        if self.zero() or other.zero():
            return other if self.zero() else self
        sizes = [abs(h.x).b if h.terms == 1 else h.size for h in (self, other)]
        return Hull(self.x + other.x, self.terms + other.terms, sizes[0] + sizes[1])

    def __sub__(self, other: Any) -> Any:
        return self + (-other) if isinstance(other, Hull) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, Hull):
            return NotImplemented
        if self.zero() or other.zero():
            return Hull(iv.mpf(0))
        return self.rounded(self.closed() * other.closed(), 1)

    def __truediv__(self, other: Any) -> Any:
        if not isinstance(other, Hull):
            return NotImplemented
        return Hull(iv.mpf(0)) if self.zero() else self.rounded(self.closed() / other.closed(), 2)

    def root(self) -> Hull:
        x = self.closed()
        return self if self.zero() else self.rounded(iv.sqrt(iv.mpf([max(x.a, 0), x.b])), 2)


def hull_of(x: Real) -> Hull:
    middle = iv.mpf(str(x.value))
    return Hull(middle + iv.mpf([-x.error, x.error]))


def _side(x: Any) -> int:
    return int(x > 0) - int(x < 0)


class HullNumbers(BoundedNumbers):
    """The same scalars, as intervals; means from their two forms, each by itself."""

    def number(self, value: float, operations: int = 0) -> Any:
        return hull_of(super().number(value, operations))

    def formed(self, exact: Decimal, single: float) -> Any:
        return hull_of(super().formed(exact, single))

    def mean(self, name: str, old: Any, new: Any) -> Any:
        beta, gain = self[name], self.gain(name)

        def either(a: Hull, b: Hull) -> Hull:
            forms = [(beta * a + gain * b).closed(), (a + gain * (b - a)).closed()]
            return Hull(iv.mpf([min(f.a for f in forms), max(f.b for f in forms)]))

        return np.frompyfunc(either, 2, 1)(old, new)

    def sqrt(self, x: Any, *, positive: bool = True) -> Any:
        return np.frompyfunc(lambda a: a.root(), 1, 1)(x)

    def sign(self, x: Any) -> Any:
        return np.frompyfunc(lambda a: Hull(iv.mpf([_side(a.closed().a), _side(a.closed().b)])), 1, 1)(x)

    def shared(self, factor: Any, total: Any) -> Any:
        return factor * total

    def off_by(self, x: Any, count: int) -> Any:
        return np.frompyfunc(lambda a: a if a.zero() else Hull.rounded(a.closed(), count), 1, 1)(x)


@pytest.mark.parametrize(
    ("name", "trajectory"),
    [
        ("torch.AdamW", "decay"),
        ("torch.SGD", "nesterov"),
        ("torch.RMSprop", "sizes"),
        ("fbgemm.EXACT_ADAGRAD", "sizes"),
        ("fbgemm.EXACT_ROWWISE_ADAGRAD", "decay"),
    ],
)
def test_intervals_agree(name: str, trajectory: str) -> None:
    """Each lies in the other, but for what the interval loses by forgetting that old stands twice in a mean."""
    for real, width in widths(sample(name, trajectory)):
        assert width <= real.error * (1 + 1e-4) + 1e-300, real
        # a mean takes the worst of its forms, term by term
        assert real.error <= 2.5 * width + 1e-300, real


@pytest.mark.parametrize(("name", "trajectory"), DECAYS)
def test_intervals_of_decay_as_a_factor(name: str, trajectory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "shrunk", as_factor)
    found = list(widths(sample(name, trajectory)))
    monkeypatch.undo()
    for (_, width), (real, _) in zip(found, widths(sample(name, trajectory)), strict=True):
        assert width <= real.error * (1 + 1e-4) + 1e-300, real


def widths(one: Trajectory) -> Iterator[tuple[Real, float]]:
    """Each element of the weights and states after a step, and how far the ends of its interval are from its value."""
    from islices.conformance.formulas.evaluate import initial_state, step

    made = few(inputs(one.inputs), 1)
    iv.prec = 200
    lift = np.frompyfunc(lambda x: Hull(iv.mpf(float(x))), 1, 1)
    h = one.formula.hyper(one.options(1))
    state = {k: lift(x) for k, x in initial_state(one.formula, h, made.weights.shape).items()}
    with localcontext(CONTEXT):
        w, states = step(one.formula, h, 1, lift(made.weights), made.gradients[0], state, HullNumbers, lift)
    right, right_states = bounded_steps(one, 1, made)[0]
    for x, r in [(w, right), *((states[k], right_states[k]) for k in states)]:
        for hull, real in zip(x.ravel(), r.ravel(), strict=True):
            value, found = float(real.value), hull.closed()
            yield real, max(float(found.b) - value, value - float(found.a))


def test_a_mean_holds_for_its_forms_by_hand() -> None:
    with localcontext(CONTEXT):
        found = mean(Real.of(0.5), Real.of(0.5), real(2.0), real(4.0))
    assert float(found.value) == 3.0
    assert 3.0 * U <= found.error <= 20 * U
