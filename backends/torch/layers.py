"""Stock embedding layers of torch models, hooked: what they looked up, and the gradient that arrived.

A forward hook notes the ids, a hook on the output the gradient; the layer computes as it always does, its own dense
or sparse gradient included. A frozen layer (weights that take no gradient) gets an output that does, so that no
gradient of the table's size exists at all. May import: torch, the core.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from islices.backend import Array, LayerUse

__all__ = ["capture"]


@contextlib.contextmanager
def capture(model: nn.Module, uses: list[LayerUse]) -> Iterator[dict[str, Array]]:
    """See `Backend.capture`."""
    layers = {name: m for name, m in model.named_modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    with contextlib.ExitStack() as hooks:
        for name, layer in layers.items():
            handle = layer.register_forward_hook(partial(_looked_up, name, uses), with_kwargs=True)
            hooks.callback(handle.remove)
        yield {name: layer.weight for name, layer in layers.items()}


def _looked_up(
    name: str, uses: list[LayerUse], layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor
) -> torch.Tensor:
    if not torch.is_grad_enabled():
        return output
    use_of = _use_of_bags if isinstance(layer, nn.EmbeddingBag) else _use_of_rows
    use = use_of(name, layer, *args, **kwargs)
    uses.append(use)
    if not output.requires_grad:
        output = output.detach().requires_grad_()

    def arrived(upstream: torch.Tensor) -> None:
        upstream = upstream.detach()
        use.upstream = upstream if use.upstream is None else use.upstream + upstream

    output.register_hook(arrived)
    return output


def _use_of_rows(name: str, layer: nn.Embedding, input: torch.Tensor) -> LayerUse:
    return LayerUse(
        name,
        input,
        layer.num_embeddings,
        padding_idx=layer.padding_idx,
        scale_by_freq=layer.scale_grad_by_freq,
    )


def _use_of_bags(
    name: str,
    layer: nn.EmbeddingBag,
    input: torch.Tensor,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> LayerUse:
    if offsets is not None and layer.include_last_offset:
        offsets = offsets[:-1]
    return LayerUse(
        name,
        input,
        layer.num_embeddings,
        padding_idx=layer.padding_idx,
        scale_by_freq=layer.scale_grad_by_freq,
        combiner=layer.mode,
        offsets=offsets,
        weights=None if per_sample_weights is None else per_sample_weights.detach(),
        table=layer.weight.detach() if layer.mode == "max" else None,
    )
