"""A second opinion on clause 16: optimizers, one NumPy scalar after another.

Floating point and plain loops, for the reason that `naive.operations` gives. A rule is written for one
element: its weight, its gradient, its state. Nothing is computed on an array, so rows that do not move keep their bits
because no loop comes by.

A hyperparameter is a number, an array of one, or a list: one for each step, in turn, which is the form that a function
of the step has in the vectors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from islices.conformance.data import Array, Slices
from naive.operations import WIDE, Scalar, narrow, row_of, row_sums, sum_by_halves

__all__ = ["NAIVE"]

#: optimizer -> its hyperparameters where a case gives none
DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0, "dampening": 0.0, "nesterov": False},
    "adagrad": {"eps": 1e-10, "initial_accumulator": 0.0, "lr_decay": 0.0},
    "rowwise_adagrad": {"eps": 1e-8, "initial_accumulator": 0.0, "lr_decay": 0.0},
    "rmsprop": {"rho": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False},
    "adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2, "amsgrad": False},
    "ftrl": {"l1": 0.0, "l2": 0.0, "beta": 0.0, "l2_shrinkage": 0.0, "lr_power": -0.5, "initial_accumulator": 0.1},
    "lion": {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
    "adamax": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "nadam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "momentum_decay": 4e-3, "decoupled_weight_decay": False},
}
Hyper = dict[str, Any]
#: one element of each state array
Element = dict[str, Scalar]
#: one row of each state array
Rows = dict[str, list[Any]]
#: (w, g, q, the element's state) -> (w, the state) after the step
Rule = Callable[[Scalar, Scalar, Scalar, Element], tuple[Scalar, Element]]
#: rounds a number of the step, formed in float64, to the wide type
Wide = Callable[[Any], Scalar]


def present(x: Any) -> bool:
    """Whether a rule has this part: a number that is not 0, or something that may become one."""
    return not isinstance(x, (int, float)) or x != 0


def this_step(h: Hyper, t: int) -> Hyper:
    """Every hyperparameter as the number it is at step t."""
    now = {}
    for key, x in h.items():
        if isinstance(x, list):
            x = x[(t - 1) % len(x)]
        now[key] = x.data[0] if isinstance(x, Array) else x
    return now


#: optimizer -> the names of its arrays
STATES: dict[str, Callable[[Hyper], list[str]]] = {
    "sgd": lambda h: ["momentum"] * present(h["momentum"]),
    "adagrad": lambda h: ["accumulator"],
    "rowwise_adagrad": lambda h: ["accumulator"],
    "rmsprop": lambda h: ["mean_square"] + ["mean"] * bool(h["centered"]) + ["momentum"] * present(h["momentum"]),
    "adam": lambda h: ["m", "v"] + ["v_max"] * bool(h["amsgrad"]),
    "adamw": lambda h: ["m", "v"] + ["v_max"] * bool(h["amsgrad"]),
    "ftrl": lambda h: ["z", "n"],
    "lion": lambda h: ["m"],
    "adamax": lambda h: ["m", "u"],
    "nadam": lambda h: ["m", "v"],
}
#: whose weight decay shrinks the weight itself
DECOUPLED = {"adamw", "lion"}


def first_state(name: str, h: Hyper, table: Array, master: bool) -> dict[str, Array]:
    """The state before any step."""
    kind = table.dtype if table.dtype == "float64" else "float32"
    shape = table.shape[:1] if name == "rowwise_adagrad" else table.shape
    state = {"step": Array("int32", (1,), [0])}
    for key in STATES[name](h):
        start = h["initial_accumulator"] if key in ("accumulator", "n") else 0.0
        state[key] = Array(kind, shape, [narrow(start, kind)] * math.prod(shape))
    if master:
        state["master"] = Array("float32", table.shape, [narrow(v, "float32") for v in table.data])
    return state


# ---------------------------------------------------------------------- numbers of a step
def beta_power(beta: float, t: int) -> Scalar:
    """beta^t in float64, by the binary digits of t."""
    square, one, zero = np.float64(beta), np.float64(1), np.float64(0)
    factors: list[Scalar] = []
    for digit in range(32):
        factors.append(square if t >> digit & 1 else one)
        square = square * square
        if not square > 1e-290:
            square = zero
    while len(factors) > 1:
        half = len(factors) // 2
        factors = [factors[k] * factors[half + k] for k in range(half)]
    return factors[0]


# ---------------------------------------------------------------------- rules
def sgd(h: Hyper, t: int, wide: Wide) -> Rule:
    lr, mu, rest = wide(h["lr"]), wide(h["momentum"]), wide(1.0 - h["dampening"])

    def plain(w: Scalar, g: Scalar, q: Scalar, old: Element) -> tuple[Scalar, Element]:
        return w - lr * g, {}

    def heavy(w: Scalar, g: Scalar, q: Scalar, old: Element) -> tuple[Scalar, Element]:
        b = mu * old["momentum"] + rest * g
        return w - lr * (g + mu * b if h["nesterov"] else b), {"momentum": b}

    return heavy if h["has momentum"] else plain


def adagrad(h: Hyper, t: int, wide: Wide) -> Rule:
    c, eps = wide(h["lr"] / (1.0 + (t - 1) * h["lr_decay"])), wide(h["eps"])

    def rule(w: Scalar, g: Scalar, q: Scalar, old: Element) -> tuple[Scalar, Element]:
        a = old["accumulator"] + q
        return w - c * (g / (np.sqrt(a) + eps)), {"accumulator": a}

    return rule


def rmsprop(h: Hyper, t: int, wide: Wide) -> Rule:
    lr, eps, mu, rho, rest = (wide(x) for x in (h["lr"], h["eps"], h["momentum"], h["rho"], 1.0 - h["rho"]))
    zero = wide(0)

    def rule(w: Scalar, g: Scalar, q: Scalar, old: Element) -> tuple[Scalar, Element]:
        s = rho * old["mean_square"] + rest * q
        new, under = {"mean_square": s}, s
        if h["centered"]:
            mean = new["mean"] = rho * old["mean"] + rest * g
            under = np.maximum(s - mean * mean, zero)
        direction = g / (np.sqrt(under) + eps)
        if h["has momentum"]:
            direction = new["momentum"] = mu * old["momentum"] + direction
        return w - lr * direction, new

    return rule


def adam(h: Hyper, t: int, wide: Wide) -> Rule:
    eps, rest1, rest2 = wide(h["eps"]), wide(1.0 - h["beta1"]), wide(1.0 - h["beta2"])
    rate = wide(np.float64(h["lr"]) / (1.0 - beta_power(h["beta1"], t)))
    root = wide(np.sqrt(1.0 - beta_power(h["beta2"], t)))

    def rule(w: Scalar, g: Scalar, q: Scalar, old: Element) -> tuple[Scalar, Element]:
        m = old["m"] + rest1 * (g - old["m"])
        v = old["v"] + rest2 * (q - old["v"])
        new = {"m": m, "v": v}
        if h["amsgrad"]:
            new["v_max"] = np.maximum(old["v_max"], v)
        return w - rate * (m / (np.sqrt(new.get("v_max", v)) / root + eps)), new

    return rule


def to_the(x: Scalar, p: Scalar) -> Scalar:
    """x^p by the digits of p: those of the fraction from the last to the first, each a root, then the whole part."""
    one, root = x.dtype.type(1), np.sqrt(x)
    digits, rest = [], p - np.floor(p)
    for _ in range(64 if x.dtype == np.float64 else 32):
        rest = rest + rest
        digits.append(rest >= one)
        rest = rest - one if digits[-1] else rest
    result = one
    for digit in digits[::-1]:
        result = np.sqrt(result) * root if digit else np.sqrt(result)
    for k in range(int(p).bit_length()):
        if int(p) >> k & 1:
            result = result * x
        x = x * x
    return result


@functools.cache
def momenta(psi: float, last: int) -> tuple[Scalar, Scalar]:
    """0.96^psi, and the product of 1 - 0.5 * 0.96^(psi k) up to k = last."""
    c, product = to_the(np.float64(0.96), np.float64(psi)), np.float64(1)
    for k in range(last):
        factor = 1.0 - 0.5 * beta_power(float(c), k + 1)
        product = product * factor
        if factor == 1 or not product > 1e-290:
            break
    return c, product if product > 1e-290 else np.float64(0)


def nadam(h: Hyper, t: int, wide: Wide) -> Rule:
    eps, rest1, rest2 = wide(h["eps"]), wide(1.0 - h["beta1"]), wide(1.0 - h["beta2"])
    c, fading = momenta(h["momentum_decay"], t)
    decayed = beta_power(float(c), t)
    mu, after = h["beta1"] * (1.0 - 0.5 * decayed), h["beta1"] * (1.0 - 0.5 * (decayed * c))
    total = beta_power(h["beta1"], t) * fading
    of_g, of_m = wide(h["lr"] * (1.0 - mu) / (1.0 - total)), wide(h["lr"] * after / (1.0 - total * after))
    root = wide(np.sqrt(1.0 - beta_power(h["beta2"], t)))

    def rule(w: Scalar, g: Scalar, q: Scalar, old: Element) -> tuple[Scalar, Element]:
        m, v = old["m"] + rest1 * (g - old["m"]), old["v"] + rest2 * (q - old["v"])
        return w - (of_g * g + of_m * m) / (np.sqrt(v) / root + eps), {"m": m, "v": v}

    return rule


def ftrl(h: Hyper, t: int, wide: Wide) -> Rule:
    lr, l1, l2, beta, shrinkage, zero = (wide(x) for x in (h["lr"], h["l1"], h["l2"], h["beta"], h["l2_shrinkage"], 0))
    power = wide(-h["lr_power"])

    def size_of(n: Scalar) -> Scalar:
        if h["lr_power"] == -0.5:
            return np.sqrt(n)
        return n if h["lr_power"] == -1 else to_the(n, power)

    def rule(w: Scalar, g: Scalar, q: Scalar, old: Element) -> tuple[Scalar, Element]:
        n = old["n"] + q
        sigma = (q if h["lr_power"] == -1 else size_of(n) - size_of(old["n"])) / lr
        z = (old["z"] + (g + shrinkage * w)) - sigma * w
        if abs(z) <= l1:
            return zero, {"z": z, "n": n}
        kept = np.minimum(np.maximum(z, -l1), l1)
        return (kept - z) / ((beta + size_of(n)) / lr + l2), {"z": z, "n": n}

    return rule


def lion(h: Hyper, t: int, wide: Wide) -> Rule:
    lr, rest1, rest2 = wide(h["lr"]), wide(1.0 - h["beta1"]), wide(1.0 - h["beta2"])

    def rule(w: Scalar, g: Scalar, q: Scalar, old: Element) -> tuple[Scalar, Element]:
        away = g - old["m"]
        return w - lr * np.sign(old["m"] + rest1 * away), {"m": old["m"] + rest2 * away}

    return rule


def adamax(h: Hyper, t: int, wide: Wide) -> Rule:
    eps, rest1, beta2 = wide(h["eps"]), wide(1.0 - h["beta1"]), wide(h["beta2"])
    rate = wide(np.float64(h["lr"]) / (1.0 - beta_power(h["beta1"], t)))

    def rule(w: Scalar, g: Scalar, q: Scalar, old: Element) -> tuple[Scalar, Element]:
        m = old["m"] + rest1 * (g - old["m"])
        u = np.maximum(beta2 * old["u"], np.abs(g))
        return w - rate * (m / (u + eps)), {"m": m, "u": u}

    return rule


RULES: dict[str, Callable[[Hyper, int, Wide], Rule]] = {
    "sgd": sgd,
    "adagrad": adagrad,
    "rowwise_adagrad": adagrad,  # another q, and one accumulator a row
    "rmsprop": rmsprop,
    "adam": adam,
    "adamw": adam,  # another decay
    "ftrl": ftrl,
    "lion": lion,
    "adamax": adamax,
    "nadam": nadam,
}


# ---------------------------------------------------------------------- steps
def gradient_rows(grad: Any, width: int) -> dict[int, list[Any]]:
    """The rows that the gradient names, each with its sum rounded to the gradient's dtype."""
    if isinstance(grad, Slices):
        return row_sums(grad)
    return {r: row_of(grad, r, width) for r in range(grad.shape[0])}


def step_row(
    name: str, h: Hyper, rule: Rule, wide: Wide, w: list[Any], g: list[Any], state: Rows
) -> tuple[list[Scalar], Rows]:
    """One row's weights and state after the step; its state arrays hold one number where they are row-wise."""
    weights, gradient = [wide(v) for v in w], [wide(v) for v in g]
    decay = h.get("weight_decay", 0.0) if h["has decay"] else 0.0
    if h["has decay"] and (name in DECOUPLED or h.get("decoupled_weight_decay")):
        kept = wide(1.0 - h["lr"] * decay)
        weights = [v * kept for v in weights]
    elif h["has decay"]:
        gradient = [v + wide(decay) * own for v, own in zip(gradient, weights, strict=True)]
    squares = [v * v for v in gradient]
    rowwise = name == "rowwise_adagrad"
    if rowwise and squares:
        squares = [sum_by_halves(squares, wide(0)) / wide(len(squares))] * len(squares)
    new_weights: list[Scalar] = []
    new_state = {key: list(numbers) for key, numbers in state.items()}
    for j in range(len(weights)):
        place = 0 if rowwise else j
        old = {key: wide(numbers[place]) for key, numbers in state.items()}
        stepped, new = rule(weights[j], gradient[j], squares[j], old)
        new_weights.append(stepped)
        for key in new:
            new_state[key][place] = new[key].item()
    return new_weights, new_state


def one_step(
    name: str, h: Hyper, table: Array, state: dict[str, Array], grad: Any, rows: str, maximize: bool, still: set[int]
) -> tuple[Array, dict[str, Array]]:
    width = math.prod(table.shape[1:])
    wide = WIDE[table.dtype]
    t = state["step"].data[0] + 1
    has = {"has decay": present(h.get("weight_decay", 0.0)), "has momentum": present(h.get("momentum", 0.0))}
    h = {**this_step(h, t), **has}
    rule = RULES[name](h, t, wide)
    named = gradient_rows(grad, width)
    weights = list(table.data)
    arrays = {key: list(array.data) for key, array in state.items() if key != "step"}
    widths = {key: math.prod(state[key].shape[1:]) for key in arrays}
    for r in range(table.shape[0]):
        if r in still or (rows == "touched" and r not in named):
            continue
        g = named.get(r, [0.0] * width)
        own = {key: row_of(state[key], r, widths[key]) for key in arrays}
        w = own.pop("master", row_of(table, r, width))
        stepped, own = step_row(name, h, rule, wide, w, [-v for v in g] if maximize else g, own)
        weights[r * width : (r + 1) * width] = [narrow(v, table.dtype) for v in stepped]
        if "master" in arrays:
            own["master"] = [v.item() for v in stepped]
        for key, numbers in own.items():
            arrays[key][r * widths[key] : (r + 1) * widths[key]] = numbers
    after = {key: Array(state[key].dtype, state[key].shape, numbers) for key, numbers in arrays.items()}
    return Array(table.dtype, table.shape, weights), {"step": Array("int32", (1,), [t]), **after}


@np.errstate(all="ignore")  # NaN and infinities are inputs here like any other
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
    """The gradients in turn, one each or as many as ``steps``: the table and the state after the last.

    ``master`` belongs to the first state, as the other arrays do: a ``state`` that is given has a copy or has none.
    """
    h = {**DEFAULTS[name], **hyper}
    if state is None:
        state = first_state(name, h, table, master)
    for k in range(len(grads) if steps is None else steps):
        grad = grads[k % len(grads)]
        if grad is not None:
            table, state = one_step(name, h, table, state, grad, rows, maximize, set(frozen or ()))
    return {"table": table, **state}


#: operation -> its second oracle, called with the case's arguments
NAIVE: dict[str, Callable[..., Any]] = {"optimizer_steps": optimizer_steps}
