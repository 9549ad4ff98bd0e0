"""Test RowMap and renumber in every framework against a loop over rows, with optimizer states, fills and errors."""

from __future__ import annotations

from collections import namedtuple
from functools import partial
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from errors import each_raises
from hypothesis import given, settings
from hypothesis import strategies as st

import islices
from islices import IndexedSlices, Table, optim
from islices.vocabulary import RowMap, renumber

ml_dtypes = pytest.importorskip("ml_dtypes")

FRAMEWORKS = [name for name in ("numpy", "torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]
#: the old row of each new row, for a table of 5 rows
MAPPINGS = {"reversed": [4, 3, 2, 1, 0], "mixed": [-1, 3, 0, -1, 4], "all new": [-1, -1], "none": []}


def cast(framework: str, x: Any, dtype: str) -> Any:
    """Return `x` as an array of the framework, or skip the test if the framework lacks the dtype."""
    B = islices.get_backend(framework)
    if dtype not in B.float_dtypes:
        pytest.skip(f"{framework} has no {dtype}")
    if framework == "numpy":
        return np.asarray(x).astype(np.float32).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return B.astype(B.asarray(np.asarray(x, np.float32)), dtype)


def host(x: Any) -> np.ndarray[Any, Any]:
    return islices.get_backend(x).to_numpy(x)


def by_rows(old: np.ndarray[Any, Any], old_ids: list[int], new: Any) -> np.ndarray[Any, Any]:
    """Return `old` renumbered row by row. Rows without an old row come from the iterable `new`."""
    rows = iter(new)
    out = [old[row] if row >= 0 else next(rows) for row in old_ids]
    return np.array(out, old.dtype).reshape(len(old_ids), *old.shape[1:])


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# ---------------------------------------------------------------------- ids
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_new_ids_are_the_inverse(data: st.DataObject) -> None:
    bound = data.draw(st.sampled_from([3, 40, 10**12]))
    old = data.draw(
        st.lists(st.integers(-1, bound - 1), max_size=12, unique_by=lambda row: row if row >= 0 else object())
    )
    expected = {row: k for k, row in enumerate(old) if row >= 0}
    requested = [-5, -1, *range(8), *expected, bound, 2**62]
    m = RowMap(old)
    assert m.new_ids(np.array(requested)).tolist() == [expected.get(row, -1) for row in requested]
    assert m.new_ids(np.array([2**64 - 1, 2**63], np.uint64)).tolist() == [-1, -1]
    assert m.added.tolist() == [k for k, row in enumerate(old) if row < 0]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ids_of_batches(framework: str) -> None:
    B, m = islices.get_backend(framework), RowMap([2, -1, 0], 3)
    for given_ids in ([], [2], [[0, 2, 0], [2, 2, 2]]):
        ids = np.array(given_ids, np.int32)
        made = m.ids(B.asarray(ids))
        assert B.is_array(made)
        assert_same(made, np.where(ids == 0, np.int32(2), np.int32(0)))
    assert B.to_numpy(m.ids(B.asarray(np.array([1, 0], np.int32)), missing=1)).tolist() == [1, 2]


# ---------------------------------------------------------------------- rows
@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_rows_keep_their_bits(framework: str, dtype: str, mapping: str) -> None:
    x = np.random.default_rng(1).normal(size=(5, 3))
    x[0] = -0.0, np.inf, np.nan
    old, old_ids = cast(framework, x, dtype), MAPPINGS[mapping]
    before = host(old).copy()
    expected = by_rows(before, old_ids, host(cast(framework, np.full((2, 3), 0.5), dtype)))
    for mode in ("host", "framework"):
        with islices.config.execution(mode):
            made = renumber(old, old_ids, fill=0.5)
        assert type(made) is type(old)
        assert same_bits(host(made), expected), (mode, host(made), expected)
    assert same_bits(host(old), before)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        (optim.adam(0.1, amsgrad=True), "bfloat16"),
        (optim.adagrad(0.1, initial_accumulator=0.25), "float32"),
        (optim.rowwise_adagrad(0.1), "float32"),
    ],
    ids=["adam", "adagrad", "rowwise_adagrad"],
)
def test_a_step_of_the_renumbered_table_is_the_renumbered_step(framework: str, optimizer: Any, dtype: str) -> None:
    """Check that a step on a renumbered table changes kept rows as in the old table. New rows change as in a new
    table."""
    B = islices.get_backend(framework)
    made = partial(cast, framework, dtype=dtype)

    def gradient(rows: list[int], count: int) -> IndexedSlices:
        values = made(np.arange(len(rows) * 2).reshape(-1, 2) + 1.0)
        return IndexedSlices(values, B.asarray(np.array(rows, np.int32)), (count, 2))

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
    one = IndexedSlices(made([[3.0, 4.0]]), B.asarray(np.array([0], np.int32)), (1, 2))
    expected, begun = optimizer.step(fresh, one, begun)
    assert same_bits(host(new.weights)[1:2], host(expected))
    for name in begun.keys() - {"step"}:
        assert same_bits(host(new_state[name])[1:2], host(begun[name])), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_follow(framework: str) -> None:
    B = islices.get_backend(framework)
    values, indices = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([4, 0, 4, 1, 2], np.int32)
    g = islices.to_native(IndexedSlices(B.asarray(values), B.asarray(indices), (5, 2)))
    found = renumber(g, [4, -1, 2])
    assert type(found) is type(g)
    s = found if isinstance(found, IndexedSlices) else islices.from_native(found)
    assert host(islices.to_dense(s)).tolist() == [[4.0, 6.0], [0.0, 0.0], [8.0, 9.0]]
    if framework != "mxnet":  # MXNet's sparse type sums and sorts
        assert host(s.indices).tolist() == [0, 0, 2]


@pytest.mark.parametrize(("old_ids", "coalesced"), [([1, 3], True), ([3, 1], False)])
def test_slices_in_order_stay_coalesced(old_ids: list[int], coalesced: bool) -> None:
    s = IndexedSlices(np.ones((2, 1)), np.array([1, 3]), (4, 1), coalesced=True)
    assert renumber(s, old_ids).coalesced is coalesced


def test_fills() -> None:
    old = cast("numpy", [[1, 2], [3, 5], [8, 9]], "bfloat16")
    rows = np.array([[0.1, -0.0], [7.0, 1e30]])
    for fill, expected in (
        (0.1, np.full((2, 2), 0.1)),
        ("mean", np.array([[4, 16 / 3]] * 2)),
        (rows, rows),
        (rows[:1], np.repeat(rows[:1], 2, axis=0)),
        (lambda shape: np.arange(np.prod(shape), dtype=np.float64).reshape(shape), np.array([[0, 1], [2, 3]])),
    ):
        assert same_bits(renumber(old, [0, 1, 2, -1, -1], fill=fill)[3:], cast("numpy", expected, "bfloat16")), fill
    assert renumber(np.array([[3]]), [0, -1], fill=cast("numpy", [[2]], "bfloat16")).tolist() == [[3], [2]]
    made = renumber(Table(np.array([[4.0], [1.0], [2.0]]), padding_idx=0), [0, -1], fill="mean")
    assert made.weights.tolist() == [[4.0], [1.5]]
    optimizer, table = optim.adam(0.1), np.zeros((2, 2), np.float16)
    new, after = renumber(table, [0, -1], optimizer.init(table, master=True), fill=0.1, state_fill=optimizer)
    assert (after["master"][1] == np.float32(0.1)).all()
    assert (new == after["master"].astype(np.float16)).all()


# ---------------------------------------------------------------------- trees
Moments = namedtuple("Moments", ["count", "mu"])


def test_trees_of_frameworks() -> None:
    """Check that only the chosen table and its states are renumbered in a tree."""
    params = {"words": np.arange(6.0).reshape(3, 2), "head": np.ones((2, 4)), "none": None}
    state = (Moments(np.int32(7), {"words": params["words"], "head": params["head"]}), None, {"lr": 0.1})
    params, after = renumber(params, [2, -1], state, state_fill=0.0, tables="words", states="*.words")
    assert params["words"].tolist() == [[4.0, 5.0], [0.0, 0.0]]
    assert params["head"].shape == (2, 4)
    assert isinstance(after[0], Moments)
    assert after[0].mu["words"].tolist() == [[4.0, 5.0], [0.0, 0.0]]
    assert (after[0].count, after[1], after[2]) == (7, None, {"lr": 0.1})


def test_counts_of_a_table_of_one_row() -> None:
    optimizer, table = optim.rowwise_adagrad(0.1), np.zeros((1, 2))
    _, state = renumber(table, [0, -1, -1], optimizer.init(table), state_fill=optimizer)
    assert {name: x.shape for name, x in state.items()} == {"step": (1,), "accumulator": (3,)}


# ---------------------------------------------------------------------- errors
STATE, TABLE, M = optim.adam(0.1).init(np.zeros((3, 2))), np.zeros((3, 2)), RowMap([2, -1, 0], 3)
test_what_is_refused = each_raises([
    (lambda: RowMap([1, 0, 1]), ValueError, "old_ids: got old row 1 for the new rows 0 and 2"),
    (lambda: RowMap([0, -2]), IndexError, "old_ids: got -2 at position 1"),
    (lambda: RowMap([0.0]), TypeError, "old_ids: got"),
    (lambda: M.new_ids([0.7]), TypeError, "^old: got"),
    (lambda: M.ids(np.array([0, 1])), IndexError, "ids: got 1 at position 1; whose row the mapping drops"),
    (lambda: M.ids(np.array([0, 3]), missing=0), IndexError, "ids: got 3 at position 1; accepted is 0 <= id < 3"),
    (lambda: M.ids(np.array([0]), missing=3), IndexError, "missing: got 3"),
    (lambda: renumber(Table(TABLE, padding_idx=1), [0, 2]), ValueError, "mapping: got one that drops row 1, the"),
    (lambda: renumber(TABLE, [0, 3]), IndexError, "old_ids: got 3 at position 1; accepted is -1, or 0 <= old row < 3"),
    (lambda: renumber(TABLE, RowMap([0], 4)), ValueError, "mapping: got one of a table of 4 rows for one of 3"),
    (lambda: renumber("abc", [0]), TypeError, "table: got str 'abc'"),
    (lambda: renumber(TABLE, [-1], fill="median"), ValueError, "fill: got 'median'"),
    (lambda: renumber(TABLE, [-1], fill=np.zeros((2, 2))), ValueError, r"fill: got shape \(2, 2\) for 1 new rows"),
    (lambda: renumber(TABLE.astype(int), [-1], fill=0.5), ValueError, "fill: got 0.5 for an array of int64"),
    (lambda: renumber(TABLE, [-1], STATE), TypeError, "state_fill: got None, and 'm' has new rows"),
    (lambda: renumber(TABLE, [-1], STATE, state_fill={"m": 0}), ValueError, "state_fill: got nothing for .* 'v'"),
    (lambda: renumber({"a": TABLE, "b": TABLE[:2]}, [0]), ValueError, r"table\[b\]: got shape \(2, 2\).*tables="),
    (lambda: renumber({"a": TABLE}, [0], tables="b"), ValueError, "tables: got 'b', which no leaf is named; .* 'a'"),
])  # fmt: skip
