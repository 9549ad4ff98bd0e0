"""Nested tensors of torch's jagged layout taken apart: the ids of bags, and weights and masks beside them.

May import: `torch`, `islices.backend`.
"""

from __future__ import annotations

from typing import Any

import torch

from islices.backend import RaggedParts

__all__ = ["take_apart"]


def take_apart(x: Any, argument: str) -> RaggedParts | None:
    """See `Backend.take_ragged`."""
    if not isinstance(x, torch.Tensor) or not x.is_nested:
        return None
    if x.layout is not torch.jagged:
        raise TypeError(
            f"{argument}: got a nested tensor of layout {x.layout}; accepted is one of layout=torch.jagged, which "
            "torch.nested.as_nested_tensor(list(x.unbind()), layout=torch.jagged) makes"
        )
    if x._ragged_idx != 1:
        raise ValueError(
            f"{argument}: got a nested tensor whose dimension {x._ragged_idx} is ragged; accepted is the second, "
            "as in (B, j)"
        )
    if x.lengths() is not None:  # rows with gaps between them
        x = x.contiguous()
    offsets = x.offsets()
    rows = torch.arange(offsets.shape[0] - 1, device=offsets.device)
    segments = torch.repeat_interleave(rows, offsets.diff(), output_size=x.values().shape[0])

    def with_rows(numbers: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(numbers, offsets)  # type: ignore[no-any-return]

    return RaggedParts(
        "nested tensor", x.values(), segments, rows, segments, rows, (offsets,), with_rows, lambda bags: bags
    )
