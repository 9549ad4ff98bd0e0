"""What an optimizer is made of, as data: its rule, its state, its numbers, its defaults; and islices' own.

A preset is the same data for another framework's arithmetic (`islices.optim.presets`). SPEC clauses 11 and 16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from islices import modes
from islices.backend import Array, Backend
from islices.optim import rules

__all__ = ["FORMULAS", "Formula", "Hyper", "Numbers", "Preset", "State", "complement", "rmsprop_kind", "single"]

#: Hyperparameters by name, as the user gave them or as the preset's defaults say.
Hyper = Mapping[str, Any]
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
        The hyperparameters.
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

    def power(self, base: float) -> Array:
        """base^t: the product, by halves, of base^(2^k) over the binary digits k of t (SPEC clause 16).

        Products alone, since no framework's pow is correctly rounded.
        """
        E, squares = self.E, _repeated_squares(base)
        if E is modes.HOST:
            t = int(self.t[0])
            factors = [x if t >> k & 1 else 1.0 for k, x in enumerate(squares)]
            while len(factors) > 1:
                half = len(factors) // 2
                factors = [a * b for a, b in zip(factors[:half], factors[half:], strict=True)]
            return self.number(factors[0])
        scaled = E.round_product(self.t, self.array(2.0 ** -np.arange(BITS + 1.0)))
        whole = E.reshape(E.astype(scaled, "int32"), (1, BITS + 1))  # t without its last k digits
        digits = E.columns(whole, 0, BITS) - E.columns(whole, 1, BITS + 1) - E.columns(whole, 1, BITS + 1)
        product = E.where(E.equal(digits, 1), E.reshape(self.array(np.array(squares)), (1, BITS)), 1.0)
        half = BITS
        while half > 1:
            half //= 2
            product = E.round_product(E.columns(product, 0, half), E.columns(product, half, 2 * half))
        return E.reshape(product, (1,))

    def library_power(self, base: float) -> Array:
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
def complement(x: float) -> float:
    """1 - x in float64."""
    return 1.0 - x


def single(x: float) -> float:
    """x as a float32 holds it."""
    return float(np.float32(x))


def rmsprop_kind(h: Hyper, *kinds: Callable[..., Any]) -> Callable[..., Any]:
    """The one of four rules: plain, with momentum, centered, both."""
    return kinds[2 * bool(h["centered"]) + int(h["momentum"] != 0)]


def _coupled(h: Hyper) -> str:
    return "coupled" if h["weight_decay"] else ""


def _sgd(h: Hyper) -> Formula:
    if h["momentum"] == 0:
        return Formula(rules.sgd, lambda n: {"lr": n.lr}, decay=_coupled(h))
    gain = complement(h["dampening"])
    rule: Callable[..., Any] = rules.nesterov if h["nesterov"] else rules.momentum
    return Formula(
        rule,
        lambda n: {"mu": h["momentum"], "gain": gain, "lr": n.lr},
        (State("momentum"),),
        decay=_coupled(h),
    )


def _falling(n: Numbers) -> Array:
    """lr / (1 + (t - 1) lr_decay)"""
    if n.h["lr_decay"] == 0:
        return n.lr
    one = n.number(1.0)
    return n.E.div(n.lr, one + n.E.round_product(n.t - one, n.number(n.h["lr_decay"])))


def _adagrad(h: Hyper) -> Formula:
    return Formula(
        rules.adagrad,
        lambda n: {"lr": _falling(n), "eps": h["eps"]},
        (State("accumulator", "initial_accumulator"),),
        squares="element",
        decay=_coupled(h),
    )


def _rowwise_adagrad(h: Hyper) -> Formula:
    return Formula(
        rules.adagrad,
        lambda n: {"lr": n.lr, "eps": h["eps"]},
        (State("accumulator", "initial_accumulator", per_row=True),),
        squares="row",
        decay=_coupled(h),
    )


def _rmsprop(h: Hyper) -> Formula:
    rule = rmsprop_kind(
        h, rules.rmsprop, rules.rmsprop_momentum, rules.rmsprop_centered, rules.rmsprop_centered_momentum
    )
    state = [State("mean_square")]
    fixed = {"rho": h["rho"], "gain": complement(h["rho"]), "eps": h["eps"]}
    if h["centered"]:
        state.append(State("mean"))
        fixed["zero"] = 0.0
    if h["momentum"]:
        state.append(State("momentum"))
        fixed["mu"] = h["momentum"]
    return Formula(rule, lambda n: {**fixed, "lr": n.lr}, tuple(state), squares="element", decay=_coupled(h))


def _adam_numbers(n: Numbers) -> Mapping[str, Any]:
    E, one = n.E, n.number(1.0)
    return {
        "gain1": complement(n.h["beta1"]),
        "gain2": complement(n.h["beta2"]),
        "rate": E.div(n.lr, one - n.power(n.h["beta1"])),
        "root": E.sqrt(one - n.power(n.h["beta2"])),
        "eps": n.h["eps"],
    }


def _adam(h: Hyper) -> Formula:
    return Formula(rules.adam, _adam_numbers, (State("m"), State("v")), squares="element", decay=_coupled(h))


def _adamw(h: Hyper) -> Formula:
    return _adam(h)._replace(decay="decoupled" if h["weight_decay"] else "")


def _ftrl(h: Hyper) -> Formula:
    by_power = {-0.5: rules.ftrl, -1.0: rules.ftrl_linear}
    if h["lr_power"] not in by_power:
        raise ValueError(f"lr_power: got {h['lr_power']}; accepted are {', '.join(map(str, by_power))}")
    fixed = {name: h[name] for name in ("l1", "l2", "beta")}
    state = (State("z"), State("n", "initial_accumulator"))
    return Formula(by_power[h["lr_power"]], lambda n: {**fixed, "lr": n.lr}, state, squares="element")


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
    "adam": Preset({"lr": None, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}, _adam),
    "adamw": Preset({"lr": None, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2}, _adamw),
    "ftrl": Preset(
        {"lr": None, "l1": 0.0, "l2": 0.0, "beta": 0.0, "lr_power": -0.5, "initial_accumulator": 0.1}, _ftrl
    ),
}
