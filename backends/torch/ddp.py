"""Average the row-sparse gradients of a DistributedDataParallel with `islices.distributed.all_reduce`.

During the backward pass, DDP calls a communication hook for one bucket of gradients after the other. A bucket contains
either dense gradients, flattened into one tensor, or a single sparse gradient. The order of buckets is the same on
every rank. DDP replaces the gradients of the bucket by the hook's result. May import: `torch`, the core.
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

#: A communication hook of DDP: (state, bucket) -> Future of the bucket's tensor.
Hook = Callable[[Any, Any], Any]


def register_ddp_hook(
    model: nn.Module,
    *,
    dense: Literal["ddp", "islices"] | Hook = "ddp",
    strategy: Strategy = "auto",
) -> None:
    """Register a communication hook that averages sparse gradients with `islices.distributed.all_reduce`.

    Parameters
    ----------
    model : torch.nn.parallel.DistributedDataParallel
        The model. A model can have only one communication hook.
    dense : {"ddp", "islices"} or communication hook
        The method that averages dense gradients. "ddp" computes the same bits as DDP without a hook. "islices" uses
        `all_reduce`, whose bits do not depend on the engine. You may also pass a communication hook of DDP, such as
        torch's fp16_compress_hook, which then gets the process group and each dense bucket.
    strategy
        The argument ``strategy`` of `islices.distributed.all_reduce`.

    Raises
    ------
    TypeError, ValueError
        `model` is not a DistributedDataParallel, or `dense` or `strategy` is invalid.
    RuntimeError
        `model` already has a communication hook.

    Notes
    -----
    Every rank must call this function. After the backward pass, each sparse gradient is coalesced and the same on every
    rank. The gradient has the bits of `all_reduce` with op "mean" in the model's process group. If `all_reduce` fails
    on a rank, the backward pass raises RankError on all other ranks. DDP requires that the loss of each rank depends on
    every sparse layer in every step. So a rank that needs no rows of a table must look up an empty array of ids.
    SPEC clause 25.

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

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP checks annotations, and rejects strings
        gradient = bucket.buffer()
        if gradient.layout is not torch.strided or dense == "islices":
            return by_rows(gradient)
        return dense(group, bucket) if callable(dense) else _as_ddp(group, gradient)

    hook.__name__ = hook.__qualname__ = "islices_all_reduce"  # DDP logs this name
    model.register_comm_hook(None, hook)


def _as_ddp(group: Any, gradients: torch.Tensor) -> Any:
    """Average gradients as DDP does without a hook: multiply them by 1 / number of ranks, and then add them. Return a
    Future."""
    gradients.mul_(1.0 / group.size())
    work: Any = dist.all_reduce(gradients, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
