"""Formulas of lookups, with bags of rows, their gradients, and the gradients of embedding layers.

May import: `islices.conformance.formulas.formula`, `islices.conformance.formulas.lookups`.
"""

from __future__ import annotations

from islices.conformance.formulas import lookups
from islices.conformance.formulas.formula import Formula

TORCH_BAG = "PyTorch 2.13, torch.nn.functional.embedding_bag"
TORCH = {"combiners": ("sum", "mean", "max"), "weighted": ("sum",), "divisor": "count"}
TENSORFLOW = {
    "combiners": ("sum", "mean", "sqrtn"), "weighted": ("sum", "mean", "sqrtn"), "divisor": "weights"
}  # fmt: skip
FBGEMM = {"combiners": ("sum", "mean"), "weighted": ("sum", "mean"), "divisor": "count"}
PLAIN = {"combiner": "sum", "combiners": (), "weighted": (), "divisor": "count"}
TORCH_EQUATION = (
    "sum: sum of p w[id] over the ids of a bag but padding_idx, p the weight of the id, if any; mean: the sum of w[id] "
    "divided by the number of ids but padding_idx; max: the largest in each column; 0 of a bag without ids"
)
TENSORFLOW_EQUATION = (
    "sum: sum of p w[id] over the ids of a bag, p the weight of the id, if any; mean: divided by the sum of p; sqrtn: "
    "divided by sqrt(sum of p p); without weights p is 1; 0 of a bag without ids; max_norm: w[id] max_norm / max(n, "
    "max_norm) for w[id], n = sqrt(sum of w[id] w[id])"
)
FBGEMM_EQUATION = (
    "sum: sum of p w[id] over the ids of a bag, p the weight of the id, if any; mean: divided by the number of ids"
)
GRADIENT = "the gradient by w of the sum of upstream times the bags; {}"
SUMMED = "row r: the sum of upstream[k] over the places k with ids[k] = r"

LOOKUPS = (
    Formula(
        "torch.embedding_bag", lookups.bag, TORCH_EQUATION, TORCH_BAG, TORCH, {"combiner": "mean", "padding_idx": None},
        gives="output",
    ),
    Formula(
        "torch.embedding_bag gradient", lookups.bag_gradient,
        GRADIENT.format(TORCH_EQUATION) + "; scale_grad_by_freq: row r divided by how often r occurs among all ids",
        TORCH_BAG, TORCH, {"combiner": "mean", "padding_idx": None, "scale_grad_by_freq": False}, gives="gradient",
    ),
    Formula(
        "torch.embedding_bag weight gradient", lookups.weight_gradient,
        "of the id at place j in bag k: the sum of upstream[k] w[ids[j]] over the columns; 0 of padding_idx",
        TORCH_BAG + "(per_sample_weights=)", PLAIN, {"padding_idx": None}, gives="weight_gradient",
    ),
    Formula(
        "torch.embedding gradient", lookups.embedding_gradient,
        SUMMED + ", 0 of padding_idx; scale_grad_by_freq: divided by how often r occurs",
        "PyTorch 2.13, torch.nn.functional.embedding", PLAIN, {"padding_idx": None, "scale_grad_by_freq": False},
        gives="gradient",
    ),
    Formula(
        "tensorflow.embedding_lookup_sparse", lookups.bag, TENSORFLOW_EQUATION,
        "TensorFlow 2.21.0, tf.nn.embedding_lookup_sparse", TENSORFLOW, {"combiner": "mean", "max_norm": None},
        gives="output",
    ),
    Formula(
        "tensorflow.embedding_lookup_sparse gradient", lookups.bag_gradient,
        GRADIENT.format(TENSORFLOW_EQUATION.partition("; max_norm")[0]),
        "TensorFlow 2.21.0, tf.nn.embedding_lookup_sparse", TENSORFLOW, {"combiner": "mean"}, gives="gradient",
    ),
    Formula(
        "tensorflow.embedding_lookup gradient", lookups.embedding_gradient, SUMMED,
        "TensorFlow 2.21.0, tf.nn.embedding_lookup; Keras's Embedding", PLAIN, {}, gives="gradient",
    ),
    Formula(
        "mxnet.Embedding gradient", lookups.embedding_gradient, SUMMED, "MXNet 1.9.1, mx.nd.Embedding, sparse_grad or not",
        PLAIN, {}, gives="gradient",
    ),
    Formula(
        "fbgemm.pooled", lookups.bag, FBGEMM_EQUATION, "FBGEMM 1.8.0, SplitTableBatchedEmbeddingBagsCodegen, PoolingMode",
        FBGEMM, {"combiner": "sum"}, gives="output",
    ),
)  # fmt: skip
