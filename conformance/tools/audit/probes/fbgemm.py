"""FBGEMM's table-batched embeddings on the CPU: bags, ids and offsets, and the steps of the backward pass.

FBGEMM is optional: ``pip install fbgemm-gpu-cpu==1.8.0``; 1.9 does not load next to torch 2.13.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from islices.conformance.operations import UnsupportedError
from islices.conformance.tools.audit.inputs import DUPLICATES, ROWS
from islices.conformance.tools.audit.probe import REFUSED, Probe

try:
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
except ModuleNotFoundError:
    raise
except (ImportError, OSError, AttributeError) as error:
    raise UnsupportedError(f"fbgemm_gpu does not load next to torch {torch.__version__}: {error}") from error

CODEGEN = "SplitTableBatchedEmbeddingBagsCodegen"
ID, BAG = torch.tensor([1]), torch.tensor([0, 1])


def layer(kind: str = "EXACT_SGD", start: Any = 0.0, width: int = 4, **options: Any) -> Any:
    spec = (ROWS, width, ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)
    made = ops.SplitTableBatchedEmbeddingBagsCodegen(
        [spec], optimizer=getattr(EmbOptimType, kind), learning_rate=1.0, **options
    )
    made.split_embedding_weights()[0].copy_(torch.as_tensor(start))
    return made


def weights(made: Any) -> Any:
    return made.split_embedding_weights()[0].detach().numpy()


def stepped(made: Any, ids: Any, values: Any) -> Any:
    """Return the table after the backward pass of a bag for each id."""
    made(torch.tensor(ids), torch.arange(len(ids) + 1)).backward(torch.as_tensor(values, dtype=torch.float32))
    return weights(made)


def twice() -> Any:
    made = layer("EXACT_ROWWISE_ADAGRAD")
    (made(ID, BAG) + made(ID, BAG)).backward(torch.full((1, 4), 3.0))
    return weights(made)[1].round(4)


# fmt: off
PROBES = [
    Probe(f"{CODEGEN}(max_norm=...)", "19", "it is accepted and ignored on the CPU: the rows grow past the bound",
          "islices.renorm_rows(table, ids, max_norm)", "max_norm=0.5, row 1 of length 2",
          lambda: np.linalg.norm(stepped(layer(start=1.0, max_norm=0.5), [1], np.zeros((1, 4)))[1]), 0.5),
    Probe(f"{CODEGEN}(gradient_clipping=True, max_gradient=5.0)", "9", "the gradient of each bag is clipped, duplicates are summed afterwards",
          "islices.clip_by_value(gradient, -5.0, 5.0)", "duplicates",
          lambda: -stepped(layer(gradient_clipping=True, max_gradient=5.0), DUPLICATES.indices.tolist(), np.tile(DUPLICATES.values, 2)),
          np.tile(DUPLICATES.dense, 2).clip(-5, 5)),
    Probe(f"{CODEGEN}, a table looked up twice", "16", "each lookup of a loss takes a separate step, on its part of the gradient",
          "islices.optim.rowwise_adagrad(lr, semantics='fbgemm'), on islices.add(x, y)", "gradients 3 and 3 of row 1: its step", twice, [-1] * 4),
    Probe(f"{CODEGEN}, ids out of range", "2", "an id past the last row counts as row 0, which is read and trained; only the log tells",
          "islices.lookup(table, ids)", "ids 2, 4", lambda: stepped(layer(), [2, 4], np.ones((2, 4))), REFUSED),
]
