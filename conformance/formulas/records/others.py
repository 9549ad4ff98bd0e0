"""Formulas of kernel libraries: FBGEMM, bitsandbytes (32-bit states), DeepSpeed's Adam, AdamW and Adagrad for CPUs, and
SparseCore's optimizers.

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
    NAMED,
    RATES,
    RMSPROP,
    SGD,
    documented,
)

fbgemm = documented("fbgemm", "FBGEMM 1.8.0, EmbOptimType.{}, fbgemm_gpu/codegen/genscript/optimizers.py")
bitsandbytes = documented(
    "bitsandbytes", "bitsandbytes at 1baac13, bnb.optim.{}32bit, bitsandbytes/backends/triton/kernels_optim.py"
)
sparsecore = documented(
    "sparsecore",
    "jax-tpu-embedding at 0344bee (laprop: 0158202), sparsecore/lib/core/primitives/sparse_dense_matmul_grad_with_{}.py",
)
CPU_ADAM = "DeepSpeed at 1640828, DeepSpeedCPUAdam(adamw_mode={}), csrc/adam/cpu_adam_impl.cpp"
ADAM_EQUATION = (
    "m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; "
    "w = w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)"
)
COUPLED_ADAGRAD = "g = g + weight_decay w; a = a + g g; w = w - lr g / (sqrt(a) + eps)"
ADAGRADS = {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0}
DECOUPLED = {**ADAM, "decay": "decoupled"}
ADAMS = {**RATES, "weight_decay": 0.0}

FBGEMM = (
    fbgemm("EXACT_SGD", rules.sgd, NAMED + "w = w - lr g", SGD, {"lr": 1e-2}, gradients="touched"),
    fbgemm(
        "EXACT_ADAGRAD", rules.adagrad, NAMED + "a = a + g g; w = w - lr g / (sqrt(a) + eps)",
        ADAGRAD, {"lr": 1e-2, "eps": 1e-8}, ACCUMULATOR, "touched",
    ),
    fbgemm(
        "EXACT_ROWWISE_ADAGRAD", rules.adagrad,
        NAMED + "g' = g + weight_decay w; a = a + mean(g' g') over the row; f = lr / (sqrt(a) + eps); "
        "w = (1 - f weight_decay) w - f g",
        {**ADAGRAD, "per_row": "mean", "shrinks": True}, {"lr": 1e-2, "eps": 1e-8, "weight_decay": 0.0}, ACCUMULATOR,
        "touched", note=", WeightDecayMode.L2",
    ),
    fbgemm("ADAM", rules.adam, NAMED + ADAM_EQUATION + " - lr weight_decay w", DECOUPLED, ADAMS, MOMENTS, "touched"),
)  # fmt: skip
BITSANDBYTES = (
    bitsandbytes(
        "AdamW", rules.adam, "w = (1 - lr weight_decay) w; " + ADAM_EQUATION, DECOUPLED, {**ADAMS, "weight_decay": 0.01},
        MOMENTS,
    ),
    bitsandbytes(
        "SGD", rules.sgd, "g = g + weight_decay w; b = g at step 1, then mu b + g; w = w - lr b",
        SGD, {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.0}, MOMENTUM,
    ),
    bitsandbytes(
        "RMSprop", rules.rmsprop, "g = g + weight_decay w; s = rho s + (1 - rho) g g; w = w - lr g / (sqrt(s) + eps)",
        RMSPROP, {"lr": 1e-2, "rho": 0.99, "eps": 1e-8, "weight_decay": 0.0}, {"square": 0.0},
    ),
    bitsandbytes("Adagrad", rules.adagrad, COUPLED_ADAGRAD, ADAGRAD, ADAGRADS, ACCUMULATOR),
    bitsandbytes(
        "Lion", rules.lion, "w = w - lr sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g",
        {"decay": "decoupled"}, {"lr": 1e-4, "beta1": 0.9, "beta2": 0.99}, {"m": 0.0}, note=", without weight decay",
    ),
)  # fmt: skip
DEEPSPEED = (
    documented("deepspeed", CPU_ADAM.format(False))(
        "CPUAdam", rules.adam, "g = g + weight_decay w; " + ADAM_EQUATION, ADAM, ADAMS, MOMENTS
    ),
    documented("deepspeed", CPU_ADAM.format(True))(
        "CPUAdamW", rules.adam, "w = w - lr weight_decay w; " + ADAM_EQUATION, DECOUPLED, ADAMS, MOMENTS
    ),
    documented("deepspeed", "DeepSpeed, DeepSpeed{}, csrc/adagrad/cpu_adagrad.cpp")(
        "CPUAdagrad", rules.adagrad, COUPLED_ADAGRAD, ADAGRAD, ADAGRADS, ACCUMULATOR
    ),
)  # fmt: skip
SPARSECORE = (
    sparsecore("sgd", rules.sgd, NAMED + "w = w - lr g", SGD, {"lr": 1e-2}, gradients="touched"),
    sparsecore(
        "adagrad", rules.adagrad, NAMED + "a = a + g g; w = w - lr g / sqrt(a)", {**ADAGRAD, "epsilon": "none"},
        {"lr": 1e-2, "initial_accumulator": 0.1}, forms.STARTED, "touched",
    ),
    sparsecore(
        "adam", rules.adam,
        NAMED + "m = m + (1 - beta1)(g - m); v = v + (1 - beta2)(g g - v); w = w - alpha_t m / (sqrt(v) + eps), "
        "alpha_t = lr sqrt(1 - beta2^t) / (1 - beta1^t)",
        {**ADAM, "epsilon": "hat"}, RATES, MOMENTS, "touched",
    ),
    sparsecore(
        "ftrl", rules.ftrl,
        NAMED + "n' = n + g g; z = z + g - (sqrt(n') - sqrt(n)) / lr w; "
        "w = (clip(z, -l1, l1) - z) / ((sqrt(n') + beta) / lr + 2 l2)",
        {"twice": True}, {"lr": 0.1, "initial_accumulator": 0.1, "l1": 0.0, "l2": 0.0, "beta": 0.0}, forms.FTRL, "touched",
        note=", learning_rate_power -0.5",
    ),
    sparsecore(
        "laprop", rules.laprop,
        NAMED + "v = beta2 v + (1 - beta2)(g g + eps); m = beta1 m + sqrt(1 - beta1^2) g / sqrt(v); w = w - lr m",
        {}, {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-30}, MOMENTS, "touched",
    ),
)  # fmt: skip
