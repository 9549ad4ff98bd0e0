"""TensorFlow's workers and replicas as ranks: real processes, and replicas on two logical CPUs.

What runs on a rank is a function of this file. Every rank compares what it got, to the bit, with left folds that NumPy
takes of what all ranks had, and the launch fails with the traceback of the first that finds a difference.
"""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from rank_checks import dense_over_ranks, exchanges, gathers, mean, meet, over_ranks, same

from islices.conformance.ranks import run_ranks

pytestmark = pytest.mark.outside

pytest.importorskip("tensorflow")

ROWS, WIDTH = 23, 3
#: how many slices each rank has; ranks beyond the last start over
COUNTS = {"uneven": (7, 0), "none": (0,)}


# ---------------------------------------------------------------------- what the ranks have, and what they should get
def slices_of(rank, counts, dtype, index_dtype):
    """(values, indices) of a rank: many duplicates, within a rank and between ranks."""
    n = counts[rank % len(counts)]
    r = np.random.default_rng([rank, n])
    values = r.standard_normal((n, WIDTH)) * 10.0 ** r.integers(-3, 3, (n, 1))
    return values.astype(numpy_type(dtype)), r.integers(0, ROWS, n).astype(index_dtype)


def dense_of(rank, dtype, shape=(4, 2)):
    return np.random.default_rng([rank, 99]).uniform(-9, 9, shape).astype(numpy_type(dtype))


def numpy_type(dtype):
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def native(values, indices):
    import tensorflow as tf

    return tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([ROWS, WIDTH]))


def check_slices(got, parts, op, case):
    """Compare a tf.IndexedSlices with the ranks' parts."""
    import tensorflow as tf

    assert isinstance(got, tf.IndexedSlices), (case, got)
    values, indices = over_ranks(parts)
    same(got.values.numpy(), mean(values, len(parts)) if op == "mean" else values, case)
    same(got.indices.numpy(), indices, case)


# ---------------------------------------------------------------------- on every worker process
def workers(group, ending, folder):
    """What is checked on workers in one launch, and then how it ends for them."""
    import tensorflow as tf

    strategy = group.strategy
    assert repr(group) == f"<tf.distribute (MultiWorkerMirroredStrategy): rank {group.rank} of {group.size}>"
    gathers(group, [5 * k for k in range(group.size)])
    exchanges(group, [[a + 3 * b for b in range(group.size)] for a in range(group.size)])
    if ending == "slow":
        within_run(strategy, group.rank, group.size)
    trees(group)
    errors_on_every_rank(group)
    assert tf.distribute.get_replica_context().num_replicas_in_sync == 1, "no scope is left entered"
    meet(folder, group)
    return {"slow": slow, "killed": killed}[ending](group)


def trees(group):
    """Nested leaves, islices' own slices, a leaf that is None on all ranks or on one; the strategy that is in scope."""
    import tensorflow as tf

    import islices
    from islices.distributed import all_reduce

    size = group.size
    parts = [slices_of(k, COUNTS["uneven"], "float32", "int64") for k in range(size)]
    dense = [dense_of(k, "bfloat16") for k in range(size)]
    own = parts[group.rank]
    tree = {
        "table": native(*own) if group.rank else None,
        "own": [islices.IndexedSlices(tf.constant(own[0]), tf.constant(own[1]), (ROWS, WIDTH)), None],
        "dense": tf.constant(dense[group.rank]),
    }
    with group.strategy.scope():
        got = all_reduce(tree, op="mean")
    check_slices(got["table"], [slices_of(0, (0,), "float32", "int64"), *parts[1:]], "mean", "None on rank 0")
    assert type(got["own"][0]) is islices.IndexedSlices
    assert got["own"][1] is None
    check_slices(islices.to_native(got["own"][0]), parts, "mean", "islices' own")
    same(got["dense"].numpy(), mean(dense_over_ranks(dense), size), "dense")


def errors_on_every_rank(group):
    import tensorflow as tf

    from islices.distributed import RankError, all_reduce

    last = group.size - 1
    bad = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([9]), tf.constant([4, 2]))
    good = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([3]), tf.constant([4, 2]))
    expected, text = (IndexError, "9") if group.rank == last else (RankError, f"rank {last} raised IndexError")
    with pytest.raises(expected, match=text):
        all_reduce(bad if group.rank == last else good, group=group)
    with pytest.raises(RuntimeError, match=r"symbolic tensors outside of strategy\.run"):
        tf.function(lambda x: all_reduce(x, group=group.strategy), autograph=False)(tf.zeros(2))
    # nothing of it has broken the group
    same(all_reduce(tf.ones(2), group=group).numpy(), np.full(2, group.size, np.float32), "after errors")


def within_run(strategy, rank, size):
    """The strategy's replicas as ranks: eager and in tf.function."""
    import tensorflow as tf

    from islices.distributed import all_reduce

    replicas_reduce(strategy, size, [rank], [("uneven", "float32")], ("float16",), "mean", traced=False)
    leaves = [("uneven", "bfloat16"), ("none", "float32")]
    replicas_reduce(strategy, size, [rank], leaves, ("bfloat16",), "mean", traced=True)
    elsewhere = strategy.run(tf.distribute.get_replica_context)
    with pytest.raises(ValueError, match="a replica context that this code is not in"):
        all_reduce(tf.ones(2), group=elsewhere)


def replicas_reduce(strategy, size, here, leaves, dense_types, op, *, traced):
    """Compare all_reduce within strategy.run, of replicas of which those numbered in ``here`` are in this process."""
    import tensorflow as tf

    from islices.distributed import all_reduce

    parts = [[slices_of(k, COUNTS[counts], dtype, "int64") for k in range(size)] for counts, dtype in leaves]
    dense = [[dense_of(k, dtype) for k in range(size)] for dtype in dense_types]

    def reduce(pairs, dense):
        sparse = [tf.IndexedSlices(values, indices, tf.constant([ROWS, WIDTH])) for values, indices in pairs]
        got = all_reduce({"sparse": sparse, "none": None, "dense": dense}, op)
        assert got["none"] is None
        return got["sparse"], got["dense"]

    def run(*arguments):
        return strategy.run(reduce, args=arguments)

    pairs = [[per_replica(strategy, [part[i] for part in each]) for i in (0, 1)] for each in parts]
    run = tf.function(run, autograph=False) if traced else run
    found = run(pairs, [per_replica(strategy, each) for each in dense])
    for got, expected, leaf in zip(found[0], parts, leaves, strict=True):
        local = strategy.experimental_local_results(got)
        assert len(local) == len(here)
        for replica in local:
            check_slices(replica, expected, op, (*leaf, traced))
    for got, each in zip(found[1], dense, strict=True):
        expected = dense_over_ranks(each)
        for replica in strategy.experimental_local_results(got):
            same(replica.numpy(), mean(expected, size) if op == "mean" else expected, ("dense", each[0].dtype, traced))


def per_replica(strategy, arrays):
    """Each replica's own array as a value that strategy.run takes apart."""
    import tensorflow as tf

    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(arrays[context.replica_id_in_sync_group])
    )


# ---------------------------------------------------------------------- how it ends
def slow(group):
    """The last rank comes late: the seconds after which the others know."""
    from islices.distributed import RankError, RankTimeout, get_group

    group.all_gather(np.zeros(8, np.uint8))  # compiled, with the strategy's timeout
    impatient = get_group(group.strategy, timeout=1.5)
    assert impatient is group  # which is broken for all, or for none
    if group.rank == group.size - 1:
        time.sleep(4.0)
        with pytest.raises(RankError):  # the others have given up
            impatient.all_gather(np.zeros(8, np.uint8))
        return None
    started = time.monotonic()
    with pytest.raises(RankTimeout, match=r"another rank did not come within 1\.5 s"):
        impatient.all_gather(np.zeros(8, np.uint8))
    seconds = time.monotonic() - started
    with pytest.raises(RankError, match="this group takes no more calls since"):
        impatient.all_gather(np.zeros(8, np.uint8))
    return seconds


def killed(group):
    """The last rank dies: the seconds after which the others know."""
    import tensorflow as tf

    from islices.distributed import RankError, all_reduce

    if group.rank == group.size - 1:
        os._exit(9)
    started = time.monotonic()
    with pytest.raises(RankError, match="another rank is gone"):
        all_reduce(tf.ones(2), group=group)
    return time.monotonic() - started


@pytest.mark.soak
def test_two_workers_and_a_slow_one(tmp_path):
    keywords = {"ending": "slow", "folder": str(tmp_path)}
    found = run_ranks("tensorflow", 2, f"{__file__}:workers", keywords, timeout=60)
    seconds, _ = found.values
    assert 1.0 < seconds < 3.5, seconds


def test_workers_and_a_killed_one(tmp_path):
    keywords = {"ending": "killed", "folder": str(tmp_path)}
    found = run_ranks("tensorflow", 2, f"{__file__}:workers", keywords, timeout=60)
    first, dead = found.ranks
    assert (dead.said, dead.returncode) == (False, 9), (dead, found.output[-1][-3000:])
    assert first.error is None, first.error[2]
    assert first.value < 20, first.value


# ---------------------------------------------------------------------- replicas on two logical CPUs of one process
def test_mirrored():
    """In a process of its own, since logical devices are made before TensorFlow starts."""
    run = subprocess.run(
        [sys.executable, __file__],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr[-4000:]


def mirrored():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    replicas_reduce(strategy, 2, [0, 1], [("uneven", "float16")], ("bfloat16",), "mean", traced=False)
    replicas_reduce(strategy, 2, [0, 1], [("uneven", "float32"), ("none", "float32")], (), "sum", traced=True)
    places_that_refuse(strategy)
    places_in_a_cluster()


def places_that_refuse(strategy):
    import tensorflow as tf

    from islices.distributed import ShardedTable, all_reduce

    x = tf.ones(2)
    with pytest.raises(RuntimeError, match=r"within strategy.run, where the 2 replicas .*; accepted is .* outside"):
        strategy.run(lambda: ShardedTable(tf.ones((4, 2)), 4))
    with pytest.raises(RuntimeError, match=r"no tf\.distribute strategy is in scope: call all_reduce within"):
        all_reduce(x)
    with pytest.raises(RuntimeError, match="the 2 replicas of a MirroredStrategy meet only within a program"):
        all_reduce(x, group=strategy)

    with pytest.raises(ValueError, match=r"strategy: got 'ranges' .* accepted within a program are 'auto', 'gather'"):
        strategy.run(lambda: all_reduce(x, strategy="ranges"))


def places_in_a_cluster():
    import tensorflow as tf

    from islices.backends.tensorflow.collectives import _place

    cluster = tf.train.ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"], "evaluator": ["d:1"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver
    for task, place in {("chief", 0): (0, 3), ("worker", 0): (1, 3), ("worker", 1): (2, 3)}.items():
        assert _place(resolver(cluster, task_type=task[0], task_id=task[1])) == place
    assert _place(resolver(tf.train.ClusterSpec({}))) == (0, 1)


if __name__ == "__main__":
    mirrored()
