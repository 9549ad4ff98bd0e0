"""Adagrad, and with one accumulator a row: the records, under every semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from islices.backend import Array
from islices.optim.factory import Options, make, public
from islices.optim.formulas import Formula, State
from islices.optim.frameworks import ALL, TOUCHED, raw, with_rate
from islices.optim.hyperparameters import Hyper, Scheduled, decays, is_on
from islices.optim.numbers import Numbers, single
from islices.optim.operators import div, less_equal, mul, sqrt, where
from islices.optim.optimizer import Optimizer
from islices.optim.record import Preset, Record

__all__ = ["ADAGRAD", "ROWWISE_ADAGRAD", "adagrad", "rowwise_adagrad"]


# ---------------------------------------------------------------------- islices' own


def islices_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """Duchi et al. 2011; with q the mean over the row and one accumulator a row, row-wise Adagrad."""
    accumulator = accumulator + q
    return w - mul(lr, div(g, sqrt(accumulator) + eps)), accumulator


def _falling(n: Numbers) -> Array:
    """lr / (1 + (t - 1) lr_decay)"""
    if not is_on(n.h["lr_decay"]):
        return n.lr
    one = n.number(1.0)
    return n.E.div(n.lr, one + n.E.round_product(n.t - one, n.array_of(n.h["lr_decay"])))


def _islices(h: Hyper) -> Formula:
    return Formula(
        islices_adagrad,
        lambda n: {"lr": _falling(n), "eps": n.h["eps"]},
        (State("accumulator", "initial_accumulator", positive=True),),
        squares="element",
        decay=decays(h),
    )


def _rowwise_islices(h: Hyper) -> Formula:
    return Formula(
        islices_adagrad,
        lambda n: {"lr": n.lr, "eps": n.h["eps"]},
        (State("accumulator", "initial_accumulator", per_row=True, positive=True),),
        squares="row",
        decay=decays(h),
    )


# ---------------------------------------------------------------------- torch.optim


def torch_adagrad_dense(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """The learning rate enters ahead of the quotient (addcdiv_)."""
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator) + eps), accumulator


def _torch(h: Hyper) -> Formula:
    own = _islices(h)
    if is_on(h["weight_decay"]):  # a sparse gradient raises in torch
        own = replace(own, rows=("all",))
    return own if h["rows"] == "touched" else replace(own, rule=torch_adagrad_dense)


# ---------------------------------------------------------------------- keras.optimizers


def keras_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """eps stands inside the root."""
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator + eps)), accumulator


def keras_adagrad_decayed(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any, decay: Any) -> Any:
    w = w - mul(mul(w, decay), lr)
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator + eps)), accumulator


def _keras(h: Hyper) -> Formula:
    decaying = is_on(h["weight_decay"])

    def numbers(n: Numbers) -> Mapping[str, Any]:
        named = {"lr": n.single_lr, "eps": n.h["eps"]}
        return {**named, "decay": n.single("weight_decay")} if decaying else named

    return Formula(
        keras_adagrad_decayed if decaying else keras_adagrad,
        numbers,
        (State("accumulator", single(h["initial_accumulator"])),),
        squares="element",
        rows=("all",) if decaying else ("touched", "all"),
        raw=raw(h),
    )


# ---------------------------------------------------------------------- tf.compat.v1.train


def tensorflow_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, one: Any) -> Any:
    """No eps; the reciprocal root is a number of its own."""
    accumulator = accumulator + q
    return w - mul(mul(lr, g), div(one, sqrt(accumulator))), accumulator


def _tensorflow(h: Hyper) -> Formula:
    state = (State("accumulator", "initial_accumulator"),)
    return Formula(tensorflow_adagrad, lambda n: {"lr": n.single_lr, "one": 1.0}, state, squares="element")


# ---------------------------------------------------------------------- mxnet.optimizer


def mxnet_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """Epsilon stands under the root."""
    accumulator = accumulator + q
    return w - mul(div(g, sqrt(accumulator + eps)), lr), accumulator


def mxnet_adagrad_decay(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any, wd: Any) -> Any:
    """Weight decay is not divided by the root."""
    accumulator = accumulator + q
    return w - mul(div(g, sqrt(accumulator + eps)) + mul(w, wd), lr), accumulator


def mxnet_group_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """q is the mean over the row. The learning rate multiplies before the root divides."""
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator + eps)), accumulator


def _mxnet(h: Hyper) -> Formula:
    state = (State("accumulator"),)
    if is_on(h["weight_decay"]):
        # MXNet's sparse kernel refuses it; its dense form is Python over arrays, whose numbers are float64
        numbers = lambda n: {"lr": n.lr, "eps": n.h["eps"], "wd": n.h["weight_decay"]}  # noqa: E731
        return Formula(mxnet_adagrad_decay, numbers, state, squares="element", rows=("all",))
    return Formula(mxnet_adagrad, with_rate(eps="eps"), state, squares="element")


def _rowwise_mxnet(h: Hyper) -> Formula:
    return Formula(mxnet_group_adagrad, with_rate(eps="eps"), (State("accumulator", per_row=True),), squares="row")


# ---------------------------------------------------------------------- optax


def optax_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any, one: Any, zero: Any) -> Any:
    """scale_by_rss: where(a > 0, rsqrt(a + eps), 0); a NaN is not above 0, and its element stays where it is."""
    accumulator = q + accumulator
    scale = where(less_equal(zero, accumulator), div(one, sqrt(accumulator + eps)), zero)
    scale = where(less_equal(accumulator, zero), zero, scale)
    return w - mul(lr, mul(scale, g)), accumulator


def _optax(h: Hyper) -> Formula:
    return Formula(
        optax_adagrad,
        lambda n: {"lr": n.lr, "eps": n.h["eps"], "one": 1.0, "zero": 0.0},
        (State("accumulator", "initial_accumulator"),),
        squares="element",
        rows=ALL,
    )


# ---------------------------------------------------------------------- FBGEMM


def fbgemm_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    accumulator = accumulator + q
    return w - div(mul(lr, g), sqrt(accumulator) + eps), accumulator


def fbgemm_rowwise_adagrad(g: Any, q: Any, w: Any, accumulator: Any, lr: Any, eps: Any) -> Any:
    """One quotient a row, then a product an element."""
    accumulator = accumulator + q
    return w - mul(div(lr, sqrt(accumulator) + eps), g), accumulator


def _fbgemm(h: Hyper) -> Formula:
    return Formula(
        fbgemm_adagrad,
        lambda n: {"lr": n.lr, "eps": n.h["eps"]},
        (State("accumulator"),),
        squares="element",
        rows=TOUCHED,
    )


def _rowwise_fbgemm(h: Hyper) -> Formula:
    """weight_decay is WeightDecayMode.L2, which FBGEMM writes ``(1 - f weight_decay) w - f g``, f the row's factor."""
    return Formula(
        fbgemm_rowwise_adagrad,
        lambda n: {"lr": n.lr, "eps": n.h["eps"]},
        (State("accumulator", per_row=True),),
        squares="row",
        decay=decays(h),
        rows=TOUCHED,
    )


# ---------------------------------------------------------------------- the record
ADAGRAD = Record(
    "adagrad",
    "Adagrad",
    ("lr", "lr_decay", "weight_decay", "initial_accumulator", "eps"),
    {
        "islices": Preset(
            {"lr": None, "eps": 1e-10, "initial_accumulator": 0.0, "lr_decay": 0.0, "weight_decay": 0.0}, _islices
        ),
        "fbgemm": Preset({"lr": 0.01, "eps": 1e-8}, _fbgemm, "EmbOptimType.EXACT_ADAGRAD"),
        "keras": Preset(
            {"lr": 1e-3, "eps": 1e-7, "initial_accumulator": 0.1, "weight_decay": 0.0},
            _keras,
            "keras.optimizers.Adagrad",
        ),
        "mxnet": Preset({"lr": 0.01, "eps": 1e-7, "weight_decay": 0.0}, _mxnet, "mx.optimizer.AdaGrad", {"eps": "eps"}),
        "optax": Preset({"lr": None, "eps": 1e-7, "initial_accumulator": 0.1}, _optax, "optax.adagrad"),
        "tensorflow": Preset(
            {"lr": None, "initial_accumulator": 0.1}, _tensorflow, "tf.compat.v1.train.AdagradOptimizer"
        ),
        "torch": Preset(
            {"lr": 1e-2, "eps": 1e-10, "initial_accumulator": 0.0, "lr_decay": 0.0, "weight_decay": 0.0},
            _torch,
            "torch.optim.Adagrad",
        ),
    },
    stored={"accumulator": "sum"},
)
ROWWISE_ADAGRAD = Record(
    "rowwise_adagrad",
    "RowwiseAdagrad",
    ("lr", "weight_decay", "initial_accumulator", "eps"),
    {
        "islices": Preset({"lr": None, "eps": 1e-8, "initial_accumulator": 0.0, "weight_decay": 0.0}, _rowwise_islices),
        "fbgemm": Preset(
            {"lr": 0.01, "eps": 1e-8, "weight_decay": 0.0}, _rowwise_fbgemm, "EmbOptimType.EXACT_ROWWISE_ADAGRAD"
        ),
        "mxnet": Preset({"lr": 0.01, "eps": 1e-5}, _rowwise_mxnet, "mx.optimizer.contrib.GroupAdaGrad", {"eps": "eps"}),
    },
    stored={"accumulator": "sum"},
)


@public(ADAGRAD)
def adagrad(
    lr: Scheduled | None = None,
    *,
    eps: Scheduled | None = None,
    initial_accumulator: float | None = None,
    lr_decay: Scheduled | None = None,
    weight_decay: Scheduled | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """Adagrad: each element has a learning rate that falls with the squares it has seen (Duchi et al. 2011).

    Parameters
    ----------
    eps : float, default 1e-10
        Added to the root.
    initial_accumulator : float, default 0
        What the sums of squares begin with.
    lr_decay : float, default 0
        The learning rate of step t is lr / (1 + (t - 1) lr_decay).
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.

    Notes
    -----
    ``a = a + g g``, then ``w - lr (g / (sqrt(a) + eps))``.
    """
    return make(
        "adagrad",
        lr=lr,
        eps=eps,
        initial_accumulator=initial_accumulator,
        lr_decay=lr_decay,
        weight_decay=weight_decay,
        **options,
    )


@public(ROWWISE_ADAGRAD)
def rowwise_adagrad(
    lr: Scheduled | None = None,
    *,
    eps: Scheduled | None = None,
    initial_accumulator: float | None = None,
    weight_decay: Scheduled | None = None,
    **options: Unpack[Options],
) -> Optimizer:
    """Adagrad with one accumulator a row: the state of large tables is a column.

    Parameters
    ----------
    eps : float, default 1e-8
        Added to the root.
    initial_accumulator : float, default 0
        What the sums of squares begin with.
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.

    Notes
    -----
    ``a = a + mean(g g)`` over the row, summed by halves (SPEC clause 19), then ``w - lr (g / (sqrt(a) + eps))``.
    """
    return make(
        "rowwise_adagrad", lr=lr, eps=eps, initial_accumulator=initial_accumulator, weight_decay=weight_decay, **options
    )
