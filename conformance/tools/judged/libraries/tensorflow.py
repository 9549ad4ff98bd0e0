"""tf.compat.v1.train with the optimizers of TensorFlow 1, and TensorFlow's clip by the global norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Judged, clip_of, formulas, renamed

LIBRARY = "tensorflow"
NAMES = {
    "lr": "learning_rate", "eps": "epsilon", "rho": "decay", "nesterov": "use_nesterov",
    "initial_accumulator": "initial_accumulator_value", "l1": "l1_regularization_strength",
    "l2": "l2_regularization_strength", "l2_shrinkage": "l2_shrinkage_regularization_strength",
}  # fmt: skip


def gradient(g: Any) -> Any:
    if isinstance(g, np.ndarray):
        return tf.constant(g)
    return tf.IndexedSlices(tf.constant(g.values), tf.constant(g.indices), tf.constant(g.dense_shape))


def tensorflow_step(name: str) -> Step:
    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            state["rate"] = tf.Variable(0.0)
            h = renamed(options, NAMES)
            if name != "FtrlOptimizer":
                h["learning_rate"] = lambda: state["rate"]
            state["w"] = tf.Variable(w, use_resource=True)
            state["optimizer"] = getattr(tf.compat.v1.train, name)(**h)
        if name == "FtrlOptimizer":  # its learning rate cannot be a function
            state["optimizer"]._learning_rate = options["lr"]
        state["rate"].assign(options["lr"])
        state["optimizer"].apply_gradients([(gradient(g), state["w"])])
        return state["w"].numpy()

    return step


def clip(g: Any, max_norm: float) -> Any:
    return tf.clip_by_global_norm([tf.constant(g)], max_norm)[0][0]


def entries() -> Iterator[Judged]:
    for formula, name in formulas("tensorflow"):
        if "Lazy" not in name:  # LazyAdam is in TensorFlow Addons, which does not support current TensorFlow versions
            sparse = ", tf.IndexedSlices" if formula.endswith(" sparse") else ""
            yield Judged(f"tf.compat.v1.train.{name}Optimizer{sparse}", formula, tensorflow_step(f"{name}Optimizer"))
    yield Judged("tf.clip_by_global_norm", "tensorflow.clip_by_global_norm", clip_of(clip))
