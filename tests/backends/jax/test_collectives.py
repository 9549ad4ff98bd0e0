"""Test JAX's processes and mapped axes as ranks. The ranks are real processes, or an axis over four CPU devices of one
process.

Each process runs a function of this file. The function compares sums over ranks exactly with sums that NumPy computes
in the order of ranks. If a rank raises an error that the test does not expect, the test fails with the traceback of
that rank.
"""

import os
import signal
import time

import numpy as np
import pytest
from comparing import assert_same
from rank_checks import dense_over_ranks, meet, over_ranks

from islices.conformance.ranks import run_ranks

pytestmark = pytest.mark.outside

jax = pytest.importorskip("jax")

ROWS, WIDTH = 23, 3
AXIS = "data"


def stacked(counts):
    """Return the values and indices of four ranks, stacked along a new first axis. The indices contain duplicates, and
    ranks with fewer than max(counts) slots have padding slots with zeros and the index ROWS."""
    r = np.random.default_rng(3)
    n = max(counts)
    values, indices = r.standard_normal((4, n, WIDTH)).astype("float32"), r.integers(0, ROWS, (4, n)).astype("int32")
    for rank, count in enumerate(counts):
        values[rank, count:], indices[rank, count:] = 0, ROWS
    return values, indices


def expected_of(values, indices):
    return over_ranks([(v[i < ROWS], i[i < ROWS]) for v, i in zip(values, indices, strict=True)])


# ---------------------------------------------------------------------- processes, one of which is killed
def test_four_processes_of_which_one_is_killed(tmp_path):
    ran = run_ranks("jax", 4, f"{__file__}:on_four_ranks", {"folder": str(tmp_path)}, deadline=300)
    assert ran.ranks[1].returncode == -signal.SIGKILL
    for rank in (0, 2, 3):
        kinds, text, _ = ran.ranks[rank].error
        assert "RankError" in kinds, text
        assert "another rank is gone" in text
        assert float(text.partition(" s: ")[0]) < 10, text  # gloo notices at once, before the timeout


def on_four_ranks(group, folder):
    move_bytes(group)
    one_program(group)
    fail_together(group)
    meet(folder, group)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise_later(group)


def move_bytes(group):
    """Check that `all_to_all` and `all_gather` deliver the right bytes. Parts of similar lengths need one exchange, and
    parts of very different lengths need several."""
    me, R = group.rank, group.size
    r = np.random.default_rng(5)
    ring = r.integers(0, 3, (R, R))
    ring[np.arange(R), (np.arange(R) + 1) % R] = 30_000  # the number of bytes that each rank sends to the next
    for lengths in (r.integers(900, 1100, (R, R)), ring):
        data = [[r.integers(0, 256, n, dtype=np.uint8) for n in row] for row in lengths]
        group.traffic.reset()
        for rank, part in enumerate(group.all_to_all(data[me], lengths[:, me])):
            assert_same(part, data[rank][me], rank)
        assert group.traffic.sent == lengths[me].sum() - lengths[me, me]
        for rank, part in enumerate(group.all_gather(data[me][1], lengths[:, 1])):
            assert_same(part, data[rank][1], rank)


def one_program(group):
    """Check that one compiled program can run on devices of several processes, which form one mapped axis."""
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    both = stacked((7, 0, 40, 1))
    program = mapped(lambda v, i: reduced(v[0], i[0], "gather"))
    spread, mine = NamedSharding(axis_mesh(), P(AXIS)), slice(group.rank, group.rank + 1)
    given = [jax.make_array_from_process_local_data(spread, x[mine]) for x in both]
    check_padded([x.addressable_data(0) for x in program(*given)], expected_of(*both), both[1].size, "one program")


def fail_together(group):
    """Check that all ranks raise if one rank's argument is not a gradient. In the next call, rank 3's array has another
    shape, and all ranks must raise an error that names rank 3."""
    from islices.distributed import RankError, all_reduce

    kind, words, x = RankError, "rank 2", jax.numpy.ones((2, 3))
    if group.rank == 2:
        kind, words, x = TypeError, "no gradient", "no gradient"
    with pytest.raises(kind, match=words):
        all_reduce(x, group=group)
    with pytest.raises(ValueError, match="rank 3"):
        all_reduce(jax.numpy.ones((2, 3 if group.rank != 3 else 4)), group=group)


@pytest.mark.soak
def test_two_processes_of_which_one_is_late():
    ran = run_ranks("jax", 2, f"{__file__}:late")
    kinds, text, _ = ran.ranks[0].error
    assert "RankTimeout" in kinds
    assert "nothing came for 1 s" in text
    assert 1 <= float(text.partition(" s: ")[0]) < 3, text


def late(group):
    from islices.distributed import get_group

    group.all_gather(np.zeros(8, np.uint8))
    if group.rank == 1:
        time.sleep(2)
        return
    assert get_group("jax", timeout=1) is group is get_group("jax")
    raise_later(group)


def raise_later(group):
    """Call a collective that fails, and raise its error with the seconds until the failure. Rank 0 waits for the other
    ranks' errors first, because the end of rank 0 ends all ranks."""
    from islices.distributed import RankError

    started = time.monotonic()
    try:
        group.all_gather(np.zeros(999, np.uint8))
    except RankError as error:
        seconds = time.monotonic() - started
        with pytest.raises(RankError, match="takes no more calls"):
            group.all_gather(np.zeros(999, np.uint8))
        time.sleep(1.5 if group.rank == 0 else 0)
        raise type(error)(f"{seconds:.1f} s: {error}") from error


# ---------------------------------------------------------------------- within a program
def test_mapped_axes():
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    ran = run_ranks("jax", 1, f"{__file__}:within_programs", environment=devices, deadline=300)
    assert ran.values == [(0, 1)]


def within_programs(group):
    under_maps()
    derivatives()
    refused()
    train()
    return group.rank, group.size


def mapped(fn, **specs):
    from jax.sharding import PartitionSpec as P

    specs = {"in_specs": P(AXIS), "out_specs": P(), **specs}
    return jax.jit(jax.shard_map(fn, mesh=axis_mesh(), **specs))


def axis_mesh():
    return jax.sharding.Mesh(np.array(jax.devices()), (AXIS,))


def reduced(values, indices, strategy="auto", axis=AXIS):
    from islices import IndexedSlices
    from islices.distributed import all_reduce

    s = all_reduce(IndexedSlices(values, indices, (ROWS, WIDTH), padded=True), group=axis, strategy=strategy)
    return s.values, s.indices


def check_padded(got, expected, slots, case):
    """Check that `got` has the expected slices in the first slots, and padding in the others."""
    values, indices = map(np.asarray, got)
    n = len(expected[1])
    assert len(indices) == slots, (case, indices)
    assert (indices[n:] == ROWS).all(), (case, indices)
    assert not values[n:].any(), (case, values)
    assert_same(values[:n], expected[0], case)
    assert_same(indices[:n], expected[1].astype(indices.dtype), case)


def under_maps():
    """Check the results of `all_reduce` under `shard_map`, under `vmap`, and along one axis of a two-dimensional
    mesh."""
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    both = stacked((5, 0, 3, 5))
    expected = expected_of(*both)
    square = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    for strategy in ("auto", "gather"):
        check_padded(mapped(lambda v, i, s=strategy: reduced(v[0], i[0], s))(*both), expected, 20, strategy)
        got = jax.jit(jax.vmap(lambda v, i, s=strategy: reduced(v, i, s), axis_name=AXIS))(*both)
        check_padded([x[3] for x in got], expected, 20, strategy)
        over_b = jax.shard_map(
            lambda v, i, s=strategy: reduced(v[0], i[0], s, "b"), mesh=square, in_specs=P(("a", "b")), out_specs=P("a")
        )
        check_padded([x[10:] for x in over_b(*both)], expected_of(*(x[2:] for x in both)), 10, "one axis of two")


def derivatives():
    """Check that the gradient through `all_reduce` gives each slot the upstream gradient of its row."""
    import islices

    values, indices = stacked((5, 5, 5, 5))
    weights = np.random.default_rng(8).standard_normal((ROWS, WIDTH)).astype(np.float32)

    for strategy in ("auto", "gather"):

        def loss(v, i, strategy=strategy):
            s = islices.IndexedSlices(*reduced(v[0], i[0], strategy), (ROWS, WIDTH), padded=True)
            return (islices.to_dense(s) * weights).sum()

        assert_same(jax.grad(mapped(loss))(values, indices), weights[indices], strategy)


def refused():
    from islices.distributed import all_reduce

    x = np.ones((4, 2), np.float32)
    for options, kind, words in (
        ({"group": None}, ValueError, "group: got None for traced arrays"),
        ({"group": "dta"}, NameError, "group: got 'dta'"),
        ({"group": AXIS, "strategy": "ranges"}, ValueError, "strategy: got 'ranges' for JAX axis 'data'"),
    ):
        with pytest.raises(kind, match=words):
            mapped(lambda x, options=options: all_reduce(x, **options))(x)


def train():
    """Compare data-parallel steps of a table and a dense layer with steps on one device that computes the gradients of
    all ranks."""
    from jax.sharding import PartitionSpec as P

    import islices
    from islices import Table, optim
    from islices.distributed import all_reduce

    r = np.random.default_rng(11)
    batches, targets = r.integers(0, ROWS, (5, 4, 6)).astype(np.int32), r.standard_normal((5, 4, 6)).astype(np.float32)
    p = q = {"table": jax.numpy.asarray(r.standard_normal((ROWS, WIDTH)), "float32"), "w": jax.numpy.ones(WIDTH)}
    adam = optim.adam(0.05)

    def loss(table, w, ids, wanted):
        return ((islices.lookup(table, ids) @ w - wanted) ** 2).mean()

    def gradients(p, ids, wanted):
        _, found = islices.value_and_grad(loss, argnums=(0, 1))(Table(p["table"]), p["w"], ids, wanted)
        return dict(zip(("table", "w"), found, strict=True))

    def step(p, state, ids, wanted):
        return adam.step(p, all_reduce(gradients(p, ids[0], wanted[0]), "mean", group=AXIS), state)

    # unchecked, so that each rank keeps its gradients: otherwise JAX sums the gradients of arrays that all ranks share
    parallel = mapped(step, in_specs=(P(), P(), P(AXIS), P(AXIS)), out_specs=(P(), P()), check_vma=False)
    one = jax.jit(gradients)
    p_state, q_state = adam.init(p), adam.init(q)
    for ids, wanted in zip(batches, targets, strict=True):
        p, p_state = parallel(p, p_state, ids, wanted)
        found = [one(q, ids[rank], wanted[rank]) for rank in range(4)]
        table = islices.scale(islices.coalesce(islices.concat([islices.coalesce(g["table"]) for g in found])), 0.25)
        w = dense_over_ranks([np.asarray(g["w"]) for g in found]) / np.float32(4)
        q, q_state = adam.step(q, {"table": table, "w": jax.numpy.asarray(w)}, q_state)
    for key in p:
        assert_same(p[key], np.asarray(q[key]), f"after 5 steps: {key}")


# ---------------------------------------------------------------------- without ranks
def test_jax_that_has_not_been_started():
    from islices.distributed import all_reduce

    with pytest.raises(RuntimeError, match=r"jax\.distributed\.initialize"):
        all_reduce(jax.numpy.ones(3))
    with pytest.raises(ValueError, match="group: got 'data'"):
        all_reduce(jax.numpy.ones(3), group="data")
