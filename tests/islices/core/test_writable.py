"""Test writes into host memory, and their effect on each framework's arrays, gradients and snapshots."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import run_code

import islices
from islices import optim
from islices.backend import FLOATS, Backend
from islices.conformance.peak_memory import peak_growth
from islices.core.host_memory import empty

DTYPES = ("float32", "bfloat16", "int32")
#: 25.6 MB of float32: a copy would show in the memory of the process.
LARGE = (100_000, 64)


def kinds(B: Backend) -> list[str]:
    """Return the kinds of arrays that updates treat differently. Only TensorFlow and JAX have two kinds."""
    return {"tensorflow": ["variable", "tensor"], "jax": ["array", "donated"]}.get(B.name, ["array"])


def make(B: Backend, host: np.ndarray, kind: str = "array") -> Any:
    made = B.asarray(host)
    if kind == "variable":
        import tensorflow as tf

        return tf.Variable(made)
    return made


def host_of(dtype: str) -> np.ndarray:
    """Return an array of small integers, which are exact in every dtype. For bfloat16, the array contains the bits as
    uint16."""
    values = np.arange(15).reshape(5, 3)
    return (
        (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if dtype == "bfloat16"
        else values.astype(dtype)
    )


def cases() -> list[Any]:
    return [
        pytest.param(name, kind, dtype, id=f"{name}-{kind}-{dtype}")
        for name in islices.list_backends()
        for kind in kinds(islices.get_backend(name))
        for dtype in DTYPES
        if dtype not in FLOATS or dtype in islices.get_backend(name).float_dtypes
    ]


# ---------------------------------------------------------------------- on every backend
@pytest.mark.parametrize(("name", "kind", "dtype"), cases())
def test_what_is_written_is_seen(name: str, kind: str, dtype: str) -> None:
    B = islices.get_backend(name)
    host = host_of(dtype)
    with B.wide_types():
        arrays = [make(B, host, kind), make(B, host[:, :1], kind), make(B, host[:, 0], kind)]
        found = B.writable(arrays, donate=kind == "donated")
        assert found is not None
        views, results = found
        assert [(v.shape, v.dtype) for v in views] == [(h.shape, host.dtype) for h in (host, host[:, :1], host[:, 0])]
        assert all(v.flags.writeable for v in views)
        for view, before in zip(views, (host, host[:, :1], host[:, 0]), strict=True):
            np.testing.assert_array_equal(view, before)
            view[1:2] = before[3:4]
        del view, views
        for x, result in zip(arrays, results, strict=True):
            in_place = name not in ("jax", "tensorflow") or kind == "variable"
            assert (result is x) == in_place
            assert B.dtype(result) == dtype
        for result, before in zip(results, (host, host[:, :1], host[:, 0]), strict=True):
            expected = before.copy()
            expected[1:2] = before[3:4]
            np.testing.assert_array_equal(B.to_numpy(result), expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, {"tensorflow": "variable", "jax": "donated"}.get(name, "array")) for name in islices.list_backends()],
)
def test_memory_is_not_copied(name: str, kind: str) -> None:
    backend = islices.get_backend(name)
    table = make(backend, np.ones(LARGE, np.float32), kind)
    gc.collect()

    def write_twice() -> Any:
        held = table
        for _ in range(2):
            views, (held,) = backend.writable([held], donate=kind == "donated")  # type: ignore[misc]
            views[0][3] = 7.0
            del views  # a viewed array would be copied
        return held

    if kind != "array":  # TensorFlow and JAX never write into NumPy's memory: they copy it once
        (table,) = backend.writable([table], donate=True)[1]  # type: ignore[index]
    result, growth = peak_growth(write_twice)
    assert growth < 5e6, f"{growth / 1e6:.0f} MB more, for a table of 26 MB"
    assert backend.to_numpy(backend.take(result, backend.asarray(np.array([2, 3]))))[:, 0].tolist() == [1.0, 7.0]


def test_one_array_elsewhere_and_none_changes() -> None:
    torch = pytest.importorskip("torch")
    here, elsewhere = torch.zeros(3, 2), torch.zeros(3, 2, device="meta")
    version = here._version
    assert islices.get_backend("torch").writable([here, elsewhere]) is None
    assert here._version == version


# ---------------------------------------------------------------------- while a gradient is recorded
def _stepped(rule: optim.Optimizer) -> Any:
    return lambda table, slices: rule.step(table, slices, rule.init(table))


UPDATES = {
    "adam, all rows": _stepped(optim.adam(0.2, rows="all")),
    "scatter": islices.scatter,
}


def _gradient_after(name: str, update: Any, slices: Any) -> Any:
    """Return the gradient of ``sum(w * w)`` at w = 1. The function `update` changes w between the forward and the
    backward pass."""
    B = islices.get_backend(name)
    ones = B.asarray(np.ones((3, 1), np.float32))
    if name == "torch":
        ones.requires_grad_(True)
        loss = (ones * ones).sum()
        update(ones, slices)
        loss.backward()
        return ones.grad
    if name == "tensorflow":
        import tensorflow as tf

        variable = tf.Variable(ones)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * variable)
            update(variable, slices)
        return tf.convert_to_tensor(tape.gradient(loss, variable))
    import mxnet as mx

    ones.attach_grad()
    with mx.autograd.record():
        loss = (ones * ones).sum()
        try:
            update(ones, slices)
        finally:
            assert ones.asnumpy().ravel().tolist() == [1.0, 1.0, 1.0], "a call that raises writes nothing"
    loss.backward()
    return ones.grad


#: backend -> None if the gradient is right in spite of the update, else the error and its message
ENDS = {
    "torch": (RuntimeError, "modified by an inplace operation"),
    "tensorflow": None,
    "mxnet": (ValueError, r"table: got an array that autograd.record\(\) has.*accepted"),
}


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
@pytest.mark.parametrize("mode", ["host", "framework"])
@pytest.mark.parametrize("name", [name for name in ENDS if name in islices.list_backends()])
def test_no_gradient_is_of_values_that_an_update_has_changed(name: str, mode: Any, update: Any) -> None:
    B = islices.get_backend(name)
    half, first = B.asarray(np.full((1, 1), 0.5, np.float32)), B.asarray(np.zeros(1, np.int32))
    slices, end = islices.IndexedSlices(half, first, (3, 1)), ENDS[name]
    with islices.config.execution(mode):
        if end is None:
            assert B.to_numpy(_gradient_after(name, update, slices)).ravel().tolist() == [2.0, 2.0, 2.0]
        else:
            with pytest.raises(end[0], match=end[1]):
                _gradient_after(name, update, slices)


# ---------------------------------------------------------------------- NumPy
def test_numpy_strides_are_kept_and_other_memory_is_refused() -> None:
    B = islices.get_backend("numpy")
    base = np.zeros((4, 6))
    (view,), _ = B.writable([base[:, ::2]])  # type: ignore[misc]
    view[1] = 5.0
    assert base[1].tolist() == [5, 0, 5, 0, 5, 0]
    (view,), _ = B.writable([np.zeros(3)[None]])  # type: ignore[misc]
    assert view.shape == (1, 3), "an axis of length 1 has any stride"
    read_only = np.zeros((2, 2))
    read_only.flags.writeable = False
    one_row = np.lib.stride_tricks.as_strided(np.zeros(2), (3, 2), (0, 8))
    for x in (read_only, one_row, np.zeros((2, 2), np.dtype(np.float32).newbyteorder())):
        assert B.writable([base, x]) is None


# ---------------------------------------------------------------------- torch


def test_torch_parts_of_a_tensor_and_inference_tensors() -> None:
    torch = pytest.importorskip("torch")
    B = islices.get_backend("torch")
    base = torch.zeros(4, 6)
    (view,), _ = B.writable([base[1:3, ::2]])  # type: ignore[misc]
    view[...] = 1.0
    assert base.sum() == 6.0
    assert base[1].tolist() == [1, 0, 1, 0, 1, 0]
    with torch.inference_mode():
        mine = torch.zeros(2, 2)
        views, results = B.writable([mine, base])  # type: ignore[misc]
        views[0][0] = 3.0
        assert mine[0].tolist() == [3.0, 3.0]
        assert results[0] is mine


def test_torch_memory_that_is_not_there_is_refused() -> None:
    torch = pytest.importorskip("torch")
    B = islices.get_backend("torch")
    emptied = torch.ones(4, 3)
    emptied.untyped_storage().resize_(0)  # FSDP frees its parameters in this way between uses
    for read in (B.host_view, B.to_numpy, B.dtype, lambda x: B.writable([x])):
        with pytest.raises(ValueError, match="whose storage was freed"):
            read(emptied)
    with islices.config.execution("framework"), pytest.raises(ValueError, match="whose storage was freed"):
        islices.global_norm(emptied)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        assert B.writable([dual]) is None
    assert B.writable([torch.ones(2)._neg_view()]) is None


def test_torch_tables_of_other_kinds_are_opened_one_by_one() -> None:
    torch = pytest.importorskip("torch")
    B, emptied = islices.get_backend("torch"), torch.ones(4, 3)
    emptied.untyped_storage().resize_(0)
    with torch.inference_mode():
        inferred = torch.ones(2)
    others = {
        "emptied": emptied, "inference": inferred, "none": None, "bool": torch.ones(2, dtype=torch.bool),
        "columns": torch.ones(4, 4)[:, ::2], "no rows": torch.ones(0, 3),
        "expanded": torch.ones(1, 3).expand(4, 3), "meta": torch.ones(2, device="meta"), "NumPy": np.ones(2),
        "negated": torch.ones(2)._neg_view(), "sparse": torch.ones(2, 2).to_sparse(1),
    }  # fmt: skip
    for name, x in others.items():
        assert B.plain_tables([torch.ones(2), x]) is None, name
    with torch.autograd.forward_ad.dual_level():
        assert B.plain_tables([torch.ones(2)]) is None


def test_torch_gradients_whose_memory_is_freed_are_refused() -> None:
    torch = pytest.importorskip("torch")
    values, ids = torch.ones(5, 2), torch.tensor([0, 0, 3, 1, 3])
    x = torch.sparse_coo_tensor(ids[None, 2:], values[2:], (5, 2), check_invariants=False)
    values.untyped_storage().resize_(0)
    for call in (islices.coalesce, islices.global_norm, islices.from_native):
        with pytest.raises(ValueError, match="whose storage was freed"):
            call(x)


# ---------------------------------------------------------------------- NumPy


def test_numpy_tables_of_other_kinds_are_opened_one_by_one(tmp_path: Path) -> None:
    B, locked = islices.get_backend("numpy"), np.ones(2)
    locked.flags.writeable = False
    others = {
        "read-only": locked, "columns": np.ones((4, 4))[:, ::2], "expanded": np.broadcast_to(np.ones(3), (4, 3)),
        "foreign byte order": np.ones(2, ">f4"), "unaligned": np.frombuffer(bytearray(17), np.float64, 2, 1),
        "memmap": np.memmap(tmp_path / "x", np.float32, "w+", shape=(2,)), "none": None, "scalar": np.float32(1),
    }  # fmt: skip
    for name, x in others.items():
        assert B.plain_tables([np.ones(2), x]) is None, name


# ---------------------------------------------------------------------- TensorFlow
@pytest.mark.parametrize("scattered", [False, True], ids=["as made", "scattered into"])
def test_tensorflow_snapshots_keep_their_values(scattered: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    B = islices.get_backend("tensorflow")
    variable = make(B, host_of("float32"), "variable")
    if scattered:  # from then on, reads of the variable copy
        variable.scatter_update(tf.IndexedSlices(tf.cast([[7, 7, 7]], variable.dtype), [2]))
    first, viewed = variable.read_value(), B.host_view(variable)
    before = B.to_numpy(first).copy()
    (view,), _ = B.writable([variable])  # type: ignore[misc]
    view[0] = view[4]
    del view
    second = variable.read_value()
    (view,), _ = B.writable([variable])  # type: ignore[misc]
    view[1] = view[4]
    del view
    after = before.copy()
    after[0] = before[4]
    for snapshot, expected in ((B.to_numpy(first), before), (viewed, before), (B.to_numpy(second), after)):
        np.testing.assert_array_equal(snapshot, expected)
    after[1] = before[4]
    np.testing.assert_array_equal(B.to_numpy(variable), after)


def test_tensorflow_variables_of_keras_and_of_nothing() -> None:
    tf = pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    B = islices.get_backend("tensorflow")
    if keras.backend.backend() == "tensorflow":
        layer = keras.layers.Embedding(4, 3)
        layer.build(None)
        (view,), (result,) = B.writable([layer.embeddings])  # type: ignore[misc]
        view[2] = 9.0
        del view
        assert result is layer.embeddings
        assert layer(np.array([2])).numpy().tolist() == [[9.0, 9.0, 9.0]]

    def in_its_scope() -> Any:
        with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
            return tf.Variable(tf.ones((2, 2)))

    assert B.writable([in_its_scope()]) is None, "it has a copy on each device"
    assert B.writable([tf.Variable(tf.ones((2, 2)), shape=tf.TensorShape(None))]) is None


# ---------------------------------------------------------------------- JAX
def test_jax_donated_arrays_are_gone_and_others_stay() -> None:
    jax = pytest.importorskip("jax")
    B = islices.get_backend("jax")
    table, state = jax.numpy.ones((8, 4)), jax.numpy.zeros((8,))
    product = table @ table.T  # the product may still be running
    places = [x.unsafe_buffer_pointer() for x in (table, state)]
    views, results = B.writable([table, state], donate=True)  # type: ignore[misc]
    views[0][2] = 3.0
    assert table.is_deleted()
    assert state.is_deleted()
    assert [x.unsafe_buffer_pointer() for x in results] == places
    assert np.asarray(results[0])[1:3, 0].tolist() == [1.0, 3.0]
    assert np.asarray(product).tolist() == np.full((8, 8), 4.0).tolist()
    views, copies = B.writable(results)  # type: ignore[misc]
    views[0][2] = 5.0
    assert np.asarray(results[0])[2, 0] == 3.0
    assert np.asarray(copies[0])[2, 0] == 5.0, "the view is the result's memory"


def test_jax_memory_that_numpy_sees_is_not_written() -> None:
    jax = pytest.importorskip("jax")
    B = islices.get_backend("jax")
    table = jax.numpy.ones((8, 4))
    seen = np.asarray(table)
    mine = empty((8, 4), np.float32)
    mine[...] = 1.0
    views, results = B.writable([table, jax.device_put(mine)], donate=True)  # type: ignore[misc]
    for view in views:
        view[...] = 2.0
    assert seen.max() == mine.max() == 1.0
    assert all(np.asarray(x).min() == 2.0 for x in results)


# ---------------------------------------------------------------------- MXNet
QUEUED = """
import islices
B = islices.get_backend("mxnet")
import mxnet as mx

x = mx.nd.ones((1500, 1500))
products = [mx.nd.dot(x, x) for _ in range(3)]
part = x[10:20]
(view,), (result,) = B.writable([x])
view[...] = 0.0
assert result is x
assert all(p.asnumpy().min() == 1500.0 for p in products)
assert part.asnumpy().max() == 0.0, "a slice is the same memory"
"""


@pytest.mark.outside
def test_mxnet_computations_under_way_come_first() -> None:
    if "mxnet" not in islices.list_backends():
        pytest.skip("mxnet is not installed")
    # one worker, the default, finishes everything queued before a wait
    run_code(QUEUED, MXNET_CPU_WORKER_NTHREADS="4")
