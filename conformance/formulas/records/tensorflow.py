"""Formulas of tf.compat.v1.train, the optimizers of TensorFlow 1, for dense gradients and tf.IndexedSlices. LazyAdam
is from tf.contrib.opt.

May import: this folder, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.records import forms
from islices.conformance.formulas.records.forms import (
    ADAGRAD,
    ADAM,
    MOMENTS,
    MOMENTUM,
    NAMED,
    RATES,
    RMSPROP,
    SGD,
    documented,
    with_sparse,
)

tensorflow = documented("tensorflow", "TensorFlow 2.21.0, tf.compat.v1.train.{}Optimizer")
ADAM_EQUATION = (
    "m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; "
    "w = w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)"
)
HAT = {**ADAM, "epsilon": "hat"}

TENSORFLOW = (
    *with_sparse(
        tensorflow("GradientDescent", rules.sgd, "w = w - lr g", SGD, {"lr": 1e-2}),
        "of the rows that the gradient names: ",
    ),
    *with_sparse(
        tensorflow(
            "Momentum", rules.sgd, "b = mu b + g; w = w - lr b, nesterov w - lr (g + mu b)",
            SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": False}, MOMENTUM,
        ), NAMED,
    ),
    *with_sparse(
        tensorflow("Adam", rules.adam, ADAM_EQUATION, HAT, RATES, MOMENTS), "of all rows, duplicates summed: ", "all"
    ),
    documented("tensorflow", "TensorFlow 1.15, tf.contrib.opt.{}Optimizer")(
        "LazyAdam", rules.adam, NAMED + ADAM_EQUATION, HAT, RATES, MOMENTS, "touched"
    ),
    *with_sparse(
        tensorflow(
            "Adagrad", rules.adagrad, "a = a + g g; w = w - lr g / sqrt(a)", {**ADAGRAD, "epsilon": "none"},
            {"lr": 1e-2, "initial_accumulator": 0.1}, forms.STARTED,
        ), NAMED,
    ),
    *with_sparse(
        tensorflow(
            "RMSProp", rules.rmsprop,
            "s = rho s + (1 - rho) g g, from 1; centered: c = rho c + (1 - rho) g, s - c c under the root; "
            "b = mu b + lr g / sqrt(s + eps); w = w - b",
            {**RMSPROP, "epsilon": "inside", "buffer": "always"},
            {"lr": 1e-3, "rho": 0.9, "momentum": 0.0, "eps": 1e-10, "centered": False}, {**forms.RMS, "square": 1.0},
        ), NAMED,
    ),
    *with_sparse(
        tensorflow(
            "Ftrl", rules.ftrl,
            "n' = n + g g; z = z + g + 2 l2_shrinkage w - (sqrt(n') - sqrt(n)) / lr w; "
            "w = (clip(z, -l1, l1) - z) / (sqrt(n') / lr + 2 (l2 + beta / (2 lr)))",
            {"twice": True},
            {"lr": 1e-2, "initial_accumulator": 0.1, "l1": 0.0, "l2": 0.0, "beta": 0.0, "l2_shrinkage": 0.0}, forms.FTRL,
        ), NAMED,
    ),
)  # fmt: skip
