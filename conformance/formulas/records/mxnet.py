"""Formulas of mx.optimizer in MXNet 1.9.1, without rescale_grad and clip_gradient.

May import: this folder, `islices.conformance.formulas.formula`, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.records.forms import ADAGRAD, ADAM, BETAS, MOMENTS, RMSPROP, SGD

SOURCE = "MXNet 1.9.1, mx.optimizer.{}"
NAMED = "of the rows that the gradient names: "
ADAM_EQUATION = (
    "g = g + wd w; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; "
    "w = w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)"
)
HAT = {**ADAM, "epsilon": "hat"}
ADAMS = {"lr": 1e-3, **BETAS, "eps": 1e-8, "weight_decay": 0.0}
FTRL_EQUATION = (
    "n' = n + g g; z = z + g - (sqrt(n') - sqrt(n)) w / lr; "
    "w = (sign(z) l1 - z) / ((beta + sqrt(n')) / lr + wd) where |z| > l1, else 0"
)
FTRLS = {"lr": 0.1, "l1": 0.01, "beta": 1.0, "l2": 0.0}
RMS = {**RMSPROP, "epsilon": "inside", "buffer": "signed"}
SGD_EQUATION = "w = (1 - lr wd) w - lr g; with momentum b = mu b - lr wd w - lr g, w + b"

MXNET = (
    Formula(
        "mxnet.SGD", rules.sgd, SGD_EQUATION, SOURCE.format("SGD"), {**SGD, "buffer": "steps", "decay": "in buffer"},
        {"lr": 1e-2, "momentum": 0.0, "weight_decay": 0.0}, {"momentum": 0.0},
    ),
    Formula(
        "mxnet.SGD sparse", rules.sgd, NAMED + SGD_EQUATION, SOURCE.format("SGD") + "(lazy_update=True)",
        {**SGD, "buffer": "steps", "decay": "in buffer"}, {"lr": 1e-2, "momentum": 0.0, "weight_decay": 0.0},
        {"momentum": 0.0}, "touched",
    ),
    Formula("mxnet.Adam", rules.adam, ADAM_EQUATION, SOURCE.format("Adam"), HAT, ADAMS, MOMENTS),
    Formula(
        "mxnet.Adam sparse", rules.adam, NAMED + ADAM_EQUATION, SOURCE.format("Adam") + "(lazy_update=True)",
        HAT, ADAMS, MOMENTS, "touched",
    ),
    Formula(
        "mxnet.AdaGrad", rules.adagrad, "a = a + g g; w = w - lr (g / sqrt(a + eps) + wd w)", SOURCE.format("AdaGrad"),
        {**ADAGRAD, "epsilon": "inside", "decay": "decoupled"}, {"lr": 1e-2, "eps": 1e-7, "weight_decay": 0.0},
        {"accumulator": 0.0},
    ),
    Formula(
        "mxnet.GroupAdaGrad", rules.adagrad, NAMED + "a = a + mean(g g) over the row; w = w - lr g / sqrt(a + eps)",
        SOURCE.format("contrib.GroupAdaGrad"), {**ADAGRAD, "epsilon": "inside", "per_row": "mean"},
        {"lr": 1e-2, "eps": 1e-5}, {"accumulator": 0.0}, "touched",
    ),
    Formula(
        "mxnet.RMSProp", rules.rmsprop, "g = g + wd w; s = rho s + (1 - rho) g g; w = w - lr g / sqrt(s + eps)",
        SOURCE.format("RMSProp"), RMS, {"lr": 1e-3, "rho": 0.9, "eps": 1e-8, "weight_decay": 0.0}, {"square": 0.0},
    ),
    Formula(
        "mxnet.RMSProp centered", rules.rmsprop,
        "g = g + wd w; s = rho s + (1 - rho) g g; c = rho c + (1 - rho) g; b = mu b - lr g / sqrt(s - c c + eps); w = w + b",
        SOURCE.format("RMSProp") + "(centered=True)", {**RMS, "centered": True},
        {"lr": 1e-3, "rho": 0.9, "eps": 1e-8, "momentum": 0.9, "weight_decay": 0.0},
        {"square": 0.0, "mean": 0.0, "momentum": 0.0},
    ),
    Formula("mxnet.Ftrl", rules.ftrl, FTRL_EQUATION, SOURCE.format("Ftrl"), {"twice": False}, FTRLS, {"z": 0.0, "n": 0.0}),
    Formula(
        "mxnet.Ftrl sparse", rules.ftrl, NAMED + FTRL_EQUATION, SOURCE.format("Ftrl") + "(lazy_update=True)",
        {"twice": False}, FTRLS, {"z": 0.0, "n": 0.0}, "touched",
    ),
)  # fmt: skip
