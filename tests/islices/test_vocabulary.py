"""renumber and grow in memory: every framework and dtype against a loop over rows, states of every optimizer, fills."""

from __future__ import annotations

from collections import namedtuple
from functools import partial
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices, Table, optim, vocabulary
from islices.distributed import Alone, ShardedTable
from islices.vocabulary import RowMap, grow, normal, renumber, uniform

ml_dtypes = pytest.importorskip("ml_dtypes")

FRAMEWORKS = [name for name in ("numpy", "torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]
FLOATS = ("float16", "bfloat16", "float32", "float64")
OPTIMIZERS = [
    optim.sgd(0.1, momentum=0.9),
    optim.adam(0.1, amsgrad=True),
    optim.adagrad(0.1, initial_accumulator=0.25),
    optim.rowwise_adagrad(0.1),
    optim.ftrl(0.1),
    optim.rmsprop(0.1),
]
#: the old row of each new one, of 5
MAPPINGS = {
    "same": [0, 1, 2, 3, 4],
    "reversed": [4, 3, 2, 1, 0],
    "grown": [0, 1, 2, 3, 4, -1, -1],
    "mixed": [-1, 3, 0, -1, 4],
    "all new": [-1, -1],
    "none": [],
    "one": [2],
}


@pytest.fixture(autouse=True)
def wide() -> Any:
    """JAX with 64-bit types, where it is installed."""
    if "jax" not in FRAMEWORKS:
        yield
        return
    with islices.get_backend("jax").wide_types():
        yield


def cast(framework: str, x: Any, dtype: str) -> Any:
    """x in a framework, of a dtype that it has."""
    B = islices.get_backend(framework)
    if dtype not in B.float_dtypes:
        pytest.skip(f"{framework} has no {dtype}")
    if framework == "numpy":
        return np.asarray(x).astype(np.float32).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return B.astype(B.asarray(np.asarray(x, np.float32)), dtype)


def host(x: Any) -> np.ndarray[Any, Any]:
    return islices.get_backend(x).to_numpy(x)


def table_of(framework: str, dtype: str, shape: tuple[int, ...] = (5, 3)) -> Any:
    x = np.random.default_rng(1).normal(size=shape)
    x.reshape(-1)[:3] = [-0.0, np.inf, np.nan]
    return cast(framework, x, dtype)


def by_rows(old: np.ndarray[Any, Any], old_ids: list[int], new: Any) -> np.ndarray[Any, Any]:
    """The oracle: one row after the other."""
    rows = iter(new)
    out = [old[row] if row >= 0 else next(rows) for row in old_ids]
    return np.array(out, old.dtype).reshape(len(old_ids), *old.shape[1:])


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_rows_keep_their_bits(framework: str, dtype: str, mapping: str) -> None:
    old, old_ids = table_of(framework, dtype), MAPPINGS[mapping]
    zeros = np.zeros((old_ids.count(-1), 3), host(old).dtype)
    expected = by_rows(host(old), old_ids, zeros)
    before = host(old).copy()
    for mode in ("host", "framework"):
        with islices.execution(mode):
            made = renumber(old, old_ids)
        assert type(made) is type(old)
        assert same_bits(host(made), expected), (mode, host(made), expected)
    assert same_bits(host(old), before)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("shape", [(5,), (5, 2, 2), (5, 0), (1, 1)])
def test_rows_of_any_shape(framework: str, shape: tuple[int, ...]) -> None:
    B = islices.get_backend(framework)
    if framework == "mxnet" and 0 in shape:
        pytest.skip("MXNet has no arrays without elements")
    old = B.asarray(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    old_ids = [-1, 0, -1]
    expected = by_rows(host(old), old_ids, np.full((2, *shape[1:]), 0.5))
    assert same_bits(host(renumber(old, old_ids, fill=0.5)), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_a_step_of_the_renumbered_table_is_the_renumbered_step(framework: str, dtype: str, optimizer: Any) -> None:
    """Rows that are kept go on as if nothing had happened, new ones as those of a table just made."""
    B = islices.get_backend(framework)
    made = partial(cast, framework, dtype=dtype)

    def gradient(rows: list[int], count: int) -> IndexedSlices:
        values = made(np.arange(len(rows) * 2).reshape(-1, 2) + 1.0)
        return IndexedSlices(values, B.asarray(np.array(rows)), (count, 2))

    m, wide = RowMap([4, -1, 0, 2], 5), dtype != "float32"
    start = np.random.default_rng(2).normal(size=(5, 2))
    table, state = Table(made(start), padding_idx=0), optimizer.init(Table(made(start)), master=wide)
    table, state = optimizer.step(table, gradient([0, 4, 0], 5), state)
    new, new_state = renumber(table, m, state, fill=0.5, state_fill=optimizer)
    assert new.padding_idx == 2
    new, new_state = optimizer.step(new, gradient([2, 1, 0], 4), new_state)
    table, state = optimizer.step(table, gradient([0, 3, 4], 5), state)
    assert same_bits(host(new.weights)[[0, 2, 3]], host(table.weights)[[4, 0, 2]])
    for name, x in state.items():
        if name == "step":
            assert host(new_state[name]).tolist() == host(x).tolist()
        else:
            assert same_bits(host(new_state[name])[[0, 2, 3]], host(x)[[4, 0, 2]]), name
    fresh = made(np.full((1, 2), 0.5))
    begun = optimizer.init(fresh, master=wide)
    begun["step"] = B.variable(B.asarray(np.ones(1, np.int32)), fresh)
    one = IndexedSlices(made([[3.0, 4.0]]), B.asarray(np.array([0])), (1, 2))
    expected, begun = optimizer.step(fresh, one, begun)
    assert same_bits(host(new.weights)[1:2], host(expected))
    for name in begun.keys() - {"step"}:
        assert same_bits(host(new_state[name])[1:2], host(begun[name])), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_follow(framework: str) -> None:
    B = islices.get_backend(framework)
    values, indices = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([4, 0, 4, 1, 2])
    g = islices.to_native(IndexedSlices(B.asarray(values), B.asarray(indices), (5, 2)))
    found, old_ids = renumber(g, [4, -1, 2]), [4, -1, 2]
    assert type(found) is type(g)
    stay = [k for k, row in enumerate(indices) if row in old_ids]
    dense = np.zeros((3, 2), np.float32)
    for k in stay:
        dense[old_ids.index(indices[k])] += values[k]
    s = found if isinstance(found, IndexedSlices) else islices.from_native(found)
    assert s.dense_shape == (3, 2)
    assert (host(islices.to_dense(s)) == dense).all()
    if framework != "mxnet":  # whose own type sums and sorts
        assert host(s.indices).tolist() == [0, 0, 2]
        assert not s.coalesced


@pytest.mark.parametrize(("old_ids", "coalesced"), [([1, 3], True), ([3, 1], False), ([2, 0], True), ([], True)])
def test_slices_in_order_stay_coalesced(old_ids: list[int], coalesced: bool) -> None:
    s = IndexedSlices(np.ones((2, 1)), np.array([1, 3]), (4, 1), coalesced=True)
    assert renumber(s, old_ids).coalesced is coalesced


# ---------------------------------------------------------------------- new rows
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_fills(framework: str, dtype: str) -> None:
    B = islices.get_backend(framework)
    old = cast(framework, [[1, 2], [3, 5], [8, 9]], dtype)
    given = np.array([[0.1, -0.0], [7.0, 1e30]])
    drawn = normal(0.5, seed=3)((2, 2))
    fills = [
        (0.1, np.full((2, 2), 0.1)),
        (-1, np.full((2, 2), -1)),
        ("mean", np.array([[4, 16 / 3]] * 2)),
        (given, given),
        (given[:1], np.repeat(given[:1], 2, axis=0)),
        (B.asarray(given.astype(np.float32)), given),
        (lambda shape: np.arange(np.prod(shape), dtype=np.float64).reshape(shape), np.array([[0, 1], [2, 3]])),
        (normal(0.5, seed=3), drawn),
        (uniform(2.0, seed=3), uniform(2.0, seed=3)((2, 2))),
    ]
    for fill, expected in fills:
        rounded = cast(framework, expected, dtype)
        made = grow(old, 5, fill=fill)
        assert same_bits(host(made)[3:], host(rounded)), fill
        assert same_bits(host(made)[:3], host(old))
    assert not (drawn == normal(0.5, seed=4)((2, 2))).any()
    assert (np.abs(uniform(2.0, seed=3)((99, 2))) <= 2.0).all()


def test_the_mean_is_that_of_all_rows_but_the_paddings() -> None:
    rows = np.random.default_rng(5).normal(size=(200_000, 3))
    expected = np.cumsum(np.delete(rows, 7, axis=0), axis=0)[-1] / (len(rows) - 1)
    made = grow(Table(rows, padding_idx=7), len(rows) + 1, fill="mean")
    assert (made.weights[-1] == expected).all()
    assert grow(np.zeros((0, 2)), 1, fill="mean").tolist() == [[0.0, 0.0]]
    assert grow(Table(np.ones((1, 2)), padding_idx=0), 2, fill="mean").weights[1].tolist() == [0.0, 0.0]


def test_masters_new_rows_are_the_tables_before_they_are_rounded() -> None:
    optimizer, table = optim.adam(0.1), np.zeros((2, 2), np.float16)
    state = optimizer.init(table, master=True)
    for fill in (0.1, normal(1.0, seed=0), np.full((1, 2), 0.3)):
        new, after = grow(table, 4, state, fill=fill, state_fill=optimizer)
        assert after["master"].dtype == np.float32
        assert (new == after["master"].astype(np.float16)).all()
        assert (new[2:] != after["master"][2:]).all()


# ---------------------------------------------------------------------- trees
Moments = namedtuple("Moments", ["count", "mu", "nu"])


def test_trees_of_frameworks() -> None:
    """What is a number, no array, or another layer's stays; the rest follows."""
    params = {"words": np.arange(6.0).reshape(3, 2), "head": np.ones((2, 4))}
    state = (Moments(np.int32(7), dict(params), {"words": np.ones((3, 2)), "head": np.ones((2, 4))}), None, {"lr": 0.1})
    params, after = renumber(params, [2, -1], state, state_fill=0.0, tables="words", states="*.words")
    assert params["words"].tolist() == [[4.0, 5.0], [0.0, 0.0]]
    assert params["head"].shape == (2, 4)
    assert isinstance(after[0], Moments)
    assert after[0].mu["words"].tolist() == [[4.0, 5.0], [0.0, 0.0]]
    assert after[0].nu["words"].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert (after[0].count, after[1], after[2]) == (7, None, {"lr": 0.1})


def test_counts_of_a_table_of_one_row() -> None:
    optimizer, table = optim.rowwise_adagrad(0.1), np.zeros((1, 2))
    table, state = grow(table, 3, optimizer.init(table), state_fill=optimizer)
    assert {name: x.shape for name, x in state.items()} == {"step": (1,), "accumulator": (3,)}
    table, state = renumber(table, [0], state)
    assert {name: x.shape for name, x in state.items()} == {"step": (1,), "accumulator": (1,)}


def test_several_tables_of_one_vocabulary() -> None:
    tree = {"in": Table(np.arange(6.0).reshape(3, 2)), "out": np.arange(3.0), "none": None}
    made = renumber(tree, {2: 0, 1: 1})
    assert made["in"].weights.tolist() == [[4.0, 5.0], [2.0, 3.0]]
    assert made["out"].tolist() == [2.0, 1.0]
    assert made["none"] is None


# ---------------------------------------------------------------------- what is refused
ADAM = optim.adam(0.1)
TABLE = np.zeros((3, 2))
REFUSED = [
    (
        lambda: renumber(Table(TABLE, padding_idx=1), [0, 2]),
        ValueError,
        "mapping: got one that drops row 1, the",
    ),
    (lambda: renumber(TABLE, [0, 3]), IndexError, "old_ids: got 3 at position 1; accepted is -1, or 0 <= old row < 3"),
    (lambda: renumber(TABLE, [0, 0]), ValueError, "old_ids: got old row 0 for the new rows 0 and 1"),
    (lambda: renumber(TABLE, RowMap([0], 4)), ValueError, "mapping: got one of a table of 4 rows for one of 3"),
    (lambda: renumber(TABLE, {0: 1, 1: 1}), ValueError, "new row 1"),
    (lambda: renumber(None, [0]), TypeError, "table: got None"),
    (lambda: renumber(np.float32(1), [0]), ValueError, "table: got a 0-d array"),
    (lambda: renumber("abc", [0]), TypeError, "table: got str 'abc'"),
    (lambda: grow(TABLE, 2), ValueError, "rows: got 2 for a table of 3"),
    (lambda: grow(TABLE, 4, fill="median"), ValueError, "fill: got 'median'"),
    (lambda: grow(TABLE, 4, fill=np.zeros((2, 2))), ValueError, r"fill: got shape \(2, 2\) for 1 new rows"),
    (lambda: grow(TABLE, 4, fill=np.zeros((1, 2), np.int32)), TypeError, "fill: got .*int32"),
    (lambda: grow(TABLE, 4, fill=lambda shape: None), TypeError, "fill: got a function that returned None"),
    (lambda: grow(np.zeros((3, 2), np.int32), 4, fill=0.5), TypeError, "fill: got numbers that are not whole"),
    (lambda: grow(np.zeros((3, 2), np.int32), 4, fill=2**40), ValueError, "fill: got 1099511627776 for .* int32"),
    (lambda: grow(np.zeros((3, 1), np.int32), 4, fill=np.array([[-(2**40)]])), ValueError, "fill: got -1099511627776"),
    (lambda: grow(np.zeros((3, 2), np.int32), 4, fill=np.inf), ValueError, "fill: got inf for an array of int32"),
    (lambda: grow(np.zeros((3, 2), np.int64), 4, fill=2.0**63), ValueError, r"fill: got 9.22.*e\+18"),
    (lambda: grow(np.zeros((3, 2), np.int64), 4, fill=2**70), ValueError, r"fill: got 1.18.*e\+21"),
    (lambda: grow(TABLE, 4, ADAM.init(TABLE)), TypeError, "state_fill: got None, and 'm' has new rows"),
    (lambda: grow(TABLE, 4, ADAM.init(TABLE), state_fill={"m": 0}), ValueError, "state_fill: got nothing for .* 'v'"),
    (lambda: grow(TABLE, 4, ADAM.init(TABLE), state_fill=optim.sgd(0.1)), ValueError, "state_fill: got sgd.* 'm'"),
    (
        lambda: grow(TABLE, 4, {"m": np.zeros((5, 2))}),
        ValueError,
        r"state\[m\]: got shape \(5, 2\)",
    ),
    (lambda: grow({"a": TABLE, "b": np.zeros((2, 2))}, 4), ValueError, r"table\[b\]: got shape \(2, 2\).*tables="),
    (lambda: grow({"a": TABLE}, 4, tables="b"), ValueError, "tables: got 'b', which no leaf is named; .* 'a'"),
    (lambda: grow({"a": TABLE}, 4, tables=3), TypeError, "tables: got int 3"),
    (lambda: normal(-1.0, seed=0), ValueError, "scale: got -1.0"),
    (lambda: normal(1.0, seed=-1), ValueError, "seed: got -1"),
    (lambda: renumber(IndexedSlices(np.ones((1, 1)), np.array([0]), (None, 1)), [0]), ValueError, "rows is unknown"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_sharded_table_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"got a ShardedTable, .* load_sharded"):
        renumber(ShardedTable.from_full(TABLE, Alone()), [0])


def test_what_is_loaded_is_asked_for() -> None:
    assert islices.vocabulary is vocabulary
