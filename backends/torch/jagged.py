"""Split nested tensors in torch's jagged layout, which contain the ids of bags, or one weight or mask value per id.

May import: `torch`, `islices.backend`.
"""

from __future__ import annotations

from typing import Any

import torch

from islices.backend import RaggedParts


def take_apart(x: Any, argument: str) -> RaggedParts | None:
    """See `Backend.take_ragged`."""
    if not isinstance(x, torch.Tensor) or not x.is_nested:
        return None
    if x.layout is not torch.jagged:
        raise TypeError(
            f"{argument}: got a nested tensor of layout {x.layout}; accepted is one of layout=torch.jagged, which "
            "torch.nested.as_nested_tensor(list(x.unbind()), layout=torch.jagged) makes"
        )
    nested: Any = x  # Any, because torch.Tensor lacks some attributes of nested tensors
    if nested._ragged_idx != 1:
        raise ValueError(
            f"{argument}: got a nested tensor whose dimension {nested._ragged_idx} is ragged; accepted is the second, "
            "as in (B, j)"
        )
    if nested.lengths() is not None:  # the rows may have gaps between them
        nested = nested.contiguous()
    offsets = nested.offsets()
    rows = torch.arange(offsets.shape[0] - 1, device=offsets.device)
    segments = torch.repeat_interleave(rows, offsets.diff(), output_size=nested.values().shape[0])

    def with_rows(numbers: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(numbers, offsets)

    return RaggedParts(
        "nested tensor", nested.values(), segments, rows, segments, rows, (offsets,), with_rows, lambda bags: bags
    )
