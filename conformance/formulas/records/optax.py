"""Formulas of the dense, named optimizers of optax 0.2.8.

May import: this folder, `islices.conformance.formulas.formula`, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.records.forms import ADAGRAD, ADAM, BETAS, MOMENTS, RMSPROP, SGD

SOURCE = "optax 0.2.8, optax.{}"
DIRECTION = "m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; d = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)"
ADAMS = {"lr": 1e-3, **BETAS, "eps": 1e-8}

OPTAX = (
    Formula(
        "optax.sgd", rules.sgd, "b = g + mu b; w = w - lr b, nesterov w - lr (g + mu b)", SOURCE.format("sgd"),
        SGD, {"lr": 1e-2, "momentum": 0.0, "nesterov": False}, {"momentum": 0.0},
    ),
    Formula("optax.adam", rules.adam, DIRECTION + "; w = w - lr d", SOURCE.format("adam"), ADAM, ADAMS, MOMENTS),
    Formula(
        "optax.adamw", rules.adam, DIRECTION + "; w = w - lr (d + weight_decay w)", SOURCE.format("adamw"),
        {**ADAM, "decay": "decoupled"}, {**ADAMS, "weight_decay": 1e-4}, MOMENTS,
    ),
    Formula(
        "optax.amsgrad", rules.adam,
        "m, v as of adam; x = max(x, v / (1 - beta2^t)); w = w - lr (m / (1 - beta1^t)) / (sqrt(x) + eps)",
        SOURCE.format("amsgrad"), {**ADAM, "amsgrad": True, "maximum": "corrected"}, ADAMS, {**MOMENTS, "v_max": 0.0},
    ),
    Formula(
        "optax.adagrad", rules.adagrad, "a = a + g g; w = w - lr g / sqrt(a + eps)", SOURCE.format("adagrad"),
        {**ADAGRAD, "epsilon": "inside"}, {"lr": 1e-2, "initial_accumulator": 0.1, "eps": 1e-7},
        {"accumulator": "initial_accumulator"},
    ),
    Formula(
        "optax.rmsprop", rules.rmsprop,
        "s = rho s + (1 - rho) g g, centered: c = rho c + (1 - rho) g, s - c c under the root; u = lr g / sqrt(s + eps); "
        "w = w - u; with momentum b = mu b - u, w + b",
        SOURCE.format("rmsprop"), {**RMSPROP, "epsilon": "inside", "buffer": "signed"},
        {"lr": 1e-2, "rho": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False},
        {"square": 0.0, "mean": 0.0, "momentum": 0.0},
    ),
    Formula(
        "optax.adamax", rules.adamax,
        "m = beta1 m + (1 - beta1) g; u = max(|g| + eps, beta2 u); w = w - lr m / (1 - beta1^t) / u",
        SOURCE.format("adamax"), {"epsilon": "gradient", "correction": "both", "decay": "coupled"}, ADAMS,
        {"m": 0.0, "u": 0.0},
    ),
    Formula(
        "optax.lion", rules.lion,
        "w = w - lr (sign(beta1 m + (1 - beta1) g) + weight_decay w); m = beta2 m + (1 - beta2) g",
        SOURCE.format("lion"), {"decay": "decoupled"}, {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 1e-3},
        {"m": 0.0},
    ),
)  # fmt: skip
