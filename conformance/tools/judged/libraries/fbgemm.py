"""FBGEMM's split table-batched embeddings on the CPU. The backward pass of these embeddings runs the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
from fbgemm_gpu.split_embedding_configs import EmbOptimType

from islices.conformance.formulas.judge import Step
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.tools.judged.entry import Judged, formulas, lacking

LIBRARY = "fbgemm_gpu"


def fbgemm_step(name: str, features: int = 1) -> Step:
    """Return a step on one table, which one or two features use. The first feature has one bag per slice; the bags of a
    second feature are empty."""

    def step(w: Any, g: Any, state: Any, t: int, *, lr: float, eps: float = 1e-8, weight_decay: float = 0.0) -> Any:
        rows, width = w.shape
        if t == 1:
            state["op"] = ops.SplitTableBatchedEmbeddingBagsCodegen(
                [(rows, width, ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)],
                feature_table_map=[0] * features, optimizer=getattr(EmbOptimType, name), learning_rate=lr, eps=eps,
                weight_decay=weight_decay, weight_decay_mode=ops.WeightDecayMode.L2,
            )  # fmt: skip
            state["op"].split_embedding_weights()[0].copy_(torch.from_numpy(w))
        op = state["op"]
        op.set_learning_rate(lr)
        if len(g.indices):
            bags = len(g.indices)
            offsets = torch.arange(bags * features + 1).clamp(max=bags)
            op(torch.from_numpy(g.indices), offsets)[:, :width].backward(torch.from_numpy(g.values))
        return op.split_embedding_weights()[0].detach().numpy().copy()

    return step


def entries() -> Iterator[Judged]:
    for formula, name in formulas("fbgemm"):
        if not name.startswith("EXACT"):  # the other optimizers are for GPUs
            continue
        call = f"SplitTableBatchedEmbeddingBagsCodegen, {name}"
        yield Judged(call, formula, fbgemm_step(name))
        if "weight_decay" in FORMULAS[formula].options:
            yield Judged(call, formula, lacking(fbgemm_step(name), "weight_decay"), "without weight_decay")
            yield Judged(call, formula, fbgemm_step(name, 2), "two features")
