"""Test TensorFlow's workers and replicas as ranks. Workers are real processes, and replicas run on two logical CPUs.

The functions of this file compare sums over ranks exactly with sums that NumPy computes in the order of ranks. If a
rank raises an error that the test does not expect, the test fails with the traceback of that rank.
"""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from comparing import assert_same
from rank_checks import dense_over_ranks, exchanges, gathers, mean, meet, over_ranks

from islices.conformance.ranks import run_ranks

pytestmark = pytest.mark.outside

pytest.importorskip("tensorflow")

ROWS, WIDTH = 23, 3


# ---------------------------------------------------------------------- the ranks' data, and the expected results
def slices_of(rank, dtype="float32"):
    """Return (values, indices) of a rank. Rank 0 has many duplicates, and other ranks have no slices."""
    n = 0 if rank else 40
    r = np.random.default_rng(n)
    values = r.standard_normal((n, WIDTH)) * 10.0 ** r.integers(-3, 3, (n, 1))
    return values.astype(dtype), r.integers(0, ROWS, n)


def dense_of(rank):
    import ml_dtypes

    return np.random.default_rng([rank, 99]).uniform(-9, 9, (4, 2)).astype(ml_dtypes.bfloat16)


def native(values, indices):
    import tensorflow as tf

    return tf.IndexedSlices(*map(tf.convert_to_tensor, (values, indices)), tf.constant([ROWS, WIDTH]))


def check_slices(got, parts, op, case):
    """Check that `got` is a tf.IndexedSlices with the sum or the mean of the ranks' parts."""
    import tensorflow as tf

    assert isinstance(got, tf.IndexedSlices), (case, got)
    values, indices = over_ranks(parts)
    assert_same(got.values.numpy(), mean(values, len(parts)) if op == "mean" else values, case)
    assert_same(got.indices.numpy(), indices, case)


# ---------------------------------------------------------------------- on every worker process
def workers(group, ending, folder):
    """Run all checks in this worker process, and then the function `slow` or `killed`. The argument `ending` is the
    name of the function."""
    import tensorflow as tf

    assert repr(group) == f"<tf.distribute (MultiWorkerMirroredStrategy): rank {group.rank} of {group.size}>"
    gathers(group, [5 * k for k in range(group.size)])
    exchanges(group, [[a + 3 * b for b in range(group.size)] for a in range(group.size)])
    trees(group)
    errors_on_every_rank(group)
    assert tf.distribute.get_replica_context().num_replicas_in_sync == 1, "no scope is left entered"
    meet(folder, group)
    return {"slow": slow, "killed": killed}[ending](group)


def trees(group):
    """Compare `all_reduce` with NumPy for nested leaves, slices of islices, and leaves that are None on one rank or on
    all ranks. The call runs in the scope of the strategy."""
    import tensorflow as tf

    import islices
    from islices.distributed import all_reduce

    size = group.size
    parts, dense = [slices_of(k) for k in range(size)], [dense_of(k) for k in range(size)]
    own = parts[group.rank]
    tree = {
        "table": None if group.rank else native(*own),
        "own": [islices.IndexedSlices(tf.constant(own[0]), tf.constant(own[1]), (ROWS, WIDTH)), None],
        "dense": tf.constant(dense[group.rank]),
    }
    with group.strategy.scope():
        got = all_reduce(tree, op="mean")
    check_slices(got["table"], parts, "mean", "None on rank 1")
    assert type(got["own"][0]) is islices.IndexedSlices
    assert got["own"][1] is None
    check_slices(islices.to_native(got["own"][0]), parts, "mean", "islices' own")
    assert_same(got["dense"].numpy(), mean(dense_over_ranks(dense), size), "dense")


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
    # the group can be used after all of these errors
    assert_same(all_reduce(tf.ones(2), group=group).numpy(), np.full(2, group.size, np.float32), "after errors")


def replicas_reduce(strategy, dtype, op, *, traced):
    """Compare `all_reduce` by two replicas in strategy.run with sums that NumPy computes. The second replica has no
    slices."""
    import tensorflow as tf

    from islices.distributed import all_reduce

    parts, dense = [slices_of(k, dtype) for k in range(2)], [dense_of(k) for k in range(2)]

    def reduce(values, indices, dense):
        got = all_reduce({"sparse": native(values, indices), "none": None, "dense": dense}, op)
        assert got["none"] is None
        return got["sparse"], got["dense"]

    def run(*arguments):
        return strategy.run(reduce, args=arguments)

    run = tf.function(run, autograph=False) if traced else run
    found = run(*(per_replica(strategy, arrays) for arrays in (*zip(*parts, strict=True), dense)))
    sparse, summed = map(strategy.experimental_local_results, found)
    expected = dense_over_ranks(dense)
    for got, other in zip(sparse, summed, strict=True):
        check_slices(got, parts, op, (dtype, traced))
        assert_same(other.numpy(), mean(expected, 2) if op == "mean" else expected, ("dense", traced))


def per_replica(strategy, arrays):
    """Return one distributed value that gives each replica its array in strategy.run."""
    import tensorflow as tf

    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(arrays[context.replica_id_in_sync_group])
    )


# ---------------------------------------------------------------------- how the launch ends
def slow(group):
    """Make the last rank late. Return the seconds until RankTimeout, or None on the last rank."""
    from islices.distributed import RankError, RankTimeout, get_group

    group.all_gather(np.zeros(8, np.uint8))  # compiled with the strategy's timeout
    impatient = get_group(group.strategy, timeout=1.5)
    assert impatient is group  # one group for all callers, so that a timeout breaks the group for all of them
    if group.rank == group.size - 1:
        time.sleep(4.0)
        with pytest.raises(RankError):  # the other ranks have given up
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
    """End the process of the last rank. On the other ranks, return the seconds until a RankError."""
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
    assert (dead.statement, dead.returncode) == (False, 9), (dead, found.output[-1][-3000:])
    assert first.error is None, first.error[2]
    assert first.value < 20, first.value


# ---------------------------------------------------------------------- replicas on two logical CPUs of one process
def test_mirrored():
    """Run this file in a new process, because logical devices must be configured before TensorFlow starts."""
    run = subprocess.run(
        [sys.executable, __file__],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr[-4000:]


def mirrored():
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    replicas_reduce(strategy, "float16", "mean", traced=False)
    replicas_reduce(strategy, "float32", "sum", traced=True)
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

    with pytest.raises(ValueError, match=r"strategy: got 'ranges' .* accepted within a program are 'auto'"):
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
