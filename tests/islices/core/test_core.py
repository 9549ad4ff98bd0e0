"""Test the core on NumPy: the container, structures, modes, aliasing, threads and scalars.

The golden vectors test the values of operations.
"""

from __future__ import annotations

import collections
import copy
import gc
import operator
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from numpy.testing import assert_array_equal

import islices
from islices import IndexedSlices
from islices.core.modes import host_views

IDS = np.array([4, 1, 4, 0, 1, 4], np.int64)
SHAPE = (6, 2)


def make(dtype: Any = np.float32, ids: np.ndarray = IDS, shape: tuple[int, ...] = SHAPE, **flags: Any) -> IndexedSlices:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(len(ids), *shape[1:])).astype(dtype)
    return IndexedSlices(values, ids, shape, **flags)


# ---------------------------------------------------------------------- the container
def test_the_parts_are_the_callers_own_arrays() -> None:
    values, ids = np.ones((2, 3), np.float32), np.array([1, 0], np.int32)
    s = IndexedSlices(values, ids, [np.int64(4), 3])
    assert s.values is values
    assert s.indices is ids
    assert s.dense_shape == s.shape == (4, 3)
    assert all(type(n) is int for n in s.dense_shape)
    assert s.dtype == np.float32
    assert s.backend is islices.get_backend("numpy")
    assert (s.coalesced, s.padded) == (False, False)


@pytest.mark.parametrize("name", ["indices", "brand_new"])
def test_nothing_can_be_assigned_or_deleted(name: str) -> None:
    s = make()
    with pytest.raises(AttributeError, match=rf"immutable.*replace\({name}="):
        setattr(s, name, None)
    with pytest.raises(AttributeError, match="immutable"):
        delattr(s, name)
    assert s.values.shape == (6, 2)


def test_equal_slices_are_never_silently_unequal_and_are_hashable_and_weakly_referable() -> None:
    a = make()
    b = IndexedSlices(a.values, a.indices, a.dense_shape)
    assert a == a
    assert a != 1
    for compare in (operator.eq, operator.ne, np.array_equal):
        with pytest.raises(TypeError, match="IndexedSlices"):
            compare(a, b)
    islices.testing.assert_equal(a, b)
    with pytest.raises(AssertionError, match="the tensor  differs"):
        islices.testing.assert_equal(a, a * 2)
    assert len({a, b, a}) == 2
    ref = weakref.ref(b)
    del b
    gc.collect()
    assert ref() is None


@pytest.mark.parametrize(
    ("flags", "rows", "text"),
    [
        (
            {"coalesced": True, "padded": True},
            6,
            "IndexedSlices(n=2, dense_shape=(6, 2), float32, int64, numpy, coalesced, padded)",
        ),
        ({}, None, "IndexedSlices(n=2, dense_shape=(None, 2), float32, int64, numpy)"),
    ],
)
def test_repr(flags: dict[str, bool], rows: int | None, text: str) -> None:
    assert repr(IndexedSlices(np.ones((2, 2), np.float32), np.array([1, 3]), (rows, 2), **flags)) == text


def test_replace_values_keeps_everything_else() -> None:
    s = make(ids=np.array([0, 2, 5]), coalesced=True)
    new = s.replace(values=s.values.astype(np.float64) * 2)
    assert new.indices is s.indices
    assert (new.coalesced, new.dtype, new.dense_shape) == (True, np.float64, s.dense_shape)


def test_replace_indices_checks_them_and_forgets_that_they_were_sorted() -> None:
    s = make(ids=np.array([0, 2, 5]), coalesced=True)
    new = s.replace(indices=np.array([5, 5, 1]))
    assert (new.coalesced, new.values is s.values) == (False, True)
    with pytest.raises(IndexError, match="got 6 at position 1"):
        s.replace(indices=np.array([0, 6, 1]))
    with pytest.raises(ValueError, match="3 values and 2 indices"):
        s.replace(indices=np.array([0, 1]))
    both = s.replace(values=np.zeros((1, 2)), indices=np.array([3]))
    assert both.values.shape == (1, 2)


def test_validate_false_skips_the_passes_over_indices_not_the_shapes() -> None:
    s = IndexedSlices(np.ones((1, 2)), np.array([99]), SHAPE, validate=False)
    assert s.indices[0] == 99
    with pytest.raises(ValueError, match="2 values and 1 indices"):
        IndexedSlices(np.ones((2, 2)), np.array([0]), SHAPE, validate=False)


@pytest.mark.parametrize("convert", [np.asarray, lambda s: np.add(s, 1.0), lambda s: np.stack([s, s])])
def test_numpy_never_makes_it_dense(convert: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        convert(make())


@pytest.mark.parametrize("of", [bool, len])
def test_neither_slices_nor_samples_have_a_truth_value_or_a_length(of: Callable[[Any], Any]) -> None:
    for x in (make(), islices.per_sample(np.ones((2, 1, 1)), np.array([[0], [1]]), 3)):
        with pytest.raises(TypeError, match=f"of an? {type(x).__name__} is ambiguous"):
            of(x)


@pytest.mark.parametrize("flags", [{}, {"coalesced": True, "padded": True}])
def test_pickle_and_copy_keep_the_bits_and_flags(flags: dict[str, bool]) -> None:
    s = make(ids=np.array([0, 2, 6 if "padded" in flags else 5]), **flags)
    for other in (pickle.loads(pickle.dumps(s)), copy.deepcopy(s), copy.copy(s)):
        assert_same(other, s)
        assert other.backend is s.backend


def test_a_pickle_is_validated_when_it_is_read() -> None:
    broken = IndexedSlices(np.ones((1, 2)), np.array([99]), SHAPE, validate=False)
    data = pickle.dumps(broken)
    with pytest.raises(IndexError, match="99"):
        pickle.loads(data)


def test_a_native_object_keeps_its_arrays() -> None:
    torch = pytest.importorskip("torch")
    x = torch.sparse_coo_tensor([[1, 0, 1]], torch.ones(3, 2), (5, 2), check_invariants=False)
    s = islices.from_native(x)
    assert s.indices.tolist() == [1, 0, 1]
    assert s.indices.data_ptr() == x._indices().data_ptr()


# ---------------------------------------------------------------------- operators


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("op", [operator.add, operator.sub])
def test_sparse_and_dense_give_dense_from_either_side(op: Callable[..., Any], side: str) -> None:
    s, d = make(), np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
    got = op(d, s) if side == "left" else op(s, d)
    dense = islices.to_dense(s)
    expected = op(d, dense) if side == "left" else op(dense, d)
    assert type(got) is np.ndarray
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("c", [-1.5, np.float64(0.1), np.int64(3), np.array(0.5), True])
def test_multiplication_by_a_scalar_from_either_side(c: Any) -> None:
    s = make()
    assert_same([s * c, c * s], [s.replace(values=s.values * np.float32(c))] * 2)


@pytest.mark.parametrize("c", [49.0, np.float64(0.1), np.array(3.0), Fraction(1, 3)])
def test_division_is_one_rounded_quotient(c: Any) -> None:
    s = make(shape=(6, 50))
    expected = s.replace(values=s.values / np.float32(c))
    assert_same(s / c, expected)
    s /= c
    assert_same(s, expected)


# ---------------------------------------------------------------------- structures


def test_none_alone_stays_none() -> None:
    for fn in (islices.coalesce, islices.to_dense, islices.scale_by_frequency):
        assert fn(None) is None
    assert islices.scale(None, 2.0) is islices.clip_by_norm(None, 1.0) is None
    assert islices.clip_by_global_norm(None, 1.0)[0] is None
    assert islices.global_norm([None, [None]]) == 0


# ---------------------------------------------------------------------- execution()
def test_modes_nest_and_come_back_after_an_error() -> None:
    from islices.core import modes

    seen = []
    with islices.config.execution("framework"):
        seen.append(modes._mode.get())
        with islices.config.execution("host"):
            seen.append(modes._mode.get())
        with pytest.raises(RuntimeError, match="stop"), islices.config.execution("host"):
            raise RuntimeError("stop")
        seen.append(modes._mode.get())
    assert [*seen, modes._mode.get()] == ["framework", "host", "framework", "host"]


# ---------------------------------------------------------------------- from_dense, keep_rows, drop_rows


@pytest.mark.parametrize(
    "rows", [[4, 0], (4, 0, 4), np.array([True, False, False, False, True, False])], ids=["list", "tuple", "mask"]
)
def test_rows_may_be_numbers_or_a_mask(rows: Any) -> None:
    s, d = make(), np.arange(12, dtype=np.float32).reshape(6, 2) + 1
    kept, dropped = islices.keep_rows(s, rows), islices.drop_rows(s, rows)
    assert kept.indices.tolist() == [4, 4, 0, 4]
    assert dropped.indices.tolist() == [1, 1]
    assert_array_equal(kept.values, s.values[[0, 2, 3, 5]])
    assert_array_equal(np.flatnonzero(islices.keep_rows(d, rows).any(1)), [0, 4])
    assert_array_equal(islices.keep_rows(d, rows) + islices.drop_rows(d, rows), d)


# ---------------------------------------------------------------------- scalars (clause 18)


def test_what_slices_say_of_themselves() -> None:
    a = make()
    n = len(a.indices)
    assert (a.ndim, a.num_slices, a.nbytes) == (2, n, a.values.nbytes + a.indices.nbytes)
    assert a.astype("float64").values.dtype == np.float64
    half = a.astype("bfloat16")
    assert half.values.dtype.name == half.backend.zeros((2,), "bfloat16", half.values).dtype.name == "bfloat16"
    assert half.replace(values=half.values).values is half.values
    assert a.replace(dense_shape=(99, 2)).dense_shape == (99, 2)
    with pytest.raises(IndexError, match="accepted is 0 <= index < 1"):
        a.replace(dense_shape=(1, 2))
    with pytest.raises(TypeError, match="dtype: got 'int8'"):
        a.astype("int8")


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("row", [-3, 4])
def test_unchecked_rows_out_of_range_never_become_another_row(row: int, kernels: bool) -> None:
    unchecked = IndexedSlices(np.ones((1, 2)), np.array([row]), (4, 2), validate=False)
    for call in (islices.to_dense, lambda x: islices.add(np.zeros((4, 2)), x)):
        with islices.config.use_kernels(kernels), pytest.raises(IndexError, match=f"index {row} is out of bounds"):
            call(unchecked)


def test_leaves_of_structures() -> None:
    pair = collections.namedtuple("pair", "g h")(make(), [None, np.ones(2), [], {7: ()}])
    assert [islices.is_sparse(x) for x in islices.leaves(pair)] == [True, False]
    doubled = islices.map_leaves(lambda x: x * 2, pair)
    assert type(doubled) is type(pair)
    assert (doubled.h[0], doubled.h[1].tolist(), *doubled.h[2:]) == (None, [2.0, 2.0], [], {7: ()})
    with pytest.raises(TypeError, match="tree: got generator"):
        islices.leaves(x for x in pair)


def test_threads_do_not_see_each_others_mode() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: with NumPy alone there is one mode")
    calls: dict[str, int] = {"host": 0, "framework": 0}
    backend = islices.get_backend("torch")
    barrier = threading.Barrier(2)

    def work(mode: str) -> None:
        with islices.config.execution(mode):
            barrier.wait()
            calls[mode] = sum(host_views(backend, [torch.ones(2)]) is not None for _ in range(100))
            barrier.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ("host", "framework")))
    assert calls == {"host": 100, "framework": 0}
