"""Test `register_ddp_hook` with DistributedDataParallel: three real processes (gloo) start once and run every check.

A sparse gradient must have the bits of `all_reduce` with op "mean" on the ranks' gradients. A dense gradient must have
the bits that `dense` selects: those of DDP without the hook, of `all_reduce`, or of another hook.
"""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import islices
from islices.backends.torch import register_ddp_hook
from islices.conformance.ranks import Ranks, run_ranks
from islices.distributed import Group, all_reduce

pytestmark = pytest.mark.outside

SIZE = 3


class Model(torch.nn.Module):
    """A model with bags, with a table that some batches do not use, and with dense layers that can fill several buckets
    of DDP."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = torch.nn.EmbeddingBag(50, 4, sparse=True)
        self.words = torch.nn.Embedding(20, 4, sparse=True)
        self.dense = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 500))

    def forward(self, ids: Any, words: Any) -> Any:
        rows = self.bags(ids)
        return self.dense(rows).pow(2).mean() + (0 if words is None else self.words(words).sum())


def batch(rank: int, step: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100 * rank + step)
    ids = torch.randint(0, 50, (6, 5), generator=generator)
    return ids, ids[0] % 20 if rank else ids[0, :0]  # the batch of rank 0 has no words


def gradients(model: Any) -> dict[str, Any]:
    return {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}


def own(group: Group, step: int = 0) -> dict[str, Any]:
    model = Model()
    model(*batch(group.rank, step)).backward()
    return gradients(model)


def same(a: Any, b: Any) -> bool:
    if a.layout is not b.layout:
        return False
    if a.layout is torch.strided:
        return torch.equal(a.view(torch.int32), b.view(torch.int32))
    return torch.equal(a._indices(), b._indices()) and same(a._values(), b._values())


OPTIONS: list[dict[str, Any]] = [
    {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
    {"static_graph": True},
    {"find_unused_parameters": True},
]


def check_bits(group: Group) -> None:
    expected = {name: all_reduce(g, "mean") for name, g in own(group).items()}
    for options in OPTIONS:
        plain = DistributedDataParallel(Model(), **options)
        plain(*batch(group.rank)).backward()
        as_ddp = gradients(plain)
        for dense in ("ddp", "islices"):
            for strategy in ("auto", "ranges"):
                model = DistributedDataParallel(Model(), **options)
                register_ddp_hook(model, dense=dense, strategy=strategy)
                model(*batch(group.rank)).backward()
                for name, g in gradients(model).items():
                    wanted = expected if dense == "islices" or g.is_sparse else as_ddp
                    assert same(g, wanted[name]), (options, dense, strategy, name)
                    assert not g.is_sparse or g.is_coalesced()


def check_a_hook_for_dense_gradients(group: Group) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    plain, ours = DistributedDataParallel(Model().dense), DistributedDataParallel(Model())
    plain.register_comm_hook(None, fp16_compress_hook)
    register_ddp_hook(ours, dense=fp16_compress_hook)
    ours(*batch(group.rank)).backward()
    rows = ours.module.bags(batch(group.rank)[0]).detach()
    plain(rows).pow(2).mean().backward()
    assert all(same(p.grad, q.grad) for p, q in zip(plain.parameters(), ours.module.dense.parameters(), strict=True))
    wanted = all_reduce(own(group)["bags.weight"], "mean")
    assert same(ours.module.bags.weight.grad, wanted)


def check_capture(group: Group) -> None:
    """Check that captured gradients are those of this rank, although DDP averages the parameters' gradients."""
    model = DistributedDataParallel(Model())
    register_ddp_hook(model)
    with islices.capture(model) as captured:
        model(*batch(group.rank)).backward()
    g, mine = own(group)["words.weight"], captured.gradients()["module.words"]
    assert same(islices.to_native(islices.coalesce(mine)), islices.coalesce(g))
    assert same(model.module.words.weight.grad, all_reduce(g, "mean"))


CHECKS = [
    check_capture,
    check_bits,
    check_a_hook_for_dense_gradients,
]


def program(group: Group) -> dict[str, str]:
    """Run the checks until one fails. Return a dict with the failed check's name and traceback, or an empty dict."""
    failed = {}
    for check in CHECKS:
        try:
            with islices.config.use_kernels(False):  # each rank would compile the kernels
                check(group)
        except Exception:
            failed[check.__name__] = traceback.format_exc()
            break  # after an error, the ranks may be at different calls
    return failed


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    return run_ranks("torch", SIZE, f"{__file__}:program", timeout=20.0)


def test_every_check_on_every_rank(ranks: Ranks) -> None:
    assert ranks.values == [{}] * SIZE
