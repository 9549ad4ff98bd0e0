"""The steps of FBGEMM's table-batched embeddings, which torch users have on the CPU too.

FBGEMM is optional: ``pip install fbgemm-gpu-cpu==1.8.0``. 1.9 does not load beside torch 2.13.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from islices.conformance.tools.bench.rounds import Call

__all__ = ["fbgemm_model", "fbgemm_ways", "why_no_fbgemm"]

#: optimizer -> FBGEMM's name of it, and its numbers as `limit.OPTIMIZERS` has them
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("EXACT_SGD", {}),
    "adagrad": ("EXACT_ADAGRAD", {"eps": 1e-10}),
    "rowwise_adagrad": ("EXACT_ROWWISE_ADAGRAD", {"eps": 1e-8}),
}
INSTALL = "pip install fbgemm-gpu-cpu==1.8.0"


def why_no_fbgemm() -> str:
    """Why FBGEMM is left out; "" where it is there."""
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return f"left out, not installed: {INSTALL}"
    try:
        importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    except (ImportError, OSError, AttributeError) as error:  # one that was built for another torch
        return f"left out, does not load ({str(error).strip().partition(chr(10))[0]}): {INSTALL}"
    return ""


def fbgemm_model(
    kind: str, rate: float, rows: Sequence[int], dim: int
) -> Callable[[Sequence[Any]], tuple[Any, list[Any]]] | None:
    """What makes the layer of some tables, which sums bags and takes its step within the backward pass, and its tables
    as views, from how these start; None where FBGEMM or this optimizer of it is missing."""
    if kind not in KINDS or why_no_fbgemm():
        return None
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    name, numbers = KINDS[kind]

    def made(start: Sequence[Any]) -> tuple[Any, list[Any]]:
        layer = SplitTableBatchedEmbeddingBagsCodegen(
            [(n, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for n in rows],
            optimizer=EmbOptimType[name], learning_rate=rate, **numbers,
        )  # fmt: skip
        tables = [x.detach() for x in layer.split_embedding_weights()]
        for table, x in zip(tables, start, strict=True):
            table.copy_(torch.from_numpy(x))
        return layer, tables

    return made


def fbgemm_ways(kind: str, rate: float, values: Any, ids: Any, rows: int) -> dict[str, Callable[[], Call]]:
    """The backward pass, step included, on a table of zeros; each id is a bag of its own."""
    make = fbgemm_model(kind, rate, [rows], values.shape[1])
    if make is None:
        return {}
    import torch

    def ready() -> Call:
        layer, (table,) = make([np.zeros((rows, values.shape[1]), np.float32)])
        upstream = torch.from_numpy(values)
        out = layer(torch.from_numpy(ids).long(), torch.arange(len(ids) + 1))

        def call() -> Any:  # the same graph each time: the forward pass is not part of the step
            out.backward(upstream, retain_graph=True)
            return table

        return call

    return {f"FBGEMM {KINDS[kind][0]}, backward with step": ready}
