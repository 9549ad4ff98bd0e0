"""Test torch.distributed (gloo) as an engine: four real processes start once and run every check in turn.

A check is a function that all ranks call with their group. Checks that break a group use separate groups. The check
that kills a process comes at the very end.
"""

from __future__ import annotations

import datetime
import os
import signal
import time
import traceback

import numpy as np
import pytest
import rank_checks
import torch
import torch.distributed as dist
from rank_checks import exchanges, gathers, meet

import islices
from islices.conformance.ranks import Ranks, run_ranks
from islices.distributed import Group, RankError, RankTimeout, all_reduce, get_group

pytestmark = pytest.mark.outside

SIZE = 4
#: Seconds that the ranks wait for one another, unless a check uses a shorter timeout.
TIMEOUT = 30.0


# --------------------------------------------------------------------------------------------------- groups
def check_two_groups(group: Group) -> None:
    halves = [dist.new_group(ranks) for ranks in ([0, 2], [3, 1])]
    within = get_group(halves[group.rank % 2])
    assert (within.rank, within.size) == (group.rank // 2, 2)
    for k in range(5):
        gathers(within, [k, 1000 * k])
        gathers(group, [k, 1, 2, 3])
        exchanges(within, [[1, k], [k, 0]])
    first = group.rank % 2  # new_group sorts its ranks
    assert [int(got[0]) for got in within.all_gather(np.array([group.rank], np.uint8))] == [first, first + 2]


def check_one_group_each(group: Group) -> None:
    """Check that `get_group` returns one Group to all callers, so that a broken Group is broken for all."""
    assert get_group("torch") is group
    assert get_group(dist.group.WORLD) is group


def check_device_mesh(group: Group) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    gathers(get_group(mesh["a"]), [3, 4])
    gathers(get_group(mesh["b"]), [0, 5])
    with pytest.raises(ValueError, match=r"group: got a DeviceMesh of 2 dimensions"):
        get_group(mesh)


def check_destroyed(group: Group) -> None:
    pg = dist.new_group(range(SIZE))
    within = get_group(pg)
    gathers(within, [1] * SIZE)
    dist.barrier()
    dist.destroy_process_group(pg)
    del pg
    with pytest.raises(RuntimeError, match="has been destroyed"):
        within.all_gather(np.zeros(3, np.uint8))


# --------------------------------------------------------------------------------------------------- faults
def check_bad_input_is_reported_to_all(group: Group) -> None:
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
    """Check that the other ranks raise RankTimeout if rank 1 comes after the timeout. Rank 1 raises another
    RankError."""
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


CHECKS = {name: x for name, x in {**vars(rank_checks), **globals()}.items() if name.startswith("check_")}


def all_checks(group: Group, folder: str) -> dict[str, str]:
    """Run every check. Return a dict from each check's name to its error on this rank ("" if the check passed)."""
    found = {}
    for name, check in CHECKS.items():
        try:
            with islices.config.use_kernels(False):  # each rank would compile the kernels
                check(group)
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
    time.sleep(0.5)  # connections close before anything is sent: the remaining ranks must not wait for one another
    try:
        for again in (False, True):
            started = time.monotonic()
            with pytest.raises(RankError, match="takes no more calls" if again else "rank 3 has ended") as caught:
                all_reduce(torch.ones(3))
            assert caught.value.ranks == (3,)
            assert time.monotonic() - started < 4, "at once, not after the timeout"
        time.sleep(5)  # the ranks must not learn of the error from the end of another rank
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
        assert finished.statement, "\n".join(ranks.output)[-3000:]
        assert finished.value[name] == "", f"rank {rank}:\n{finished.value[name]}"


def test_not_started() -> None:
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group"):
        get_group("torch")
    with pytest.raises(TypeError, match=r"group: got .*accepted are None, a Group"):
        get_group(torch.ones(3))
