"""Test global_norm and clip_by_global_norm over ranks. Results have the bits of exact arithmetic, and of one process
that has all leaves (SPEC clause 25).

Ranks are threads. Leaf k of a gradient is on rank k % size, and a replicated leaf is on each rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from suite_runs import SHARED, run_code

import islices
from islices import IndexedSlices
from islices.conformance import oracle
from islices.conformance.data import Array, Slices
from islices.conformance.ranks.threads import run_threads, thread_results
from islices.distributed import Alone, Group

SIZE = 4
REPLICATED = "tables and a replicated layer"


# ---------------------------------------------------------------------- gradients
def slices(values: Any, indices: list[int], dtype: str = "float32") -> IndexedSlices:
    rows = np.asarray(values, dtype)
    return IndexedSlices(rows, np.array(indices, np.int64), (8, *rows.shape[1:]))


def normal(seed: int, shape: tuple[int, ...], dtype: str = "float32", spread: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.uniform(-spread, spread, shape)
    return x.astype(dtype)


def gradients() -> dict[str, list[Any]]:
    table = [slices(normal(k, (6, 3)), np.random.default_rng(k).integers(0, 8, 6).tolist()) for k in range(5)]
    return {
        "tables": list(table),
        REPLICATED: [*table, normal(7, (5, 2))],
        "1e200 in float64": [slices([[1e200], [1e200]], [1, 1], "float64"), np.array([3e200]), np.array([1.0])],
        "float64 on one rank": [normal(2, (9,)), normal(3, (9,), "float64", 100), normal(4, (9,), "float16")],
        "duplicates that cancel": [slices([[1e10], [1.0], [-1e10]], [4, 4, 4]), slices([[-3.0], [3.0]], [2, 2])],
        # the squares of the first two leaves add up to 2^53 + 3, a midpoint: the far smaller last leaf decides the
        # rounding
        "a tie, decided by another rank": [np.array([2.0**26 + 1]), np.array([2.0**26 - 1, 1.0]), np.array([2.0**-40])],
        "NaN on one rank": [normal(1, (3,)), np.array([1.0, math.nan], "float32"), np.array([math.inf], "float32")],
        "inf on one rank": [normal(1, (3,)), slices([[-math.inf, 1.0]], [0])],
        "no rows": [slices(np.zeros((0, 2)), []), np.zeros((0,), "float32"), np.zeros((3,), "float32")],
    }  # fmt: skip


def on_rank(name: str, rank: int, size: int) -> tuple[dict[str, Any], Any]:
    """Return the arguments `tree` and `replicated` of one rank. The tree has two dicts from numbers to leaves; only the
    second is replicated."""
    tree: dict[str, Any] = {"own": {}, "every": {}}
    for k, leaf in enumerate(gradients()[name]):
        if name == REPLICATED and k == 5:
            tree["every"][k] = leaf
        elif k % size == rank:
            tree["own"][k] = leaf
    return tree, {"own": False, "every": True}


# ---------------------------------------------------------------------- norms and clips
def exact(leaf: Any) -> Any:
    if isinstance(leaf, IndexedSlices):
        return Slices(exact(leaf.values), exact(leaf.indices), leaf.dense_shape)
    return Array(leaf.dtype.name, leaf.shape, leaf.ravel().tolist())


def values(x: Any) -> Any:
    return x.values if isinstance(x, IndexedSlices) else x


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", gradients())
def test_the_norm_and_the_clip_are_exact(name: str, size: int) -> None:
    """Compare norms and clips over ranks with exact arithmetic. Clips in semantics "keras" are compared with a clip in
    one process instead."""
    whole_tree = gradients()[name]
    exactly = list(map(exact, whole_tree))
    norms = {order: oracle.global_norm(exactly, "inf" if order == math.inf else order) for order in (2, 1, math.inf)}
    norm = float(islices.global_norm(whole_tree))
    limit = 0.25 * norm if math.isfinite(norm) and norm else 1.0
    clipped, _ = oracle.clip_by_global_norm(exactly, limit)
    keras, _ = islices.clip_by_global_norm(whole_tree, limit, semantics="keras")

    def run(group: Group) -> None:
        tree, replicated = on_rank(name, group.rank, size)
        given: dict[str, Any] = {"group": group, "replicated": replicated}
        for order, answer in norms.items():
            expected = np.dtype(answer.dtype).type(answer.data[0])
            assert_same(islices.global_norm(tree, order, **given), expected, f"order {order}")
        with islices.config.use_kernels(group.rank > 1):
            found, got = islices.clip_by_global_norm(tree, limit, **given)
        assert_same(got, islices.global_norm(whole_tree), "norm")
        by_keras, _ = islices.clip_by_global_norm(tree, limit, semantics="keras", **given)
        for k in (*tree["own"], *tree["every"]):
            side = "own" if k in tree["own"] else "every"
            data = (clipped[k].values if isinstance(clipped[k], Slices) else clipped[k]).data
            x = values(found[side][k])
            assert_same(x, np.array(data, x.dtype).reshape(values(whole_tree[k]).shape), f"leaf {k}")
            assert_same(values(by_keras[side][k]), values(keras[k]), f"leaf {k} by keras")
        if math.isfinite(norm):
            return
        with pytest.raises(FloatingPointError, match=f"the norm of the gradient is {norm}"):
            islices.clip_by_global_norm(tree, limit, nonfinite="raise", **given)
        zeroed, _ = islices.clip_by_global_norm(tree, limit, nonfinite="zero", **given)
        assert all((values(x) == 0).all() for side in zeroed.values() for x in side.values())

    thread_results(size, run)


def of(*values: float, dtype: str = "float32") -> Any:
    return np.array(values, dtype)


#: name -> (call on each rank, error and text on most ranks, a dict from the other ranks to their errors and texts)
REFUSED: dict[str, tuple[Callable[[Group], Any], str, str, dict[int, tuple[str, str]]]] = {
    "integers": (
        lambda g: islices.global_norm([of(1, dtype="int64" if g.rank == 2 else "float32")], group=g),
        "RankError", "rank 2 raised TypeError: x: got", {2: ("TypeError", "accepted is a floating dtype")},
    ),
    "structure": (
        lambda g: islices.global_norm([of(1.0)] * (1 + (g.rank == 2)), group=g, replicated=[True]),
        "RankError", "replicated: got another sequence", {2: ("ValueError", "replicated: got another sequence")},
    ),
    "order": (
        lambda g: islices.global_norm([of(1.0)], 1.0 + g.rank // 3, group=g),
        "ValueError", "ord: 1.0 on ranks 0 to 2, 2.0 on rank 3", {},
    ),
    "max_norm": (
        lambda g: islices.clip_by_global_norm([of(1.0)], 1.0 + g.rank // 3, group=g),
        "ValueError", "max_norm: 1.0 on ranks 0 to 2, 2.0 on rank 3", {},
    ),
    "values": (
        lambda g: islices.global_norm(of(3.0 + (g.rank == 3) * 2**-22), group=g, replicated=True),
        "ValueError", "replicated: got leaves that are not the same on rank 3", {},
    ),
    "shapes": (
        lambda g: islices.global_norm(of(*[1.0] * (1 + g.rank)), group=g, replicated=True),
        "ValueError", "replicated: (dense, float32, [1]) on rank 0", {},
    ),
    "call": (
        lambda g: islices.global_norm([of(1.0)], group=g) if g.rank else
        islices.clip_by_global_norm([of(1.0)], 1.0, group=g),
        "ValueError", "clip_by_global_norm on rank 0, global_norm on ranks 1 to 3", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_rank_cannot_do_all_learn(name: str) -> None:
    call, kind, words, others = REFUSED[name]
    for rank, error in enumerate(run_threads(SIZE, call)):
        expected, text = others.get(rank, (kind, words))
        assert type(error).__name__ == expected, (rank, error)
        assert text in str(error), (rank, error)


def test_two_small_collectives() -> None:
    def run(group: Group) -> tuple[int, int]:
        islices.global_norm([np.ones(100_000)], group=group)
        return group.traffic.collectives, group.traffic.received

    for collectives, received in thread_results(SIZE, run):
        assert collectives == 2
        assert received <= (256 + 4096) * (SIZE - 1)


# ---------------------------------------------------------------------- without processes
def test_one_rank_needs_no_engine() -> None:
    leaves = {"a": slices([[3.0], [3.0]], [1, 1]), "b": [np.array([8.0], "float32"), None]}
    for given in (
        {"group": Alone()},
        {"group": Alone(), "replicated": {"a": False, "b": [True, False]}},
        {"replicated": True},
    ):
        assert islices.global_norm(leaves, **given) == 10.0
        clipped, norm = islices.clip_by_global_norm(leaves, 5.0, **given)
        assert norm == 10.0
        assert clipped["a"].values.ravel().tolist() == [1.5, 1.5]
        assert clipped["b"][0].tolist() == [4.0]
        assert clipped["b"][1] is None
        kept, _ = islices.clip_by_global_norm(leaves, 10.0, **given)
        assert kept["a"] is leaves["a"], "the caller's own, where nothing changes"


@pytest.mark.parametrize(
    ("replicated", "error", "words"),
    [
        (2, TypeError, "got .*accepted is a bool"),
        (None, TypeError, "got .*accepted is a bool"),
        ({"a": True}, ValueError, "got another dict"),
        ([{"a": True}, False], ValueError, "got another dict"),
    ],
    ids=repr,
)
def test_replicated_has_a_bool_for_each_leaf(replicated: Any, error: type[Exception], words: str) -> None:
    tree = [{"b": np.ones(2)}, np.ones(2)]
    with pytest.raises(error, match=f"replicated: {words}"):
        islices.clip_by_global_norm(tree, 1.0, group=Alone(), replicated=replicated)


# ---------------------------------------------------------------------- within a program
def stacked(ranks: int, size: float, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (values, indices, array). The first axis of values and indices has one set of slices per rank. All ranks
    have the array."""
    rng = np.random.default_rng(ranks)
    values = (rng.standard_normal((ranks, 6, 3)) * size).astype(dtype)
    return values, rng.integers(0, 4, (ranks, 6)), (rng.standard_normal(5) * size).astype(dtype)


def one_process(values: np.ndarray, indices: np.ndarray, dense: np.ndarray, how: str) -> tuple[list[Any], Any, Any]:
    """Clip all ranks' gradients in one process. Return the values of each rank, the replicated array, and the norm."""
    parts = [IndexedSlices(v, i, (4, 3)) for v, i in zip(values, indices, strict=True)]
    (*clipped, layer), norm = islices.clip_by_global_norm([*parts, dense], 0.7, semantics=how)
    return [s.values for s in clipped], layer, norm


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1.0), ("float64", 1e200)])
def test_within_a_mapped_axis_of_jax(dtype: str, size: float) -> None:
    jax = pytest.importorskip("jax")

    def clip(values: Any, indices: Any, dense: Any, how: str) -> Any:
        tree = [IndexedSlices(values, indices, (4, 3)), dense]
        (s, layer), norm = islices.clip_by_global_norm(
            tree, 0.7, semantics=how, group="ranks", replicated=[False, True]
        )
        return s.values, layer, norm

    ranks, how = 4, "tensorflow" if size == 1.0 else "islices"
    values, indices, dense = stacked(ranks, size, dtype)
    with jax.enable_x64(dtype == "float64"):
        with pytest.raises(ValueError, match=r"group: got <one process.* for traced arrays"):
            jax.jit(lambda x: islices.global_norm([x], group=Alone()))(dense)
        mapped = jax.jit(jax.vmap(clip, (0, 0, None, None), axis_name="ranks"), static_argnums=3)
        got = list(map(np.asarray, mapped(values, indices.astype("int32"), dense, how)))
    expected, *shared = one_process(values, indices, dense, how)
    for rank in range(ranks):
        assert_same([x[rank] for x in got], [expected[rank], *shared], f"rank {rank}")


def replicas() -> None:
    """Compare a clip by two replicas of TensorFlow on one CPU with a clip in one process. The replicas' devices must be
    configured before TensorFlow starts."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def clip(values: Any, indices: Any, dense: Any) -> Any:
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        s = tf.IndexedSlices(values[rank], indices[rank], tf.constant([4, 3], tf.int64))
        (clipped, layer), norm = islices.clip_by_global_norm(
            [s, dense], 0.7, group="tensorflow", replicated=[False, True]
        )
        return clipped.values, layer, norm

    arrays = stacked(2, 1e20, "float32")
    got = tf.function(lambda *x: strategy.run(clip, x))(*map(tf.constant, arrays))
    expected, *shared = one_process(*arrays, "islices")
    got = list(map(strategy.experimental_local_results, got))
    for rank in range(2):
        assert_same([x[rank] for x in got], [expected[rank], *shared], f"replica {rank}")


@pytest.mark.outside
def test_within_replicas_of_tensorflow() -> None:
    pytest.importorskip("tensorflow")
    run_code("import test_norms; test_norms.replicas()", path=SHARED, cwd=Path(__file__).parent)
