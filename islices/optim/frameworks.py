"""What all optimizers of a framework have in common: how it names hyperparameters, rounds numbers, treats duplicates.

Every semantics is written in its framework's own order of operations, each of which rounds once; no framework is
imported. docs/optimizers.md has the formulas and how closely they are followed. SPEC clauses 11 and 16.

- torch: what runs on CPU by default (foreach and fused None), a loop over parameters. Where a class has a path of its
  own for sparse gradients, rows="touched" is that path, and rows="all" the dense one. torch's kernels contract products
  that feed a sum to FMA where the processor has it, and take their roots from MKL, which rounds some the other way.
- keras: as TensorFlow runs it, eagerly. Slices stay slices through square, and through products and quotients by a
  number or a dense array, and are added and subtracted one by one; an addition to anything dense makes them
  dense, which sums duplicates. So SGD and Adagrad move the rows that a gradient names, and everything with a running
  mean moves them all. Squares are taken of each duplicate: duplicates="raw". Weight decay is decoupled and reaches
  every row, ahead of the step: w - (w wd) lr. For a float64 table too the learning rate is a float32 variable; weight
  decay, SGD's momentum, Adam's betas under a power and the first accumulator pass through float32, others do not.
- tensorflow: tf.compat.v1.train. rows="touched" is what is done with slices, whose duplicates are summed first,
  rows="all" what is done with a dense gradient. Hyperparameters are float32 tensors, cast to the table's type.
- mxnet: kernels take every hyperparameter as a float32, and compute with it in the table's type: 1 - beta is
  1 - float32(beta).
- optax: dense, every row moves at every step. Moments weigh the new gradient first, (1 - beta) g + beta m, numbers are
  float32, and the roots of adagrad and rmsprop are reciprocal.
- fbgemm: SplitTableBatchedEmbeddingBagsCodegen on the CPU, which sums duplicates in order of occurrence and moves the
  rows named alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from islices.optim.hyperparameters import Hyper

TOUCHED = ("touched",)
ALL = ("all",)

#: semantics -> islices' name of a hyperparameter -> the framework's, where they differ
SPELLED: Mapping[str, Mapping[str, str]] = {
    "islices": {},
    "fbgemm": {"lr": "learning_rate"},
    "keras": {
        "lr": "learning_rate",
        "beta1": "beta_1",
        "beta2": "beta_2",
        "eps": "epsilon",
        "initial_accumulator": "initial_accumulator_value",
    },
    "mxnet": {"lr": "learning_rate", "eps": "epsilon", "weight_decay": "wd"},
    "optax": {
        "lr": "learning_rate",
        "beta1": "b1",
        "beta2": "b2",
        "rho": "decay",
        "initial_accumulator": "initial_accumulator_value",
    },
    "tensorflow": {
        "lr": "learning_rate",
        "eps": "epsilon",
        "rho": "decay",
        "nesterov": "use_nesterov",
        "initial_accumulator": "initial_accumulator_value",
    },
    "torch": {
        "beta1": "betas[0]",
        "beta2": "betas[1]",
        "rho": "alpha",
        "initial_accumulator": "initial_accumulator_value",
    },
}


def raw(h: Hyper) -> bool:
    """Keras on slices whose duplicates nobody summed."""
    return bool(h["duplicates"] == "raw")
