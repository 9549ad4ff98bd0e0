"""DeepSpeed's sparse tensors."""

from __future__ import annotations

import torch
from deepspeed.runtime.sparse_tensor import SparseTensor  # pyright: ignore[reportMissingImports]

from islices.conformance.tools.audit.probe import Probe

X = torch.tensor([[0.0, 0.0], [1.0, -1.0]])

# fmt: off
PROBES = [
    Probe("deepspeed.runtime.sparse_tensor.SparseTensor(dense)", "1", "a row whose elements sum to zero is dropped, as if it were zeros",
          "islices.from_dense(x)", "a row [1.0, -1.0]", lambda: SparseTensor(X).to_coo_tensor().to_dense(), X, issue="deepspeedai/DeepSpeed#8504"),
]
