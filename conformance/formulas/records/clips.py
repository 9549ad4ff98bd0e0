"""Formulas of clips: by the global norm of dense or row-sparse tensors, by the norm of each tensor or row, and by value.

May import: `islices.conformance.formulas.formula`, `islices.conformance.formulas.rules`.
"""

from __future__ import annotations

from typing import Any

from islices.conformance.formulas import rules
from islices.conformance.formulas.formula import Formula

LIMIT = {"max_norm": 1.0}
SMALLER = "n = sqrt(sum of g g); g = g max_norm / max(n, max_norm)"
#: (name, equation, source, epsilon). Each row gives two formulas, for one tensor and for several.
GLOBAL = (
    ("torch.clip_grad_norm_", "n = sqrt(sum of g g); g = g min(max_norm / (n + 1e-6), 1)",
     "PyTorch 2.13, torch.nn.utils.clip_grad_norm_", 1e-6),
    ("tensorflow.clip_by_global_norm", SMALLER, "TensorFlow 2.21.0, tf.clip_by_global_norm; Keras's global_clipnorm", 0.0),
    ("optax.clip_by_global_norm", SMALLER, "optax 0.2.8, optax.clip_by_global_norm", 0.0),
    ("mxnet.clip_global_norm", "n = sqrt(sum of g g); g = g min(max_norm / (n + 1e-8), 1)",
     "MXNet 1.9.1, gluon.utils.clip_global_norm", 1e-8),
)  # fmt: skip
KERAS = "Keras 3.15.1, keras/src/optimizers/base_optimizer.py, {}"


def norm(name: str, equation: str, source: str, epsilon: float, kind: str = "all", **more: Any) -> Formula:
    """Return the formula of a clip by a norm. For several tensors, implementations may compute the norm of the tensors'
    norms."""
    form = {"epsilon": epsilon, "norm": kind}
    form = {**form, "several": True} if more.get("several") else form
    return Formula(name, rules.clip, equation, source, form, LIMIT, gives="gradient", **more)


def value(name: str, source: str) -> Formula:
    return Formula(
        name, rules.clip_value, "g = min(max(g, -limit), limit)", source, {"sides": "both"}, {"limit": 1.0},
        gives="gradient",
    )  # fmt: skip


CLIPS = (
    *(norm(*one) for one in GLOBAL),
    Formula(
        "torch.embedding_renorm_", rules.renorm,
        "of the rows that the gradient names: n = sqrt(sum of w w); w = w max_norm / (n + 1e-7) where n > max_norm",
        "PyTorch 2.13, torch.nn.functional.embedding(max_norm=)", {"epsilon": 1e-7, "norm": "row"}, LIMIT,
        gradients="touched",
    ),
    *(
        norm(f"{name} of several", f"of all tensors together: {equation}", source, epsilon, several=True)
        for name, equation, source, epsilon in GLOBAL
    ),
    norm(
        "tensorflow.clip_by_global_norm sparse",
        "of tf.IndexedSlices, duplicates not summed: n = sqrt(sum of v v) over the values as they are stored; "
        "v = v max_norm / max(n, max_norm)",
        "TensorFlow 2.21.0, tf.clip_by_global_norm", 0.0, gradients="all", duplicates="raw",
    ),
    norm("keras.clipnorm", "of each tensor alone: " + SMALLER, KERAS.format("clipnorm"), 0.0, "row", several=True),
    norm("keras.global_clipnorm", "of all tensors together: " + SMALLER, KERAS.format("global_clipnorm"), 0.0, several=True),
    value("torch.clip_grad_value_", "PyTorch 2.13, torch.nn.utils.clip_grad_value_"),
    value("keras.clipvalue", KERAS.format("clipvalue")),
    value("optax.clip", "optax 0.2.8, optax.clip"),
    value("mxnet.clip_gradient", "MXNet 1.9.1, mx.optimizer.Optimizer(clip_gradient=)"),
)  # fmt: skip
