"""Clips by the global norm, of one dense gradient, and torch's rows kept within a norm.

May import: `islices.conformance.formulas.formula`, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from islices.conformance.formulas import rules
from islices.conformance.formulas.formula import Formula

__all__ = ["CLIPS"]

LIMIT = {"max_norm": 1.0}
SMALLER = "n = sqrt(sum of g g); g = g max_norm / max(n, max_norm)"

CLIPS = (
    Formula(
        "torch.clip_grad_norm_", rules.clip, "n = sqrt(sum of g g); g = g min(max_norm / (n + 1e-6), 1)",
        "PyTorch 2.13, torch.nn.utils.clip_grad_norm_", {"epsilon": 1e-6, "norm": "all"}, LIMIT, gives="gradient",
    ),
    Formula(
        "tensorflow.clip_by_global_norm", rules.clip, SMALLER,
        "TensorFlow 2.21.0, tf.clip_by_global_norm; Keras's global_clipnorm", {"epsilon": 0.0, "norm": "all"}, LIMIT,
        gives="gradient",
    ),
    Formula(
        "optax.clip_by_global_norm", rules.clip, SMALLER, "optax 0.2.8, optax.clip_by_global_norm",
        {"epsilon": 0.0, "norm": "all"}, LIMIT, gives="gradient",
    ),
    Formula(
        "mxnet.clip_global_norm", rules.clip, "n = sqrt(sum of g g); g = g min(max_norm / (n + 1e-8), 1)",
        "MXNet 1.9.1, gluon.utils.clip_global_norm", {"epsilon": 1e-8, "norm": "all"}, LIMIT, gives="gradient",
    ),
    Formula(
        "torch.embedding_renorm_", rules.renorm,
        "of the rows that the gradient names: n = sqrt(sum of w w); w = w max_norm / (n + 1e-7) where n > max_norm",
        "PyTorch 2.13, torch.nn.functional.embedding(max_norm=)", {"epsilon": 1e-7, "norm": "row"}, LIMIT,
        gradients="touched",
    ),
)  # fmt: skip
