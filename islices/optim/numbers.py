"""The numbers of a step that all rows share, such as the learning rate and bias corrections. SPEC clause 16."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import numpy as np

from islices.backend import Array, Backend, Host
from islices.core import modes
from islices.core.arguments import is_real
from islices.core.host import quiet
from islices.core.linear import as_float
from islices.optim.formulas import Formula
from islices.optim.hyperparameters import Hyper, at_step, known_hyper

#: The largest step count, which is an int32.
LAST_STEP = 2**31 - 1
#: The largest number of step counts for which a formula's numbers are cached.
COUNTS = 8
#: The name of a number -> the name of a hyperparameter x; the number is 1 - x.
GAINS = {"gain1": "beta1", "gain2": "beta2", "gain": "dampening", "gain_rho": "rho"}
#: The number of bits of a step count.
BITS = 32


class Numbers:
    """The numbers of one step by name. Each number is a Python number, or an array of E with shape (1,).

    The arrays are float64, except where a derived class rounds them to another dtype. Classes in islices/optim/records/
    derive from this class, and compute or round numbers as one semantics requires.

    Attributes
    ----------
    E : Backend
        `islices.core.modes.HOST` if the step count is known, else the table's backend.
    count : Array
        The number of completed steps before this step, as an int32 array.
    exact_lr : Array
        The learning rate of this step, as a float64 array.
    h : Hyper
        The hyperparameters at this step: Python numbers and bools, or, in a traced step, also float64 arrays of E.
    wide : str
        The name of the dtype in which the rule computes.
    """

    one, zero, half, two = 1.0, 0.0, 0.5, 2.0
    narrow_dtype = ""  # the dtype of `narrow`; "" means the dtype in which the rule computes

    def __init__(self, E: Backend, count: Array, h: Hyper, wide: str) -> None:
        self.E, self._count, self.h, self.wide = E, count, h, wide
        self.counted = False  # True once a number has used the count
        self.exact_lr = np.array((h["lr"],), np.float64) if E is modes.HOST else self.array_of(h["lr"])

    def value(self, name: str) -> Any:
        """Return the number with this name: a method's result, an attribute, 1 minus a hyperparameter (see `GAINS`), or
        a hyperparameter."""
        own = getattr(self, name, None)
        if own is not None:
            return own() if callable(own) else own
        return self.complement(GAINS[name]) if name in GAINS else self.hyper(name)

    def hyper(self, name: str) -> Any:
        """Return a hyperparameter, which some derived classes round as their framework does."""
        return self.h[name]

    # ------------------------------------------------------------------ numbers of several rules
    def mu(self) -> Any:
        return self.hyper("momentum")

    def keep(self) -> Any:
        """Return 1 - lr * weight_decay."""
        return self.number(1.0) - self.E.round_product(self.exact_lr, self.array_of(self.h["weight_decay"]))

    def decay_rate(self) -> Any:
        return self.value("lr")

    def correction(self, beta: str) -> Any:
        """Return the bias correction 1 - beta^t."""
        one = 1.0 if self.E is modes.HOST else self.number(1.0)
        return one - self.power(self.h[beta])

    def correction1(self) -> Any:
        return self.correction("beta1")

    def correction2(self) -> Any:
        return self.correction("beta2")

    # ------------------------------------------------------------------ arithmetic

    @property
    def count(self) -> Array:
        self.counted = True
        return self._count

    @property
    def t(self) -> Array:
        """Return the number of this step, counted from 1, as a float64 array."""
        t = self.E.astype(self.count, "float64") + self.number(1.0)
        if self.E is modes.HOST:
            return t
        # because the number may be NaN, a compiler does not contract operations on the number to FMA
        return self.E.where(self.E.equal(self.count, -1), self.number(np.nan), t)

    def number(self, x: float, dtype: str = "float64") -> Array:
        """Return x as an array of E with shape (1,)."""
        return np.array((x,), dtype) if self.E is modes.HOST else self.array(np.full(1, x, dtype))

    def array_of(self, x: Any) -> Array:
        """Return a number as an array of E, and an array unchanged."""
        return self.number(x) if is_real(x) else x

    def complement(self, name: str) -> Any:
        """Return 1 - x, where x is the hyperparameter with this name."""
        x = self.hyper(name)
        return 1.0 - x if type(x) is float or is_real(x) else self.number(1.0) - x

    def single(self, name: str) -> Any:
        """Return a hyperparameter rounded to float32."""
        x = self.h[name]
        return single(x) if is_real(x) else self.E.astype(self.E.astype(x, "float32"), "float64")

    def narrow(self, x: Any) -> Array:
        """Return x as an array of the dtype `narrow_dtype`, or of the dtype `wide` if `narrow_dtype` is empty."""
        return self.E.astype(self.array_of(x), self.narrow_dtype or self.wide)

    def power(self, base: Any) -> Array:
        """Return base^t as the product of base^(2^k) over the binary digits k of t that are 1 (SPEC clause 16).

        A binary digit that is 0 gives the factor 1. In each pass, every factor of the first half is multiplied by its
        counterpart in the second half, until one factor is left. The method computes powers only by products, because
        no framework's pow is correctly rounded.
        """
        E = self.E
        if E is modes.HOST:
            return np.array((power_of(base, int(self.count[0]) + 1),))
        scaled = E.round_product(self.t, self.array(2.0 ** -np.arange(BITS + 1.0)))
        whole = E.reshape(E.astype(scaled, "int32"), (1, BITS + 1))  # column k: t without its last k binary digits
        digits = E.columns(whole, 0, BITS) - E.columns(whole, 1, BITS + 1) - E.columns(whole, 1, BITS + 1)
        product = E.where(E.equal(digits, 1), E.reshape(self._squares(base), (1, BITS)), 1.0)
        half = BITS
        while half > 1:
            half //= 2
            product = E.round_product(E.columns(product, 0, half), E.columns(product, half, 2 * half))
        return E.reshape(product, (1,))

    def _squares(self, base: Any) -> Array:
        """Return the numbers that `_repeated_squares` defines for `base`, as an array of shape (BITS,)."""
        if is_real(base):
            return self.array(np.array(_repeated_squares(base)))
        E, squares, zero = self.E, [base], self.number(0.0)
        for _ in range(BITS - 1):
            square = E.round_product(squares[-1], squares[-1])
            squares.append(E.where(E.less_equal(square, self.number(1e-290)), zero, square))
        return E.concat(squares)

    def library_power(self, base: Any) -> Array:
        """Return base^t, computed with Python's ``**``, or with `power` in traced code."""
        return self.number(base ** float(self.t[0])) if self.E is modes.HOST else self.power(base)

    def array(self, x: Host) -> Array:
        return self.E.asarray(x, self.count)


@lru_cache(maxsize=256)
def _repeated_squares(base: float) -> tuple[float, ...]:
    """Return base^(2^k) for all k below `BITS`.

    Each number after `base` is the rounded square of the number before, or 0 if this square is at most 1e-290.
    """
    squares = [base]
    for _ in range(BITS - 1):
        square = squares[-1] * squares[-1]
        squares.append(square if square > 1e-290 else 0.0)
    return tuple(squares)


@lru_cache(maxsize=256)
def power_of(base: float, t: int) -> float:
    """Return base^t for t >= 1 with the same bits as `Numbers.power`.

    The factors for binary digits far above the highest digit of t are left out, since they are 1.
    """
    size = 1 << (t.bit_length() - 1).bit_length()  # a power of two above the position of t's highest binary digit
    factors: list[float] = []
    for k, x in enumerate(_repeated_squares(base)[:size]):
        factors.append(x if t >> k & 1 else 1.0)
    while size > 1:
        size //= 2
        factors = list(map(operator.mul, factors[:size], factors[size:]))
    return factors[0]


def single(x: float) -> float:
    """Return x rounded to float32."""
    return float(np.float32(x))


class Singles(Numbers):
    """The numbers of a framework that rounds all hyperparameters to float32."""

    def hyper(self, name: str) -> Any:
        return self.single(name)


class Keras(Numbers):
    """The numbers of Keras, which rounds the learning rate and weight decay to float32."""

    def lr(self) -> Any:
        return self.single("lr")

    def weight_decay(self) -> Any:
        return self.single("weight_decay")


# ---------------------------------------------------------------------- a formula's numbers at a step
def step_numbers(B: Backend, formula: Formula, hyper: Hyper, step: Array, wide: str, count: Array | None) -> Array:
    """Return the numbers that `Formula.names` lists, at this step, as one array of the dtype `wide`.

    `step` is the number of completed steps as an array of B. `count` is the same number as a NumPy array, or None if
    `step` is traced. If the count is known, the result is a NumPy array. Recent numbers are cached,
    because many parameters of a model use the same numbers in a step. Raise ValueError for a count out of range.
    """
    if count is None:
        return _traced_numbers(B, formula, hyper, step, wide)
    taken = int(count[0])
    if not 0 <= taken < LAST_STEP:
        raise ValueError(f"state['step']: got {taken}; accepted is 0 <= step < {LAST_STEP}")
    h = known_hyper(hyper, count, formula.limits)
    last = _last_numbers(formula, tuple(h.items()), wide)
    known = last.get(None, last.get(taken))
    if known is None:
        numbers, found = formula.numbers(modes.HOST, np.array((taken,), np.int32), h, wide), []
        with quiet():
            for name in formula.names:
                x = numbers.value(name)
                number = x.item() if isinstance(x, np.ndarray) else x
                found.append(number if type(number) is float else as_float(number))
            known = np.array(found, wide)
        if len(last) >= COUNTS:
            last.clear()
        last[taken if numbers.counted else None] = known
    return known


@lru_cache(maxsize=64)
def _last_numbers(formula: Formula, hyper: tuple[tuple[str, Any], ...], wide: str) -> dict[int | None, Array]:
    """Return the cache of `step_numbers` for these arguments: a dict from step counts to arrays of numbers.

    Numbers under the key None do not depend on the step count.
    """
    return {}


def _traced_numbers(B: Backend, formula: Formula, hyper: Hyper, step: Array, wide: str) -> Array:
    known = (bool, float, int)
    at = {n: x if isinstance(x, known) else at_step(B, n, x, step, formula.limits) for n, x in hyper.items()}
    with B.scope():
        h = {name: x if isinstance(x, known) else B.astype(B.reshape(x, (1,)), "float64") for name, x in at.items()}
        numbers = formula.numbers(B, step, h, wide)
        columns = [B.astype(numbers.array_of(numbers.value(name)), "float64") for name in formula.names]
        return B.astype(B.concat(columns), wide)
