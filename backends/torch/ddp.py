"""DistributedDataParallel whose row-sparse gradients travel by `islices.distributed.all_reduce`.

DDP hands a communication hook its gradients a bucket at a time, while the backward pass is still running: dense ones
flattened into one tensor, a sparse one as it is, in a bucket of its own. Buckets come in the same order on every rank.
What the hook answers with takes the place of the gradient. May import: `torch`, the core.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from islices.core.arguments import check_name
from islices.core.registry import describe
from islices.distributed import all_reduce
from islices.distributed.strategy import STRATEGIES, Strategy

__all__ = ["register_ddp_hook"]

#: A communication hook of DDP's: (state, bucket) -> Future of the bucket's tensor.
Hook = Callable[[Any, Any], Any]


def register_ddp_hook(
    model: nn.Module,
    *,
    dense: Literal["ddp", "islices"] | Hook = "ddp",
    strategy: Strategy = "auto",
) -> None:
    """Have a DistributedDataParallel average its sparse gradients by `islices.distributed.all_reduce`.

    Parameters
    ----------
    model : torch.nn.parallel.DistributedDataParallel
        Made before, as ever; it takes one communication hook in its life.
    dense : {"ddp", "islices"} or communication hook
        How dense gradients travel: "ddp" as without a hook, with the same bits; "islices" by `all_reduce`, whose bits
        depend on no engine; a hook of DDP's own kind, such as torch's fp16_compress_hook, gets the process group and
        each dense bucket.
    strategy
        As `islices.distributed.all_reduce` takes it.

    Raises
    ------
    TypeError, ValueError
        model is no DistributedDataParallel, or dense or strategy is none of these.
    RuntimeError
        model has a hook already.

    Notes
    -----
    Every rank registers it. After backward each sparse gradient is, to the bit, ``all_reduce(gradient, "mean")`` of the
    ranks' own: coalesced, and alike on every rank. A rank that fails makes the others' backward raise RankError. DDP
    itself demands of a sparse layer that each rank's loss depends on it, in every step: a rank without rows of a table
    looks up an empty array of ids. SPEC clause 25.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> from torch.nn.parallel import DistributedDataParallel
    >>> from islices.backends.torch import register_ddp_hook
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> layer = torch.nn.Embedding(10, 2, sparse=True)
    >>> parallel = DistributedDataParallel(layer)
    >>> register_ddp_hook(parallel)
    >>> parallel(torch.tensor([7, 7, 3])).sum().backward()
    >>> layer.weight.grad._indices().tolist()
    [[3, 7]]
    >>> dist.destroy_process_group()
    """
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        raise TypeError(f"model: got {describe(model)}; accepted is a torch.nn.parallel.DistributedDataParallel")
    check_name(strategy, ("auto", *STRATEGIES), "strategy")
    if not callable(dense):
        check_name(dense, ("ddp", "islices"), "dense")
    group = model.process_group

    def by_rows(gradient: torch.Tensor) -> Any:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(all_reduce(gradient, "mean", group, strategy=strategy))
        return done

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are not its own, as texts
        gradient = bucket.buffer()
        if gradient.layout is not torch.strided or dense == "islices":
            return by_rows(gradient)
        return dense(group, bucket) if callable(dense) else _as_ddp(group, gradient)

    hook.__name__ = hook.__qualname__ = "islices_all_reduce"  # DDP logs it
    model.register_comm_hook(None, hook)


def _as_ddp(group: Any, gradients: torch.Tensor) -> Any:
    """Reduce as DDP does without a hook: multiply by 1 / ranks, then add."""
    gradients.mul_(1.0 / group.size())
    work: Any = dist.all_reduce(gradients, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
