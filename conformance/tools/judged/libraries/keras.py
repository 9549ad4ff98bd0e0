"""keras.optimizers on the backend that the variable KERAS_BACKEND names.

On the TensorFlow backend, row-sparse gradients are tf.IndexedSlices; the other backends have no row-sparse gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from islices.conformance.formulas.judge import Step
from islices.conformance.tools.judged.entry import Judged, formulas, renamed

LIBRARY = "keras"
NAMES = {
    "lr": "learning_rate", "beta1": "beta_1", "beta2": "beta_2", "eps": "epsilon", "l1": "l1_regularization_strength",
    "initial_accumulator": "initial_accumulator_value", "l2": "l2_regularization_strength",
    "l2_shrinkage": "l2_shrinkage_regularization_strength",
}  # fmt: skip
BACKEND = keras.backend.backend()


def gradient(g: Any) -> Any:
    if isinstance(g, np.ndarray):
        return keras.ops.convert_to_tensor(g)
    from islices.conformance.tools.judged.libraries import tensorflow

    return tensorflow.gradient(g)


def keras_step(name: str) -> Step:
    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        if t == 1:
            h = {k: v for k, v in renamed(options, NAMES).items() if k != "weight_decay" or v}  # 0 raises an error
            state["w"] = keras.Variable(w)
            state["optimizer"] = getattr(keras.optimizers, name)(**h)
        state["optimizer"].learning_rate = options["lr"]
        state["optimizer"].apply_gradients([(gradient(g), state["w"])])
        return keras.ops.convert_to_numpy(state["w"])

    return step


def entries() -> Iterator[Judged]:
    for formula, name in formulas("keras"):
        sparse = formula.endswith(" sparse")
        if BACKEND == "tensorflow" or not sparse:
            call = f"keras.optimizers.{name}{', tf.IndexedSlices' if sparse else ''}"
            yield Judged(call, formula, keras_step(name), BACKEND)
