"""Formulas of torch.optim as PyTorch documents them, for dense and for sparse gradients.

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
)

torch = documented("torch", "PyTorch 2.13, https://docs.pytorch.org/docs/2.13/generated/torch.optim.{}.html")
COUPLED = "g = g + weight_decay w; "
ADAMS = {**RATES, "amsgrad": False}
STATES = {**MOMENTS, "v_max": 0.0}
EQUATION = (
    "m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; w = w - lr (m / (1 - beta1^t)) / "
    "(sqrt(v / (1 - beta2^t)) + eps); amsgrad: the largest v so far stands for v in w"
)
ADAGRAD_EQUATION = "a = a + g g; w = w - lr / (1 + (t - 1) lr_decay) g / (sqrt(a) + eps)"

TORCH = (
    torch("Adam", rules.adam, COUPLED + EQUATION, ADAM, {**ADAMS, "weight_decay": 0.0}, STATES),
    torch(
        "AdamW", rules.adam, "w = w - lr weight_decay w; " + EQUATION,
        {**ADAM, "decay": "decoupled"}, {**ADAMS, "weight_decay": 0.01}, STATES,
    ),
    torch(
        "SparseAdam", rules.adam,
        NAMED + "m = m + (1 - beta1)(g - m); v = v + (1 - beta2)(g g - v);"
        " w = w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)",
        {**ADAM, "epsilon": "hat"}, RATES, MOMENTS, "touched",
        note=" and torch/optim/_functional.py",
    ),
    torch(
        "SGD", rules.sgd,
        COUPLED + "b = g at step 1, then mu b + (1 - dampening) g; w = w - lr b, nesterov w - lr (g + mu b)", SGD,
        {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}, MOMENTUM,
    ),
    torch("SGD sparse", rules.sgd, NAMED + "w = w - lr g", SGD, {"lr": 1e-3}, gradients="touched"),
    torch(
        "Adagrad", rules.adagrad, COUPLED + ADAGRAD_EQUATION, ADAGRAD,
        {"lr": 1e-2, "lr_decay": 0.0, "weight_decay": 0.0, "initial_accumulator": 0.0, "eps": 1e-10}, forms.STARTED,
    ),
    torch(
        "Adagrad sparse", rules.adagrad, NAMED + ADAGRAD_EQUATION, ADAGRAD,
        {"lr": 1e-2, "lr_decay": 0.0, "initial_accumulator": 0.0, "eps": 1e-10}, forms.STARTED, "touched",
    ),
    torch(
        "RMSprop", rules.rmsprop,
        COUPLED + "s = rho s + (1 - rho) g g; u = g / (sqrt(s) + eps), centered: c = rho c + (1 - rho) g, "
        "s - c c under the root; w = w - lr u; with momentum b = mu b + u, w - lr b",
        RMSPROP, {"lr": 1e-2, "rho": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False, "weight_decay": 0.0}, forms.RMS,
    ),
    torch(
        "NAdam", rules.nadam,
        COUPLED + "m, v as of Adam; mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2), P_t their product; "
        "w = w - lr ((1 - mu_t) / (1 - P_t) g + mu_(t+1) / (1 - P_(t+1)) m) / (sqrt(v / (1 - beta2^t)) + eps)",
        {"decay": "coupled"}, {**RATES, "lr": 2e-3, "weight_decay": 0.0, "momentum_decay": 4e-3}, MOMENTS,
    ),
    torch(
        "RAdam", rules.radam,
        COUPLED + "m, v as of Adam; p = 2 / (1 - beta2) - 1, q = p - 2 t beta2^t / (1 - beta2^t); if q > 5 "
        "w = w - lr m / (1 - beta1^t) sqrt(1 - beta2^t) / (sqrt(v) + eps) "
        "sqrt((q - 4)(q - 2) p / ((p - 4)(p - 2) q)), else w = w - lr m / (1 - beta1^t)",
        {"decay": "coupled"}, {**RATES, "weight_decay": 0.0}, MOMENTS,
    ),
    torch(
        "Adadelta", rules.adadelta,
        COUPLED + "s = rho s + (1 - rho) g g; u = sqrt(d + eps) / sqrt(s + eps) g; d = rho d + (1 - rho) u u; w = w - lr u",
        {"decay": "coupled"}, {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0}, {"square": 0.0, "delta": 0.0},
    ),
    torch(
        "Adamax", rules.adamax,
        COUPLED + "m = beta1 m + (1 - beta1) g; u = max(beta2 u, |g| + eps); w = w - lr / (1 - beta1^t) m / u",
        {"epsilon": "gradient", "correction": "both", "decay": "coupled"},
        {**RATES, "lr": 2e-3, "weight_decay": 0.0}, {"m": 0.0, "u": 0.0},
    ),
)  # fmt: skip
