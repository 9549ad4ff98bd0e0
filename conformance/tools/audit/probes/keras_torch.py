"""What Keras does on its torch backend, where gradients are dense."""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"  # before Keras is imported
import torch

from islices.conformance.tools.audit import keras_dense
from islices.conformance.tools.audit.inputs import ROWS, Given


def gradient(layer: Any, ids: Any) -> Any:
    layer(ids).sum().backward()
    return layer.embeddings.value.grad


def sparse(g: Given) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.from_numpy(g.indices)[None], torch.from_numpy(g.values), (ROWS, 2))


ON = keras_dense.Backend(
    "torch", gradient, sparse, lambda x: x.is_sparse,
    {
        "ids": ("differs", "-1 reads and trains the last row; ids beyond either end are refused"),
        "take": ("differs", "-1 reads the last row; the number of rows is refused"),
        "segment_sum": ("differs", "a negative index is dropped silently, one of the number of rows too"),
        "scatter": ("differs", "-1 adds to the last row; the number of rows is refused"),
        "sparse": ("raises", "SGD steps with a sparse COO tensor, duplicates summed; RMSprop raises"),
        "sparse clips": ("raises", "the norm of a sparse COO tensor is right; clipvalue raises"),
    },
)  # fmt: skip

keras_dense.declare_layers(__name__, ON)
keras_dense.declare_optimizers(__name__, ON)
keras_dense.declare_rounding(__name__, ON.name)
