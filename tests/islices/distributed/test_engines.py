"""Test which engine a call without `group` uses, and that no rank waits for a rank whose arguments raise
(SPEC clause 25).

The conformance cases ``none/by default`` and ``refused`` test each engine separately. This file tests several engines
at once, arrays of a framework other than the engine's, and launchers. The processes are real, and a short timeout makes
a waiting rank fail.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.ranks import run_ranks
from islices.conformance.ranks.launch import MEETING, _mpiexec, absent
from islices.distributed import Group, RankError, RankTimeout, ShardedTable, all_reduce

pytestmark = pytest.mark.outside

TIMEOUT = 20.0


def run(engine: str, function: Any, timeout: float = TIMEOUT, **keywords: Any) -> list[Any]:
    if why := absent(engine):
        pytest.skip(why)
    found = run_ranks(engine, 2, f"{__file__}:{function.__name__}", keywords, timeout=timeout, deadline=100.0)
    return found.values


def scope_of(group: Group) -> Any:
    strategy: Any = getattr(group, "strategy", None)
    return contextlib.nullcontext() if strategy is None else strategy.scope()


# ---------------------------------------------------------------------- one engine, and another framework's arrays
def another_framework(group: Group, other: str) -> list[float]:
    """Check that calls without arrays, and with arrays of another framework, use the engine that has started. Return
    the sum of the other framework's arrays."""
    C = islices.get_backend(other)
    with scope_of(group):
        assert ShardedTable.from_full(C.asarray(np.ones((4, 1), np.float32))).group is group
        assert all_reduce([None]) == [None]
        return C.to_numpy(all_reduce(C.asarray(np.ones(2, np.float32)))).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("engine", "other"), [("torch", "numpy"), ("mpi", "tensorflow")])
def test_arrays_of_an_engine_that_is_not_started(engine: str, other: str) -> None:
    pytest.importorskip(other)
    assert run(engine, another_framework, other=other) == [[2.0, 2.0]] * 2


# ---------------------------------------------------------------------- MPI together with torch.distributed
def both_started(group: Group) -> str:
    import datetime

    import torch
    import torch.distributed as dist

    store = dist.FileStore(os.environ[MEETING], group.size)
    limit = datetime.timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.size, timeout=limit)
    pg = islices.distributed.get_group("torch")
    group.traffic.reset()
    assert all_reduce(torch.ones(2)).tolist() == [2.0, 2.0]
    assert (pg.traffic.collectives, group.traffic.collectives) == (2, 0)
    assert all_reduce(np.ones(2)).tolist() == [2.0, 2.0]
    assert (pg.traffic.collectives, group.traffic.collectives) == (2, 2)

    words = "no leaf tells which engine connects the ranks, of which there are torch.distributed .* and MPI; accepted"
    with pytest.raises(ValueError, match=words):
        all_reduce(None)
    with pytest.raises(TypeError, match="weights: got None; accepted is a dense float array"):
        ShardedTable.from_full(None)
    with pytest.raises(TypeError, match="x: got str 'w'") as caught:
        all_reduce("w")
    assert "the other ranks have not been told: group: got None" in caught.value.__notes__[0]
    # a leaf of the tree selects the engine, and so does the argument `group`
    table = torch.sparse_coo_tensor([[1]], [[1.0]], (3, 1))
    summed, dense = all_reduce([None if group.rank else table, torch.ones(1)])
    assert (summed.to_dense().flatten().tolist(), dense.tolist()) == ([0.0, 1.0, 0.0], [2.0])
    found = all_reduce(None if group.rank else table, "mean", "torch")
    assert found.to_dense().flatten().tolist() == [0.0, 0.5, 0.0]
    if group.rank:
        with pytest.raises(TypeError, match="x: got str 'w'"):
            all_reduce("w", group="mpi")
    else:
        with pytest.raises(RankError, match="rank 1 raised TypeError: x: got str 'w'"):
            all_reduce(np.ones(1), group="mpi")
    # ranks with engines of different frameworks never meet, and wait no longer than the timeout
    pg.timeout = group.timeout = 1.0  # type: ignore[attr-defined]
    started = time.monotonic()
    with pytest.raises(RankTimeout):
        all_reduce(np.ones(2) if group.rank else torch.ones(2))
    assert time.monotonic() - started < TIMEOUT / 2
    return pg.engine


def test_mpi_beside_torch() -> None:
    pytest.importorskip("torch")
    assert run("mpi", both_started) == ["torch.distributed (gloo)"] * 2


# ---------------------------------------------------------------------- programs of one process, and launchers
def python(code: str, *launcher: str) -> list[str]:
    done = subprocess.run(
        [*launcher, sys.executable, "-c", code], capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("\n")[:-1]


ALL_REDUCE = "import numpy as np; from islices.distributed import all_reduce; "


@pytest.mark.skipif(bool(absent("mpi")), reason=absent("mpi") or "there is MPI")
def test_a_launched_process_with_nothing_starts_mpi() -> None:
    """Check that a process whose tree has no arrays uses MPI under mpiexec. The other process has a NumPy array, and
    uses MPI as well."""
    launcher = _mpiexec()
    assert launcher is not None
    call = "all_reduce({'a': None if os.environ['PMI_RANK'] == '0' else np.ones(1)})['a']"
    code = f"import os; {ALL_REDUCE} print({call})"
    assert "".join(python(code, launcher, "-n", "2")) == "[1.][1.]"  # two processes may print into one line


@pytest.mark.skipif(bool(absent("mpi")), reason=absent("mpi") or "there is MPI")
def test_launched_by_mpi_connected_by_torch() -> None:
    """Check that ranks of torch.distributed that mpiexec has started use torch and import no MPI."""
    pytest.importorskip("torch")
    launcher = _mpiexec()
    assert launcher is not None
    with tempfile.TemporaryDirectory() as folder:
        code = f"""if True:
            import os, sys, torch, torch.distributed as dist
            from islices.distributed import all_reduce
            rank = int(os.environ["PMI_RANK"])
            dist.init_process_group("gloo", store=dist.FileStore({folder!r} + "/meeting", 2), rank=rank, world_size=2)
            total = all_reduce(None if rank else torch.ones(1)).tolist()
            with open(f"{folder}/{{rank}}", "w") as said:  # what two processes print may lie in one line
                print(total, "mpi4py.MPI" in sys.modules, file=said)
            """
        python(code, launcher, "-n", "2")
        assert [Path(folder, rank).read_text() for rank in "01"] == ["[1.0] False\n"] * 2


def test_one_process() -> None:
    """Check that calls in a single process wait for no other process, and raise for wrong arguments."""
    pytest.importorskip("torch")
    code = f"""if True:
        {ALL_REDUCE}
        import torch.distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        import torch
        print(all_reduce([None, torch.ones(1)]))
        try:
            all_reduce(["w"])
        except TypeError as error:
            print(error)
        """
    alone, refused = python(code)
    assert alone == "[None, tensor([1.])]"
    assert refused.startswith("x.0: got str 'w'")


# ---------------------------------------------------------------------- within programs
def test_none_within_a_program_of_jax() -> None:
    jax = pytest.importorskip("jax")

    def tree(x: Any) -> Any:
        nothing = all_reduce({"a": None}, group="data"), islices.global_norm([None], group="data")
        assert nothing[0] == {"a": None}
        return x + nothing[1]

    assert jax.vmap(tree, axis_name="data")(np.ones(2, np.float32)).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="x: got str 'w'"):
        jax.vmap(lambda x: all_reduce("w", group="data"), axis_name="data")(np.ones(2, np.float32))


def test_none_within_a_program_of_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    assert strategy.run(lambda: all_reduce([None], "mean")) == [None]
    with pytest.raises(TypeError, match="x: got str 'w'"):
        strategy.run(lambda: all_reduce("w"))
