"""Define the rules, which compute the result and the state of a step. A rule serves all frameworks with its optimizer.

The arguments of a rule are `Numbers`, the gradient, the weights and the state. A rule returns the result and the state
after the step. The result is the new weights, or for `clip` and `clip_value` the gradient. Where the formulas of
frameworks differ, an option selects the formula (`epsilon`, `correction`, `decay` ...). If only the order of operations
differs, there is no option except `shrinks`, and the bound covers each order (clause 28). The new weight is a sum, and
a decoupled decay is one of its terms. So (1 - lr wd) w - s and w - lr (wd w + s / lr) count as one formula, and the
bound of `shrunk` covers both forms.

May import: this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from islices.conformance.formulas.numbers import Numbers

State = Mapping[str, Any]
#: the result and the state after a step
Stepped = tuple[Any, dict[str, Any]]
#: (numbers, gradient, weights, state) -> (result, state)
Rule = Callable[[Numbers, Any, Any, State], Stepped]


# ---------------------------------------------------------------------- decay
def coupled(n: Numbers, g, w) -> Any:
    """Return the gradient, plus weight_decay times the weights if the decay is coupled."""
    if n.h["decay"] in ("coupled", "twice", "not squared") and n.h.get("weight_decay"):
        return g + n["weight_decay"] * w
    return g


def squared(n: Numbers, g, joined) -> Any:
    """Return the squares of `joined`, which is the gradient plus the decay. The mutant "not squared" squares only the
    gradient."""
    return n.square(g if n.h["decay"] == "not squared" else joined)


def shrunk(n: Numbers, w, c) -> Any:
    """Return w - c w. Implementations may compute (1 - c) w; this form rounds 1 - c, so the bound includes one more
    rounding of w."""
    return n.off_by(w, 1) - c * w


def moved(n: Numbers, w, step) -> Any:
    """Return w - step. A decoupled decay shrinks w first."""
    step = -step if n.h.get("ascent") else step  # a mutant
    if not n.h.get("weight_decay") or n.h["decay"] in ("coupled", "not squared"):
        return w - step
    # "twice" is a mutant: the decay is also part of the gradient
    if n.h["decay"] in ("decoupled", "in buffer", "twice"):
        return shrunk(n, w, n["lr"] * n["weight_decay"]) - step
    if n.h["decay"] == "without lr":  # a mutant
        return w - n["weight_decay"] * w - step
    if n.h["decay"] == "after":  # a mutant: decay of the updated weights
        return w - step - n["lr"] * n["weight_decay"] * (w - step)
    raise ValueError(f"decay: got {n.h['decay']!r}; accepted are coupled, decoupled")


# ---------------------------------------------------------------------- gradient descent
def sgd(n: Numbers, g, w, s) -> Stepped:
    """Apply SGD.

    The option `buffer` selects the formula of momentum.
    With "gradients", b = mu b + (1 - dampening) g and w = w - lr b. With "steps", b = mu b - lr g and w = w + b.
    """
    g = coupled(n, g, w)
    if not n.h.get("momentum"):
        return moved(n, w, n.shared(n["lr"], g)), {}
    mu, lr, b = n["momentum"], n["lr"], s["momentum"]
    if n.h["buffer"] == "steps":
        b = mu * b - lr * g
        if n.h["decay"] == "in buffer" and n.h.get("weight_decay"):
            b = b - lr * n["weight_decay"] * w
        step = mu * b - lr * g if n.h.get("nesterov") else b
        return (w + step if n.h["decay"] == "in buffer" else moved(n, w, -step)), {"momentum": b}
    first = n.t == 1 and n.h["first"] == "gradient"
    fresh = g if first or not n.h.get("dampening") else n.gain("dampening") * g
    b = fresh if first else mu * b + fresh
    return moved(n, w, lr * (g + mu * b if n.h.get("nesterov") else b)), {"momentum": b}


# ---------------------------------------------------------------------- Adagrad
def rooted(n: Numbers, x, epsilon: str, *, positive: bool = True) -> Any:
    """Return sqrt(x) + eps. If `epsilon` is "inside", return sqrt(x + eps). If `epsilon` is "none", return
    sqrt(x)."""
    if epsilon == "none" or not n.h["eps"]:
        return n.sqrt(x, positive=positive)
    if epsilon == "subtracted":  # a mutant
        return n.sqrt(x - n["eps"], positive=False)
    return n.sqrt(x + n["eps"], positive=positive) if epsilon == "inside" else n.sqrt(x, positive=positive) + n["eps"]


def adagrad(n: Numbers, g, w, s) -> Stepped:
    """Apply Adagrad. With `per_row`, each row has one accumulator, which adds up the "mean" or the "sum" of the row's
    squares.

    A coupled decay is a separate term. With `shrinks`, implementations may compute (1 - f wd) w - f g. The bound of
    this form also covers w - f (g + wd w).
    """
    squares = squared(n, g, coupled(n, g, w))
    if n.h["per_row"]:
        squares = n.row_mean(squares) if n.h["per_row"] == "mean" else n.row_sum(squares)
    a = s["accumulator"] + squares
    lr = n["lr"]
    if n.h.get("lr_decay"):
        lr = n.number(n.h["lr"] / (1.0 + (n.t - 1) * n.h["lr_decay"]), 3)
    factor = n.off_by(lr / rooted(n, a, n.h["epsilon"]), 2)
    step = factor * g
    if n.h["decay"] == "twice" and n.h.get("weight_decay"):  # a mutant
        return (1.0 - factor * n["weight_decay"]) * w - factor * coupled(n, g, w), {"accumulator": a}
    if n.h["decay"] in ("coupled", "not squared") and n.h.get("weight_decay"):
        if n.h.get("shrinks"):
            return shrunk(n, w, factor * n["weight_decay"]) - step, {"accumulator": a}
        step = step + factor * (n["weight_decay"] * w)
    return moved(n, w, step), {"accumulator": a}


def adadelta(n: Numbers, g, w, s) -> Stepped:
    """Apply Adadelta (Zeiler 2012), with eps inside both roots."""
    g = coupled(n, g, w)
    a = n.mean("rho", s["square"], n.square(g))
    under = s["square"] if n.h.get("average") == "last" else a  # "last" is a mutant
    delta = n.off_by(g * rooted(n, s["delta"], "inside") / rooted(n, under, "inside"), 1)
    return moved(n, w, n["lr"] * delta), {"square": a, "delta": n.mean("rho", s["delta"], delta * delta)}


# ---------------------------------------------------------------------- RMSprop
def rmsprop(n: Numbers, g, w, s) -> Stepped:
    """Apply RMSprop. u is the gradient divided by the root of the mean square, with eps. The option `buffer` selects
    the formula of momentum:

    "gradients": b = mu b + u, w = w - lr b.
    "steps": b = mu b + lr u, w = w - b. "always" selects this formula even if mu is 0.
    "signed": b = mu b - lr u, w = w + b.
    """
    joined = coupled(n, g, w)
    state = {"square": n.mean("rho", s["square"], squared(n, g, joined))}
    g = joined
    under = state["square"]
    if n.h.get("centered"):
        state["mean"] = n.mean("rho", s["mean"], g)
        under = under - state["mean"] * state["mean"]
    u = n.off_by(g / rooted(n, under, n.h["epsilon"], positive=not n.h.get("centered")), 2)
    lr, kept = n["lr"], n.h["buffer"]
    if kept == "always" or n.h.get("momentum"):
        mu = n["momentum"]
        if kept == "gradients":
            state["momentum"] = mu * s["momentum"] + u
            return moved(n, w, lr * state["momentum"]), state
        if kept == "signed":
            state["momentum"] = mu * s["momentum"] - lr * u
            return moved(n, w, -state["momentum"]), state
        state["momentum"] = mu * s["momentum"] + lr * u
        return moved(n, w, state["momentum"]), state
    return moved(n, w, lr * u), state


# ---------------------------------------------------------------------- Adam
def moments(n: Numbers, g, w, s) -> tuple[Any, Any]:
    joined = coupled(n, g, w)
    squares = squared(n, g, joined)
    squares = n.row_mean(squares) if n.h.get("per_row") else squares
    return n.mean("beta1", s["m"], joined), n.mean("beta2", s["v"], squares)


def adam(n: Numbers, g, w, s) -> Stepped:
    """Apply Adam. The option `epsilon` selects the formula of the step divided by lr. In the formulas, c1 is
    1 - beta1^t, and c2 is 1 - beta2^t.

    "corrected" is m / c1 / (sqrt(v / c2) + eps). "hat" is (sqrt(c2) / c1) m / (sqrt(v) + eps). "inside" is m / c1 /
    sqrt(v / c2 + eps). This function computes "corrected" as (sqrt(c2) / c1) m / (sqrt(v) + eps sqrt(c2)).
    """
    m, v = moments(n, g, w, s)
    state = {"m": m, "v": v}
    kind = n.h["correction"]
    c1 = n.correction("beta1") if kind in ("both", "first") else n.number(1.0)
    c2 = n.correction("beta2") if kind in ("both", "second") else n.number(1.0)
    if kind == "swapped":  # a mutant
        c1, c2 = n.correction("beta2"), n.correction("beta1")
    if kind == "doubled":  # a mutant
        c1, c2 = (n.correction(beta) * n.correction(beta) for beta in ("beta1", "beta2"))
    if n.h.get("amsgrad"):
        v = n.off_by(v / c2, 1) if n.h["maximum"] == "corrected" else v
        v = state["v_max"] = n.maximum(s["v_max"], v)
        c2 = n.number(1.0) if n.h["maximum"] == "corrected" else c2
    if n.h["epsilon"] == "inside":
        under, root = n.sqrt(v / c2 + n["eps"]), n.number(1.0)
    else:
        root = n.sqrt(c2) if kind != "none" else c2
        eps = n["eps"] if n.h["epsilon"] == "hat" else n["eps"] * root
        under = n.sqrt(v) + eps
    return moved(n, w, n.off_by(n["lr"] * root / c1 * m / under, 3)), state


def adamax(n: Numbers, g, w, s) -> Stepped:
    """Apply Adamax. If `epsilon` is "gradient", u = max(beta2 u, |g| + eps). If `epsilon` is "outside", m is divided by
    u + eps instead of u."""
    g = coupled(n, g, w)
    m = n.mean("beta1", s["m"], g)
    size = abs(g) + n["eps"] if n.h["epsilon"] == "gradient" else abs(g)
    u = n.maximum(n["beta2"] * s["u"], size)
    under = u + n["eps"] if n.h["epsilon"] == "outside" else u
    c1 = n.correction("beta1") if n.h["correction"] != "none" else n.number(1.0)
    return moved(n, w, n.off_by(n["lr"] / c1 * m / under, 2)), {"m": m, "u": u}


def nadam(n: Numbers, g, w, s) -> Stepped:
    """Apply Nadam (Dozat 2016) with mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2). Implementations store the product
    of all mu_t in float32."""
    m, v = moments(n, g, w, s)
    g = coupled(n, g, w)
    beta, fade = n.h["beta1"], 0.96 ** n.h["momentum_decay"]
    mu = [beta * (1.0 - 0.5 * fade**k) for k in range(1, n.t + 2)]
    product = math.prod(mu[: n.t])
    head = n.off_by(n.number((1.0 - mu[-2]) / (1.0 - product), 6), 2 * n.t)
    rate = n.off_by(n.number(mu[-1] / (1.0 - product * mu[-1]), 6), 2 * n.t)
    under = n.sqrt(v / n.correction("beta2")) + n["eps"]
    factor = n.off_by(n["lr"] / under, 2)
    return moved(n, w, factor * head * g + factor * rate * m), {"m": m, "v": v}


def radam(n: Numbers, g, w, s) -> Stepped:
    """Apply RAdam (Liu et al. 2020). The step divides by the root of v once the variance is tractable (rho_t > 5);
    earlier steps use only m."""
    m, v = moments(n, g, w, s)
    last = 2.0 / (1.0 - n.h["beta2"]) - 1.0
    power = n.h["beta2"] ** n.t
    rho = last - 2.0 * n.t * power / (1.0 - power)
    step = n["lr"] / n.correction("beta1") * m
    if rho > 5.0:
        rect = math.sqrt((rho - 4.0) * (rho - 2.0) * last / ((last - 4.0) * (last - 2.0) * rho))
        step = step * n.off_by(n.number(rect), 1) * n.sqrt(n.correction("beta2")) / (n.sqrt(v) + n["eps"])
    return moved(n, w, n.off_by(step, 1)), {"m": m, "v": v}


def lion(n: Numbers, g, w, s) -> Stepped:
    direction = n.sign(n.mean("beta1", s["m"], g))
    if n.h.get("of zero") == "one":  # a mutant
        direction = n.sign(direction + n.number(0.5))
    return moved(n, w, n["lr"] * direction), {"m": n.mean("beta2", s["m"], g)}


def laprop(n: Numbers, g, w, s) -> Stepped:
    """Apply LaProp (Ziyin et al. 2020) as SparseCore defines it: eps is added to the squares. The quotient g / sqrt(v)
    is multiplied by sqrt(1 - beta1^2)."""
    v = n.mean("beta2", s["v"], n.square(g) + n["eps"])
    m = n["beta1"] * s["m"] + n.sqrt(n.correction("beta1", 2)) * n.off_by(g / n.sqrt(v), 1)
    return w - n["lr"] * m, {"m": m, "v": v}


# ---------------------------------------------------------------------- norms
def clip(n: Numbers, g, w, s) -> Stepped:
    """Multiply the gradient by the smaller of max_norm / (norm + eps) and 1.

    With eps 0 the factor is max_norm / max(norm, max_norm). For several tensors, implementations may compute the norm
    of the tensors' norms.
    """
    norm = clip_norm(n, n.square(g))
    limit = n["max_norm"]
    if n.h["epsilon"]:
        factor = limit / (norm + n.number(n.h["epsilon"]))
        factor = factor if n.h["norm"] == "unclamped" else n.minimum(factor, n.number(1.0))
    else:
        factor = limit / (norm if n.h["norm"] == "unclamped" else n.maximum(norm, limit))
    return n.shared(n.off_by(factor, 6), g), {}


def clip_norm(n: Numbers, squares) -> Any:
    """Return the norm for a clip. If the option `norm` is "row", return the norm of each tensor; if "all", the norm of
    all tensors together. The values "squared", "sum" and "unclamped" are mistakes."""
    kind = n.h["norm"]
    rows = n.sqrt(n.row_sum(squares))
    if kind == "row":
        return rows
    if kind == "squared":
        return n.total(squares)
    if kind == "sum":
        return n.total(rows)
    norm = n.sqrt(n.total(squares))
    return n.off_by(norm, 3) if n.h.get("several") else norm


def clip_value(n: Numbers, g, w, s) -> Stepped:
    """Return the gradient with each element limited to [-limit, limit]."""
    limit = n["limit"]
    found = n.minimum(g, limit)
    return (found if n.h["sides"] == "upper" else n.maximum(found, -limit)), {}


def renorm(n: Numbers, g, w, s) -> Stepped:
    """Scale each row whose norm exceeds max_norm by max_norm / (norm + eps)."""
    norm = n.sqrt(n.total(w * w)) if n.h["norm"] == "table" else n.sqrt(n.row_sum(w * w))
    limit = n["max_norm"]
    factor = n.off_by(limit / (norm + n.number(n.h["epsilon"])), 1)
    return n.scaled(w, factor, norm, limit), {}


# ---------------------------------------------------------------------- FTRL
def ftrl(n: Numbers, g, w, s) -> Stepped:
    """Apply FTRL (McMahan et al. 2013, algorithm 1) with lr_power -1/2. The option "twice" doubles l2 and l2_shrinkage,
    as TensorFlow does."""
    lr, twice = n["lr"], n.number(2.0 if n.h["twice"] else 1.0)
    total = s["n"] + n.square(g)
    z = s["z"] + g - (n.sqrt(total) - n.sqrt(s["n"])) / lr * w
    if n.h.get("l2_shrinkage"):
        z = z + twice * n["l2_shrinkage"] * w
    divisor = (n["beta"] + n.sqrt(total)) / lr + twice * n["l2"]
    return n.off_by(-n.shrink(z, n["l1"]) / divisor, 1), {"z": z, "n": total}
