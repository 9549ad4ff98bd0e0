"""RMSprop: the record, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from islices.core.arguments import show
from islices.optim.factory import Options, make, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import ALL, one_less, raw, with_rate
from islices.optim.hyperparameters import Hyper, Scheduled, decays, is_on, refuse_scheduled
from islices.optim.numbers import Numbers
from islices.optim.operators import div, lerp, maximum, mul, sqrt
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record

__all__ = ["RMSPROP", "rmsprop"]


# ---------------------------------------------------------------------- islices' own


def islices_rmsprop(g: Any, q: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any) -> Any:
    """Tieleman and Hinton 2012; gain is 1 - rho."""
    mean_square = mul(rho, mean_square) + mul(gain, q)
    return w - mul(lr, div(g, sqrt(mean_square) + eps)), mean_square


def islices_rmsprop_momentum(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any
) -> Any:
    mean_square = mul(rho, mean_square) + mul(gain, q)
    momentum = mul(mu, momentum) + div(g, sqrt(mean_square) + eps)
    return w - mul(lr, momentum), mean_square, momentum


def islices_rmsprop_centered(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, rho: Any, gain: Any, lr: Any, eps: Any, zero: Any
) -> Any:
    """Graves 2013: the variance in place of the mean square; not below zero, where rounding would put it."""
    mean_square = mul(rho, mean_square) + mul(gain, q)
    mean = mul(rho, mean) + mul(gain, g)
    spread = sqrt(maximum(mean_square - mul(mean, mean), zero))
    return w - mul(lr, div(g, spread + eps)), mean_square, mean


def islices_rmsprop_centered_momentum(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any,
    zero: Any,
) -> Any:  # fmt: skip
    mean_square = mul(rho, mean_square) + mul(gain, q)
    mean = mul(rho, mean) + mul(gain, g)
    spread = sqrt(maximum(mean_square - mul(mean, mean), zero))
    momentum = mul(mu, momentum) + div(g, spread + eps)
    return w - mul(lr, momentum), mean_square, mean, momentum


def rmsprop_kind(h: Hyper, *kinds: Callable[..., Any]) -> Callable[..., Any]:
    """The one of four rules: plain, with momentum, centered, both."""
    return kinds[2 * bool(h["centered"]) + is_on(h["momentum"])]


def _numbers(n: Numbers) -> Mapping[str, Any]:
    named = {"rho": n.h["rho"], "gain": n.complement("rho"), "mu": n.h["momentum"], "eps": n.h["eps"], "lr": n.lr}
    return {**named, "zero": 0.0, "half": 0.5, "one": 1.0}


def _islices(h: Hyper) -> Formula:
    rule = rmsprop_kind(
        h, islices_rmsprop, islices_rmsprop_momentum, islices_rmsprop_centered, islices_rmsprop_centered_momentum
    )
    state = [State("mean_square", positive=True)]
    state += [State("mean")] * bool(h["centered"]) + [State("momentum")] * is_on(h["momentum"])
    return Formula(rule, _numbers, tuple(state), squares="element", decay=decays(h))


# ---------------------------------------------------------------------- torch.optim


def torch_rmsprop(g: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any) -> Any:
    """gain is 1 - rho."""
    mean_square = mul(rho, mean_square) + mul(mul(gain, g), g)
    return w - div(mul(lr, g), sqrt(mean_square) + eps), mean_square


def torch_rmsprop_momentum(
    g: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any
) -> Any:
    mean_square = mul(rho, mean_square) + mul(mul(gain, g), g)
    momentum = mul(mu, momentum) + div(g, sqrt(mean_square) + eps)
    return w - mul(lr, momentum), mean_square, momentum


def torch_rmsprop_centered(
    g: Any, w: Any, mean_square: Any, mean: Any, rho: Any, gain: Any, lr: Any, eps: Any, half: Any, one: Any
) -> Any:
    """Nothing keeps the variance from rounding to less than zero: NaN then, as in torch."""
    mean_square = mul(rho, mean_square) + mul(mul(gain, g), g)
    mean = lerp(mean, g, gain, half, one)
    return w - div(mul(lr, g), sqrt(mean_square - mul(mean, mean)) + eps), mean_square, mean


def torch_rmsprop_centered_momentum(
    g: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any,
    half: Any, one: Any,
) -> Any:  # fmt: skip
    mean_square = mul(rho, mean_square) + mul(mul(gain, g), g)
    mean = lerp(mean, g, gain, half, one)
    momentum = mul(mu, momentum) + div(g, sqrt(mean_square - mul(mean, mean)) + eps)
    return w - mul(lr, momentum), mean_square, mean, momentum


def _torch(h: Hyper) -> Formula:
    rule = rmsprop_kind(
        h, torch_rmsprop, torch_rmsprop_momentum, torch_rmsprop_centered, torch_rmsprop_centered_momentum
    )
    return replace(_islices(h), rule=rule, squares="", rows=ALL)


# ---------------------------------------------------------------------- keras.optimizers


def keras_rmsprop(g: Any, q: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any, decay: Any) -> Any:
    """eps stands inside the root; gain is 1 - rho."""
    w = w - mul(mul(w, decay), lr)
    mean_square = mul(rho, mean_square) + mul(gain, q)
    return w - div(mul(lr, g), sqrt(mean_square + eps)), mean_square


def keras_rmsprop_momentum(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any, decay: Any
) -> Any:
    """The learning rate stands inside the buffer."""
    w = w - mul(mul(w, decay), lr)
    mean_square = mul(rho, mean_square) + mul(gain, q)
    momentum = mul(mu, momentum) + div(mul(lr, g), sqrt(mean_square + eps))
    return w - momentum, mean_square, momentum


def keras_rmsprop_centered(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, rho: Any, gain: Any, lr: Any, eps: Any, decay: Any
) -> Any:
    """Only eps keeps the variance from rounding to less than zero."""
    w = w - mul(mul(w, decay), lr)
    mean_square = mul(rho, mean_square) + mul(gain, q)
    mean = mul(rho, mean) + mul(gain, g)
    return w - div(mul(lr, g), sqrt((mean_square - mul(mean, mean)) + eps)), mean_square, mean


def keras_rmsprop_centered_momentum(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any,
    decay: Any,
) -> Any:  # fmt: skip
    w = w - mul(mul(w, decay), lr)
    mean_square = mul(rho, mean_square) + mul(gain, q)
    mean = mul(rho, mean) + mul(gain, g)
    momentum = mul(mu, momentum) + div(mul(lr, g), sqrt((mean_square - mul(mean, mean)) + eps))
    return w - momentum, mean_square, mean, momentum


def _keras_numbers(n: Numbers) -> Mapping[str, Any]:
    return {**_numbers(n), "lr": n.single_lr, "decay": n.single("weight_decay")}


def _keras(h: Hyper) -> Formula:
    rule = rmsprop_kind(
        h, keras_rmsprop, keras_rmsprop_momentum, keras_rmsprop_centered, keras_rmsprop_centered_momentum
    )
    return replace(_islices(h), rule=rule, numbers=_keras_numbers, decay="", rows=ALL, raw=raw(h))


# ---------------------------------------------------------------------- tf.compat.v1.train


def tensorflow_rmsprop(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    """eps stands inside the root, the learning rate inside the buffer."""
    mean_square = mul(mean_square, rho) + mul(q, one - rho)
    momentum = mul(momentum, mu) + mul(mul(div(one, sqrt(mean_square + eps)), lr), g)
    return w - momentum, mean_square, momentum


def tensorflow_rmsprop_dense(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    mean_square = mean_square + mul(q - mean_square, one - rho)
    momentum = mul(momentum, mu) + div(mul(g, lr), sqrt(mean_square + eps))
    return w - momentum, mean_square, momentum


def tensorflow_rmsprop_centered(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    mean_square = mul(mean_square, rho) + mul(q, one - rho)
    mean = mul(mean, rho) + mul(g, one - rho)
    scale = div(one, sqrt((mean_square + eps) - mul(mean, mean)))
    momentum = mul(momentum, mu) + mul(mul(scale, lr), g)
    return w - momentum, mean_square, mean, momentum


def tensorflow_rmsprop_centered_dense(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    mean_square = mean_square + mul(q - mean_square, one - rho)
    mean = mean + mul(g - mean, one - rho)
    momentum = mul(momentum, mu) + div(mul(g, lr), sqrt((mean_square - mul(mean, mean)) + eps))
    return w - momentum, mean_square, mean, momentum


def _tensorflow(h: Hyper) -> Formula:
    by_kind: Mapping[tuple[bool, str], Callable[..., Any]] = {
        (False, "touched"): tensorflow_rmsprop,
        (False, "all"): tensorflow_rmsprop_dense,
        (True, "touched"): tensorflow_rmsprop_centered,
        (True, "all"): tensorflow_rmsprop_centered_dense,
    }
    mean = (State("mean"),) if h["centered"] else ()
    return Formula(
        by_kind[bool(h["centered"]), h["rows"]],
        lambda n: {
            "rho": n.single("rho"),
            "mu": n.single("momentum"),
            "eps": n.single("eps"),
            "one": 1.0,
            "lr": n.single_lr,
        },
        (State("mean_square", 1.0), *mean, State("momentum")),  # the mean square begins with ones
        squares="element",
    )


# ---------------------------------------------------------------------- mxnet.optimizer


def mxnet_rmsprop(g: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any, wd: Any) -> Any:
    g = g + mul(wd, w)
    mean_square = mul(gain, mul(g, g)) + mul(rho, mean_square)
    return w - mul(lr, div(g, sqrt(mean_square + eps))), mean_square


def mxnet_rmsprop_centered(
    g: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any, wd: Any
) -> Any:
    """The buffer is of steps, with learning rate and sign; nothing but epsilon keeps the variance above zero."""
    g = g + mul(wd, w)
    mean_square = mul(mul(gain, g), g) + mul(rho, mean_square)
    mean = mul(gain, g) + mul(rho, mean)
    momentum = mul(mu, momentum) - div(mul(lr, g), sqrt(mean_square - mul(mean, mean) + eps))
    return w + momentum, mean_square, mean, momentum


#: gamma2 of mx.optimizer.RMSProp
GAMMA2 = 0.9


def _mxnet_numbers(n: Numbers) -> Mapping[str, Any]:
    named = with_rate(rho="rho", mu="momentum", eps="eps", wd="weight_decay")(n)
    return {**named, "gain": one_less(n, named["rho"])}  # rounded to the table's dtype, not to float32


def _mxnet(h: Hyper) -> Formula:
    """Dense kernels alone: a sparse gradient is made dense, so that the means of all rows decay."""
    if h["centered"]:
        state = (State("mean_square"), State("mean"), State("momentum"))
        return Formula(mxnet_rmsprop_centered, _mxnet_numbers, state, rows=ALL)
    refuse_scheduled(h, 'rmsprop with semantics="mxnet"', "momentum")
    if h["momentum"] not in (0, GAMMA2):
        raise ValueError(f"momentum: got {show(h['momentum'])}; MXNet's RMSProp has one with centered=True only")
    return Formula(mxnet_rmsprop, _mxnet_numbers, (State("mean_square"),), rows=ALL)


# ---------------------------------------------------------------------- optax


def optax_rmsprop(g: Any, q: Any, w: Any, mean_square: Any, rho: Any, gain: Any, lr: Any, eps: Any, one: Any) -> Any:
    mean_square = mul(gain, q) + mul(rho, mean_square)
    return w - mul(lr, mul(div(one, sqrt(mean_square + eps)), g)), mean_square


def optax_rmsprop_momentum(
    g: Any, q: Any, w: Any, mean_square: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any, one: Any
) -> Any:
    """The buffer holds steps as they are added: learning rate and sign stand inside."""
    mean_square = mul(gain, q) + mul(rho, mean_square)
    momentum = mul(mu, momentum) - mul(lr, mul(div(one, sqrt(mean_square + eps)), g))
    return w + momentum, mean_square, momentum


def optax_rmsprop_centered(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, rho: Any, gain: Any, lr: Any, eps: Any, one: Any
) -> Any:
    """The variance may round below zero; epsilon, inside the root, is what keeps it above."""
    mean = mul(gain, g) + mul(rho, mean)
    mean_square = mul(gain, q) + mul(rho, mean_square)
    scale = div(one, sqrt((mean_square - mul(mean, mean)) + eps))
    return w - mul(lr, mul(scale, g)), mean_square, mean


def optax_rmsprop_centered_momentum(
    g: Any, q: Any, w: Any, mean_square: Any, mean: Any, momentum: Any, rho: Any, gain: Any, mu: Any, lr: Any, eps: Any,
    one: Any,
) -> Any:  # fmt: skip
    mean = mul(gain, g) + mul(rho, mean)
    mean_square = mul(gain, q) + mul(rho, mean_square)
    scale = div(one, sqrt((mean_square - mul(mean, mean)) + eps))
    momentum = mul(mu, momentum) - mul(lr, mul(scale, g))
    return w + momentum, mean_square, mean, momentum


def _optax(h: Hyper) -> Formula:
    rule = rmsprop_kind(
        h, optax_rmsprop, optax_rmsprop_momentum, optax_rmsprop_centered, optax_rmsprop_centered_momentum
    )
    return replace(_islices({**h, "weight_decay": 0.0}), rule=rule, rows=ALL)


# ---------------------------------------------------------------------- the record
RMSPROP = Record(
    "rmsprop",
    "RMSprop",
    ("lr", "rho", "eps", "weight_decay", "momentum", "centered"),
    {
        "islices": Preset(
            {"lr": None, "rho": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False, "weight_decay": 0.0}, _islices
        ),
        "keras": Preset(
            {"lr": 1e-3, "rho": 0.9, "eps": 1e-7, "momentum": 0.0, "centered": False, "weight_decay": 0.0},
            _keras,
            "keras.optimizers.RMSprop",
            terms={"momentum": 1.0},
        ),
        "mxnet": Preset(
            {"lr": 0.001, "rho": 0.9, "eps": 1e-8, "momentum": GAMMA2, "centered": False, "weight_decay": 0.0},
            _mxnet,
            "mx.optimizer.RMSProp",
            {"rho": "gamma1", "momentum": "gamma2"},
            {"momentum": -1.0},
        ),
        "optax": Preset(
            {"lr": None, "rho": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False},
            _optax,
            "optax.rmsprop",
            terms={"momentum": -1.0},
        ),
        "tensorflow": Preset(
            {"lr": None, "rho": 0.9, "eps": 1e-10, "momentum": 0.0, "centered": False},
            _tensorflow,
            "tf.compat.v1.train.RMSPropOptimizer",
            terms={"momentum": 1.0},
        ),
        "torch": Preset(
            {"lr": 1e-2, "rho": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False, "weight_decay": 0.0},
            _torch,
            "torch.optim.RMSprop",
        ),
    },
    stored={"mean_square": "square_avg", "mean": "grad_avg", "momentum": "momentum_buffer"},
    added=("momentum", "mean"),
)


@public(RMSPROP)
def rmsprop(
    lr: Scheduled | None = None,
    *,
    rho: Scheduled | None = None,
    eps: Scheduled | None = None,
    momentum: Scheduled | None = None,
    centered: bool | None = None,
    weight_decay: Scheduled | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """RMSprop: the gradient over the root of a running mean of its squares (Tieleman and Hinton 2012).

    Parameters
    ----------
    rho : float, default 0.9
        Decay of the running means.
    eps : float, default 1e-8
        Added to the root.
    momentum : float, default 0
        Decay of a buffer of steps.
    centered : bool, default False
        Use the variance instead of the mean square (Graves 2013).
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.

    Notes
    -----
    ``s = rho s + (1 - rho) (g g)``; centered, ``c = rho c + (1 - rho) g`` and ``s - c c``, at least 0, stands for s
    under the root; ``u = g / (sqrt(s) + eps)``; with momentum ``b = mu b + u`` stands for u; ``w - lr u``.
    """
    return make(
        "rmsprop", lr=lr, rho=rho, eps=eps, momentum=momentum, centered=centered, weight_decay=weight_decay, **options
    )
