"""Test MPI as an engine. mpiexec starts four processes once, and each process runs every check in turn. The tests at
the end are about faults."""

from __future__ import annotations

import os
import signal
import time
import traceback
from typing import Any

import numpy as np
import pytest
import rank_checks
import suite_runs
from rank_checks import exchanges, gathers, over_ranks

from islices import IndexedSlices
from islices.conformance.ranks import Ranks, run_ranks
from islices.conformance.ranks.launch import absent
from islices.distributed import Group, RankError, RankTimeout, all_reduce, get_group

pytestmark = [
    pytest.mark.outside,
    # `absent` does not import mpi4py.MPI, because this would start MPI in the process that runs the tests
    pytest.mark.skipif(bool(absent("mpi")), reason=absent("mpi") or "there is MPI"),
]

SIZE = 4
TIMEOUT = 60.0


def communicator() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD


# --------------------------------------------------------------------------------------------------- groups
def check_two_groups(group: Group) -> None:
    half = communicator().Split(color=group.rank % 2, key=-group.rank)  # a communicator's ranks may be in any order
    within = get_group(half)
    assert (within.rank, within.size) == (1 - group.rank // 2, 2)
    for k in range(5):
        gathers(within, [k, 1000 * k])
        gathers(group, [k, 1, 2, 3])
        exchanges(within, [[1, k], [k, 0]])
    first = group.rank % 2
    assert [int(got[0]) for got in within.all_gather(np.array([group.rank], np.uint8))] == [first + 2, first]


def check_one_group_each(group: Group) -> None:
    assert get_group("mpi") is group
    assert get_group(communicator()) is group
    copy = communicator().Dup()
    assert get_group(copy) is not group
    assert get_group(copy, timeout=3) is get_group(copy)
    copy.Free()


def check_non_groups(group: Group) -> None:
    from mpi4py import MPI

    some = communicator().Split(color=0 if group.rank < 2 else MPI.UNDEFINED)
    if group.rank >= 2:
        with pytest.raises(ValueError, match=r"group: got MPI\.COMM_NULL; accepted is a communicator that this"):
            get_group(some)
    between = communicator().Split(group.rank % 2).Create_intercomm(0, communicator(), 1 - group.rank % 2)
    with pytest.raises(ValueError, match="group: got an MPI intercommunicator; accepted is an intracommunicator"):
        get_group(between)
    with pytest.raises(TypeError, match=r"group: got .*an mpi4py communicator"):
        get_group(MPI.BYTE)


def check_other_calls_in_flight(group: Group) -> None:
    """Check that the user's collectives and messages on the same communicator do not mix with those of the group."""
    from mpi4py import MPI

    right, left = (group.rank + 1) % SIZE, (group.rank - 1) % SIZE
    got, total = np.empty(1), np.empty(1)
    works = [
        communicator().Irecv(got, left),
        communicator().Isend(np.array([float(group.rank)]), right),
        communicator().Iallreduce(np.array([1.0]), total),
    ]
    gathers(group, [16] * SIZE)
    MPI.Request.Waitall(works)
    assert (got[0], total[0]) == (left, SIZE)


# ------------------------------------------------------------------------------------------------ gradients
def gradient(rank: int) -> tuple[Any, Any]:
    """Return (indices, values) of a rank. Rank 1 has no slices; the indices of the other ranks may repeat."""
    rng = np.random.default_rng(rank)
    n = [300, 0, 7, 1000][rank]
    return rng.zipf(1.2, n) % 500, rng.standard_normal((n, 3), np.float32)


def check_numpy(group: Group) -> None:
    ids, values = gradient(group.rank)
    sums, distinct = over_ranks([gradient(rank)[::-1] for rank in range(SIZE)])
    for strategy in ("gather", "ranges"):
        got = all_reduce(IndexedSlices(values, ids, (500, 3)), strategy=strategy)
        np.testing.assert_array_equal(got.indices, distinct)
        np.testing.assert_array_equal(got.values, sums, err_msg=strategy)


# --------------------------------------------------------------------------------------------------- faults


def check_late(group: Group) -> None:
    """Check that a call raises if rank 1 comes after the timeout. MPI cannot cancel the call: rank 1 still receives the
    bytes, and later calls of the other ranks raise."""
    copy = communicator().Dup()
    within = get_group(copy, timeout=0.5)
    communicator().Barrier()
    if group.rank == 1:
        time.sleep(4)
    else:
        started = time.monotonic()
        with pytest.raises(RankTimeout, match=r"MPI: rank 1 did not come within 0\.5 s") as caught:
            gathers(within, [9, 9, 9, 9])
        assert caught.value.ranks == (1,)
        assert 0.4 < time.monotonic() - started < 3.5
        for again in (within, get_group(copy)):
            with pytest.raises(RankError, match="takes no more calls"):
                gathers(again, [1, 2, 3, 4])
    communicator().Barrier()
    if group.rank == 1:
        gathers(within, [9, 9, 9, 9])  # the other ranks' bytes had been sent


CHECKS = {name: x for name, x in {**vars(rank_checks), **globals()}.items() if name.startswith("check_")}


def all_checks(group: Group) -> dict[str, str]:
    """Run every check. Return a dict from each check's name to its error on this rank ("" if the check passed)."""
    found = {}
    for name, check in CHECKS.items():
        try:
            check(group)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        communicator().Barrier()
    return found


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    return run_ranks("mpi", SIZE, f"{__file__}:all_checks", timeout=TIMEOUT)


@pytest.mark.parametrize("name", CHECKS)
def test_on_four_processes(name: str, ranks: Ranks) -> None:
    for rank, found in enumerate(ranks.values):
        assert found[name] == "", f"rank {rank}:\n{found[name]}"


def test_processes_end(ranks: Ranks) -> None:
    """Check that all processes exit, although check_late abandoned messages."""
    assert [finished.returncode for finished in ranks.ranks] == [0] * SIZE


# ------------------------------------------------------------------------- faults that end the whole job
def killed(group: Group) -> None:
    communicator().Barrier()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    gathers(group, [3, 3])


def test_the_launcher_ends_the_others() -> None:
    found = run_ranks("mpi", 2, f"{__file__}:killed", timeout=TIMEOUT)
    assert found.seconds < TIMEOUT / 2, "at once, not after the timeout"
    assert found.ranks[0].returncode not in (0, None)
    assert not found.ranks[0].statement


# ----------------------------------------------------------------------------- where there is no MPI to use
def python(code: str, **environment: str) -> str:
    """Run a program, and return the last line of its stderr, or of its stdout if stderr is empty."""
    done = suite_runs.python("-c", code, **environment)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


ASK = "from islices.distributed import get_group; print(get_group('mpi'))"


def test_no_mpi4py() -> None:
    statement = python(f"import sys; sys.modules['mpi4py'] = None; {ASK}")
    assert statement.startswith('ModuleNotFoundError: group "mpi" needs mpi4py and an MPI library: pip install'), (
        statement
    )


def test_the_launcher_of_another_mpi() -> None:
    statement = python(ASK, OMPI_COMM_WORLD_SIZE="4")
    assert statement.startswith(
        "RuntimeError: MPI: the launcher has started 4 processes (OMPI_COMM_WORLD_SIZE), but"
    ), statement


def test_too_early() -> None:
    code = f"import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; {ASK}"
    assert python(code) == "RuntimeError: MPI has not been started: call MPI.Init() first"


def test_other_threads_of_an_mpi_for_one() -> None:
    code = (
        "import mpi4py; mpi4py.rc.thread_level = 'funneled'; from islices.distributed import get_group; "
        "get_group('mpi'); from concurrent.futures import ThreadPoolExecutor as T; "
        "print(repr(T(1).submit(get_group, 'mpi').exception()))"
    )
    assert "calls from its main thread alone" in python(code)


def test_too_many_bytes_for_an_older_mpi() -> None:
    """Check that a message with more bytes than a C int can count is an error on MPI 3, but not on MPI 4."""
    from islices.backends.mpi.collectives import LARGEST_INT, check_counts

    check_counts((3, 1), LARGEST_INT)
    check_counts((4, 0), LARGEST_INT + 1)
    with pytest.raises(ValueError, match=r"MPI 3\.1: 2147483648 bytes in one message; accepted are 2147483647"):
        check_counts((3, 1), LARGEST_INT + 1)
