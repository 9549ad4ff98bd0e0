"""Formulas of mx.optimizer. The option rescale_grad is not covered; clip_gradient has a separate formula
in `clips`.

May import: this folder, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.records import forms
from islices.conformance.formulas.records.forms import (
    ACCUMULATOR,
    ADAGRAD,
    ADAM,
    MOMENTS,
    MOMENTUM,
    RATES,
    RMSPROP,
    SGD,
    documented,
    with_sparse,
)

mxnet = documented("mxnet", "MXNet 1.9.1, mx.optimizer.{}")
#: The texts that sparse formulas add to the equation and to the source.
LAZY: forms.Form = {"named": "of the rows that the gradient names: ", "note": "(lazy_update=True)"}
RMS = {**RMSPROP, "epsilon": "inside", "buffer": "signed"}

MXNET = (
    *with_sparse(
        mxnet(
            "SGD", rules.sgd, "w = (1 - lr wd) w - lr g; with momentum b = mu b - lr wd w - lr g, w + b",
            {**SGD, "buffer": "steps", "decay": "in buffer"}, {"lr": 1e-2, "momentum": 0.0, "weight_decay": 0.0}, MOMENTUM,
        ), **LAZY,
    ),
    *with_sparse(
        mxnet(
            "Adam", rules.adam,
            "g = g + wd w; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; "
            "w = w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)",
            {**ADAM, "epsilon": "hat"}, {**RATES, "weight_decay": 0.0}, MOMENTS,
        ), **LAZY,
    ),
    mxnet(
        "AdaGrad", rules.adagrad, "a = a + g g; w = w - lr (g / sqrt(a + eps) + wd w)",
        {**ADAGRAD, "epsilon": "inside", "decay": "decoupled"}, {"lr": 1e-2, "eps": 1e-7, "weight_decay": 0.0}, ACCUMULATOR,
    ),
    documented("mxnet", "MXNet 1.9.1, mx.optimizer.contrib.{}")(
        "GroupAdaGrad", rules.adagrad, LAZY["named"] + "a = a + mean(g g) over the row; w = w - lr g / sqrt(a + eps)",
        {**ADAGRAD, "epsilon": "inside", "per_row": "mean"}, {"lr": 1e-2, "eps": 1e-5}, ACCUMULATOR, "touched",
    ),
    mxnet(
        "RMSProp", rules.rmsprop, "g = g + wd w; s = rho s + (1 - rho) g g; w = w - lr g / sqrt(s + eps)", RMS,
        {"lr": 1e-3, "rho": 0.9, "eps": 1e-8, "weight_decay": 0.0}, {"square": 0.0},
    ),
    mxnet(
        "RMSProp centered", rules.rmsprop,
        "g = g + wd w; s = rho s + (1 - rho) g g; c = rho c + (1 - rho) g; b = mu b - lr g / sqrt(s - c c + eps); w = w + b",
        {**RMS, "centered": True}, {"lr": 1e-3, "rho": 0.9, "eps": 1e-8, "momentum": 0.9, "weight_decay": 0.0}, forms.RMS,
        note="(centered=True)",
    ),
    *with_sparse(
        mxnet(
            "Ftrl", rules.ftrl,
            "n' = n + g g; z = z + g - (sqrt(n') - sqrt(n)) w / lr; "
            "w = (sign(z) l1 - z) / ((beta + sqrt(n')) / lr + wd) where |z| > l1, else 0",
            {"twice": False}, {"lr": 0.1, "l1": 0.01, "beta": 1.0, "l2": 0.0}, {"z": 0.0, "n": 0.0},
        ), **LAZY,
    ),
)  # fmt: skip
