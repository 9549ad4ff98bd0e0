"""global_norm and clip_by_global_norm over ranks: the bits of one process that has all leaves, and those of exact
arithmetic. SPEC clause 25.

Each engine's processes are started once, and make every check as 1, 2 and 4 ranks: leaf k of a gradient lies on rank k
modulo their number, a replicated one on each. What they should find is worked out here.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices
from islices.conformance import oracle
from islices.conformance.data import Array, Slices
from islices.conformance.ranks import Ranks, run_ranks
from islices.conformance.ranks.launch import absent
from islices.distributed import Alone, Group

SIZE = 4
SIZES = (1, 2, 4)
FRAMEWORK = {"torch": "torch", "mpi": "numpy"}
ENGINES = [
    pytest.param(name, marks=pytest.mark.skipif(bool(absent(name)), reason=absent(name) or "runs"))
    for name in FRAMEWORK
]
#: Made by all four ranks together; the library's own formula by 1 and 2 too.
#: Orders of norms over ranks: exact ones, and those formed from powers.
ORDERS = (2, 1, math.inf)
PRESETS = ("torch", "tensorflow", "keras", "mxnet", "optax")


# ---------------------------------------------------------------------- gradients
def slices(values: Any, indices: list[int], dtype: str = "float32") -> IndexedSlices:
    rows = np.asarray(values, dtype)
    return IndexedSlices(rows, np.array(indices, np.int64), (8, *rows.shape[1:]))


def normal(seed: int, shape: tuple[int, ...], dtype: str = "float32", spread: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.uniform(-spread, spread, shape)
    return x.astype(dtype)


class Replicated:
    """A leaf that lies on every rank."""

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf


def gradients() -> dict[str, list[Any]]:
    """name -> the leaves of a gradient, in the order in which they count."""
    table = [slices(normal(k, (6, 3)), np.random.default_rng(k).integers(0, 8, 6).tolist()) for k in range(5)]
    return {
        "tables": list(table),
        "tables and a replicated layer": [*table, Replicated(normal(7, (5, 2)))],
        "replicated alone": [Replicated(normal(8, (40,))), Replicated(table[0])],
        "1e20 in float32": [slices([[1e20], [3e20]], [1, 2]), np.array([2e20], "float32"), Replicated(normal(1, (3,)))],
        "1e200 in float64": [slices([[1e200], [1e200]], [1, 1], "float64"), np.array([3e200, 1e150]), np.array([1.0])],
        "1e-200 in float64": [np.array([1e-200, 3e-200]), np.array([2e-200]), Replicated(np.array([1e-201]))],
        "float64 on one rank": [normal(2, (9,)), normal(3, (9,), "float64", 100), normal(4, (9,), "float16")],
        "float16": [normal(5, (30,), "float16"), slices(normal(6, (4, 2)), [3, 3, 3, 1], "float16")],
        "a wide range": [normal(k, (50,), "float64", 300) for k in range(6)],
        "duplicates that cancel": [slices([[1e10], [1.0], [-1e10]], [4, 4, 4]), slices([[-3.0], [3.0]], [2, 2])],
        # (2^26 + 1)^2 + (2^26 - 1)^2 is even: what a last leaf far below adds decides how the sum is rounded
        "a tie, decided by another rank": [np.array([2.0**26 + 1]), np.array([2.0**26 - 1, 1.0]), np.array([2.0**-40])],
        "NaN on one rank": [normal(1, (3,)), np.array([1.0, math.nan], "float32"), np.array([math.inf], "float32")],
        "inf on one rank": [normal(1, (3,)), slices([[-math.inf, 1.0]], [0])],
        "no rows": [slices(np.zeros((0, 2)), []), np.zeros((0,), "float32"), np.zeros((3,), "float32")],
        "one leaf for all ranks": [np.array([3.0, 4.0], "float32")],
        "no leaves": [],
    }  # fmt: skip


NAMES = list(gradients())


def plain(leaf: Any) -> Any:
    return leaf.leaf if isinstance(leaf, Replicated) else leaf


def whole(name: str) -> list[Any]:
    """All leaves, as one process has them."""
    return [plain(leaf) for leaf in gradients()[name]]


def on_rank(leaves: list[Any], rank: int, size: int) -> tuple[dict[str, Any], Any]:
    """(tree, replicated) of one rank: numbered leaves, in dicts of which the second is replicated as a whole."""
    tree: dict[str, Any] = {"own": {}, "every": {}}
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, Replicated):
            tree["every"][k] = leaf.leaf
        elif k % size == rank:
            tree["own"][k] = leaf
    return tree, {"own": False, "every": True}


def limits(leaves: list[Any]) -> list[float]:
    """Some max_norm: one that is exceeded, and two that are not."""
    norm = float(islices.global_norm(leaves))
    return [0.25 * norm if math.isfinite(norm) and norm else 1.0, 4 * norm if math.isfinite(norm) else 2.0, math.inf]


# ---------------------------------------------------------------------- what the ranks do
def subgroups(group: Group) -> dict[int, tuple[Any, int]]:
    """size -> (an engine's own object for that many ranks, of which this is one, and its rank there)."""
    rank = group.rank
    if hasattr(group, "communicator"):
        split = {size: group.communicator.Split(rank // size, rank) for size in (1, 2)}
    else:
        import torch.distributed as dist

        ones, pairs = ([dist.new_group(list(range(k, k + n))) for k in range(0, SIZE, n)] for n in (1, 2))
        split = {1: ones[rank], 2: pairs[rank // 2]}
    return {1: (split[1], 0), 2: (split[2], rank % 2), 4: (group, rank)}


def seen(x: Any) -> Any:
    """A result as NumPy's: what can be sent home."""
    if isinstance(x, dict):
        return {key: seen(item) for key, item in x.items()}
    if isinstance(x, tuple):
        return tuple(map(seen, x))
    values = islices.convert(x, "numpy")
    return values.values if isinstance(values, IndexedSlices) else values


def outcome(fn: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    try:
        return seen(fn(*arguments, **keywords))
    except Exception as error:
        return type(error).__name__, str(error)


def measure(group: Group, framework: str) -> dict[Any, Any]:
    """All that a rank finds, by what it was asked."""
    found: dict[Any, Any] = {}
    for size, (ranks, rank) in subgroups(group).items():
        for name, leaves in gradients().items():
            tree, replicated = on_rank(leaves, rank, size)
            tree, max_norms = islices.convert(tree, framework), limits(whole(name))
            given = {"group": ranks, "replicated": replicated}
            for order in ORDERS:
                found[size, name, "norm", order] = outcome(islices.global_norm, tree, order, **given)
            with islices.use_kernels(group.rank > 1):
                found[size, name, "norm", "kernels on some"] = outcome(islices.global_norm, tree, **given)
            for limit in max_norms:
                found[size, name, limit] = outcome(islices.clip_by_global_norm, tree, limit, **given)
            for how in (*(PRESETS if size == SIZE else ()), "raise", "zero"):
                keyword = {"semantics" if how in PRESETS else "nonfinite": how}
                found[size, name, how] = outcome(islices.clip_by_global_norm, tree, max_norms[0], **keyword, **given)
    found |= {("refused", name): outcome(call, group, framework) for name, call in REFUSED.items()}
    found["traffic"] = traffic(group)
    return found


def traffic(group: Group) -> tuple[int, int]:
    group.traffic.reset()
    islices.global_norm([np.ones(100_000)], group=group)
    return group.traffic.collectives, group.traffic.received


# ---------------------------------------------------------------------- what cannot be done
def of(framework: str, *values: float, dtype: str = "float32") -> Any:
    return islices.convert(np.array(values, dtype), framework)


def integers(group: Group, framework: str) -> Any:
    return islices.global_norm([of(framework, 1, dtype="int64" if group.rank == 2 else "float32")], group=group)


def mixed(group: Group, framework: str) -> Any:
    other = np.ones(1) if framework != "numpy" else "no array"
    return islices.clip_by_global_norm([of(framework, 1.0), *[other] * (group.rank == 1)], 1.0, group=group)


def structure(group: Group, framework: str) -> Any:
    return islices.global_norm([of(framework, 1.0)] * (1 + group.rank), group=group, replicated=[True])


def orders(group: Group, framework: str) -> Any:
    return islices.global_norm([of(framework, 1.0)], 2.0 - group.rank // 3, group=group)


def order(group: Group, framework: str) -> Any:
    return islices.global_norm([of(framework, 1.0)], 0 if group.rank == 0 else 1.0, group=group)


def max_norms(group: Group, framework: str) -> Any:
    return islices.clip_by_global_norm([of(framework, 1.0)], 1.0 + group.rank // 3, group=group)


def max_norm(group: Group, framework: str) -> Any:
    return islices.clip_by_global_norm([of(framework, 1.0)], -1.0 if group.rank == 0 else 1.0, group=group)


def nonfinite(group: Group, framework: str) -> Any:
    how = "raise" if group.rank == 1 else "zero"
    return islices.clip_by_global_norm([of(framework, 1.0)], 1.0, nonfinite=how, group=group)


def different_values(group: Group, framework: str) -> Any:
    x = of(framework, 4.0, 3.0 + (group.rank == 3) * 2**-22)
    return islices.global_norm([x, x], group=group, replicated=[False, True])


def different_sizes(group: Group, framework: str) -> Any:
    return islices.global_norm(of(framework, 1.0 + group.rank // 2), group=group, replicated=True)


def different_shapes(group: Group, framework: str) -> Any:
    return islices.global_norm(of(framework, *[1.0] * (1 + group.rank)), group=group, replicated=True)


def another_call(group: Group, framework: str) -> Any:
    x = of(framework, 1.0)
    if group.rank:
        return islices.global_norm([x], group=group)
    return islices.clip_by_global_norm([x], 1.0, group=group)


REFUSED: dict[str, Callable[[Group, str], Any]] = {
    fn.__name__: fn
    for fn in (
        integers, mixed, structure, orders, order, max_norms, max_norm, nonfinite, different_values, different_sizes,
        different_shapes, another_call,
    )
}  # fmt: skip


# ---------------------------------------------------------------------- what they should find
@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest) -> Ranks:
    engine = request.param
    keywords = {"framework": FRAMEWORK[engine]}
    return run_ranks(engine, SIZE, f"{__file__}:measure", keywords)


def exact(leaf: Any) -> Any:
    """A leaf as the oracle takes it."""
    if isinstance(leaf, IndexedSlices):
        return Slices(exact(leaf.values), exact(leaf.indices), leaf.dense_shape)
    return Array(leaf.dtype.name, leaf.shape, leaf.ravel().tolist())


def same(got: Any, expected: Any, what: str) -> None:
    assert got.dtype == expected.dtype, what
    np.testing.assert_array_equal(got, expected, what)


def each_rank(found: Ranks, name: str) -> list[tuple[str, int, int, dict[Any, Any]]]:
    return [(f"{name}: rank {r % n} of {n}", n, r % n, one) for r, one in enumerate(found.values) for n in SIZES]


@pytest.mark.repeats_where(lambda ranks: ranks == "torch")
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_the_norm_is_exact(name: str, ranks: Ranks) -> None:
    leaves = whole(name)
    for order in ORDERS:
        if order == 1 and name == "1e200 in float64":
            continue  # a half-way case that 1e150 decides: further below than what sums are carried to
        expected = np.float32(0.0)
        if leaves:
            answer = oracle.global_norm(list(map(exact, leaves)), "inf" if order == math.inf else order)
            expected = np.dtype(answer.dtype).type(answer.data[0])
        same(np.asarray(islices.global_norm(leaves, order)), expected, f"order {order}, one process")
        for where, size, _, found in each_rank(ranks, name):
            same(found[size, name, "norm", order], expected, f"order {order}, {where}")


@pytest.mark.repeats_where(lambda ranks: ranks == "torch")
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
@pytest.mark.parametrize("name", NAMES)
def test_clipped_as_one_process_does(name: str, ranks: Ranks) -> None:
    """By exact arithmetic; and for each preset by the one process whose own tests say what that does."""
    leaves, exactly = whole(name), [exact(leaf) for leaf in whole(name)]
    expected: dict[Any, tuple[list[Any], Any]] = {}
    for limit in limits(leaves):
        clipped, _ = oracle.clip_by_global_norm(exactly, limit)
        data = [(x.values if isinstance(x, Slices) else x).data for x in clipped]
        arrays = [np.array(d, x.dtype.name).reshape(seen(x).shape) for d, x in zip(data, leaves, strict=True)]
        expected[limit] = arrays, islices.global_norm(leaves)
    for how in PRESETS:
        clipped, norm = islices.clip_by_global_norm(leaves, limits(leaves)[0], semantics=how)
        expected[how] = list(map(seen, clipped)), norm
    for where, size, rank, found in each_rank(ranks, name):
        mine, _ = on_rank(gradients()[name], rank, size)
        for how, (arrays, norm) in expected.items():
            if how in PRESETS and size < SIZE:
                continue
            tree, got = found[size, name, how]
            same(got, np.asarray(norm), f"{where}, {how}")
            assert {side: list(tree[side]) for side in tree} == {side: list(mine[side]) for side in mine}, where
            for k, x in [*tree["own"].items(), *tree["every"].items()]:
                same(x, arrays[k], f"{where}, {how}: leaf {k}")


@pytest.mark.repeats_where(lambda ranks: ranks == "torch")
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
@pytest.mark.parametrize("name", ["NaN on one rank", "inf on one rank", "tables"])
def test_what_is_not_finite_is_decided_alike(name: str, ranks: Ranks) -> None:
    leaves = whole(name)
    norm = float(islices.global_norm(leaves))
    for where, size, _, found in each_rank(ranks, name):
        refused, zeroed = found[size, name, "raise"], found[size, name, "zero"]
        if math.isfinite(norm):
            same(refused[1], zeroed[1], where)
            continue
        assert refused[0] == "FloatingPointError", where
        assert f"the norm of the gradient is {norm}" in refused[1], where
        assert all((x == 0).all() for side in zeroed[0].values() for x in side.values()), where


# fmt: off
SAID: dict[str, tuple[str, str, dict[int, tuple[str, str]]]] = {
    # name: (error, words in its message) on every rank but those named
    "integers": ("RankError", "rank 2 raised TypeError: x: got", {2: ("TypeError", "accepted is a floating dtype")}),
    "mixed": ("RankError", "rank 1 raised TypeError: tree: got", {1: ("TypeError", "tree: got")}),
    "structure": ("ValueError", "replicated: got a list of 1 for a list of",
                  {0: ("RankError", "rank 3 raised ValueError: replicated: got a list of 1 for a list of 4")}),
    "orders": ("ValueError", "ord: 2.0 on ranks 0 to 2, 1.0 on rank 3", {}),
    "order": ("RankError", "rank 0 raised ValueError: ord: got 0", {0: ("ValueError", "ord: got 0; accepted is")}),
    "max_norms": ("ValueError", "max_norm: 1.0 on ranks 0 to 2, 2.0 on rank 3", {}),
    "max_norm": ("RankError", "rank 0 raised ValueError: max_norm: got -1.0", {0: ("ValueError", "max_norm: got")}),
    "nonfinite": ("ValueError", "nonfinite: zero on ranks 0, 2 and 3, raise on rank 1", {}),
    "different_values": ("ValueError", "replicated: got leaves that are not the same on rank 3", {}),
    "different_sizes": ("ValueError", "replicated: got leaves that are not the same on rank 2", {}),
    "different_shapes": ("ValueError", "replicated: (dense, float32, [1]) on rank 0", {}),
    "another_call": ("ValueError", "clip_by_global_norm on rank 0, global_norm on ranks 1 to 3", {}),
}
# fmt: on


@pytest.mark.repeats_where(lambda ranks: ranks == "torch")
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
@pytest.mark.parametrize("name", list(REFUSED))
def test_what_one_rank_cannot_do_all_learn(name: str, ranks: Ranks) -> None:
    kind, words, others = SAID[name]
    for rank, found in enumerate(ranks.values):
        error, text = others.get(rank, (kind, words))
        got = found["refused", name]
        assert got[0] == error, (rank, got)
        assert text in got[1], (rank, got)


@pytest.mark.repeats_where(lambda ranks: ranks == "torch")
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_two_small_collectives(ranks: Ranks) -> None:
    for found in ranks.values:
        collectives, received = found["traffic"]
        assert collectives == 2
        assert received <= (256 + 4096) * (SIZE - 1)


@pytest.mark.repeats_where(lambda ranks: ranks == "torch")
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_ranks_without_kernels_find_the_same(ranks: Ranks) -> None:
    for what, n, _, found in each_rank(ranks, "kernels"):
        for name in gradients():
            got, expected = found[n, name, "norm", "kernels on some"], found[n, name, "norm", 2]
            if isinstance(expected, tuple):
                assert got == expected, what
            else:
                same(got, expected, f"{what}: {name}")


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
    "leaf", [np.array(-4.0), np.zeros((0, 3)), np.ones((2, 3, 2)), np.array([3.0])], ids=lambda x: str(x.shape)
)
@pytest.mark.parametrize("kernels", [True, False])
def test_leaves_of_any_rank(leaf: Any, kernels: bool) -> None:
    with islices.use_kernels(kernels):
        assert islices.global_norm([leaf, None], group=Alone()) == islices.global_norm([leaf])
        (clipped,), norm = islices.clip_by_global_norm([leaf], 1.0, group=Alone())
        (expected,), of_one = islices.clip_by_global_norm([leaf], 1.0)
    assert norm == of_one
    np.testing.assert_array_equal(clipped, expected)


@pytest.mark.parametrize("replicated", ["yes", 2, None, np.ones(2, bool)], ids=repr)
@pytest.mark.parametrize("group", [None, Alone()], ids=["no group", "alone"])
def test_replicated_is_a_bool_for_each_leaf(replicated: Any, group: Any) -> None:
    with pytest.raises(TypeError, match=r"replicated: got .*accepted is a bool"):
        islices.global_norm([np.ones(2)], group=group, replicated=replicated)


@pytest.mark.parametrize(
    ("replicated", "words"),
    [
        ([True], "a list of 1 for a list of 2"),
        ((True, [False]), "a list of 1 for numpy.ndarray"),
        ({"a": True}, "a dict of 'a' for a list of 2"),
        ([{"a": True}, False], "a dict of 'a' for a dict of 'b'"),
        ([[], True], "a list of 0 for a dict of 'b'"),
    ],
    ids=repr,
)
def test_replicated_of_another_structure(replicated: Any, words: str) -> None:
    tree = [{"b": np.ones(2)}, np.ones(2)]
    with pytest.raises(ValueError, match=f"replicated: got {words}"):
        islices.clip_by_global_norm(tree, 1.0, group=Alone(), replicated=replicated)


def test_a_group_that_is_none() -> None:
    for group, error in ((3, TypeError), ("gloo", ValueError)):
        with pytest.raises(error, match="group: got"):
            islices.global_norm([np.ones(2)], group=group)


# ---------------------------------------------------------------------- within a program
def stacked(ranks: int, size: float, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values and indices of slices, one set a rank, and a replicated array."""
    rng = np.random.default_rng(ranks)
    values = (rng.standard_normal((ranks, 6, 3)) * size).astype(dtype)
    return values, rng.integers(0, 4, (ranks, 6)), (rng.standard_normal(5) * size).astype(dtype)


def one_process(values: np.ndarray, indices: np.ndarray, dense: np.ndarray, how: str) -> tuple[list[Any], Any, Any]:
    """(clipped values of each rank, the replicated array clipped, the norm)."""
    parts = [IndexedSlices(v, i, (4, 3)) for v, i in zip(values, indices, strict=True)]
    (*clipped, layer), norm = islices.clip_by_global_norm([*parts, dense], 0.7, semantics=how)
    return [s.values for s in clipped], layer, norm


PROGRAMS = [("float32", 1.0), ("float32", 1e20), ("float64", 1e200)]


@pytest.mark.parametrize(("dtype", "size"), PROGRAMS[::2])
def test_within_a_mapped_axis_of_jax(dtype: str, size: float) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from islices.backends.jax.precision import enable_x64

    def clip(values: Any, indices: Any, dense: Any, how: str) -> Any:
        tree = [IndexedSlices(values, indices, (4, 3)), dense]
        (s, layer), norm = islices.clip_by_global_norm(
            tree, 0.7, semantics=how, group="ranks", replicated=[False, True]
        )
        return s.values, layer, norm

    ranks, how = 4, "tensorflow" if size == 1.0 else "islices"
    values, indices, dense = stacked(ranks, size, dtype)
    with enable_x64(dtype == "float64"):
        with pytest.raises(ValueError, match=r"group: got <one process.* for traced arrays"):
            jax.jit(lambda x: islices.global_norm([x], group=Alone()))(dense)
        mapped = jax.jit(jax.vmap(clip, (0, 0, None, None), axis_name="ranks"), static_argnums=3)
        got = list(map(np.asarray, mapped(values, indices.astype("int32"), dense, how)))
    expected, layer, norm = one_process(values, indices, dense, how)
    for rank in range(ranks):
        same(got[0][rank], expected[rank], f"rank {rank}: values")
        same(got[1][rank], layer, f"rank {rank}: layer")
        same(got[2][rank], np.asarray(norm), f"rank {rank}: norm")


def replicas() -> None:
    """Two replicas of TensorFlow on one CPU, which must be made before TensorFlow has begun."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def clip(values: Any, indices: Any, dense: Any, how: str) -> Any:
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        s = tf.IndexedSlices(values[rank], indices[rank], tf.constant([4, 3], tf.int64))
        given = {"group": "tensorflow", "replicated": [False, True]}
        (clipped, layer), norm = islices.clip_by_global_norm([s, dense], 0.7, semantics=how, **given)
        return clipped.values, layer, norm

    for (dtype, size), how, eager in zip(
        PROGRAMS, ("tensorflow", "islices", "islices"), (False, True, False), strict=True
    ):
        arrays = stacked(2, size, dtype)

        def run(*x: Any, how: str = how) -> Any:
            return strategy.run(clip, (*x, how))

        got = (run if eager else tf.function(run))(*map(tf.constant, arrays))
        expected, layer, norm = one_process(*arrays, how)
        values, layers, norms = map(strategy.experimental_local_results, got)
        for rank in range(2):
            where = f"{dtype} {size} {how} eager={eager}: replica {rank}"
            same(values[rank].numpy(), expected[rank], where)
            same(layers[rank].numpy(), layer, where)
            same(np.asarray(norms[rank].numpy()), np.asarray(norm), where)
    print("all alike")


@pytest.mark.repeats
def test_within_replicas_of_tensorflow() -> None:
    pytest.importorskip("tensorflow", reason="tensorflow is not installed")
    code = "import test_norms; test_norms.replicas()"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.stdout.endswith("all alike\n"), done.stdout + done.stderr[-3000:]
