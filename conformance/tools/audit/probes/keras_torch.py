"""Keras on its torch backend, where gradients are dense."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"  # before Keras is imported
import keras
import torch

from islices.conformance.tools.audit.inputs import DUPLICATES, ROWS
from islices.conformance.tools.audit.keras_backends import dense_only, stepped
from islices.conformance.tools.audit.probe import Probe

X = torch.sparse_coo_tensor(torch.from_numpy(DUPLICATES.indices)[None], torch.from_numpy(DUPLICATES.values), (ROWS, 2))


def gradient(layer: Any, ids: Any) -> Any:
    layer(ids).sum().backward()
    return layer.embeddings.value.grad


# fmt: off
PROBES = [
    *dense_only(gradient, lambda x: x.is_sparse, {
        "ids": "-1 reads and trains the last row; ids beyond either end are refused",
        "take": "-1 reads the last row; the number of rows is refused",
        "segment_sum": "a negative index is dropped silently, one of the number of rows too",
        "scatter": "-1 adds to the last row; the number of rows is refused"}),
    Probe("keras.optimizers.SGD(clipvalue=...), torch backend: sparse COO", "9", "the norm of a sparse COO tensor is right; clipvalue raises",
          "islices.clip_by_value(gradient, lo, hi)", "duplicates to 5",
          lambda: -stepped(keras.optimizers.SGD(1.0, clipvalue=5.0), X, start=0.0), DUPLICATES.dense.clip(-5, 5), "raises"),
    Probe("keras.optimizers.RMSprop, torch backend: sparse COO", "16", "SGD steps with a sparse COO tensor, duplicates summed; RMSprop raises",
          "islices.optim, semantics='keras'", "duplicates, rows 0 and 3", lambda: stepped(keras.optimizers.RMSprop(0.5), X)[::3], [[1, 1]] * 2, "raises"),
]
