"""Formulas of tf.compat.v1.train, the TensorFlow 1 optimizers in TensorFlow 2.21, dense and on tf.IndexedSlices.

May import: this folder, `islices.conformance.formulas.formula`, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.records.forms import ADAGRAD, ADAM, BETAS, MOMENTS, RMSPROP, SGD

SOURCE = "TensorFlow 2.21.0, tf.compat.v1.train.{}"
ADAM_EQUATION = (
    "m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; "
    "w = w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)"
)
ADAMS = {"lr": 1e-3, **BETAS, "eps": 1e-8}
HAT = {**ADAM, "epsilon": "hat"}
NAMED = "of the rows that the gradient names, duplicates summed: "
MOMENTUM = "b = mu b + g; w = w - lr b, nesterov w - lr (g + mu b)"
MOMENTUMS = {"lr": 1e-2, "momentum": 0.9, "nesterov": False}
NO_EPSILON = {**ADAGRAD, "epsilon": "none"}
ADAGRADS = {"lr": 1e-2, "initial_accumulator": 0.1}
RMS = {**RMSPROP, "epsilon": "inside", "buffer": "always"}
RMS_EQUATION = (
    "s = rho s + (1 - rho) g g, from 1; centered: c = rho c + (1 - rho) g, s - c c under the root; "
    "b = mu b + lr g / sqrt(s + eps); w = w - b"
)
RMSES = {"lr": 1e-3, "rho": 0.9, "momentum": 0.0, "eps": 1e-10, "centered": False}
RMS_STATES = {"square": 1.0, "mean": 0.0, "momentum": 0.0}
FTRL_EQUATION = (
    "n' = n + g g; z = z + g + 2 l2_shrinkage w - (sqrt(n') - sqrt(n)) / lr w; "
    "w = (clip(z, -l1, l1) - z) / (sqrt(n') / lr + 2 (l2 + beta / (2 lr)))"
)
FTRLS = {"lr": 1e-2, "initial_accumulator": 0.1, "l1": 0.0, "l2": 0.0, "beta": 0.0, "l2_shrinkage": 0.0}
FTRL_STATES: dict[str, float | str] = {"z": 0.0, "n": "initial_accumulator"}
ADAM_SOURCE = SOURCE.format("AdamOptimizer")

TENSORFLOW = (
    Formula("tensorflow.GradientDescent", rules.sgd, "w = w - lr g", SOURCE.format("GradientDescentOptimizer"), SGD, {"lr": 1e-2}),
    Formula(
        "tensorflow.GradientDescent sparse", rules.sgd, "of the rows that the gradient names: w = w - lr g",
        SOURCE.format("GradientDescentOptimizer"), SGD, {"lr": 1e-2}, gradients="touched",
    ),
    Formula("tensorflow.Momentum", rules.sgd, MOMENTUM, SOURCE.format("MomentumOptimizer"), SGD, MOMENTUMS, {"momentum": 0.0}),
    Formula(
        "tensorflow.Momentum sparse", rules.sgd, NAMED + MOMENTUM, SOURCE.format("MomentumOptimizer"),
        SGD, MOMENTUMS, {"momentum": 0.0}, "touched",
    ),
    Formula("tensorflow.Adam", rules.adam, ADAM_EQUATION, ADAM_SOURCE, HAT, ADAMS, MOMENTS),
    Formula(
        "tensorflow.Adam sparse", rules.adam, "of all rows, duplicates summed: " + ADAM_EQUATION, ADAM_SOURCE,
        HAT, ADAMS, MOMENTS, "all",
    ),
    Formula(
        "tensorflow.LazyAdam", rules.adam, NAMED + ADAM_EQUATION,
        "TensorFlow 1.15, tf.contrib.opt.LazyAdamOptimizer", HAT, ADAMS, MOMENTS, "touched",
    ),
    Formula(
        "tensorflow.Adagrad", rules.adagrad, "a = a + g g; w = w - lr g / sqrt(a)", SOURCE.format("AdagradOptimizer"),
        NO_EPSILON, ADAGRADS, {"accumulator": "initial_accumulator"},
    ),
    Formula(
        "tensorflow.Adagrad sparse", rules.adagrad, NAMED + "a = a + g g; w = w - lr g / sqrt(a)",
        SOURCE.format("AdagradOptimizer"), NO_EPSILON, ADAGRADS, {"accumulator": "initial_accumulator"}, "touched",
    ),
    Formula("tensorflow.RMSProp", rules.rmsprop, RMS_EQUATION, SOURCE.format("RMSPropOptimizer"), RMS, RMSES, RMS_STATES),
    Formula(
        "tensorflow.RMSProp sparse", rules.rmsprop, NAMED + RMS_EQUATION, SOURCE.format("RMSPropOptimizer"),
        RMS, RMSES, RMS_STATES, "touched",
    ),
    Formula("tensorflow.Ftrl", rules.ftrl, FTRL_EQUATION, SOURCE.format("FtrlOptimizer"), {"twice": True}, FTRLS, FTRL_STATES),
    Formula(
        "tensorflow.Ftrl sparse", rules.ftrl, NAMED + FTRL_EQUATION, SOURCE.format("FtrlOptimizer"), {"twice": True},
        FTRLS, FTRL_STATES, "touched",
    ),
)  # fmt: skip
