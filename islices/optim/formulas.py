"""What an optimizer is made of, as data: its rule, its state, its numbers, its defaults; and islices' own.

A preset is the same data for another framework's arithmetic (`islices.optim.presets`). SPEC clauses 11 and 16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from islices import modes
from islices.arguments import is_real
from islices.backend import Array, Backend
from islices.optim import rules
from islices.optim.hyperparameters import Hyper, is_on

__all__ = [
    "FORMULAS",
    "FTRL",
    "Formula",
    "Hyper",
    "Numbers",
    "Preset",
    "State",
    "adam_state",
    "decays",
    "ftrl_kind",
    "rmsprop_kind",
    "single",
    "with_power",
]

#: Bits of the step count.
BITS = 32


class Numbers:
    """What a step's numbers are computed from: float64 arrays of shape (1,) on the primitives of E.

    Attributes
    ----------
    E : Backend
        `islices.modes.HOST` where the step count is known, else the backend that traces.
    count : Array
        The steps taken before this one, int32.
    lr : Array
        Its learning rate, float64.
    h : Hyper
        The hyperparameters at this step: Python numbers, or float64 arrays of E where the step is traced.
    """

    __slots__ = ("E", "count", "h", "lr")

    def __init__(self, E: Backend, count: Array, lr: Array, h: Hyper) -> None:
        self.E, self.count, self.lr, self.h = E, count, lr, h

    @property
    def t(self) -> Array:
        """The number of this step, from 1, float64."""
        t = self.E.astype(self.count, "float64") + self.number(1.0)
        if self.E is modes.HOST:
            return t
        # a count that may be NaN, as far as a compiler can tell: what it knows to be none, it contracts to FMA
        return self.E.where(self.E.equal(self.count, -1), self.number(np.nan), t)

    def number(self, x: float, dtype: str = "float64") -> Array:
        """x as an array of E."""
        return np.array((x,), dtype) if self.E is modes.HOST else self.E.asarray(np.full(1, x, dtype), self.count)

    def array_of(self, x: Any) -> Array:
        """A number as an array of E, an array as it is."""
        return self.number(x) if is_real(x) else x

    def complement(self, name: str) -> Any:
        """1 - x of a hyperparameter x."""
        x = self.h[name]
        return 1.0 - x if is_real(x) else self.number(1.0) - x

    def single(self, name: str) -> Any:
        """A hyperparameter as a float32 holds it."""
        x = self.h[name]
        return single(x) if is_real(x) else self.E.astype(self.E.astype(x, "float32"), "float64")

    def power(self, base: Any) -> Array:
        """base^t: the product, by halves, of base^(2^k) over the binary digits k of t (SPEC clause 16).

        Products alone, since no framework's pow is correctly rounded.
        """
        E = self.E
        if E is modes.HOST:
            t, squares = int(self.t[0]), _repeated_squares(base)
            factors = [x if t >> k & 1 else 1.0 for k, x in enumerate(squares)]
            while len(factors) > 1:
                half = len(factors) // 2
                factors = [a * b for a, b in zip(factors[:half], factors[half:], strict=True)]
            return self.number(factors[0])
        scaled = E.round_product(self.t, self.array(2.0 ** -np.arange(BITS + 1.0)))
        whole = E.reshape(E.astype(scaled, "int32"), (1, BITS + 1))  # t without its last k digits
        digits = E.columns(whole, 0, BITS) - E.columns(whole, 1, BITS + 1) - E.columns(whole, 1, BITS + 1)
        product = E.where(E.equal(digits, 1), E.reshape(self._squares(base), (1, BITS)), 1.0)
        half = BITS
        while half > 1:
            half //= 2
            product = E.round_product(E.columns(product, 0, half), E.columns(product, half, 2 * half))
        return E.reshape(product, (1,))

    def _squares(self, base: Any) -> Array:
        """`_repeated_squares` as one array."""
        if is_real(base):
            return self.array(np.array(_repeated_squares(base)))
        E, squares, zero = self.E, [base], self.number(0.0)
        for _ in range(BITS - 1):
            square = E.round_product(squares[-1], squares[-1])
            squares.append(E.where(E.less_equal(square, self.number(1e-290)), zero, square))
        return E.concat(squares)

    def library_power(self, base: Any) -> Array:
        """base^t as Python's ``**`` has it, which frameworks ask too; traced, `power`."""
        return self.number(base ** float(self.t[0])) if self.E is modes.HOST else self.power(base)

    @property
    def single_lr(self) -> Array:
        """The learning rate as a float32."""
        return self.E.astype(self.lr, "float32")

    def array(self, x: np.ndarray[Any, Any]) -> Array:
        return self.E.asarray(x, self.count)


@lru_cache(maxsize=256)
def _repeated_squares(base: float) -> tuple[float, ...]:
    """base^(2^k) for k below `BITS`, each the rounded square of the one before; what is nearly subnormal is 0."""
    squares = [base]
    for _ in range(BITS - 1):
        square = squares[-1] * squares[-1]
        squares.append(square if square > 1e-290 else 0.0)
    return tuple(squares)


class State(NamedTuple):
    """One array of an optimizer's state: as large as the table, or one number a row."""

    name: str
    #: the hyperparameter it begins with, or a number
    initial: str | float = 0.0
    per_row: bool = False


class Formula(NamedTuple):
    """One optimizer's arithmetic. The rule's parameters are g, q (if squares), w, the state's names, and those of
    numbers, in any order; it returns w and the state."""

    rule: Callable[..., Any]
    #: (Numbers) -> the rule's numbers by name: float64 arrays of shape (1,), or Python numbers
    numbers: Callable[[Numbers], Mapping[str, Any]]
    state: tuple[State, ...] = ()
    #: what q is: "" none, "element" g * g, "row" its mean over the row
    squares: str = ""
    #: weight decay ahead of the rule: "" none or in the rule, "coupled" into g, "decoupled" from w
    decay: str = ""
    rows: tuple[str, ...] = ("touched", "all")
    #: whether the framework sees duplicates one by one: g is their sum, q the sum of their squares
    raw: bool = False


class Preset(NamedTuple):
    """An optimizer under one semantics: its defaults (None: to be given), and the formula its hyperparameters pick."""

    defaults: Mapping[str, Any]
    formula: Callable[[Hyper], Formula]
    #: the framework's own class
    source: str = ""


# ---------------------------------------------------------------------- islices' own
def single(x: float) -> float:
    """x as a float32 holds it."""
    return float(np.float32(x))


def rmsprop_kind(h: Hyper, *kinds: Callable[..., Any]) -> Callable[..., Any]:
    """The one of four rules: plain, with momentum, centered, both."""
    return kinds[2 * bool(h["centered"]) + is_on(h["momentum"])]


def decays(h: Hyper, kind: str = "coupled") -> str:
    """The kind of weight decay, if there is any."""
    return kind if is_on(h["weight_decay"]) else ""


def _sgd(h: Hyper) -> Formula:
    if not is_on(h["momentum"]):
        return Formula(rules.sgd, lambda n: {"lr": n.lr}, decay=decays(h))
    rule: Callable[..., Any] = rules.nesterov if h["nesterov"] else rules.momentum
    return Formula(
        rule,
        lambda n: {"mu": n.h["momentum"], "gain": n.complement("dampening"), "lr": n.lr},
        (State("momentum"),),
        decay=decays(h),
    )


def _falling(n: Numbers) -> Array:
    """lr / (1 + (t - 1) lr_decay)"""
    if not is_on(n.h["lr_decay"]):
        return n.lr
    one = n.number(1.0)
    return n.E.div(n.lr, one + n.E.round_product(n.t - one, n.array_of(n.h["lr_decay"])))


def _adagrad(h: Hyper) -> Formula:
    return Formula(
        rules.adagrad,
        lambda n: {"lr": _falling(n), "eps": n.h["eps"]},
        (State("accumulator", "initial_accumulator"),),
        squares="element",
        decay=decays(h),
    )


def _rowwise_adagrad(h: Hyper) -> Formula:
    return Formula(
        rules.adagrad,
        lambda n: {"lr": n.lr, "eps": n.h["eps"]},
        (State("accumulator", "initial_accumulator", per_row=True),),
        squares="row",
        decay=decays(h),
    )


def _rmsprop(h: Hyper) -> Formula:
    centered, buffered = bool(h["centered"]), is_on(h["momentum"])
    rule = rmsprop_kind(
        h, rules.rmsprop, rules.rmsprop_momentum, rules.rmsprop_centered, rules.rmsprop_centered_momentum
    )
    state = [State("mean_square"), *[State("mean")] * centered, *[State("momentum")] * buffered]

    def numbers(n: Numbers) -> Mapping[str, Any]:
        named = {"rho": n.h["rho"], "gain": n.complement("rho"), "eps": n.h["eps"], "lr": n.lr}
        if centered:
            named["zero"] = 0.0
        return {**named, "mu": n.h["momentum"]} if buffered else named

    return Formula(rule, numbers, tuple(state), squares="element", decay=decays(h))


def _adam_numbers(n: Numbers) -> Mapping[str, Any]:
    E, one = n.E, n.number(1.0)
    return {
        "gain1": n.complement("beta1"),
        "gain2": n.complement("beta2"),
        "rate": E.div(n.lr, one - n.power(n.h["beta1"])),
        "root": E.sqrt(one - n.power(n.h["beta2"])),
        "eps": n.h["eps"],
    }


def _adam(h: Hyper) -> Formula:
    rule: Callable[..., Any] = rules.amsgrad if h["amsgrad"] else rules.adam
    return Formula(rule, _adam_numbers, adam_state(h), squares="element", decay=decays(h))


def adam_state(h: Hyper) -> tuple[State, ...]:
    """The running means, and with amsgrad the largest mean of squares so far."""
    return (State("m"), State("v"), *[State("v_max")] * bool(h["amsgrad"]))


def _adamw(h: Hyper) -> Formula:
    return _adam(h)._replace(decay=decays(h, "decoupled"))


def ftrl_kind(h: Hyper, root: Callable[..., Any], linear: Callable[..., Any], power: Callable[..., Any]) -> Any:
    """The one of three rules: n^-lr_power is the root of n, n itself, or some other power."""
    return {-0.5: root, -1.0: linear}.get(h["lr_power"], power)


def with_power(h: Hyper, named: Mapping[str, Any]) -> Mapping[str, Any]:
    """The numbers of an ftrl rule, and those that a power takes."""
    return named if h["lr_power"] in (-0.5, -1.0) else {**named, "exponent": -h["lr_power"], "one": 1.0}


def _ftrl(h: Hyper) -> Formula:
    return Formula(
        ftrl_kind(h, rules.ftrl, rules.ftrl_linear, rules.ftrl_power),
        lambda n: with_power(h, {"lr": n.lr, **{x: n.h[x] for x in ("l1", "l2", "beta", "l2_shrinkage")}}),
        (State("z"), State("n", "initial_accumulator")),
        squares="element",
    )


ADAM: Hyper = {"lr": None, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
#: what all who have ftrl with these begin with
FTRL: Hyper = {
    "l1": 0.0,
    "l2": 0.0,
    "beta": 0.0,
    "l2_shrinkage": 0.0,
    "lr_power": -0.5,
    "initial_accumulator": 0.1,
}

#: optimizer -> islices' own arithmetic
FORMULAS: Mapping[str, Preset] = {
    "sgd": Preset({"lr": None, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}, _sgd),
    "adagrad": Preset(
        {"lr": None, "eps": 1e-10, "initial_accumulator": 0.0, "lr_decay": 0.0, "weight_decay": 0.0}, _adagrad
    ),
    "rowwise_adagrad": Preset(
        {"lr": None, "eps": 1e-8, "initial_accumulator": 0.0, "weight_decay": 0.0}, _rowwise_adagrad
    ),
    "rmsprop": Preset(
        {"lr": None, "rho": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False, "weight_decay": 0.0}, _rmsprop
    ),
    "adam": Preset({**ADAM, "weight_decay": 0.0, "amsgrad": False}, _adam),
    "adamw": Preset({**ADAM, "weight_decay": 1e-2, "amsgrad": False}, _adamw),
    "ftrl": Preset({"lr": None, **FTRL}, _ftrl),
}
