"""Formulas of keras.optimizers on any backend of Keras. The sparse formulas are for gradients of type
tf.IndexedSlices.

May import: this folder, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.records import forms
from islices.conformance.formulas.records.forms import ADAGRAD, ADAM, MOMENTS, MOMENTUM, RATES, RMSPROP, SGD, documented

keras = documented("keras", "Keras 3.15.1, keras/src/optimizers/{module}.py")
DECAY = "w = w - lr weight_decay w; "
ADAM_EQUATION = (
    "m = m + (1 - beta1)(g - m); v = v + (1 - beta2)(g g - v); "
    "w = w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps); amsgrad: the largest v so far stands for v in w"
)
ADAMS = {**RATES, "eps": 1e-7, "amsgrad": False}
HAT = {**ADAM, "epsilon": "hat", "decay": "decoupled"}
STATES = {**MOMENTS, "v_max": 0.0}
STEPS = {**SGD, "buffer": "steps", "decay": "decoupled"}
DECOUPLED = {"decay": "decoupled"}
RAW = "; of row-sparse gradients squares are taken of each slice, duplicates are not summed before"

KERAS = (
    keras(
        "SGD", rules.sgd, DECAY + "w = w - lr g; with momentum b = mu b - lr g, w + b, nesterov w + (mu b - lr g)",
        STEPS, {"lr": 1e-2, "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}, MOMENTUM,
    ),
    keras(
        "SGD sparse", rules.sgd, "of the rows that the gradient names: w = w - lr g", STEPS, {"lr": 1e-2},
        gradients="touched",
    ),
    keras("Adam", rules.adam, DECAY + ADAM_EQUATION, HAT, {**ADAMS, "weight_decay": 0.0}, STATES),
    keras("Adam sparse", rules.adam, "of all rows: " + ADAM_EQUATION + RAW, HAT, ADAMS, STATES, "all", "raw"),
    keras("AdamW", rules.adam, DECAY + ADAM_EQUATION, HAT, {**ADAMS, "weight_decay": 4e-3}, STATES),
    keras(
        "Adagrad", rules.adagrad, DECAY + "a = a + g g; w = w - lr g / sqrt(a + eps)",
        {**ADAGRAD, "epsilon": "inside", "decay": "decoupled"},
        {"lr": 1e-3, "initial_accumulator": 0.1, "eps": 1e-7, "weight_decay": 0.0}, forms.STARTED,
    ),
    keras(
        "RMSprop", rules.rmsprop,
        DECAY + "s = rho s + (1 - rho) g g; u = lr g / sqrt(s + eps), centered: c = rho c + (1 - rho) g, s - c c + eps under "
        "the root; w = w - u; with momentum b = mu b + u, w - b",
        {**RMSPROP, "epsilon": "inside", "buffer": "steps", "decay": "decoupled"},
        {"lr": 1e-3, "rho": 0.9, "eps": 1e-7, "momentum": 0.0, "centered": False, "weight_decay": 0.0}, forms.RMS,
    ),
    keras(
        "Adadelta", rules.adadelta,
        DECAY + "s = rho s + (1 - rho) g g; u = sqrt(d + eps) / sqrt(s + eps) g; d = rho d + (1 - rho) u u; w = w - lr u",
        DECOUPLED, {"lr": 1e-3, "rho": 0.95, "eps": 1e-7, "weight_decay": 0.0}, {"square": 0.0, "delta": 0.0},
    ),
    keras(
        "Adamax", rules.adamax,
        DECAY + "m = m + (1 - beta1)(g - m); u = max(beta2 u, |g|); w = w - lr m / ((1 - beta1^t)(u + eps))",
        {"epsilon": "outside", "correction": "both", "decay": "decoupled"},
        {**RATES, "eps": 1e-7, "weight_decay": 0.0}, {"m": 0.0, "u": 0.0},
    ),
    keras(
        "Nadam", rules.nadam,
        DECAY + "m, v as of Adam; mu_t = beta1 (1 - 0.96^t / 2), P_t their product; "
        "w = w - lr (mu_(t+1) m / (1 - P_(t+1)) + (1 - mu_t) g / (1 - P_t)) / (sqrt(v / (1 - beta2^t)) + eps)",
        {"decay": "decoupled", "momentum_decay": 1.0}, {**RATES, "eps": 1e-7, "weight_decay": 0.0}, MOMENTS,
    ),
    keras(
        "Lion", rules.lion, DECAY + "w = w - lr sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g", DECOUPLED,
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0}, {"m": 0.0},
    ),
    keras(
        "Ftrl", rules.ftrl,
        "n' = n + g g; z = z + g + 2 l2_shrinkage w - (sqrt(n') - sqrt(n)) / lr w; "
        "w = (clip(z, -l1, l1) - z) / (sqrt(n') / lr + 2 (l2 + beta / (2 lr)))",
        {"twice": True}, {"lr": 1e-3, "initial_accumulator": 0.1, "l1": 0.0, "l2": 0.0, "beta": 0.0, "l2_shrinkage": 0.0},
        forms.FTRL, note=", learning_rate_power -0.5",
    ),
)  # fmt: skip
