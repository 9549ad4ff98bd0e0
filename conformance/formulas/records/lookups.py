"""Formulas of lookups: bags of rows, their gradients, and the gradients of embedding layers.

May import: this folder, `islices.conformance.formulas.lookups`.
"""

from __future__ import annotations

from islices.conformance.formulas import lookups
from islices.conformance.formulas.records.forms import documented

torch = documented("torch", "PyTorch 2.13, torch.nn.functional.{}")
tensorflow = documented("tensorflow", "TensorFlow 2.21.0, tf.nn.{}")
TORCH = {"combiners": ("sum", "mean", "max"), "weighted": ("sum",), "divisor": "count"}
TENSORFLOW = {
    "combiners": ("sum", "mean", "sqrtn"), "weighted": ("sum", "mean", "sqrtn"), "divisor": "weights"
}  # fmt: skip
PLAIN = {"combiner": "sum", "combiners": (), "weighted": (), "divisor": "count"}
TORCH_EQUATION = (
    "sum: sum of p w[id] over the ids of a bag but padding_idx, p the weight of the id, if any; mean: the sum of w[id] "
    "divided by the number of ids but padding_idx; max: the largest in each column; 0 of a bag without ids"
)
TENSORFLOW_EQUATION = (
    "sum: sum of p w[id] over the ids of a bag, p the weight of the id, if any; mean: divided by the sum of p; sqrtn: "
    "divided by sqrt(sum of p p); without weights p is 1; 0 of a bag without ids"
)
GRADIENT = "the gradient by w of the sum of upstream times the bags; "
SUMMED = "row r: the sum of upstream[k] over the places k with ids[k] = r"

LOOKUPS = (
    torch(
        "embedding_bag", lookups.bag, TORCH_EQUATION, TORCH, {"combiner": "mean", "padding_idx": None}, gives="output"
    ),
    torch(
        "embedding_bag gradient", lookups.bag_gradient,
        GRADIENT + TORCH_EQUATION + "; scale_grad_by_freq: row r divided by how often r occurs among all ids",
        TORCH, {"combiner": "mean", "padding_idx": None, "scale_grad_by_freq": False}, gives="gradient",
    ),
    torch(
        "embedding_bag weight gradient", lookups.weight_gradient,
        "of the id at place j in bag k: the sum of upstream[k] w[ids[j]] over the columns; 0 of padding_idx",
        PLAIN, {"padding_idx": None}, gives="weight_gradient", note="(per_sample_weights=)",
    ),
    torch(
        "embedding gradient", lookups.embedding_gradient,
        SUMMED + ", 0 of padding_idx; scale_grad_by_freq: divided by how often r occurs",
        PLAIN, {"padding_idx": None, "scale_grad_by_freq": False}, gives="gradient",
    ),
    tensorflow(
        "embedding_lookup_sparse", lookups.bag,
        TENSORFLOW_EQUATION + "; max_norm: w[id] max_norm / max(n, max_norm) for w[id], n = sqrt(sum of w[id] w[id])",
        TENSORFLOW, {"combiner": "mean", "max_norm": None}, gives="output",
    ),
    tensorflow(
        "embedding_lookup_sparse gradient", lookups.bag_gradient, GRADIENT + TENSORFLOW_EQUATION,
        TENSORFLOW, {"combiner": "mean"}, gives="gradient",
    ),
    tensorflow(
        "embedding_lookup gradient", lookups.embedding_gradient, SUMMED, PLAIN, {}, gives="gradient",
        note="; Keras's Embedding",
    ),
    documented("mxnet", "MXNet 1.9.1, mx.nd.{}, sparse_grad or not")(
        "Embedding gradient", lookups.embedding_gradient, SUMMED, PLAIN, {}, gives="gradient"
    ),
    documented("fbgemm", "FBGEMM 1.8.0, SplitTableBatchedEmbeddingBagsCodegen, PoolingMode")(
        "pooled", lookups.bag,
        "sum: sum of p w[id] over the ids of a bag, p the weight of the id, if any; mean: divided by the number of ids",
        {"combiners": ("sum", "mean"), "weighted": ("sum", "mean"), "divisor": "count"}, {"combiner": "sum"},
        gives="output",
    ),
)  # fmt: skip
