"""The steps of FBGEMM's table-batched embeddings, which torch users have on the CPU too."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from islices.conformance.tools.bench.rounds import Call

__all__ = ["fbgemm_ways"]


def fbgemm_ways(kind: str, rate: float, values: Any, ids: Any, rows: int) -> dict[str, Callable[[], Call]]:
    """The backward pass, step included, of FBGEMM's table-batched embeddings; each id is a bag of its own."""
    if not importlib.util.find_spec("fbgemm_gpu"):
        return {}
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    kinds = {
        "sgd": ("EXACT_SGD", {}),
        "adagrad": ("EXACT_ADAGRAD", {"eps": 1e-10}),
        "rowwise_adagrad": ("EXACT_ROWWISE_ADAGRAD", {"eps": 1e-8}),
    }
    if kind not in kinds:
        return {}
    name, options = kinds[kind]

    def ready() -> Call:
        made = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, values.shape[1], EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=EmbOptimType[name], learning_rate=rate, **options,
        )  # fmt: skip
        table = made.split_embedding_weights()[0].detach()
        table.zero_()
        upstream = torch.from_numpy(values)
        out = made(torch.from_numpy(ids).long(), torch.arange(len(ids) + 1))

        def call() -> Any:  # the same graph each time: the forward pass is not part of the step
            out.backward(upstream, retain_graph=True)
            return table

        return call

    return {f"FBGEMM {name}, backward with step": ready}
