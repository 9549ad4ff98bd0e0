"""FTRL-Proximal: the record, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from islices.optim.factory import Options, make, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import raw, with_rate
from islices.optim.hyperparameters import Hyper, Limit, Scheduled
from islices.optim.numbers import Numbers, single
from islices.optim.operators import absolute, div, less_equal, maximum, minimum, mul, power, sqrt, where
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record

__all__ = ["FTRL", "ftrl"]


# ---------------------------------------------------------------------- islices' own


def islices_ftrl(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, l2_shrinkage: Any
) -> Any:
    """McMahan et al. 2013, algorithm 1: a row whose gradients stay below l1 is exactly zero.

    l2_shrinkage is TensorFlow's: a penalty that z sees and the sum of squares does not.
    """
    total = n + q
    root = sqrt(total)
    z = (z + (g + mul(l2_shrinkage, w))) - mul(div(root - sqrt(n), lr), w)
    bounded = minimum(maximum(z, -l1), l1)
    w = where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(beta + root, lr) + l2))
    return w, z, total


def islices_ftrl_linear(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, l2_shrinkage: Any
) -> Any:
    """FTRL-Proximal with lr_power -1: the learning rate falls with the sum of squares itself."""
    total = n + q
    z = (z + (g + mul(l2_shrinkage, w))) - mul(div(q, lr), w)
    bounded = minimum(maximum(z, -l1), l1)
    w = where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(beta + total, lr) + l2))
    return w, z, total


def islices_ftrl_power(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, l2_shrinkage: Any, exponent: Any,
    one: Any,
) -> Any:  # fmt: skip
    """FTRL-Proximal with any other lr_power; exponent is -lr_power."""
    total = n + q
    raised = power(total, exponent, one)
    z = (z + (g + mul(l2_shrinkage, w))) - mul(div(raised - power(n, exponent, one), lr), w)
    bounded = minimum(maximum(z, -l1), l1)
    w = where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(beta + raised, lr) + l2))
    return w, z, total


def ftrl_kind(h: Hyper, root: Callable[..., Any], linear: Callable[..., Any], power: Callable[..., Any]) -> Any:
    """The one of three rules: n^-lr_power is the root of n, n itself, or some other power."""
    return {-0.5: root, -1.0: linear}.get(h["lr_power"], power)


def _numbers(n: Numbers) -> Mapping[str, Any]:
    return {"lr": n.lr, **{name: n.h[name] for name in ("l1", "l2", "beta", "l2_shrinkage")}, **_exponent(n)}


def _exponent(n: Numbers) -> Mapping[str, Any]:
    return {"exponent": -n.h["lr_power"], "one": 1.0}


def _islices(h: Hyper) -> Formula:
    rule = ftrl_kind(h, islices_ftrl, islices_ftrl_linear, islices_ftrl_power)
    state = (State("z"), State("n", "initial_accumulator", positive=True))
    return Formula(rule, _numbers, state, squares="element")


# ---------------------------------------------------------------------- keras.optimizers


def keras_ftrl(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, shrinkage: Any, two: Any
) -> Any:
    """2 (l2 + beta / (2 lr)) stands in the denominator; shrinkage is 2 l2_shrinkage. A row without a gradient is
    computed anew from its z: 0 there gives 0."""
    total = n + q
    root = sqrt(total)
    z = z + ((g + mul(shrinkage, w)) - mul(div(root - sqrt(n), lr), w))
    quadratic = div(root, lr) + mul(two, l2 + div(beta, mul(two, lr)))
    return div(minimum(maximum(z, -l1), l1) - z, quadratic), z, total


def keras_ftrl_linear(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, shrinkage: Any, two: Any
) -> Any:
    """With learning_rate_power -1."""
    total = n + q
    z = z + ((g + mul(shrinkage, w)) - mul(div(total - n, lr), w))
    quadratic = div(total, lr) + mul(two, l2 + div(beta, mul(two, lr)))
    return div(minimum(maximum(z, -l1), l1) - z, quadratic), z, total


def keras_ftrl_power(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, shrinkage: Any, two: Any,
    exponent: Any, one: Any,
) -> Any:  # fmt: skip
    """With any other learning_rate_power."""
    total = n + q
    raised = power(total, exponent, one)
    z = z + ((g + mul(shrinkage, w)) - mul(div(raised - power(n, exponent, one), lr), w))
    quadratic = div(raised, lr) + mul(two, l2 + div(beta, mul(two, lr)))
    return div(minimum(maximum(z, -l1), l1) - z, quadratic), z, total


def _keras_numbers(n: Numbers) -> Mapping[str, Any]:
    shrinkage = n.h["l2_shrinkage"]
    return {**_numbers(n), "lr": n.single_lr, "two": 2.0, "shrinkage": shrinkage + shrinkage}


def _keras(h: Hyper) -> Formula:
    return Formula(
        ftrl_kind(h, keras_ftrl, keras_ftrl_linear, keras_ftrl_power),
        _keras_numbers,
        (State("z"), State("n", single(h["initial_accumulator"]))),
        squares="element",
        rows=("all",),
        raw=raw(h),
    )


# ---------------------------------------------------------------------- tf.compat.v1.train


def tensorflow_ftrl(g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, penalty: Any, shrinkage: Any) -> Any:
    """penalty is 2 (l2 + beta / (2 lr)), shrinkage 2 l2_shrinkage."""
    total = n + q
    root = sqrt(total)
    z = z + ((g + mul(shrinkage, w)) - mul(div(root - sqrt(n), lr), w))
    bounded = minimum(maximum(z, -l1), l1)
    return where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(root, lr) + penalty)), z, total


def tensorflow_ftrl_linear(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, penalty: Any, shrinkage: Any
) -> Any:
    """With learning_rate_power -1."""
    total = n + q
    z = z + ((g + mul(shrinkage, w)) - mul(div(total - n, lr), w))
    bounded = minimum(maximum(z, -l1), l1)
    return where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(total, lr) + penalty)), z, total


def tensorflow_ftrl_power(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, penalty: Any, shrinkage: Any, exponent: Any, one: Any,
) -> Any:  # fmt: skip
    """With any other learning_rate_power."""
    total = n + q
    raised = power(total, exponent, one)
    z = z + ((g + mul(shrinkage, w)) - mul(div(raised - power(n, exponent, one), lr), w))
    bounded = minimum(maximum(z, -l1), l1)
    return where(less_equal(absolute(z), l1), z - z, div(bounded - z, div(raised, lr) + penalty)), z, total


def _tensorflow_numbers(n: Numbers) -> Mapping[str, Any]:
    E, lr, two = n.E, n.single_lr, n.number(2.0, "float32")
    beta, l2 = (E.astype(n.array_of(n.h[name]), "float32") for name in ("beta", "l2"))
    penalty = E.round_product(two, l2 + E.div(beta, E.round_product(two, lr)))
    shrinkage = n.single("l2_shrinkage")
    named = {"lr": lr, "l1": n.single("l1"), "penalty": penalty, "shrinkage": shrinkage + shrinkage}
    return {**named, **_exponent(n)}


def _tensorflow(h: Hyper) -> Formula:
    state = (State("z"), State("n", "initial_accumulator"))
    return Formula(
        ftrl_kind(h, tensorflow_ftrl, tensorflow_ftrl_linear, tensorflow_ftrl_power),
        _tensorflow_numbers,
        state,
        squares="element",
    )


# ---------------------------------------------------------------------- mxnet.optimizer


def mxnet_ftrl(
    g: Any, q: Any, w: Any, z: Any, n: Any, lr: Any, l1: Any, l2: Any, beta: Any, zero: Any, one: Any
) -> Any:
    """The weight is multiplied by 0 where |z| <= l1, not replaced: it is NaN where the quotient is not finite."""
    total = n + q
    root = sqrt(total)
    z = z + (g - div(mul(root - sqrt(n), w), lr))
    bounded = minimum(maximum(z, -l1), l1)
    w = mul(div(bounded - z, div(beta + root, lr) + l2), where(less_equal(absolute(z), l1), zero, one))
    return w, z, total


def _mxnet_numbers(n: Numbers) -> Mapping[str, Any]:
    return {**with_rate(l1="l1", l2="l2", beta="beta")(n), "zero": 0.0, "one": 1.0}


def _mxnet(h: Hyper) -> Formula:
    return Formula(mxnet_ftrl, _mxnet_numbers, (State("z"), State("n")), squares="element")


# ---------------------------------------------------------------------- the record
#: what all who have all of these begin with
DEFAULTS: Hyper = {
    "l1": 0.0,
    "l2": 0.0,
    "beta": 0.0,
    "l2_shrinkage": 0.0,
    "lr_power": -0.5,
    "initial_accumulator": 0.1,
}
STRENGTHS = {
    "l1": "l1_regularization_strength",
    "l2": "l2_regularization_strength",
    "l2_shrinkage": "l2_shrinkage_regularization_strength",
    "lr_power": "learning_rate_power",
}
#: n^-lr_power is formed from eight binary digits of the whole part.
LARGEST_POWER = 256
FTRL = Record(
    "ftrl",
    "Ftrl",
    ("lr", "l1", "l2", "beta", "lr_power", "initial_accumulator", "l2_shrinkage"),
    {
        "islices": Preset({"lr": None, **DEFAULTS}, _islices),
        "keras": Preset({"lr": 1e-3, **DEFAULTS}, _keras, "keras.optimizers.Ftrl", STRENGTHS, within=300.0),
        "mxnet": Preset(
            {"lr": 0.1, "l1": 0.01, "l2": 0.0, "beta": 1.0}, _mxnet, "mx.optimizer.Ftrl", {"l1": "lamda1", "l2": "wd"}
        ),
        "tensorflow": Preset({"lr": None, **DEFAULTS}, _tensorflow, "tf.compat.v1.train.FtrlOptimizer", STRENGTHS),
    },
    fixed=("initial_accumulator", "lr_power"),
    limits={
        "lr": Limit("a finite number above 0, since FTRL divides by it", lambda x: 0 < x < math.inf),
        "lr_power": Limit(f"-{LARGEST_POWER} < lr_power <= 0", lambda x: -LARGEST_POWER < x <= 0),
    },
    additive=False,
)


@public(FTRL)
def ftrl(
    lr: Scheduled | None = None,
    *,
    l1: Scheduled | None = None,
    l2: Scheduled | None = None,
    beta: Scheduled | None = None,
    l2_shrinkage: Scheduled | None = None,
    lr_power: float | None = None,
    initial_accumulator: float | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """FTRL-Proximal: rows become exactly zero under l1 (McMahan et al. 2013, algorithm 1).

    Parameters
    ----------
    l1, l2 : float, default 0
        Strength of the penalties.
    beta : float, default 0
        Added to the root in the denominator.
    l2_shrinkage : float, default 0
        l2_shrinkage * w is added to the gradient where z grows by it, not to that whose square is summed
        (TensorFlow's l2_shrinkage_regularization_strength; its formulas and Keras' double it, as they do l2).
    lr_power : float, -256 < lr_power <= 0, default -0.5
        The power of the sum of squares that the learning rate falls with.
    initial_accumulator : float, default 0.1
        What the sums of squares begin with.

    Notes
    -----
    ``n' = n + g g``, ``z = (z + (g + l2_shrinkage w)) - ((r(n') - r(n)) / lr) w``, and w is 0 where ``|z| <= l1``, else
    ``(clip(z, -l1, l1) - z) / ((beta + r(n')) / lr + l2)``, where ``r(n) = n^-lr_power``, by default the root.
    """
    return make(
        "ftrl",
        lr=lr,
        l1=l1,
        l2=l2,
        beta=beta,
        l2_shrinkage=l2_shrinkage,
        lr_power=lr_power,
        initial_accumulator=initial_accumulator,
        **options,
    )
