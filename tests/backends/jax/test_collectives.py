"""JAX's processes and mapped axes as ranks: real processes, and four CPU devices of one.

What runs on a rank is a function of this file. Every rank compares what it got, to the bit, with left folds that NumPy
takes of what all ranks had, and a launch fails with the traceback of the first that finds a difference.
"""

import os
import signal
import time
from functools import partial

import numpy as np
import pytest
from rank_checks import dense_over_ranks, mean, meet, over_ranks, same

from islices.conformance.ranks import run_ranks

pytestmark = pytest.mark.outside

jax = pytest.importorskip("jax", reason="JAX is not installed")

FLOATS = ("float16", "bfloat16", "float32", "float64")
WHOLE = ("int32", "int64")
ROWS, WIDTH = 23, 3
#: how many slices each rank has
COUNTS = {"uneven": (7, 0, 40, 1), "even": (5, 5, 5, 5), "none": (0, 0, 0, 0), "one rank": (0, 0, 9, 0)}
DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
AXIS = "data"


# ---------------------------------------------------------------------- what the ranks have, and what they should get
def slices_of(rank, count, dtype, index_dtype):
    """(values, indices) of a rank: many duplicates, within a rank and between ranks."""
    r = np.random.default_rng([rank, count])
    values = r.integers(-50, 50, (count, WIDTH)) * (1 if dtype in WHOLE else 10.0 ** r.integers(-3, 3, (count, 1)) / 7)
    return values.astype(dtype_of(dtype)), r.integers(0, ROWS, count).astype(index_dtype)


def dense_of(rank, dtype):
    return np.random.default_rng([rank, 99]).uniform(-9, 9, (5, 2)).astype(dtype_of(dtype))


def dtype_of(name):
    return np.dtype(jax.numpy.bfloat16 if name == "bfloat16" else name)


# ---------------------------------------------------------------------- processes
@pytest.mark.parametrize("x64", [False, pytest.param(True, marks=pytest.mark.repeats)], ids=["x32", "x64"])
def test_four_processes(x64):
    ran = run_ranks("jax", 4, f"{__file__}:on_four_ranks", {"x64": x64}, deadline=300)
    assert ran.values == [list(range(4))] * 4


def on_four_ranks(group, x64):
    reduce_trees(group, settings=(x64,))
    if not x64:
        move_bytes(group)
        one_program(group)
        fail_together(group)
    return [int(x[0]) for x in group.all_gather(np.array([group.rank], np.uint8))]


def move_bytes(group):
    """Parts of about one length go in one exchange, of very different ones in rounds: the same bytes arrive."""
    me, R = group.rank, group.size
    r = np.random.default_rng(5)
    alike = r.integers(900, 1100, (R, R))
    one_pair = np.zeros((R, R), int)
    one_pair[1, 3] = 70_001
    ring = r.integers(0, 3, (R, R))
    ring[np.arange(R), (np.arange(R) + 1) % R] = 30_000  # what one shift by a rank moves
    for case, lengths in {"alike": alike, "one pair": one_pair, "ring": ring, "own": np.diag([0, 3, 50, 7])}.items():
        data = [[r.integers(0, 256, n, dtype=np.uint8) for n in row] for row in lengths]
        group.traffic.reset()
        got = group.all_to_all(data[me], lengths[:, me])
        for rank in range(R):
            same(got[rank], data[rank][me], case)
        assert group.traffic.sent == lengths[me].sum() - lengths[me, me], case
        if lengths[:, 1].any():
            for rank, part in enumerate(group.all_gather(data[me][1], lengths[:, 1])):
                same(part, data[rank][1], case)


def reduce_trees(group, settings=(False, True)):
    """Every dtype, every strategy: without x64, then with."""
    import jax.numpy as jnp
    from jax.experimental import sparse

    from islices import IndexedSlices
    from islices.distributed import all_reduce

    ranks = range(group.size)
    for x64 in settings:
        jax.config.update("jax_enable_x64", x64)
        for dtype in (*FLOATS, *WHOLE) if x64 else ("bfloat16", "float32"):
            parts = {
                (case, index): [slices_of(r, counts[r], dtype, index) for r in ranks]
                for case, counts in COUNTS.items()
                for index in (WHOLE if x64 else WHOLE[:1])
            }
            dense = [dense_of(r, dtype) for r in ranks]
            mine = {key: [jnp.asarray(x) for x in part[group.rank]] for key, part in parts.items()}
            tree = {f"{case} {index}": IndexedSlices(*x, (ROWS, WIDTH)) for (case, index), x in mine.items()}
            values, ids = mine["uneven", "int32"]
            tree["native"] = sparse.BCOO((values, ids[:, None]), shape=(ROWS, WIDTH))
            tree["dense"] = jnp.asarray(dense[group.rank])
            for strategy in ("auto", "gather", "ranges", "dense"):
                got = all_reduce(tree, group=group, strategy=strategy)
                for (case, index), each in parts.items():
                    found = got[f"{case} {index}"]
                    summed = over_ranks(each)
                    same(found.values, summed[0], (dtype, case, strategy))
                    same(found.indices, summed[1], (dtype, case, strategy))
                summed = over_ranks(parts["uneven", "int32"])
                same(got["native"].data, summed[0], (dtype, strategy))
                same(got["native"].indices[:, 0], summed[1], (dtype, strategy))
                same(got["dense"], dense_over_ranks(dense), (dtype, strategy))
            if dtype in FLOATS:
                averaged = all_reduce(tree["dense"], "mean")  # the engine is JAX's, as the array is
                same(averaged, mean(dense_over_ranks(dense), group.size), dtype)
    jax.config.update("jax_enable_x64", False)


def one_program(group):
    """A mapped axis whose devices belong to different processes."""
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    counts = COUNTS["uneven"]
    program = mapped(lambda v, i: reduced(v[0], i[0], "dense"))
    spread = NamedSharding(axis_mesh(), P(AXIS))
    mine = slice(group.rank, group.rank + 1)
    given = [jax.make_array_from_process_local_data(spread, x[mine]) for x in stacked(counts, "float32", "int32")]
    got = [x.addressable_data(0) for x in program(*given)]
    expected = over_ranks([slices_of(rank, count, "float32", "int32") for rank, count in enumerate(counts)])
    check_padded(got, expected, ROWS, "one program")


def fail_together(group):
    """What one rank cannot reduce, no rank does; the group goes on."""
    from islices.distributed import RankError, all_reduce

    x = jax.numpy.ones((2, 3)) if group.rank != 2 else "no gradient"
    with pytest.raises(
        TypeError if group.rank == 2 else RankError, match="no gradient" if group.rank == 2 else "rank 2"
    ):
        all_reduce(x, group=group)
    with pytest.raises(ValueError, match="rank 3"):
        all_reduce(jax.numpy.ones((2, 3 if group.rank != 3 else 4)), group=group)


# ---------------------------------------------------------------------- ranks that die, or are late
def test_a_killed_rank(tmp_path):
    ran = run_ranks("jax", 3, f"{__file__}:killed", {"folder": str(tmp_path)})
    assert ran.ranks[1].returncode == -signal.SIGKILL
    for rank in (0, 2):
        kinds, text, _ = ran.ranks[rank].error
        assert "RankError" in kinds
        assert "another rank is gone" in text
        assert float(text.partition(" s: ")[0]) < 10, text  # gloo sees the connection go; no timeout is waited for


def killed(group, folder):
    group.all_gather(np.zeros(8, np.uint8))
    meet(folder, group)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise_later(group)


@pytest.mark.soak
def test_two_processes_of_which_one_is_late():
    ran = run_ranks("jax", 2, f"{__file__}:late")
    kinds, text, _ = ran.ranks[0].error
    assert "RankTimeout" in kinds
    assert "nothing came for 1 s" in text
    assert 1 <= float(text.partition(" s: ")[0]) < 3, text


def late(group):
    from islices.distributed import get_group

    reduce_trees(group, settings=(False,))
    if group.rank == 1:
        time.sleep(2)
        return
    assert get_group("jax", timeout=1) is group is get_group("jax")
    raise_later(group)


def raise_later(group):
    """The error of a collective, with the seconds that it took; raised when the other ranks have theirs, since the
    first rank's end ends all."""
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
@pytest.mark.parametrize("part", ["trained", pytest.param("of all types", marks=pytest.mark.repeats)])
def test_mapped_axes(part):
    ran = run_ranks("jax", 1, f"{__file__}:within_programs", {"part": part}, environment=DEVICES, deadline=300)
    assert ran.values == [(0, 1)]


def within_programs(group, part):
    if part == "of all types":
        under_shard_map()
        under_other_maps()
    else:
        derivatives()
        refused()
        train()
    return group.rank, group.size


def mapped(fn, **specs):
    """fn over an axis of four devices, compiled."""
    from jax.sharding import PartitionSpec as P

    specs = {"in_specs": P(AXIS), "out_specs": P(), **specs}
    return jax.jit(jax.shard_map(fn, mesh=axis_mesh(), **specs))


def axis_mesh():
    return jax.sharding.Mesh(np.array(jax.devices()), (AXIS,))


def stacked(counts, dtype, index):
    """The ranks' slices at one length, filled up with the sentinel: (values, indices), (4, n, ...)."""
    n = max(counts)
    values, indices = np.zeros((4, n, WIDTH), dtype_of(dtype)), np.full((4, n), ROWS, index)
    for rank, count in enumerate(counts):
        values[rank, :count], indices[rank, :count] = slices_of(rank, count, dtype, index)
    return values, indices


def reduced(values, indices, strategy="auto", axis=AXIS):
    from islices import IndexedSlices
    from islices.distributed import all_reduce

    s = all_reduce(IndexedSlices(values, indices, (ROWS, WIDTH), padded=True), group=axis, strategy=strategy)
    return s.values, s.indices


def check_padded(got, expected, slots, case):
    """got is expected, and then slots that hold nothing."""
    values, indices = map(np.asarray, got)
    n = len(expected[1])
    assert len(indices) == slots, (case, indices)
    assert (indices[n:] == ROWS).all(), (case, indices)
    assert not values[n:].any(), (case, values)
    same(values[:n], expected[0], case)
    same(indices[:n], expected[1].astype(indices.dtype), case)


def under_shard_map():
    from islices.distributed import all_reduce

    for x64 in (False, True):
        jax.config.update("jax_enable_x64", x64)
        for dtype in ("float64", "int64") if x64 else ("float32", "float16", "bfloat16", "int32"):
            index = "int64" if x64 else "int32"
            given = {case: stacked(counts, dtype, index) for case, counts in COUNTS.items()}
            dense = [dense_of(rank, dtype) for rank in range(4)]

            def program(given, dense, strategy):
                sums = {case: reduced(v[0], i[0], strategy) for case, (v, i) in given.items()}
                return sums, all_reduce(dense[0], group=AXIS, strategy=strategy)

            for strategy in ("gather", "dense"):
                sums, total = mapped(partial(program, strategy=strategy))(given, np.stack(dense))
                same(total, dense_over_ranks(dense), (dtype, strategy))
                for case, counts in COUNTS.items():
                    parts = [slices_of(rank, count, dtype, index) for rank, count in enumerate(counts)]
                    slots = 4 * max(counts)
                    slots = min(slots, ROWS) if strategy == "dense" else slots
                    check_padded(sums[case], over_ranks(parts), slots, (dtype, case, strategy))
    jax.config.update("jax_enable_x64", False)


def under_other_maps():
    """vmap, pmap, two axes as one, and one of two; nested trees and native gradients."""
    from jax.experimental import sparse
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    from islices.distributed import all_reduce

    counts = COUNTS["even"]
    values, indices = stacked(counts, "float32", "int32")
    parts = list(zip(values, indices, strict=True))
    expected = over_ranks(parts)
    for strategy, slots in (("gather", 20), ("dense", 20)):
        one = partial(reduced, strategy=strategy)
        two = partial(reduced, strategy=strategy, axis=("a", "b"))
        square = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
        over_both = jax.shard_map(
            lambda v, i, two=two: two(v[0], i[0]), mesh=square, in_specs=P(("a", "b")), out_specs=P()
        )
        check_padded(over_both(values, indices), expected, slots, "two axes")
        nested = jax.jit(jax.vmap(jax.vmap(two, axis_name="b"), axis_name="a"))(
            *(x.reshape(2, 2, *x.shape[1:]) for x in (values, indices))
        )
        check_padded([x[1, 0] for x in nested], expected, slots, "two axes of vmap")
        over_b = jax.shard_map(
            lambda v, i, s=strategy: reduced(v[0], i[0], s, "b"), mesh=square, in_specs=P(("a", "b")), out_specs=P("a")
        )
        got = [np.asarray(x).reshape(2, 10, *x.shape[1:]) for x in over_b(values, indices)]
        for a in range(2):
            check_padded([x[a] for x in got], over_ranks(parts[2 * a : 2 * a + 2]), 10, "one axis of two")
        for name, got in (("vmap", jax.jit(jax.vmap(one, axis_name=AXIS))), ("pmap", jax.pmap(one, axis_name=AXIS))):
            for rank in range(4):
                check_padded([x[rank] for x in got(values, indices)], expected, slots, name)

    def tree(v, i):
        out = all_reduce({"w": [sparse.BCOO((v[0], i[0][:, None]), shape=(ROWS, WIDTH)), None]}, "mean", group=AXIS)
        assert isinstance(out["w"][0], sparse.BCOO)
        assert out["w"][1] is None
        return out["w"][0].data, out["w"][0].indices[:, 0]

    check_padded(mapped(tree)(values, indices), (mean(expected[0], 4), expected[1]), 20, "mean of a BCOO")


def derivatives():
    """A gradient passes through as it does through JAX's own all_gather."""
    import islices

    values, indices = stacked(COUNTS["even"], "float32", "int32")
    weights = np.random.default_rng(8).standard_normal((ROWS, WIDTH)).astype(np.float32)

    for strategy in ("gather", "dense"):

        def loss(v, i, strategy=strategy):
            s = islices.IndexedSlices(*reduced(v[0], i[0], strategy), (ROWS, WIDTH), padded=True)
            return (islices.to_dense(s) * weights).sum()

        same(jax.grad(mapped(loss))(values, indices), weights[indices], strategy)


def refused():
    from islices import IndexedSlices
    from islices.distributed import all_reduce, get_group

    x = np.ones((4, 2), np.float32)
    for group, kind, words in (
        (None, ValueError, "group: got None for traced arrays"),
        ("dta", NameError, "group: got 'dta'"),
        ("jax", NameError, "group: got 'jax'"),
        (3, TypeError, "group: got int 3"),
    ):
        with pytest.raises(kind, match=words):
            mapped(lambda x, group=group: all_reduce(x, group=group))(x)
    with pytest.raises(ValueError, match="strategy: got 'ranges' for JAX axis 'data'"):
        mapped(lambda x: all_reduce(x, group=AXIS, strategy="ranges"))(x)
    with pytest.raises(ValueError, match="op: "):
        mapped(lambda x: all_reduce(x, op="max", group=AXIS))(x)
    with pytest.raises(ValueError, match="unknown"):
        mapped(lambda x: all_reduce(IndexedSlices(x, x[:, 0].astype(int), (None, 2)), group=AXIS).values)(x)
    assert repr(get_group("jax")) == "<jax.distributed (cpu): rank 0 of 1>"
    assert get_group("jax").all_gather(np.arange(3, dtype=np.uint8))[0].tolist() == [0, 1, 2]


def train():
    """20 data-parallel steps of a table and a dense layer, against one device that reduces the ranks' gradients."""
    from jax.sharding import PartitionSpec as P

    import islices
    from islices import Table, optim
    from islices.distributed import all_reduce

    r = np.random.default_rng(11)
    batches = r.integers(0, ROWS, (20, 4, 6)).astype(np.int32)
    targets = r.standard_normal((20, 4, 6)).astype(np.float32)
    start = {"table": r.standard_normal((ROWS, WIDTH)).astype(np.float32), "w": np.ones(WIDTH, np.float32)}
    adam = optim.adam(0.05)

    def loss(table, w, ids, wanted):
        return ((islices.lookup(table, ids) @ w - wanted) ** 2).mean()

    def gradients(p, ids, wanted):
        _, found = islices.value_and_grad(loss, argnums=(0, 1))(Table(p["table"]), p["w"], ids, wanted)
        return dict(zip(("table", "w"), found, strict=True))

    def step(p, state, ids, wanted):
        return adam.step(p, all_reduce(gradients(p, ids[0], wanted[0]), "mean", group=AXIS), state)

    # unchecked, each rank's gradients are its own: else JAX itself sums those of arrays that are the same on all ranks
    parallel = mapped(step, in_specs=(P(), P(), P(AXIS), P(AXIS)), out_specs=(P(), P()), check_vma=False)
    one = jax.jit(gradients)
    p = q = jax.tree.map(jax.numpy.asarray, start)
    p_state, q_state = adam.init(p), adam.init(q)
    for ids, wanted in zip(batches, targets, strict=True):
        p, p_state = parallel(p, p_state, ids, wanted)
        found = [one(q, ids[rank], wanted[rank]) for rank in range(4)]
        table = islices.scale(islices.coalesce(islices.concat([islices.coalesce(g["table"]) for g in found])), 0.25)
        w = dense_over_ranks([np.asarray(g["w"]) for g in found]) / np.float32(4)
        q, q_state = adam.step(q, {"table": table, "w": jax.numpy.asarray(w)}, q_state)
    for key in start:
        assert not np.array_equal(np.asarray(p[key]), start[key]), key
        same(p[key], np.asarray(q[key]), f"after 20 steps: {key}")


# ---------------------------------------------------------------------- without ranks
def test_jax_that_has_not_been_started():
    from islices.distributed import all_reduce

    with pytest.raises(RuntimeError, match=r"jax\.distributed\.initialize"):
        all_reduce(jax.numpy.ones(3))
    with pytest.raises(ValueError, match="group: got 'data'"):
        all_reduce(jax.numpy.ones(3), group="data")
