"""RowMap: what each way of saying a mapping comes to, ids renumbered by it, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import islices
from islices.vocabulary import RowMap

FRAMEWORKS = [name for name in ("numpy", "torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]


@pytest.mark.parametrize(
    ("made", "old_ids", "old_rows"),
    [
        (RowMap([2, -1, 0], 3), [2, -1, 0], 3),
        (RowMap(range(2)), [0, 1], None),
        (RowMap(np.array([1, 0], np.int32)), [1, 0], None),
        (RowMap([], 4), [], 4),
        (RowMap.grown(2, 4), [0, 1, -1, -1], 2),
        (RowMap.grown(0, 2), [-1, -1], 0),
        (RowMap.grown(3, 3), [0, 1, 2], 3),
        (RowMap.from_dict({5: 0, 2: 3}), [5, -1, -1, 2], None),
        (RowMap.from_dict({0: 0}, rows=2, old_rows=9), [0, -1], 9),
        (RowMap.from_dict({}), [], None),
        (RowMap.from_tokens(["a", "b", "c"], ["c", "x", "a"]), [2, -1, 0], 3),
        (RowMap.from_tokens({"b": 1, "a": 0}, {"x": 0, "b": 1}), [-1, 1], 2),
        (RowMap.from_tokens((b"a", 7), iter([7])), [1], 2),
    ],
)
def test_ways_to_say_it(made: RowMap, old_ids: list[int], old_rows: int | None) -> None:
    assert made.old_ids.tolist() == old_ids
    assert (made.rows, made.old_rows) == (len(old_ids), old_rows)
    assert made.added.tolist() == [k for k, row in enumerate(old_ids) if row < 0]
    assert made.count_added == len(made.added)
    assert made.part(1, 3).tolist() == old_ids[1:3]


def test_arrays_of_frameworks_are_mappings() -> None:
    for name in FRAMEWORKS:
        assert RowMap(islices.get_backend(name).asarray(np.array([1, -1]))).old_ids.tolist() == [1, -1], name


REFUSED = [
    (lambda: RowMap([1, 0, 1]), ValueError, "old_ids: got old row 1 for the new rows 0 and 2"),
    (lambda: RowMap([0, 3], 3), IndexError, "old_ids: got 3 at position 1; accepted is -1, or 0 <= old row < 3"),
    (lambda: RowMap([0, -2]), IndexError, "old_ids: got -2 at position 1"),
    (lambda: RowMap([0.0]), TypeError, "old_ids: got 0.0 at position 0"),
    (lambda: RowMap([True]), TypeError, "old_ids: got True at position 0"),
    (lambda: RowMap([2**63]), TypeError, "old_ids: got 9223372036854775808 at position 0"),
    (lambda: RowMap(np.zeros((2, 2), np.int64)), TypeError, "old_ids: got .* of dtype int64 and shape"),
    (lambda: RowMap(np.zeros(2)), TypeError, "old_ids: got .* of dtype float64"),
    (lambda: RowMap("01"), TypeError, "old_ids: got str"),
    (lambda: RowMap([0], -1), ValueError, "old_rows: got -1"),
    (lambda: RowMap.grown(3, 2), ValueError, "rows: got 2 for a table of 3"),
    (lambda: RowMap.grown(3, "4"), TypeError, "rows: got str '4'"),
    (lambda: RowMap.from_dict({0: 1, 2: 1}), ValueError, r"new row 1 for the old rows \[0, 2\]"),
    (lambda: RowMap.from_dict({0: 4}, rows=4), IndexError, "the new row 4; accepted is 0 <= new row < 4"),
    (lambda: RowMap.from_dict({-1: 4}), IndexError, "the old row -1"),
    (lambda: RowMap.from_dict([0]), TypeError, "new_of_old: got list"),
    (lambda: RowMap.from_tokens(["a", "a"], []), ValueError, "old: got 'a' in rows 0 and 1"),
    (lambda: RowMap.from_tokens([], {"a": 1}), ValueError, "new: got rows of which 1 stands where 0 should"),
    (lambda: RowMap.from_tokens("ab", []), TypeError, "old: got str 'ab'"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_no_mapping(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def _once(row: int) -> object:
    return row if row >= 0 else object()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_new_ids_are_the_inverse(data: st.DataObject) -> None:
    """By the table of all old rows, and by a search where those are many: the same."""
    bound = data.draw(st.sampled_from([3, 40, 10**12]))
    old = data.draw(
        st.lists(st.integers(-1, bound - 1), max_size=12, unique_by=lambda row: row if row >= 0 else object())
    )
    expected = {row: k for k, row in enumerate(old) if row >= 0}
    asked = [-5, -1, *range(8), *expected, bound, 2**62]
    assert RowMap(old).new_ids(np.array(asked)).tolist() == [expected.get(row, -1) for row in asked]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_ids_of_batches(framework: str, dtype: str) -> None:
    B, m = islices.get_backend(framework), RowMap([2, -1, 0], 3)
    for given_ids in ([], [2], [[0, 2, 0], [2, 2, 2]]):
        ids = B.asarray(np.array(given_ids, dtype))
        made = m.ids(ids)
        assert type(made) is type(ids)
        assert B.dtype(made) == B.dtype(ids)
        assert B.to_numpy(made).shape == np.shape(given_ids)
        assert (B.to_numpy(made) == np.where(np.array(given_ids) == 0, 2, 0)).all()
    assert B.to_numpy(m.ids(B.asarray(np.array([1, 0], dtype)), missing=1)).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("ids", "options", "error", "message"),
    [
        ([0, 1], {}, IndexError, "ids: got 1 at position 1; whose row the mapping drops; accepted is missing="),
        ([0, 3], {"missing": 0}, IndexError, "ids: got 3 at position 1; accepted is 0 <= id < 3"),
        ([0, -1], {"missing": 0}, IndexError, "ids: got -1 at position 1"),
        ([0], {"missing": 3}, IndexError, "missing: got 3; accepted is 0 <= row < 3"),
        ([0], {"missing": 1.0}, TypeError, "missing: got float 1.0; accepted is an int or None"),
        ([0.5], {}, TypeError, "ids: got"),
    ],
)
def test_ids_that_have_no_new_row(ids: list[Any], options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RowMap([2, -1, 0], 3).ids(np.array(ids), **options)


@pytest.mark.parametrize("old_ids", [[2, -1, 0], [2**40, -1, 0]])
def test_new_ids_are_of_integers(old_ids: list[int]) -> None:
    m = RowMap(old_ids)
    assert m.new_ids(np.array([2**64 - 1, 2**63, 0], np.uint64)).tolist() == [-1, -1, 2]
    assert m.new_ids([]).tolist() == []
    for bad in ([0.7, 2.9], np.ones(1), [True], [2**64], ["0"]):
        with pytest.raises(TypeError, match=r"^old: got .*; accepted are integers of 64 bits"):
            m.new_ids(bad)


def test_ids_too_narrow_for_their_new_row() -> None:
    m = RowMap([0])
    vars(m)["_inverse"] = (None, np.array([3_000_000_000, -1]))  # a map of so many rows takes 24 GB
    with pytest.raises(IndexError, match="ids: got int32, which cannot hold row 3000000000"):
        m.ids(np.zeros(1, np.int32))
