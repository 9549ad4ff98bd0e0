"""Formulas of torch.optim, the documented algorithms of PyTorch 2.13, dense and for sparse gradients.

May import: this folder, `islices.conformance.formulas.formula`, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.records.forms import ADAGRAD, ADAM, BETAS, MOMENTS, RMSPROP, SGD

SOURCE = "PyTorch 2.13, https://docs.pytorch.org/docs/2.13/generated/torch.optim.{}.html"
ADAMS = {"lr": 1e-3, **BETAS, "eps": 1e-8, "amsgrad": False}
STATES = {**MOMENTS, "v_max": 0.0}
EQUATION = (
    "m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; w = w - lr (m / (1 - beta1^t)) / "
    "(sqrt(v / (1 - beta2^t)) + eps); amsgrad: the largest v so far stands for v in w"
)
SGDS = {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0}

TORCH = (
    Formula(
        "torch.Adam", rules.adam, f"g = g + weight_decay w; {EQUATION}", SOURCE.format("Adam"),
        ADAM, {**ADAMS, "weight_decay": 0.0}, STATES,
    ),
    Formula(
        "torch.AdamW", rules.adam, f"w = w - lr weight_decay w; {EQUATION}", SOURCE.format("AdamW"),
        {**ADAM, "decay": "decoupled"}, {**ADAMS, "weight_decay": 0.01}, STATES,
    ),
    Formula(
        "torch.SparseAdam", rules.adam,
        "of the rows that the gradient names, duplicates summed: m = m + (1 - beta1)(g - m); v = v + (1 - beta2)(g g - v);"
        " w = w - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)",
        SOURCE.format("SparseAdam") + " and torch/optim/_functional.py",
        {**ADAM, "epsilon": "hat"}, {"lr": 1e-3, **BETAS, "eps": 1e-8}, MOMENTS, "touched",
    ),
    Formula(
        "torch.SGD", rules.sgd,
        "g = g + weight_decay w; b = g at step 1, then mu b + (1 - dampening) g; w = w - lr b, nesterov w - lr (g + mu b)",
        SOURCE.format("SGD"), SGD, SGDS, {"momentum": 0.0},
    ),
    Formula(
        "torch.SGD sparse", rules.sgd, "of the rows that the gradient names, duplicates summed: w = w - lr g",
        SOURCE.format("SGD"), SGD, {"lr": 1e-3}, gradients="touched",
    ),
    Formula(
        "torch.Adagrad", rules.adagrad,
        "g = g + weight_decay w; a = a + g g; w = w - lr / (1 + (t - 1) lr_decay) g / (sqrt(a) + eps)",
        SOURCE.format("Adagrad"), ADAGRAD,
        {"lr": 1e-2, "lr_decay": 0.0, "weight_decay": 0.0, "initial_accumulator": 0.0, "eps": 1e-10},
        {"accumulator": "initial_accumulator"},
    ),
    Formula(
        "torch.Adagrad sparse", rules.adagrad,
        "of the rows that the gradient names, duplicates summed: a = a + g g; "
        "w = w - lr / (1 + (t - 1) lr_decay) g / (sqrt(a) + eps)",
        SOURCE.format("Adagrad"), ADAGRAD,
        {"lr": 1e-2, "lr_decay": 0.0, "initial_accumulator": 0.0, "eps": 1e-10},
        {"accumulator": "initial_accumulator"}, "touched",
    ),
    Formula(
        "torch.RMSprop", rules.rmsprop,
        "g = g + weight_decay w; s = rho s + (1 - rho) g g; u = g / (sqrt(s) + eps), centered: c = rho c + (1 - rho) g, "
        "s - c c under the root; w = w - lr u; with momentum b = mu b + u, w - lr b",
        SOURCE.format("RMSprop"), RMSPROP,
        {"lr": 1e-2, "rho": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False, "weight_decay": 0.0},
        {"square": 0.0, "mean": 0.0, "momentum": 0.0},
    ),
    Formula(
        "torch.NAdam", rules.nadam,
        "g = g + weight_decay w; m, v as of Adam; mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2), P_t their product; "
        "w = w - lr ((1 - mu_t) / (1 - P_t) g + mu_(t+1) / (1 - P_(t+1)) m) / (sqrt(v / (1 - beta2^t)) + eps)",
        SOURCE.format("NAdam"), {"decay": "coupled"},
        {"lr": 2e-3, **BETAS, "eps": 1e-8, "weight_decay": 0.0, "momentum_decay": 4e-3}, MOMENTS,
    ),
    Formula(
        "torch.RAdam", rules.radam,
        "g = g + weight_decay w; m, v as of Adam; p = 2 / (1 - beta2) - 1, q = p - 2 t beta2^t / (1 - beta2^t); if q > 5 "
        "w = w - lr m / (1 - beta1^t) sqrt(1 - beta2^t) / (sqrt(v) + eps) "
        "sqrt((q - 4)(q - 2) p / ((p - 4)(p - 2) q)), else w = w - lr m / (1 - beta1^t)",
        SOURCE.format("RAdam"), {"decay": "coupled"}, {"lr": 1e-3, **BETAS, "eps": 1e-8, "weight_decay": 0.0}, MOMENTS,
    ),
    Formula(
        "torch.Adadelta", rules.adadelta,
        "g = g + weight_decay w; s = rho s + (1 - rho) g g; u = sqrt(d + eps) / sqrt(s + eps) g; "
        "d = rho d + (1 - rho) u u; w = w - lr u",
        SOURCE.format("Adadelta"), {"decay": "coupled"}, {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.0},
        {"square": 0.0, "delta": 0.0},
    ),
    Formula(
        "torch.Adamax", rules.adamax,
        "g = g + weight_decay w; m = beta1 m + (1 - beta1) g; u = max(beta2 u, |g| + eps); w = w - lr / (1 - beta1^t) m / u",
        SOURCE.format("Adamax"), {"epsilon": "gradient", "correction": "both", "decay": "coupled"},
        {"lr": 2e-3, **BETAS, "eps": 1e-8, "weight_decay": 0.0}, {"m": 0.0, "u": 0.0},
    ),
)  # fmt: skip
