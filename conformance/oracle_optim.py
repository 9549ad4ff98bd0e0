"""Compute the expected results of optimizers (clause 16), element by element, in exact rational arithmetic.

Each operation of `Rounded` except `raised` rounds its exact result once, as `islices.conformance.oracle` does. The
module also defines the hyperparameters of the suite's cases.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from islices.conformance.data import Array, Shape, Slices
from islices.conformance.oracle import coalesce, halves, over, plus, round_to, square_root, times, wide
from islices.optim.record import RECORDS

Hyper = dict[str, Any]
#: dtype -> the number of binary digits of an exponent's fraction that a power uses
FRACTION = {"float32": 32, "float64": 64}


class Rounded:
    """A number x of the floating dtype `kind`. Each operation on such numbers except `raised` rounds once."""

    __slots__ = ("kind", "x")

    def __init__(self, x: Any, kind: str = "float64") -> None:
        self.x, self.kind = x, kind

    def __add__(self, other: Rounded) -> Rounded:
        return self._rounded(plus, other)

    def __sub__(self, other: Rounded) -> Rounded:
        return self + -other

    def __mul__(self, other: Rounded) -> Rounded:
        return self._rounded(times, other)

    def __truediv__(self, other: Rounded) -> Rounded:
        return self._rounded(over, other)

    def __neg__(self) -> Rounded:
        return Rounded(-self.x, self.kind)

    def _rounded(self, operation: Any, other: Rounded) -> Rounded:
        return Rounded(operation(self.x, other.x, self.kind), self.kind)

    def root(self) -> Rounded:
        # the root of a float32, rounded to float64 and then to float32, is rounded once: 53 >= 2 * 24 + 2
        return Rounded(round_to(square_root(self.x), self.kind), self.kind)

    def raised(self, exponent: Rounded) -> Rounded:
        """Return this number to the power `exponent`, which is at least 0 and has the same dtype. Each root and product
        of the computation is rounded."""
        digits = f"{int(exponent.x % 1 * 2 ** FRACTION[self.kind]):b}".zfill(FRACTION[self.kind])
        result, root = Rounded(1.0, self.kind), self.root()
        for digit in reversed(digits.rstrip("0")):  # digits after the last 1 change nothing, because the root of 1 is 1
            result = result.root()
            if digit == "1":
                result = result * root
        whole, square = int(exponent.x), self
        while whole:
            if whole & 1:
                result = result * square
            whole, square = whole >> 1, square * square
        return result

    def to(self, kind: str) -> Rounded:
        return Rounded(round_to(self.x, kind), kind)


Row = list[Rounded]


# ---------------------------------------------------------------------- numbers of a step
ONE, HALF = Rounded(1.0), Rounded(0.5)


@functools.lru_cache(maxsize=512)
def power(base: float, t: int) -> Rounded:
    """Return base^t in float64. Binary digit k of t gives a factor: base^(2^k) for the digit 1, else 1. The first half
    of the factors is multiplied by the second half until one factor is left. A repeated square of at most 1e-290 counts
    as 0."""
    squares = [Rounded(base)]
    for _ in range(31):
        square = squares[-1] * squares[-1]
        squares.append(square if square.x > 1e-290 else Rounded(0.0))
    factors = [s if t >> k & 1 else ONE for k, s in enumerate(squares)]
    while len(factors) > 1:
        half = len(factors) // 2
        factors = [factors[k] * factors[half + k] for k in range(half)]
    return factors[0]


def at_step(h: Hyper, t: int) -> Hyper:
    """Return the hyperparameters as numbers for step t. If a hyperparameter is a list, the steps use its numbers in
    turn, and begin again after the last number. An array contains one number."""
    now = {k: v[(t - 1) % len(v)] if isinstance(v, list) else v for k, v in h.items()}
    return {k: v.data[0] if isinstance(v, Array) else v for k, v in now.items()}


def is_on(x: Any) -> bool:
    """Return True for a nonzero number, a schedule or an array. For such a value, the formula contains the term of this
    hyperparameter."""
    return isinstance(x, (list, Array)) or x != 0


def numbers_of(name: str, h: Hyper, t: int) -> dict[str, Rounded]:
    out = {k: Rounded(float(v)) for k, v in h.items() if not isinstance(v, bool)}
    lr = out["lr"]
    for k in ("beta1", "beta2", "rho", "dampening"):
        if k in out:
            out[f"1-{k}"] = ONE - out[k]
    if "lr_decay" in out:
        out["lr"] = lr / (ONE + Rounded(float(t - 1)) * out["lr_decay"])
    if "momentum_decay" in out:
        out |= nesterov_rates(out, h["beta1"], h["momentum_decay"], t)
    elif "beta1" in out:
        out["rate"] = lr / (ONE - power(h["beta1"], t))
    if "beta2" in out:
        out["root"] = (ONE - power(h["beta2"], t)).root()
    if name in DECOUPLED or h.get("decoupled_weight_decay"):
        out["keep"] = ONE - lr * out["weight_decay"]
    return out


@functools.lru_cache
def fading_product(c: float, t: int) -> Rounded:
    """Return the product of 1 - 0.5 c^k for k from 1 to t, or 0 if the product is at most 1e-290. The computation stops
    at the first factor that rounds to 1, because all later factors also round to 1."""
    product = ONE
    for k in range(1, t + 1):
        factor = ONE - HALF * power(c, k)
        product = product * factor
        if product.x <= 1e-290:
            return Rounded(0.0)
        if factor.x == 1:
            break
    return product


def nesterov_rates(c: dict[str, Rounded], beta1: float, momentum_decay: float, t: int) -> dict[str, Rounded]:
    """Return nadam's factors of the gradient ("head") and of the running mean ("rate")."""
    fading = Rounded(0.96).raised(Rounded(momentum_decay))
    now = power(fading.x, t)
    mu, after = (c["beta1"] * (ONE - HALF * x) for x in (now, now * fading))
    product = power(beta1, t) * fading_product(fading.x, t)
    return {"head": c["lr"] * (ONE - mu) / (ONE - product), "rate": c["lr"] * after / (ONE - product * after)}


# ---------------------------------------------------------------------- rules
def sgd(g, w, s, c, q, h):
    if not is_on(h["momentum"]):
        return w - c["lr"] * g, {}
    b = c["momentum"] * s["momentum"] + c["1-dampening"] * g
    return w - c["lr"] * (g + c["momentum"] * b if h["nesterov"] else b), {"momentum": b}


def adagrad(g, w, s, c, q, h):
    a = s["accumulator"] + q
    return w - c["lr"] * (g / (a.root() + c["eps"])), {"accumulator": a}


def rmsprop(g, w, s, c, q, h):
    new = {"mean_square": c["rho"] * s["mean_square"] + c["1-rho"] * q}
    under = new["mean_square"]
    if h["centered"]:
        new["mean"] = c["rho"] * s["mean"] + c["1-rho"] * g
        under = under - new["mean"] * new["mean"]
        under = under if under.x > 0 else Rounded(0.0, under.kind)
    step = g / (under.root() + c["eps"])
    if is_on(h["momentum"]):
        step = new["momentum"] = c["momentum"] * s["momentum"] + step
    return w - c["lr"] * step, new


def adam(g, w, s, c, q, h):
    m = s["m"] + c["1-beta1"] * (g - s["m"])
    v = s["v"] + c["1-beta2"] * (q - s["v"])
    new, under = {"m": m, "v": v}, v
    if h["amsgrad"]:
        under = new["v_max"] = v if not v.x <= s["v_max"].x else s["v_max"]
    return w - c["rate"] * (m / (under.root() / c["root"] + c["eps"])), new


def ftrl(g, w, s, c, q, h):
    n = s["n"] + q
    linear, exponent = h["lr_power"] == -1, -c["lr_power"]
    after = n if linear else n.raised(exponent)
    sigma = (q if linear else after - s["n"].raised(exponent)) / c["lr"]
    z = (s["z"] + (g + c["l2_shrinkage"] * w)) - sigma * w
    if abs(z.x) <= c["l1"].x:
        return Rounded(0.0, w.kind), {"z": z, "n": n}
    bounded = c["l1"] if z.x > 0 else -c["l1"]
    return (bounded - z) / ((c["beta"] + after) / c["lr"] + c["l2"]), {"z": z, "n": n}


def lion(g, w, s, c, q, h):
    mixed = s["m"] + c["1-beta1"] * (g - s["m"])
    sign = Rounded(math.copysign(1.0, mixed.x) if mixed.x else 0.0, w.kind)
    return w - c["lr"] * sign, {"m": s["m"] + c["1-beta2"] * (g - s["m"])}


def adamax(g, w, s, c, q, h):
    m, faded = s["m"] + c["1-beta1"] * (g - s["m"]), c["beta2"] * s["u"]
    u = faded if faded.x >= abs(g.x) else Rounded(abs(g.x), g.kind)
    return w - c["rate"] * (m / (u + c["eps"])), {"m": m, "u": u}


def nadam(g, w, s, c, q, h):
    m, v = s["m"] + c["1-beta1"] * (g - s["m"]), s["v"] + c["1-beta2"] * (q - s["v"])
    return w - (c["head"] * g + c["rate"] * m) / (v.root() / c["root"] + c["eps"]), {"m": m, "v": v}


RULES: dict[str, Any] = {
    "sgd": sgd, "adagrad": adagrad, "rowwise_adagrad": adagrad, "rmsprop": rmsprop, "adam": adam, "adamw": adam,
    "ftrl": ftrl, "lion": lion, "adamax": adamax, "nadam": nadam,
}  # fmt: skip
#: The optimizers whose weight decay always multiplies the weights before the rule. For nadam, decoupled_weight_decay
#: selects this form.
DECOUPLED = ("adamw", "lion")


# ---------------------------------------------------------------------- hyperparameters of the suite
#: label -> (optimizer, hyperparameters)
OPTIMIZERS: dict[str, tuple[str, Hyper]] = {
    "sgd": ("sgd", {"lr": 0.1}),
    "sgd-decay": ("sgd", {"lr": 0.1, "weight_decay": 0.03}),
    "momentum": ("sgd", {"lr": 0.01, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.03}),
    "nesterov": ("sgd", {"lr": 0.01, "momentum": 0.9, "dampening": 0.6, "nesterov": True}),
    "adagrad": ("adagrad", {"lr": 0.1, "lr_decay": 0.05, "initial_accumulator": 0.3}),
    "adagrad-plain": ("adagrad", {"lr": 0.1}),
    "rowwise_adagrad": ("rowwise_adagrad", {"lr": 0.1, "weight_decay": 0.03}),
    "rmsprop": ("rmsprop", {"lr": 0.01}),
    "rmsprop-momentum": ("rmsprop", {"lr": 0.01, "momentum": 0.8}),
    "rmsprop-centered": ("rmsprop", {"lr": 0.01, "rho": 0.8, "centered": True, "eps": 1e-3}),
    "rmsprop-both": ("rmsprop", {"lr": 0.01, "rho": 0.8, "centered": True, "eps": 1e-3, "momentum": 0.8}),
    "adam": ("adam", {"lr": 0.01}),
    "adam-decay": ("adam", {"lr": 0.01, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.03}),
    "adamw": ("adamw", {"lr": 0.01}),
    "adamw-decay": ("adamw", {"lr": 0.3, "weight_decay": 0.3}),
    "ftrl": ("ftrl", {"lr": 0.1, "l1": 0.5, "l2": 0.1, "beta": 0.2}),
    "ftrl-linear": ("ftrl", {"lr": 0.1, "l1": 0.5, "lr_power": -1.0}),
    "amsgrad": ("adam", {"lr": 0.01, "beta2": 0.6, "amsgrad": True}),
    "amsgrad-decay": ("adamw", {"lr": 0.3, "beta2": 0.6, "weight_decay": 0.3, "amsgrad": True}),
    "ftrl-shrinkage": ("ftrl", {"lr": 0.1, "l1": 0.5, "l2_shrinkage": 0.3}),
    "ftrl-power": ("ftrl", {"lr": 0.1, "l1": 0.5, "l2": 0.1, "beta": 0.2, "l2_shrinkage": 0.3, "lr_power": -0.3}),
    "lion": ("lion", {"lr": 0.01}),
    "lion-decay": ("lion", {"lr": 0.1, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.3}),
    "adamax": ("adamax", {"lr": 0.01}),
    "adamax-decay": ("adamax", {"lr": 0.1, "beta1": 0.4, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.03}),
    "nadam": ("nadam", {"lr": 0.01}),
    "nadam-decay": (
        "nadam",
        {
            "lr": 0.1,
            "beta1": 0.4,
            "beta2": 0.95,
            "momentum_decay": 1.0,
            "weight_decay": 0.03,
            "decoupled_weight_decay": True,
        },
    ),
}
#: label -> (optimizer, hyperparameters). The steps use the numbers of a list in turn.
SCHEDULED: dict[str, tuple[str, Hyper]] = {
    "sgd": ("sgd", {"lr": [0.1, 0.05, 0.2], "weight_decay": [0.03, 0.0, 0.1]}),
    "momentum": ("sgd", {"lr": 0.01, "momentum": [0.9, 0.0, 0.8], "dampening": [0.2, 0.6, 0.0]}),
    "nesterov": ("sgd", {"lr": [0.01, 0.02, 0.03], "momentum": [0.5, 0.9, 0.8], "nesterov": True}),
    "adagrad": ("adagrad", {"lr": 0.1, "lr_decay": [0.05, 0.0, 0.2], "eps": [1e-3, 1e-8, 0.1]}),
    "rowwise_adagrad": ("rowwise_adagrad", {"lr": 0.1, "eps": [1e-3, 1e-8, 0.1], "weight_decay": [0.03, 0.0, 0.1]}),
    "rmsprop": ("rmsprop", {"lr": 0.01, "rho": [0.9, 0.5, 0.99], "momentum": [0.8, 0.0, 0.5], "centered": True,
                            "eps": [1e-3, 0.1, 0.01]}),
    "adam": ("adam", {"lr": 0.01, "beta1": [0.9, 0.0, 0.95], "beta2": [0.999, 0.9, 0.99], "eps": [1e-8, 1e-3, 0.1]}),
    "adamw": ("adamw", {"lr": [0.3, 0.1, 0.2], "beta1": [0.95, 0.85, 0.9], "weight_decay": [0.3, 0.0, 0.1],
                        "amsgrad": True}),
    "ftrl": ("ftrl", {"lr": [0.1, 0.2, 0.3], "l1": [0.5, 0.0, 0.1], "l2": [0.1, 0.0, 0.2], "beta": [0.2, 0.0, 1.0],
                      "l2_shrinkage": [0.0, 0.3, 0.1], "lr_power": -0.3}),
    "lion": ("lion", {"lr": [0.1, 0.05, 0.2], "beta1": [0.9, 0.0, 0.95], "weight_decay": [0.3, 0.0, 0.1]}),
    "adamax": ("adamax", {"lr": 0.1, "beta1": [0.9, 0.0, 0.95], "beta2": [0.9, 0.99, 0.5], "eps": [1e-8, 1e-3, 0.1]}),
    "nadam": ("nadam", {"lr": 0.01, "beta1": [0.9, 0.0, 0.95], "beta2": [0.999, 0.9, 0.99], "momentum_decay": 0.3}),
}  # fmt: skip
#: (the optimizer that raises sums of squares to a power, its hyperparameters, the values of -lr_power). The powers
#: include 0, a root of a root (0.25), powers with whole parts, and fractions that use all digits.
POWERS = ("ftrl", {"lr": 0.1, "l1": 0.5}, (0.0, 0.25, 0.7, 1.5, 2.3, 0.001))
#: label -> counts of earlier steps, some of them large
LATE: dict[str, tuple[int, ...]] = dict.fromkeys(("nadam", "nadam-decay"), (0, 1, 50, 2000, 2**31 - 2))


# ---------------------------------------------------------------------- steps
def optimizer_steps(
    name: str,
    hyper: Hyper,
    table: Array,
    grads: list[Any],
    *,
    steps: int | None = None,
    state: dict[str, Array] | None = None,
    rows: str = "touched",
    maximize: bool = False,
    frozen: list[int] | None = None,
    master: bool = False,
) -> dict[str, Array]:
    """Return the table and the state after several steps. The steps use the gradients in turn, and begin again after
    the last gradient. If a gradient is None, no step is taken. `state` is the state before the first step."""
    record = RECORDS[name]
    h = {**record.presets["islices"].defaults, **hyper}
    kind, width = wide(table.dtype), math.prod(table.shape[1:])
    weights = [[Rounded(v, table.dtype) for v in row] for row in table.rows()]
    copy = [[w.to(kind) for w in row] for row in weights]
    states = record.states(hyper)
    per_row, names = any(spec.per_row for spec in states), [spec.name for spec in states]
    initial = {spec.name: h[spec.initial] if isinstance(spec.initial, str) else spec.initial for spec in states}
    now = {k: [[Rounded(round_to(x, kind), kind)] * width for _ in weights] for k, x in initial.items()}
    taken = 0
    if state is not None:
        taken = state["step"].data[0]
        for k in names:
            given = [[v] * width for v in state[k].data] if per_row else state[k].rows()
            now[k] = [[Rounded(v, kind) for v in row] for row in given]
    for step in range(len(grads) if steps is None else steps):
        grad = grads[step % len(grads)]
        if grad is None:
            continue
        taken += 1
        numbers = {n: x.to(kind) for n, x in numbers_of(name, at_step(h, taken), taken).items()}
        for r, g in named_rows(grad, rows, len(weights), width):
            if frozen is not None and r in frozen:
                continue
            w = copy[r] if master else [x.to(kind) for x in weights[r]]
            g = [-x for x in g] if maximize else g
            if name in DECOUPLED or h.get("decoupled_weight_decay"):
                w = [numbers["keep"] * x for x in w] if is_on(h["weight_decay"]) else w
            elif is_on(h.get("weight_decay", 0)):
                g = [x + numbers["weight_decay"] * y for x, y in zip(g, w, strict=True)]
            q = [x * x for x in g]
            if per_row and width:
                q = [Rounded(halves([x.x for x in q], kind), kind) / Rounded(float(width), kind)] * width
            for j in range(width):
                old = {n: now[n][r][j] for n in names}
                w[j], new = RULES[name](g[j], w[j], old, numbers, q[j], h)
                for n in names:
                    now[n][r] = [*now[n][r][:j], new[n], *now[n][r][j + 1 :]]
            copy[r], weights[r] = list(w), [x.to(table.dtype) for x in w]
    out = {"table": flat(weights, table.dtype, table.shape), "step": Array("int32", (1,), [taken])}
    for n in names:
        shape = table.shape[:1] if per_row else table.shape
        out[n] = flat([row[:1] for row in now[n]] if per_row else now[n], kind, shape)
    if master:
        out["master"] = flat(copy, kind, table.shape)
    return out


def named_rows(grad: Any, rows: str, count: int, width: int) -> list[tuple[int, Row]]:
    """Return pairs (row number, gradient of the row) for the rows of the gradient, or for every row of the table if
    `rows` is "all"."""
    if isinstance(grad, Slices):
        c = coalesce(grad)
        named = dict(zip(c.indices.data, c.values.rows(), strict=True))
        values = c.values
    else:
        named, values = dict(enumerate(grad.rows())), grad
    moving = range(count) if rows == "all" else sorted(named)
    kind = wide(values.dtype)
    return [(r, [Rounded(v, kind) for v in named.get(r, [0.0] * width)]) for r in moving]


def flat(rows: list[Row], dtype: str, shape: Shape) -> Array:
    return Array(dtype, tuple(shape), [x.x for row in rows for x in row])
