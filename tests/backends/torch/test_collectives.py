"""torch.distributed (gloo) as an engine: four real processes, started once, that make every check in turn.

A check is a function of the ranks' group that all of them call; those that break a group come last, on groups of their
own, and the one in which a process is killed at the very end.
"""

from __future__ import annotations

import datetime
import os
import signal
import time
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from rank_checks import (
    exchanges,
    folded,
    gathers,
    meet,
)

from islices.conformance.ranks import Ranks, run_ranks
from islices.distributed import Group, RankError, RankTimeout, all_reduce, get_group

pytestmark = pytest.mark.outside

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed", reason="torch is built without torch.distributed")

SIZE = 4
#: Seconds that the ranks wait for one another where a check does not say otherwise.
TIMEOUT = 30.0


# ---------------------------------------------------------------------------------------------------- bytes
def check_read_only_bytes(group: Group) -> None:
    mine = np.frombuffer(bytes([group.rank] * 9), np.uint8)
    assert [list(got) for got in group.all_gather(mine)] == [[rank] * 9 for rank in range(SIZE)]


# --------------------------------------------------------------------------------------------------- groups
def check_two_groups(group: Group) -> None:
    halves = [dist.new_group(ranks) for ranks in ([0, 2], [3, 1])]
    within = get_group(halves[group.rank % 2])
    assert (within.rank, within.size) == (group.rank // 2, 2)
    for k in range(5):
        gathers(within, [k, 1000 * k])
        gathers(group, [k, 1, 2, 3])
        exchanges(within, [[1, k], [k, 0]])
    first = group.rank % 2  # new_group sorts the ranks that it is given
    assert [int(got[0]) for got in within.all_gather(np.array([group.rank], np.uint8))] == [first, first + 2]


def check_groups_of_one(group: Group) -> None:
    alone = [dist.new_group([rank]) for rank in range(SIZE)][group.rank]
    within = get_group(alone)
    assert (within.rank, within.size) == (0, 1)
    gathers(within, [9])
    s = torch.sparse_coo_tensor([[2, 0, 2]], [[1.0], [2.0], [4.0]], (3, 1))
    assert all_reduce(s, group=alone).to_dense().tolist() == [[2.0], [0.0], [5.0]]


def check_one_group_each(group: Group) -> None:
    """Whoever asks for a process group's Group gets the same one: what broke stays broken."""
    assert get_group("torch") is group
    assert get_group(dist.group.WORLD) is group


def check_device_mesh(group: Group) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    gathers(get_group(mesh["a"]), [3, 4])
    gathers(get_group(mesh["b"]), [0, 5])
    with pytest.raises(ValueError, match=r"group: got a DeviceMesh of 2 dimensions"):
        get_group(mesh)


def check_other_messages_in_flight(group: Group) -> None:
    """The user's own messages between the same ranks are not taken for ours, nor ours for theirs."""
    right, left = (group.rank + 1) % SIZE, (group.rank - 1) % SIZE
    got = torch.empty(4)
    works = [dist.irecv(got, left), dist.isend(torch.full((4,), float(group.rank)), right)]
    gathers(group, [16] * SIZE)
    for work in works:
        work.wait()
    assert got.tolist() == [float(left)] * 4


def check_destroyed(group: Group) -> None:
    pg = dist.new_group(range(SIZE))
    within = get_group(pg)
    gathers(within, [1] * SIZE)
    dist.barrier()
    dist.destroy_process_group(pg)
    del pg
    with pytest.raises(RuntimeError, match="has been destroyed"):
        within.all_gather(np.zeros(3, np.uint8))


# ------------------------------------------------------------------------------------------------ gradients
def check_the_same_as_torch_sums(group: Group) -> None:
    """Where sums are exact: what torch's own all_reduce of sparse tensors gives."""
    rng = np.random.default_rng(group.rank)
    n = [300, 0, 7, 1000][group.rank]
    ids, values = rng.zipf(1.2, n) % 500, rng.integers(-9, 10, (n, 3)).astype(np.float32)
    s = torch.sparse_coo_tensor(torch.from_numpy(ids[None]), torch.from_numpy(values), (500, 3))
    theirs = s.coalesce().clone()  # what has no duplicates is its own coalesced form
    dist.all_reduce(theirs)
    for strategy in ("auto", "gather", "ranges", "dense"):
        ours = all_reduce(s, strategy=strategy)
        assert ours.is_coalesced(), strategy
        assert torch.equal(ours.to_dense(), theirs.to_dense()), strategy


def check_mean_of_three(group: Group) -> None:
    pg = dist.new_group([0, 1, 2])
    if group.rank == 3:
        return
    each = []
    for rank in range(3):
        rng = np.random.default_rng(rank)
        each.append((rng.integers(0, 20, 50), rng.standard_normal((50, 2), np.float32)))
    ids, values = each[group.rank]
    s = torch.sparse_coo_tensor(torch.from_numpy(ids[None]), torch.from_numpy(values), (20, 2))
    dense = torch.from_numpy(values)
    got = all_reduce({"sparse": s, "dense": dense}, op="mean", group=pg)
    distinct, sums = folded([folded([one]) for one in each])
    np.testing.assert_array_equal(got["sparse"].indices()[0].numpy(), distinct)
    np.testing.assert_array_equal(got["sparse"].values().numpy(), sums / np.float32(3))
    np.testing.assert_array_equal(got["dense"].numpy(), (each[0][1] + each[1][1] + each[2][1]) / np.float32(3))


class Model(torch.nn.Module):
    """Words and bags of words, both sparse, under a dense head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 4, sparse=True)
        self.bags = torch.nn.EmbeddingBag(80, 4, mode="mean", sparse=True)
        self.head = torch.nn.Linear(4, 1)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))

    def gradients(self, rank: int, step: int) -> list[Any]:
        """Of a rank's batch in a step; a rank now and then has no bags, whose gradient is then None."""
        self.zero_grad(set_to_none=True)
        rng = np.random.default_rng([rank, step])
        rows = self.words(torch.from_numpy(rng.zipf(1.2, 16) % 50))
        if (rank + step) % 3:
            rows = rows + self.bags(torch.from_numpy(rng.zipf(1.2, (16, 3)) % 80))
        (self.head(rows).squeeze(1) - torch.from_numpy(rng.random(16, np.float32))).square().mean().backward()
        return [p.grad for p in self.parameters()]


def mean_in_one_process(each: Sequence[list[Any]], like: Sequence[Any]) -> list[Any]:
    """The mean of every rank's gradients, worked out by NumPy."""
    out = []
    for grads, p in zip(zip(*each, strict=True), like, strict=True):
        there = [g for g in grads if g is not None]
        if there[0].is_sparse:
            ids, sums = folded([folded([(g._indices()[0].numpy(), g._values().numpy())]) for g in there])
            mean = torch.from_numpy(sums / np.float32(len(grads)))
            out.append(torch.sparse_coo_tensor(torch.from_numpy(ids[None]), mean, p.shape))
        else:
            total = there[0].numpy()
            for g in there[1:]:
                total = total + g.numpy()
            out.append(torch.from_numpy(total / np.float32(len(grads))))
    return out


def check_training(group: Group) -> None:
    """20 steps on four processes are, bit for bit, the 20 steps of one that has all batches."""
    from islices.backends.torch import optim

    here, alone = Model(), Model()
    ours, one = (optim.Adam(model.parameters(), lr=0.05) for model in (here, alone))
    for step in range(20):
        grads = all_reduce(here.gradients(group.rank, step), op="mean")
        each = [[None if g is None else g.clone() for g in alone.gradients(rank, step)] for rank in range(SIZE)]
        expected = mean_in_one_process(each, list(alone.parameters()))
        for model, found in ((here, grads), (alone, expected)):
            for p, g in zip(model.parameters(), found, strict=True):
                p.grad = g
        ours.step()
        one.step()
    for (name, p), q in zip(here.named_parameters(), alone.parameters(), strict=True):
        assert torch.equal(p, q), f"{name} after 20 steps: {p} on four processes, {q} in one"
    assert not torch.equal(here.words.weight, Model().words.weight)


# --------------------------------------------------------------------------------------------------- faults
def check_bad_input_is_told_to_all(group: Group) -> None:
    s = torch.sparse_coo_tensor([[0]], [[1.0]], (3, 1))
    started = time.monotonic()
    if group.rank == 1:
        with pytest.raises(ValueError, match="op: got 'product'"):
            all_reduce(s, op="product")
    else:
        with pytest.raises(RankError, match="rank 1 raised ValueError: op: got 'product'") as caught:
            all_reduce(s, op="sum")
        assert caught.value.ranks == (1,)
    assert time.monotonic() - started < TIMEOUT / 2, "at once, not after the timeout"
    assert all_reduce(s).to_dense().tolist() == [[4.0], [0.0], [0.0]]


def check_late(group: Group) -> None:
    """Rank 1 comes after the timeout: the others have given up by then, which it learns at once."""
    pg = dist.new_group([0, 1, 2], timeout=datetime.timedelta(seconds=1))
    if group.rank == 3:
        return
    within = get_group(pg)
    gathers(within, [1, 2, 3])
    if group.rank == 1:
        time.sleep(5)
    started = time.monotonic()
    with pytest.raises(RankError) as caught:
        gathers(within, [9, 9, 9])
    took = time.monotonic() - started
    if group.rank == 1:
        assert not isinstance(caught.value, RankTimeout), "its own timeout, not that the others have given up"
    else:
        assert isinstance(caught.value, RankTimeout), caught.value
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.ranks == (1,)
        assert 0.9 < took < 4.5, f"{took} s for a timeout of 1 s"
        assert "rank 1 did not come in time" in str(caught.value)
    for again in (within, get_group(pg)):
        with pytest.raises(RankError, match="takes no more calls"):
            gathers(again, [1, 2, 3])


def check_timeout_of_the_call(group: Group) -> None:
    """get_group(timeout=) holds where it is given, whatever the process group's."""
    pg = dist.new_group([0, 1])
    if group.rank == 0:
        started = time.monotonic()
        with pytest.raises(RankTimeout, match="rank 1 did not come in time"):
            gathers(get_group(pg, timeout=0.5), [9, 9])
        assert 0.4 < time.monotonic() - started < TIMEOUT / 2


CHECKS = [name for name in list(globals()) if name.startswith("check_")]


def all_checks(group: Group, folder: str) -> dict[str, str]:
    """name -> what went wrong on this rank."""
    found = {}
    for name in CHECKS:
        try:
            globals()[name](group)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        dist.barrier()
    meet(folder, group)
    found["killed"] = killed(group)
    return found


def killed(group: Group) -> str:
    if group.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(
        0.5
    )  # the connections are closed before anything is sent: ranks that are well must not wait for each other
    try:
        for again in (False, True):
            started = time.monotonic()
            with pytest.raises(RankError, match="takes no more calls" if again else "rank 3 has ended") as caught:
                all_reduce(torch.ones(3))
            assert caught.value.ranks == (3,)
            assert time.monotonic() - started < 4, "at once, not after the timeout"
        time.sleep(5)  # nor learn it from one another's end
    except Exception:
        return traceback.format_exc()
    return ""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    keywords = {"folder": str(tmp_path_factory.mktemp("ranks"))}
    return run_ranks("torch", SIZE, f"{__file__}:all_checks", keywords, timeout=TIMEOUT)


@pytest.mark.parametrize("name", [*CHECKS, "killed"])
def test_on_four_processes(name: str, ranks: Ranks) -> None:
    for rank, finished in enumerate(ranks.ranks[:3]):
        assert finished.error is None, f"rank {rank}: {finished.error}"
        assert finished.said, "\n".join(ranks.output)[-3000:]
        assert finished.value[name] == "", f"rank {rank}:\n{finished.value[name]}"


def test_processes_end(ranks: Ranks) -> None:
    assert [finished.returncode for finished in ranks.ranks] == [0, 0, 0, -signal.SIGKILL]


def test_not_started() -> None:
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group"):
        get_group("torch")
    with pytest.raises(TypeError, match=r"group: got .*accepted are None, a Group"):
        get_group(torch.ones(3))
