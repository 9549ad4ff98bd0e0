"""The core on NumPy: the container, structures, modes, memory layouts, scalars, padding, and laws of the operations.

What the golden vectors say about values is not repeated here.
"""

from __future__ import annotations

import copy
import gc
import math
import operator
import pickle
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import islices
from islices import IndexedSlices

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
from hypothesis import strategies as st  # noqa: E402

IDS = np.array([4, 1, 4, 0, 1, 4], np.int64)
SHAPE = (6, 2)


def make(dtype: Any = np.float32, ids: np.ndarray = IDS, shape: tuple[int, ...] = SHAPE, **flags: Any) -> IndexedSlices:
    rng = np.random.default_rng(5)
    values = rng.normal(size=(len(ids), *shape[1:])).astype(dtype)
    return IndexedSlices(values, ids, shape, **flags)


def dense_of(s: IndexedSlices) -> np.ndarray:
    """What slices denote, summed in float64 with ufunc.at: close to, not bit-equal with, to_dense."""
    out = np.zeros(s.dense_shape, np.float64)
    keep = s.indices < s.dense_shape[0]
    np.add.at(out, s.indices[keep], s.values[keep].astype(np.float64))
    return out


def bits(x: Any) -> Any:
    """Something that is equal where the bits are, -0 and +0 alike."""
    if isinstance(x, IndexedSlices):
        return (bits(x.values), bits(x.indices), x.dense_shape, x.coalesced, x.padded)
    if isinstance(x, (list, tuple)):
        return [bits(item) for item in x]
    if x is None:
        return None
    x = np.asarray(x)
    return (x.dtype.name, x.shape, (x + np.zeros((), x.dtype)).tobytes() if x.dtype.kind == "f" else x.tobytes())


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


@pytest.mark.parametrize("name", ["values", "indices", "dense_shape", "coalesced", "padded", "backend", "brand_new"])
def test_nothing_can_be_assigned_or_deleted(name: str) -> None:
    s = make()
    with pytest.raises(AttributeError, match=rf"immutable.*replace\({name}="):
        setattr(s, name, None)
    with pytest.raises(AttributeError, match="immutable"):
        delattr(s, name)
    assert s.values.shape == (6, 2)


def test_equality_is_identity_and_slices_are_hashable_and_weakly_referable() -> None:
    a = make()
    b = IndexedSlices(a.values, a.indices, a.dense_shape)
    assert a == a
    assert a != b
    assert len({a, b, a}) == 2
    ref = weakref.ref(b)
    del b
    gc.collect()
    assert ref() is None


@pytest.mark.parametrize(
    ("flags", "rows", "text"),
    [
        ({}, 6, "IndexedSlices(n=2, dense_shape=(6, 2), float32, int64, numpy)"),
        ({"coalesced": True}, 6, "IndexedSlices(n=2, dense_shape=(6, 2), float32, int64, numpy, coalesced)"),
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


@pytest.mark.parametrize(
    ("values", "error"),
    [
        (np.ones((5, 2)), ValueError),
        (np.ones((6, 3)), ValueError),
        (np.ones((6, 2), complex), TypeError),
        ([[1.0, 2.0]] * 6, TypeError),
        (np.ones((6, 2), bool), TypeError),
    ],
)
def test_replace_refuses_values_that_do_not_fit(values: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="values"):
        make().replace(values=values)


def test_validate_false_skips_the_passes_over_indices_not_the_shapes() -> None:
    s = IndexedSlices(np.ones((1, 2)), np.array([99]), SHAPE, validate=False)
    assert s.indices[0] == 99
    with pytest.raises(ValueError, match="2 values and 1 indices"):
        IndexedSlices(np.ones((2, 2)), np.array([0]), SHAPE, validate=False)


@pytest.mark.parametrize("convert", [np.asarray, np.array, lambda s: np.add(s, 1.0), lambda s: np.stack([s, s])])
def test_numpy_never_makes_it_dense(convert: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        convert(make())


def test_asarray_says_what_to_call() -> None:
    with pytest.raises(TypeError, match="to_dense"):
        np.asarray(make())


@pytest.mark.parametrize("of", [bool, len])
def test_neither_slices_nor_samples_have_a_truth_value_or_a_length(of: Callable[[Any], Any]) -> None:
    for x in (make(), islices.per_sample(np.ones((2, 1, 1)), np.array([[0], [1]]), 3)):
        with pytest.raises(TypeError, match=f"of an? {type(x).__name__} is ambiguous"):
            of(x)


@pytest.mark.parametrize("flags", [{}, {"coalesced": True}, {"coalesced": True, "padded": True}])
def test_pickle_and_copy_keep_the_bits_and_flags(flags: dict[str, bool]) -> None:
    s = make(ids=np.array([0, 2, 6 if "padded" in flags else 5]), **flags)
    for other in (pickle.loads(pickle.dumps(s)), copy.deepcopy(s), copy.copy(s)):
        assert bits(other) == bits(s)
        assert other.backend is s.backend


def test_a_pickle_is_validated_when_it_is_read() -> None:
    broken = IndexedSlices(np.ones((1, 2)), np.array([99]), SHAPE, validate=False)
    data = pickle.dumps(broken)
    with pytest.raises(IndexError, match="99"):
        pickle.loads(data)


# ---------------------------------------------------------------------- operators
def test_sparse_plus_and_minus_sparse_stay_sparse() -> None:
    a, b = make(), make(ids=np.array([3, 4]))
    for got, expected in ((a + b, dense_of(a) + dense_of(b)), (a - b, dense_of(a) - dense_of(b))):
        assert isinstance(got, IndexedSlices)
        assert len(got.indices) == 8
        np.testing.assert_allclose(islices.to_dense(got), expected, rtol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("op", [operator.add, operator.sub])
def test_sparse_and_dense_give_dense_from_either_side(op: Callable[..., Any], side: str) -> None:
    s, d = make(), np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
    got = op(d, s) if side == "left" else op(s, d)
    expected = op(d, dense_of(s)) if side == "left" else op(dense_of(s), d)
    assert type(got) is np.ndarray
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("c", [2, 0.5, -1.5, np.float32(0.5), np.float64(0.5), np.int64(3), np.array(0.5), True])
def test_multiplication_by_a_scalar_from_either_side(c: Any) -> None:
    s = make()
    expected = bits(s.replace(values=s.values * np.float32(c)))
    assert bits(s * c) == expected
    assert bits(c * s) == expected
    assert (s * c).dtype == np.float32


def test_negation_is_exact() -> None:
    s = make(ids=np.array([4, 1, 0]))
    assert_array_equal((-s).values, -s.values)
    assert_array_equal(islices.to_dense(s + -s), np.zeros(SHAPE))


@pytest.mark.parametrize("other", ["a", object(), [1.0], 1.0, {}])
@pytest.mark.parametrize("op", [operator.add, operator.sub])
def test_operators_leave_what_is_no_array_to_the_other_side(op: Callable[..., Any], other: Any) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        op(make(), other)
    with pytest.raises(TypeError):
        op(other, make())


@pytest.mark.parametrize("c", ["2", 1j, np.ones(2), [2.0], None])
def test_multiplication_refuses_what_is_no_real_number(c: Any) -> None:
    with pytest.raises(TypeError, match=r"^c: got"):
        make() * c


@pytest.mark.parametrize("c", [3, 49.0, np.float32(0.1), np.array(3.0), Fraction(1, 3)])
def test_division_is_one_rounded_quotient(c: Any) -> None:
    s = make(shape=(6, 50))
    expected = bits(s.replace(values=s.values / np.float32(c)))
    assert bits(s / c) == expected
    s /= c
    assert bits(s) == expected


def test_nothing_is_divided_by_slices() -> None:
    for other in (3, 3.0, np.float32(3), np.array(3.0), np.ones(SHAPE)):
        with pytest.raises(TypeError, match="below"):
            other / make()


def test_floor_division_and_powers_are_not_offered() -> None:
    for op in (operator.floordiv, operator.mod, operator.pow, operator.matmul):
        with pytest.raises(TypeError):
            op(make(), 2.0)


# ---------------------------------------------------------------------- structures
class Gradients(NamedTuple):
    table: Any
    bias: Any


def test_structures_come_back_with_their_types_and_order() -> None:
    s, d = make(), np.ones(3, np.float32)
    tree = {"list": [s, None, (d, s)], "named": Gradients(s, d), "ordered": OrderedDict(z=d, a=s), "empty": [], 7: ()}
    out = islices.scale(tree, 2)
    assert list(out) == list(tree)
    assert out["list"][1] is None
    assert isinstance(out["list"][2], tuple)
    assert type(out["named"]) is Gradients
    assert type(out["ordered"]) is OrderedDict
    assert list(out["ordered"]) == ["z", "a"]
    assert (out["empty"], out[7]) == ([], ())
    assert_array_equal(out["named"].table.values, s.values * 2)
    assert_array_equal(out["ordered"]["z"], d * 2)
    assert tree["list"][0] is s


def test_none_alone_stays_none() -> None:
    for fn in (islices.coalesce, islices.to_dense, islices.scale_by_frequency):
        assert fn(None) is None
    assert islices.scale(None, 2.0) is islices.clip_by_norm(None, 1.0) is None
    assert islices.clip_by_global_norm(None, 1.0)[0] is None
    assert islices.global_norm([None, [None]]) == 0


@pytest.mark.parametrize("leaf", ["text", 3, {1, 2}, object()])
def test_a_leaf_that_is_no_gradient_is_named(leaf: Any) -> None:
    with pytest.raises(TypeError, match="accepted"):
        islices.coalesce([make(), {"a": leaf}])


def test_within_the_bound_leaves_stay_the_callers_objects() -> None:
    s, d = make(), np.ones(3, np.float32)
    (a, (b, none)), _ = islices.clip_by_global_norm([s, (d, None)], 1e9)
    assert a is s
    assert b is d
    assert none is None


# ---------------------------------------------------------------------- execution()
def test_modes_nest_and_come_back_after_an_error() -> None:
    from islices import modes

    seen = []
    with islices.execution("framework"):
        seen.append(modes._mode.get())
        with islices.execution("host"):
            seen.append(modes._mode.get())
        with pytest.raises(RuntimeError, match="stop"), islices.execution("host"):
            raise RuntimeError("stop")
        seen.append(modes._mode.get())
    assert [*seen, modes._mode.get()] == ["framework", "host", "framework", "host"]


@pytest.mark.parametrize("mode", ["traced", "", None, 1])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match="'host', 'framework'"), islices.execution(mode):
        pass


def test_threads_do_not_see_each_others_mode() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: with NumPy alone there is one mode")
    calls: dict[str, int] = {"host": 0, "framework": 0}
    backend = islices.get_backend("torch")
    barrier = threading.Barrier(2)

    def work(mode: str) -> None:
        with islices.execution(mode):
            barrier.wait()
            from islices.modes import host_views

            calls[mode] = sum(host_views(backend, [torch.ones(2)]) is not None for _ in range(100))
            barrier.wait()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, ("host", "framework")))
    assert calls == {"host": 100, "framework": 0}


def test_numpy_has_one_arithmetic_whatever_the_mode() -> None:
    s = make()
    with islices.execution("framework"):
        own = islices.coalesce(s)
    assert bits(own) == bits(islices.coalesce(s))


# ---------------------------------------------------------------------- from_dense, keep_rows, drop_rows
def test_from_dense_stores_the_rows_that_are_asked_for_in_their_order() -> None:
    x = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]], np.float32)
    s = islices.from_dense(x, indices=np.array([2, 0], np.int32))
    assert (s.indices.tolist(), s.indices.dtype, s.coalesced) == ([2, 0], np.int32, False)
    assert_array_equal(s.values, x[[2, 0]])
    assert islices.from_dense(x, indices=np.empty(0, np.int64)).values.shape == (0, 2)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (np.array([0, 3]), IndexError),
        (np.array([-1]), IndexError),
        (np.array([1, 1]), ValueError),
        (np.array([0.0]), TypeError),
        (np.array([[0]]), TypeError),
        ([0, 1], TypeError),
        (np.array([True, False, True]), TypeError),
    ],
)
def test_from_dense_refuses_rows_that_make_no_sense(rows: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="accepted"):
        islices.from_dense(np.ones((3, 2)), indices=rows)


@pytest.mark.parametrize(
    "rows",
    [[4, 0], (4, 0, 4), np.array([4, 0], np.int32), np.array([True, False, False, False, True, False])],
    ids=["list", "tuple", "int32", "mask"],
)
def test_rows_may_be_numbers_or_a_mask(rows: Any) -> None:
    s, d = make(), np.arange(12, dtype=np.float32).reshape(6, 2) + 1
    kept, dropped = islices.keep_rows(s, rows), islices.drop_rows(s, rows)
    assert kept.indices.tolist() == [4, 4, 0, 4]
    assert dropped.indices.tolist() == [1, 1]
    assert_array_equal(kept.values, s.values[[0, 2, 3, 5]])
    assert_array_equal(np.flatnonzero(islices.keep_rows(d, rows).any(1)), [0, 4])
    assert_array_equal(islices.keep_rows(d, rows) + islices.drop_rows(d, rows), d)


def test_no_rows_and_all_rows() -> None:
    s = make()
    assert islices.keep_rows(s, []).values.shape == (0, 2)
    assert bits(islices.drop_rows(s, [])) == bits(s)
    assert bits(islices.keep_rows(s, np.ones(6, bool))) == bits(s)
    for none in ((), range(0), np.zeros(0, np.int32)):
        assert bits(islices.drop_rows(s, none)) == bits(s)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([0, 2**63], IndexError, "rows: got 9223372036854775808 at position 1"),
        ([-1, 2**63], IndexError, "rows: got 9223372036854775808 at position 1"),
        ([-(2**64)], IndexError, "rows: got -18446744073709551616 at position 0"),
        ([0.5], TypeError, "rows: got list"),
        (np.zeros(0, np.float32), TypeError, "rows: got .*float32"),
    ],
)
def test_rows_that_are_none(rows: Any, error: type[Exception], message: str) -> None:
    for name in islices.list_backends():
        with pytest.raises(error, match=message):
            islices.keep_rows(islices.convert(make(), name), rows)
    with pytest.raises(error):
        islices.optim.sgd(0.1, frozen=rows)


def test_selection_keeps_what_is_known_of_the_order() -> None:
    c = islices.coalesce(make())
    assert islices.keep_rows(c, [4, 1]).coalesced
    assert islices.drop_rows(c, [4]).coalesced


# ---------------------------------------------------------------------- memory layouts
OPERATIONS: dict[str, Callable[[IndexedSlices], Any]] = {
    "coalesce": islices.coalesce,
    "to_dense": islices.to_dense,
    "add": lambda s: islices.add(s, s),
    "add dense": lambda s: islices.add(s, np.ones(s.dense_shape, s.values.dtype)),
    "concat": lambda s: islices.concat([s, s]),
    "scale": lambda s: islices.scale(s, 0.3),
    "keep_rows": lambda s: islices.keep_rows(s, [4, 0]),
    "drop_rows": lambda s: islices.drop_rows(s, np.array([True, False, True, False, False, False])),
    "drop_padding": lambda s: islices.drop_padding(s, 4),
    "scale_by_frequency": islices.scale_by_frequency,
    "norm": islices.norm,
    "norm 1": lambda s: islices.norm(s, 1),
    "norm inf": lambda s: islices.norm(s, math.inf),
    "global_norm": lambda s: islices.global_norm([s, s]),
    "clip_by_value": lambda s: islices.clip_by_value(s, -0.5, 0.5),
    "clip_by_norm": lambda s: islices.clip_by_norm(s, 0.5),
    "clip_by_row_norm": lambda s: islices.clip_by_row_norm(s, 0.5),
    "clip_by_global_norm": lambda s: islices.clip_by_global_norm([s, None], 0.5),
    **{
        f"clip_by_global_norm {name}": lambda s, name=name: islices.clip_by_global_norm([s], 0.5, semantics=name)
        for name in ("tensorflow", "torch", "mxnet", "optax", "keras")
    },
}


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.setflags(write=False)
    return x


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "read-only": read_only,
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "subclass": lambda x: x.view(type("Sub", (np.ndarray,), {})),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_memory_layout_changes_no_bit(name: str, layout: str) -> None:
    s = make()
    relaid = IndexedSlices(LAYOUTS[layout](s.values), LAYOUTS[layout](s.indices), SHAPE)
    assert bits(OPERATIONS[name](relaid)) == bits(OPERATIONS[name](s))


def test_no_operation_changes_its_input_or_hands_out_its_memory() -> None:
    s = make()
    before = bits(s)
    for name, fn in OPERATIONS.items():
        for part in arrays_of(fn(s)):
            assert not np.shares_memory(part, s.values), name
        assert bits(s) == before, name


def arrays_of(x: Any) -> list[np.ndarray]:
    if isinstance(x, (list, tuple)):
        return [array for item in x for array in arrays_of(item)]
    if isinstance(x, IndexedSlices):
        return [x.values]
    return [] if x is None else [np.asarray(x)]


def test_concurrent_callers_get_the_same_bits() -> None:
    rng = np.random.default_rng(3)
    ids = rng.zipf(1.3, 3000) % 200
    s = IndexedSlices(rng.normal(size=(3000, 4)).astype(np.float32), ids, (200, 4))
    calls = [OPERATIONS[name] for name in ("coalesce", "to_dense", "norm", "clip_by_row_norm", "clip_by_global_norm")]
    expected = [bits(fn(s)) for fn in calls]
    barrier = threading.Barrier(6)

    def work(k: int) -> list[bool]:
        barrier.wait()
        return [bits(calls[(k + j) % 5](s)) == expected[(k + j) % 5] for j in range(25)]

    with ThreadPoolExecutor(6) as pool:
        assert all(all(result) for result in pool.map(work, range(6)))


# ---------------------------------------------------------------------- bfloat16
def test_bfloat16_of_ml_dtypes_passes_through_every_operation() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16")
    s = make(ml_dtypes.bfloat16)
    for name, fn in OPERATIONS.items():
        if name == "add dense":
            continue
        out = fn(s)
        out = out[0][0] if isinstance(out, tuple) else out
        expected = np.float32 if "norm" in name and not name.startswith("clip") else ml_dtypes.bfloat16
        assert out.dtype == expected, name
    added = islices.add(s, np.ones(SHAPE, ml_dtypes.bfloat16))
    wide = np.ones(SHAPE, np.float32) + islices.to_dense(s).astype(np.float32)
    assert_array_equal(added.astype(np.float32), wide.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_bfloat16_sums_in_float32_and_rounds_once() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16")
    ones = IndexedSlices(np.ones((600, 1), ml_dtypes.bfloat16), np.zeros(600, np.int64), (1, 1))
    assert float(islices.to_dense(ones)[0, 0]) == float(ml_dtypes.bfloat16(600))  # bfloat16 alone stops at 256
    assert float(islices.norm(ones)) == float(ml_dtypes.bfloat16(600))


# ---------------------------------------------------------------------- scalars (clause 18)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "c",
    [0.1, np.float16(0.1), np.float32(0.1), np.float64(0.1), np.array(0.1), np.array(0.1, np.float32), Fraction(1, 10)],
    ids=["float", "f16", "f32", "f64", "0-d f64", "0-d f32", "Fraction"],
)
def test_a_scalar_is_rounded_to_the_arrays_type_and_never_widens_it(dtype: Any, c: Any) -> None:
    wide = np.float64 if dtype == np.float64 else np.float32
    s = make(dtype)
    expected = (s.values.astype(wide) * wide(float(c))).astype(dtype)
    got = islices.scale(s, c)
    assert got.dtype == dtype
    assert_array_equal(got.values, expected)
    assert_array_equal(islices.scale(s.values, c), expected)


def test_bounds_of_clip_by_value_are_rounded_too() -> None:
    out = islices.clip_by_value(np.array([1.0, -1.0], np.float32), -0.1, np.float64(0.1))
    assert out.dtype == np.float32
    assert_array_equal(out, np.array([0.1, -0.1], np.float32))


def test_max_norm_is_compared_in_float64() -> None:
    s = IndexedSlices(np.array([[3.0, 4.0]], np.float32), np.array([1]), (3, 2))
    assert islices.clip_by_norm(s, 5.0) is s
    assert islices.clip_by_norm(s, math.nextafter(5.0, 0.0)) is not s
    assert islices.clip_by_norm(s, np.float32(5.0)) is s


def test_integer_slices_take_integers_only() -> None:
    s = IndexedSlices(np.array([[1], [2]], np.int32), np.array([1, 1]), (3, 1))
    assert (s * 3).values.tolist() == [[3], [6]]
    assert (s * np.int8(3)).dtype == np.int32
    assert islices.clip_by_value(s, -(2**40), 2).values.tolist() == [[2]]
    for c in (0.5, 2.0, np.float32(2)):
        with pytest.raises(TypeError, match="accepted is an int"):
            s * c
    for bound in (2.5, np.float64(2), np.float32(2), np.float16(2), Fraction(2), Fraction(10**400)):
        with pytest.raises(TypeError, match=r"^hi: got .*; accepted is an int, since the values are int32"):
            islices.clip_by_value([s], -1, bound)
    for most in (math.inf, np.float16("inf"), np.float32("inf"), np.longdouble("inf")):
        assert islices.clip_by_value(s, -most, most).values.tolist() == [[3]]
    with pytest.raises(ValueError, match="int32"):
        s * 2**31


def test_a_factor_too_large_for_the_type_is_infinite_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert np.isinf(islices.scale(np.ones(2, np.float32), 1e300)).all()
    assert len(recwarn) == 0


# ---------------------------------------------------------------------- padded slices
@pytest.mark.parametrize("name", OPERATIONS)
def test_padding_slots_count_for_nothing(name: str) -> None:
    s = make()
    holes = [1, 3, 7, 8]  # positions of the sentinel among ten slots
    slots = [k for k in range(10) if k not in holes]
    values, ids = np.full((10, 2), 1e6, np.float32), np.full(10, 6, np.int64)
    values[slots], ids[slots] = s.values, s.indices
    padded = IndexedSlices(values, ids, SHAPE, padded=True)
    got, expected = OPERATIONS[name](padded), OPERATIONS[name](s)
    pairs = zip(got[0], expected[0], strict=True) if isinstance(got, tuple) else [(got, expected)]
    for a, b in pairs:
        if isinstance(a, IndexedSlices):
            keep = a.indices != 6
            assert bits(a.indices[keep]) == bits(b.indices)
            assert bits(a.values[keep]) == bits(b.values)
        else:
            assert bits(a) == bits(b)
    if isinstance(got, tuple):
        assert bits(got[1]) == bits(expected[1])


def test_coalescing_drops_the_padding() -> None:
    padded = IndexedSlices(np.ones((3, 1)), np.array([0, 4, 4]), (4, 1), padded=True, coalesced=True)
    c = islices.coalesce(padded)
    assert (c.indices.tolist(), c.padded, c.coalesced) == ([0], False, True)


def test_padding_must_be_announced() -> None:
    with pytest.raises(IndexError, match="legal where padded=True"):
        IndexedSlices(np.ones((1, 1)), np.array([4]), (4, 1))
    with pytest.raises(IndexError, match="got 5"):
        IndexedSlices(np.ones((1, 1)), np.array([5]), (4, 1), padded=True)


def test_padding_joins_what_is_not_padded() -> None:
    padded = IndexedSlices(np.ones((2, 1)), np.array([0, 4]), (4, 1), padded=True)
    plain = IndexedSlices(np.ones((1, 1)), np.array([3]), (4, 1))
    for joined in (islices.add(plain, padded), islices.add(padded, plain)):
        assert joined.padded
        assert_array_equal(islices.to_dense(joined)[:, 0], [1, 0, 0, 1])


# ---------------------------------------------------------------------- laws
ROWS = 6
properties = hypothesis.settings(derandomize=True, deadline=None, max_examples=60, database=None)
#: subnormals are outside the contract; the range leaves room for squares and for exact halves
floats = st.floats(-1e6, 1e6, width=32).map(lambda v: 0.0 if abs(v) < 1e-6 else v)


@st.composite
def slices(draw: Any, *, unique: bool = False, dtype: Any = np.float32) -> IndexedSlices:
    index_type = draw(st.sampled_from([np.int32, np.int64]))
    ids = draw(st.lists(st.integers(0, ROWS - 1), max_size=12, unique=unique))
    width = draw(st.integers(1, 3))
    values = draw(st.lists(floats, min_size=len(ids) * width, max_size=len(ids) * width))
    array = np.array(values, dtype).reshape(len(ids), width)
    return IndexedSlices(array, np.array(ids, index_type), (ROWS, width))


@properties
@hypothesis.given(slices())
def test_coalesce_is_idempotent_sorted_and_complete(s: IndexedSlices) -> None:
    c = islices.coalesce(s)
    assert c.indices.tolist() == sorted(set(s.indices.tolist()))
    assert c.indices.dtype == s.indices.dtype
    assert islices.coalesce(c) is c
    again = islices.coalesce(IndexedSlices(c.values, c.indices, c.dense_shape))  # without being told
    assert bits(again) == bits(c)


@properties
@hypothesis.given(slices())
def test_to_dense_of_coalesced_is_bit_equal(s: IndexedSlices) -> None:
    dense = islices.to_dense(s)
    assert bits(islices.to_dense(islices.coalesce(s))) == bits(dense)
    np.testing.assert_allclose(dense, dense_of(s), rtol=1e-5, atol=1e-5 * float(np.abs(s.values).sum() + 1))


@properties
@hypothesis.given(slices())
def test_sums_are_left_folds(s: IndexedSlices) -> None:
    expected = np.zeros(s.dense_shape, np.float32)
    for row, index in zip(s.values, s.indices, strict=True):
        expected[index] += row
    assert bits(islices.to_dense(s)) == bits(expected)


@properties
@hypothesis.given(slices(unique=True), st.randoms(use_true_random=False))
def test_the_order_of_unique_rows_changes_no_bit_of_a_norm(s: IndexedSlices, random: Any) -> None:
    order = list(range(len(s.indices)))
    random.shuffle(order)
    shuffled = IndexedSlices(s.values[order], s.indices[order], s.dense_shape)
    for ord in (1, 2, math.inf):
        assert bits(islices.norm(shuffled, ord)) == bits(islices.norm(s, ord)), f"ord={ord}"
    assert bits(islices.norm(islices.to_dense(s))) == bits(islices.norm(s))
    assert bits(islices.global_norm([shuffled, s])) == bits(islices.global_norm([s, shuffled]))


@properties
@hypothesis.given(slices(unique=True), st.floats(0.125, 1e7, width=32))
def test_clipping_twice_agrees_within_two_ulps(s: IndexedSlices, max_norm: float) -> None:
    """SPEC clause 10: of float32, without duplicates."""
    once = islices.clip_by_norm(s, max_norm)
    twice = islices.clip_by_norm(once, max_norm)
    ulps = np.abs(twice.values.astype(np.float64) - once.values) / np.spacing(np.abs(once.values))
    assert ulps.max(initial=0) <= 2
    norm = float(islices.norm(once))
    # every stored value is within half an ulp, and cancelling duplicates let the error of each remain
    slack = float(np.finfo(np.float32).eps) * (float(np.abs(once.values.astype(np.float64)).sum()) + max_norm) * 12
    assert norm <= max_norm + slack


@properties
@hypothesis.given(slices(), st.floats(0.125, 1e6, width=32))
def test_clipping_leaves_what_is_within_the_bound(s: IndexedSlices, max_norm: float) -> None:
    hypothesis.assume(float(islices.norm(IndexedSlices(s.values.astype(np.float64), s.indices, s.dense_shape))) > 0)
    assert (islices.clip_by_norm(s, max_norm) is s) == (_exact_norm(s) <= max_norm)


def _exact_norm(s: IndexedSlices) -> float:
    squares = (Fraction(float(v)) ** 2 for v in islices.coalesce(s).values.ravel())
    return math.sqrt(sum(squares, Fraction(0)))


@st.composite
def families(draw: Any, count: int) -> list[IndexedSlices]:
    """Slices of one width whose values are small integers, so that any order of sums is exact."""
    width = draw(st.integers(1, 3))
    out = []
    for _ in range(count):
        ids = draw(st.lists(st.integers(0, ROWS - 1), max_size=8))
        values = draw(st.lists(st.integers(-99, 99), min_size=len(ids) * width, max_size=len(ids) * width))
        array = np.array(values, np.float32).reshape(len(ids), width)
        out.append(IndexedSlices(array, np.array(ids, np.int64), (ROWS, width)))
    return out


@properties
@hypothesis.given(families(3))
def test_laws_of_addition(family: list[IndexedSlices]) -> None:
    a, b, c = family
    dense = islices.to_dense
    assert bits(a + b) == bits(islices.concat([a, b]))
    assert bits((a + b) + c) == bits(a + (b + c)) == bits(islices.concat([a, b, c]))
    assert bits(dense(a + b)) == bits(dense(b + a)) == bits(dense(a) + dense(b))
    assert bits(dense(a - b)) == bits(dense(a) - dense(b))
    assert bits(a + dense(b)) == bits(dense(a + b)) == bits(dense(a) + b)
    assert bits(dense((a + b) * 2)) == bits(dense(a * 2 + b * 2))
    assert not dense(a - a).any()


@properties
@hypothesis.given(slices(), st.sets(st.integers(0, ROWS - 1)), st.booleans())
def test_kept_and_dropped_rows_are_a_partition(s: IndexedSlices, rows: set[int], as_mask: bool) -> None:
    chosen = np.isin(np.arange(ROWS), list(rows)) if as_mask else np.array(sorted(rows), np.int64)
    kept, dropped = islices.keep_rows(s, chosen), islices.drop_rows(s, chosen)
    assert set(kept.indices.tolist()) <= rows
    assert not set(dropped.indices.tolist()) & rows
    assert len(kept.indices) + len(dropped.indices) == len(s.indices)
    parts, whole = islices.to_dense(kept) + islices.to_dense(dropped), islices.to_dense(s)
    assert bits(parts) == bits(whole)
    assert bits(islices.keep_rows(whole, chosen)) == bits(islices.to_dense(kept))


@properties
@hypothesis.given(slices())
def test_frequencies_average(s: IndexedSlices) -> None:
    counts = np.bincount(s.indices, minlength=ROWS)[s.indices]
    scaled = islices.scale_by_frequency(s)
    assert bits(scaled.values) == bits(s.values / counts.astype(np.float32)[:, None])


def test_rows_of_more_dimensions_than_arrays_have() -> None:
    with pytest.raises(ValueError, match=r"ids: got .*33 dimensions; accepted are 32 in all"):
        islices.lookup(np.ones((1,) * 32), np.zeros((0, 2), np.int64))


# ---------------------------------------------------------------------- ids
@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "uint16", "uint32"])
def test_narrow_ids_count_as_wider_ones(dtype: str) -> None:
    table, ids = np.arange(12.0).reshape(6, 2), np.array([4, 0, 4], dtype)
    index = "int64" if dtype == "uint32" else "int32"
    grad = islices.embedding_grad(np.ones((3, 2)), ids, 6)
    assert (grad.indices.dtype, grad.indices.tolist()) == (index, [4, 0, 4])
    assert_array_equal(islices.lookup(table, ids), table[ids])
    bags = islices.lookup(table, ids, offsets=np.array([0, 1], dtype), combiner="sum")
    assert_array_equal(bags, [table[4], table[0] + table[4]])
    assert_array_equal(islices.lookup(table, (ids, np.array([1, 2], dtype)), combiner="sum"), bags)
    for bad in (np.array([6], dtype), np.array([np.iinfo(dtype).max], dtype)):
        with pytest.raises(IndexError, match="ids: got"):
            islices.lookup(table, bad)


def test_ids_of_uint64_and_narrow_indices_of_slices_raise() -> None:
    with pytest.raises(TypeError, match="ids: got"):
        islices.lookup(np.ones((3, 2)), np.array([1], np.uint64))
    with pytest.raises(TypeError, match="indices: got"):
        IndexedSlices(np.ones((1, 2)), np.array([1], np.uint8), (3, 2))
