"""Formulas of kernel libraries: FBGEMM, bitsandbytes (32-bit states), DeepSpeed's CPU Adam, and SparseCore's
optimizers.

May import: this folder, `islices.conformance.formulas.formula`, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.formula import Formula
from islices.conformance.formulas.records.forms import ADAGRAD, ADAM, BETAS, MOMENTS, RMSPROP, SGD

NAMED = "of the rows that the gradient names, duplicates summed: "
EMBEDDINGS = "FBGEMM 1.8.0, EmbOptimType.{}, fbgemm_gpu/codegen/genscript/optimizers.py"
ADAM_EQUATION = (
    "m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; "
    "w = w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)"
)
DECOUPLED = {**ADAM, "decay": "decoupled"}
ADAMS = {"lr": 1e-3, **BETAS, "eps": 1e-8, "weight_decay": 0.0}

FBGEMM = (
    Formula(
        "fbgemm.EXACT_SGD",
        rules.sgd,
        NAMED + "w = w - lr g",
        EMBEDDINGS.format("EXACT_SGD"),
        SGD,
        {"lr": 1e-2},
        gradients="touched",
    ),
    Formula(
        "fbgemm.EXACT_ADAGRAD",
        rules.adagrad,
        NAMED + "a = a + g g; w = w - lr g / (sqrt(a) + eps)",
        EMBEDDINGS.format("EXACT_ADAGRAD"),
        ADAGRAD,
        {"lr": 1e-2, "eps": 1e-8},
        {"accumulator": 0.0},
        "touched",
    ),
    Formula(
        "fbgemm.EXACT_ROWWISE_ADAGRAD",
        rules.adagrad,
        NAMED + "g' = g + weight_decay w; a = a + mean(g' g') over the row; f = lr / (sqrt(a) + eps); "
        "w = (1 - f weight_decay) w - f g",
        EMBEDDINGS.format("EXACT_ROWWISE_ADAGRAD") + ", WeightDecayMode.L2",
        {**ADAGRAD, "per_row": "mean", "shrinks": True},
        {"lr": 1e-2, "eps": 1e-8, "weight_decay": 0.0},
        {"accumulator": 0.0},
        "touched",
    ),
    Formula(
        "fbgemm.ADAM",
        rules.adam,
        NAMED + ADAM_EQUATION + " - lr weight_decay w",
        EMBEDDINGS.format("ADAM"),
        DECOUPLED,
        ADAMS,
        MOMENTS,
        "touched",
    ),
)
BITSANDBYTES = (
    Formula(
        "bitsandbytes.AdamW",
        rules.adam,
        "w = (1 - lr weight_decay) w; " + ADAM_EQUATION,
        "bitsandbytes at 1baac13, bnb.optim.AdamW32bit, bitsandbytes/backends/triton/kernels_optim.py",
        DECOUPLED,
        {**ADAMS, "weight_decay": 0.01},
        MOMENTS,
    ),
    Formula(
        "bitsandbytes.SGD",
        rules.sgd,
        "g = g + weight_decay w; b = g at step 1, then mu b + g; w = w - lr b",
        "bitsandbytes at 1baac13, bnb.optim.SGD32bit, bitsandbytes/backends/triton/kernels_optim.py",
        SGD,
        {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.0},
        {"momentum": 0.0},
    ),
    Formula(
        "bitsandbytes.RMSprop",
        rules.rmsprop,
        "g = g + weight_decay w; s = rho s + (1 - rho) g g; w = w - lr g / (sqrt(s) + eps)",
        "bitsandbytes at 1baac13, bnb.optim.RMSprop32bit, bitsandbytes/backends/triton/kernels_optim.py",
        RMSPROP,
        {"lr": 1e-2, "rho": 0.99, "eps": 1e-8, "weight_decay": 0.0},
        {"square": 0.0},
    ),
    Formula(
        "bitsandbytes.Adagrad",
        rules.adagrad,
        "g = g + weight_decay w; a = a + g g; w = w - lr g / (sqrt(a) + eps)",
        "bitsandbytes at 1baac13, bnb.optim.Adagrad32bit, bitsandbytes/backends/triton/kernels_optim.py",
        ADAGRAD,
        {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0},
        {"accumulator": 0.0},
    ),
    Formula(
        "bitsandbytes.Lion",
        rules.lion,
        "w = w - lr sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g",
        "bitsandbytes at 1baac13, bnb.optim.Lion32bit, bitsandbytes/backends/triton/kernels_optim.py, without weight decay",
        {"decay": "decoupled"},
        {"lr": 1e-4, "beta1": 0.9, "beta2": 0.99},
        {"m": 0.0},
    ),
)
DEEPSPEED = (
    Formula(
        "deepspeed.CPUAdam",
        rules.adam,
        "g = g + weight_decay w; " + ADAM_EQUATION,
        "DeepSpeed at 1640828, DeepSpeedCPUAdam(adamw_mode=False), csrc/adam/cpu_adam_impl.cpp",
        ADAM,
        ADAMS,
        MOMENTS,
    ),
    Formula(
        "deepspeed.CPUAdamW",
        rules.adam,
        "w = w - lr weight_decay w; " + ADAM_EQUATION,
        "DeepSpeed at 1640828, DeepSpeedCPUAdam(adamw_mode=True), csrc/adam/cpu_adam_impl.cpp",
        DECOUPLED,
        ADAMS,
        MOMENTS,
    ),
    Formula(
        "deepspeed.CPUAdagrad",
        rules.adagrad,
        "g = g + weight_decay w; a = a + g g; w = w - lr g / (sqrt(a) + eps)",
        "DeepSpeed, DeepSpeedCPUAdagrad, csrc/adagrad/cpu_adagrad.cpp",
        ADAGRAD,
        {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0},
        {"accumulator": 0.0},
    ),
)
TPU = (
    "jax-tpu-embedding at 0344bee (laprop: 0158202), sparsecore/lib/core/primitives/sparse_dense_matmul_grad_with_{}.py"
)
SPARSECORE = (
    Formula("sparsecore.sgd", rules.sgd, NAMED + "w = w - lr g", TPU.format("sgd"), SGD, {"lr": 1e-2}, gradients="touched"),
    Formula(
        "sparsecore.adagrad", rules.adagrad, NAMED + "a = a + g g; w = w - lr g / sqrt(a)", TPU.format("adagrad"),
        {**ADAGRAD, "epsilon": "none"}, {"lr": 1e-2, "initial_accumulator": 0.1}, {"accumulator": "initial_accumulator"},
        "touched",
    ),
    Formula(
        "sparsecore.adam", rules.adam,
        NAMED + "m = m + (1 - beta1)(g - m); v = v + (1 - beta2)(g g - v); w = w - alpha_t m / (sqrt(v) + eps), "
        "alpha_t = lr sqrt(1 - beta2^t) / (1 - beta1^t)",
        TPU.format("adam"), {**ADAM, "epsilon": "hat"}, {"lr": 1e-3, **BETAS, "eps": 1e-8}, MOMENTS, "touched",
    ),
    Formula(
        "sparsecore.ftrl", rules.ftrl,
        NAMED + "n' = n + g g; z = z + g - (sqrt(n') - sqrt(n)) / lr w; "
        "w = (clip(z, -l1, l1) - z) / ((sqrt(n') + beta) / lr + 2 l2)",
        TPU.format("ftrl") + ", learning_rate_power -0.5", {"twice": True},
        {"lr": 0.1, "initial_accumulator": 0.1, "l1": 0.0, "l2": 0.0, "beta": 0.0},
        {"z": 0.0, "n": "initial_accumulator"}, "touched",
    ),
    Formula(
        "sparsecore.laprop", rules.laprop,
        NAMED + "v = beta2 v + (1 - beta2)(g g + eps); m = beta1 m + sqrt(1 - beta1^2) g / sqrt(v); w = w - lr m",
        TPU.format("laprop"), {}, {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-30}, MOMENTS, "touched",
    ),
)  # fmt: skip
