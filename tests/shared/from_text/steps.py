"""Optimizers, as clause 16 of the specification defines them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from from_text.arrays import HALVES, Array, Slices, UnsupportedError, rounded, row_sums, stacked, wide
from from_text.lookups import halves

DEFAULTS = {
    "rho": 0.9, "beta1": 0.9, "beta2": 0.999, "lr_power": -0.5, "momentum_decay": 4e-3, "amsgrad": False, "eps": 1e-8,
    "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0, "lr_decay": 0.0, "centered": False,
    "l1": 0.0, "l2": 0.0, "l2_shrinkage": 0.0, "beta": 0.0, "initial_accumulator": 0.0, "decoupled_weight_decay": False,
}  # fmt: skip
OWN = {
    "adagrad": {"eps": 1e-10}, "ftrl": {"initial_accumulator": 0.1}, "lion": {"beta2": 0.99},
    "adamw": {"weight_decay": 0.01},
}  # fmt: skip
NAMES = ("sgd", "adagrad", "rowwise_adagrad", "rmsprop", "adam", "adamw", "ftrl", "lion", "adamax", "nadam")
LEAST = 1e-290


def powers(beta: float, t: int) -> float:
    """Return beta^t as the product of 32 factors. The first half of the factors is multiplied by the second half until
    one factor is left."""
    factors = []
    for k in range(32):
        factors.append(beta if t >> k & 1 else 1.0)
        beta = beta * beta if beta * beta > LEAST else 0.0
    while len(factors) > 1:
        half = len(factors) // 2
        factors = [a * b for a, b in zip(factors[:half], factors[half:], strict=True)]
    return factors[0]


def root_of(n: Any, p: float, digits: int) -> Any:
    """Return n^p, the function r(n) of clause 16, computed with square roots and squares."""
    if p == 0.5:
        return np.sqrt(n)
    if p == 1:
        return n
    whole, part = int(p), Fraction(p) - int(p)
    bits = [int(part * 2**k) & 1 for k in range(1, digits + 1)]
    out, root = np.ones_like(n), np.sqrt(n)
    for bit in reversed(bits):
        out = np.sqrt(out)
        if bit:
            out = out * root
    square = n
    while whole:
        if whole & 1:
            out = out * square
        whole >>= 1
        square = square * square
    return out


class Step:
    """The numbers of one step. ``step[name]`` is a hyperparameter rounded to the wide type; ``step.h[name]`` is not
    rounded."""

    def __init__(self, name: str, hyper: dict[str, Any], t: int, kind: Any) -> None:
        self.name, self.t, self.kind = name, t, kind
        given = {**DEFAULTS, **OWN.get(name, {}), **hyper}
        self.varies = {key for key, x in given.items() if isinstance(x, (list, Array))}
        self.h = {key: self._now(x) for key, x in given.items()}

    def _now(self, x: Any) -> Any:
        if isinstance(x, list):
            return x[(self.t - 1) % len(x)]
        return float(np.ravel(x.x)[0]) if isinstance(x, Array) else x

    def some(self, key: str) -> bool:
        return key in self.varies or self.h[key] != 0

    def __getitem__(self, key: str) -> Any:
        return self.kind(self.h[key])

    def n(self, x: float) -> Any:
        return self.kind(x)


def state_names(s: Step) -> dict[str, str]:
    """Return a dict from the name of each array of the state, except step and master, to its initial value: "0", or
    "initial" for initial_accumulator."""
    some, name = s.some, s.name
    if name == "sgd":
        return {"momentum": "0"} if some("momentum") else {}
    if name in ("adagrad", "rowwise_adagrad"):
        return {"accumulator": "initial"}
    if name == "rmsprop":
        return {
            "mean_square": "0",
            **({"mean": "0"} if s.h["centered"] else {}),
            **({"momentum": "0"} if some("momentum") else {}),
        }
    if name in ("adam", "adamw"):
        return {"m": "0", "v": "0", **({"v_max": "0"} if s.h["amsgrad"] else {})}
    return {
        "ftrl": {"z": "0", "n": "initial"},
        "lion": {"m": "0"},
        "adamax": {"m": "0", "u": "0"},
        "nadam": {"m": "0", "v": "0"},
    }[name]


def _largest(a: Any, b: Any) -> Any:
    return np.where(np.isnan(a) | np.isnan(b), np.nan, np.maximum(a, b)).astype(a.dtype)


def rule(s: Step, w: Any, g: Any, a: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    h, n, t, name, lr = s.h, s.n, s.t, s.name, s["lr"]
    if s.some("weight_decay"):
        if name in ("adamw", "lion") or (name == "nadam" and h["decoupled_weight_decay"]):
            w = w * n(1 - h["lr"] * h["weight_decay"])
        else:
            g = g + s["weight_decay"] * w
    q = g * g
    if name == "sgd":
        if not s.some("momentum"):
            return w - lr * g, {}
        b = s["momentum"] * a["momentum"] + n(1 - h["dampening"]) * g
        return w - lr * (g + s["momentum"] * b if h["nesterov"] else b), {"momentum": b}
    if name in ("adagrad", "rowwise_adagrad"):
        return _adagrad(s, w, g, q, a)
    if name == "rmsprop":
        return _rmsprop(s, w, g, q, a)
    if name == "ftrl":
        return _ftrl(s, w, g, q, a)
    m = a["m"] + n(1 - h["beta1"]) * (g - a["m"])
    if name == "lion":
        kept = a["m"] + n(1 - h["beta2"]) * (g - a["m"])
        return w - lr * np.sign(m), {"m": kept}
    first = n(h["lr"] / (1 - powers(h["beta1"], t)))
    if name == "adamax":
        u = _largest(s["beta2"] * a["u"], np.abs(g))
        return w - first * (m / (u + s["eps"])), {"m": m, "u": u}
    v = a["v"] + n(1 - h["beta2"]) * (q - a["v"])
    second = n(math.sqrt(1 - powers(h["beta2"], t)))
    if name == "nadam":
        return _nadam(s, w, g, m, v, second)
    if h["amsgrad"]:
        x = _largest(a["v_max"], v)
        return w - first * (m / (np.sqrt(x) / second + s["eps"])), {"m": m, "v": v, "v_max": x}
    return w - first * (m / (np.sqrt(v) / second + s["eps"])), {"m": m, "v": v}


def _adagrad(s: Step, w: Any, g: Any, q: Any, a: Any) -> Any:
    if s.name == "rowwise_adagrad":
        if not g[0:1].size:
            return w, a
        each = [halves(row) / s.n(row.size) for row in q]
        q = np.array(each, w.dtype)
    total = a["accumulator"] + q
    under = np.sqrt(total).reshape(-1, *[1] * (w.ndim - 1)) if s.name == "rowwise_adagrad" else np.sqrt(total)
    c = s.n(s.h["lr"] / (1 + (s.t - 1) * s.h["lr_decay"]))
    return w - c * (g / (under + s["eps"])), {"accumulator": total}


def _rmsprop(s: Step, w: Any, g: Any, q: Any, a: Any) -> Any:
    square = s["rho"] * a["mean_square"] + s.n(1 - s.h["rho"]) * q
    state, under = {"mean_square": square}, square
    if s.h["centered"]:
        mean = s["rho"] * a["mean"] + s.n(1 - s.h["rho"]) * g
        state["mean"], under = mean, _largest(square - mean * mean, np.zeros_like(square))
    move = g / (np.sqrt(under) + s["eps"])
    if s.some("momentum"):
        move = state["momentum"] = s["momentum"] * a["momentum"] + move
    return w - s["lr"] * move, state


def _ftrl(s: Step, w: Any, g: Any, q: Any, a: Any) -> Any:
    n, p, digits = a["n"] + q, float(s.n(-s.h["lr_power"])), 64 if s.kind is np.float64 else 32
    new, old = root_of(n, p, digits), root_of(a["n"], p, digits)
    quotient = q / s["lr"] if s.h["lr_power"] == -1 else (new - old) / s["lr"]
    z = (a["z"] + (g + s["l2_shrinkage"] * w)) - quotient * w
    l1 = s["l1"]
    moved = (np.minimum(np.maximum(z, -l1), l1) - z) / ((s["beta"] + new) / s["lr"] + s["l2"])
    return np.where(np.abs(z) <= l1, w.dtype.type(0), moved), {"z": z, "n": n}


def _nadam(s: Step, w: Any, g: Any, m: Any, v: Any, second: Any) -> Any:
    h, t = s.h, s.t
    c = float(root_of(np.array(0.96), float(h["momentum_decay"]), 64))
    here = powers(c, t)
    mu, after = h["beta1"] * (1 - 0.5 * here), h["beta1"] * (1 - 0.5 * (here * c))
    p = powers(h["beta1"], t)
    for k in range(1, t + 1):
        p = p * (1 - 0.5 * powers(c, k))
        if not p > LEAST:
            p = 0.0
            break
    by_g, by_m = s.n((h["lr"] * (1 - mu)) / (1 - p)), s.n((h["lr"] * after) / (1 - p * after))
    return w - (by_g * g + by_m * m) / (np.sqrt(v) / second + s["eps"]), {"m": m, "v": v}


# ---------------------------------------------------------------------- the steps
def _moved(grad: Any, rows: str, count: int, frozen: Any) -> tuple[Any, Any]:
    """Return (the rows that a step updates, the gradient of each row)."""
    if isinstance(grad, Slices):
        sums = row_sums(grad)
        places, g = np.array(list(sums), np.int64), stacked(sums.values(), grad.values.x)
        if rows == "all":
            whole = np.zeros((count, *grad.values.x.shape[1:]), grad.values.x.dtype)
            whole[places] = g
            places, g = np.arange(count), whole
    else:
        places, g = np.arange(count), grad.x
    if frozen is not None:
        x = np.array(frozen) if isinstance(frozen, list) else frozen.x
        mask = x if x.dtype == bool else np.isin(np.arange(count), x)
        places, g = places[~mask[places]], g[~mask[places]]
    return places, g


def optimizer_steps(
    name: str, hyper: dict[str, Any], table: Array, grads: list[Any], steps: int | None = None, state: Any = None,
    master: bool = False, rows: str = "touched", frozen: Any = None, maximize: bool = False, **others: Any,
) -> dict[str, Any]:  # fmt: skip
    if others or name not in NAMES:
        raise UnsupportedError(f"{name}: {', '.join(others)}")
    kind = wide(table.dtype)
    if state is None:
        state = _begun(Step(name, hyper, 1, kind.type), table, master)
    arrays, t = {key: x.x.copy() for key, x in state.items()}, int(state["step"].x[0])
    w = table.x.copy()
    for k in range(len(grads) if steps is None else steps):
        grad = grads[k % len(grads)]
        if grad is None:
            continue
        t += 1
        s = Step(name, hyper, t, kind.type)
        places, g = _moved(grad, rows, len(w), frozen)
        g = (-g if maximize else g).astype(kind)
        old = arrays.get("master", w)
        with np.errstate(all="ignore"):
            new, after = rule(s, old[places], g, {key: arrays[key][places] for key in state_names(s)})
        for key, x in after.items():
            arrays[key][places] = x
        if "master" in arrays:
            arrays["master"][places] = new
        w[places] = rounded(new, table.dtype)
    arrays["step"] = np.array([t], np.int32)
    of = {key: "int32" if key == "step" else kind.name for key in arrays}
    return {"table": Array(table.dtype, w), **{key: Array(of[key], x) for key, x in arrays.items()}}


def _begun(s: Step, table: Array, master: bool) -> dict[str, Any]:
    shape = table.x.shape[:1] if s.name == "rowwise_adagrad" else table.x.shape
    start = {"0": s.kind(0), "initial": s["initial_accumulator"]}
    found = {key: Array("", np.full(shape, start[subject])) for key, subject in state_names(s).items()}
    if master and table.dtype in HALVES:
        found["master"] = Array("float32", table.x.copy())
    return {**found, "step": Array("int32", np.zeros(1, np.int32))}
