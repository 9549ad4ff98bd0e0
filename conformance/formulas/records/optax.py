"""Formulas of the optimizers of optax, for dense gradients.

May import: this folder, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.records import forms
from islices.conformance.formulas.records.forms import ADAGRAD, ADAM, MOMENTS, MOMENTUM, RATES, RMSPROP, SGD, documented

optax = documented("optax", "optax 0.2.8, optax.{}")
DIRECTION = "m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; d = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)"

OPTAX = (
    optax(
        "sgd", rules.sgd, "b = g + mu b; w = w - lr b, nesterov w - lr (g + mu b)",
        SGD, {"lr": 1e-2, "momentum": 0.0, "nesterov": False}, MOMENTUM,
    ),
    optax("adam", rules.adam, DIRECTION + "; w = w - lr d", ADAM, RATES, MOMENTS),
    optax(
        "adamw", rules.adam, DIRECTION + "; w = w - lr (d + weight_decay w)",
        {**ADAM, "decay": "decoupled"}, {**RATES, "weight_decay": 1e-4}, MOMENTS,
    ),
    optax(
        "amsgrad", rules.adam,
        "m, v as of adam; x = max(x, v / (1 - beta2^t)); w = w - lr (m / (1 - beta1^t)) / (sqrt(x) + eps)",
        {**ADAM, "amsgrad": True, "maximum": "corrected"}, RATES, {**MOMENTS, "v_max": 0.0},
    ),
    optax(
        "adagrad", rules.adagrad, "a = a + g g; w = w - lr g / sqrt(a + eps)",
        {**ADAGRAD, "epsilon": "inside"}, {"lr": 1e-2, "initial_accumulator": 0.1, "eps": 1e-7}, forms.STARTED,
    ),
    optax(
        "rmsprop", rules.rmsprop,
        "s = rho s + (1 - rho) g g, centered: c = rho c + (1 - rho) g, s - c c under the root; u = lr g / sqrt(s + eps); "
        "w = w - u; with momentum b = mu b - u, w + b",
        {**RMSPROP, "epsilon": "inside", "buffer": "signed"},
        {"lr": 1e-2, "rho": 0.9, "eps": 1e-8, "momentum": 0.0, "centered": False}, forms.RMS,
    ),
    optax(
        "adamax", rules.adamax,
        "m = beta1 m + (1 - beta1) g; u = max(|g| + eps, beta2 u); w = w - lr m / (1 - beta1^t) / u",
        {"epsilon": "gradient", "correction": "both", "decay": "coupled"}, RATES, {"m": 0.0, "u": 0.0},
    ),
    optax(
        "lion", rules.lion,
        "w = w - lr (sign(beta1 m + (1 - beta1) g) + weight_decay w); m = beta2 m + (1 - beta2) g",
        {"decay": "decoupled"}, {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 1e-3}, {"m": 0.0},
    ),
)  # fmt: skip
