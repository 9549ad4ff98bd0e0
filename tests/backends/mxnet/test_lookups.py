"""Gradients of lookups in MXNet: against MXNet's own dense ones, and what only its autograd and Gluon do."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import islices

if "mxnet" not in islices.list_backends():
    pytest.skip("mxnet is not installed", allow_module_level=True)
BACKEND = islices.get_backend("mxnet")

import mxnet as mx  # noqa: E402 - the adapter imports it first, on a NumPy it does not know
from mxnet import gluon  # noqa: E402

nd, autograd = mx.nd, mx.autograd


def array(x: Any, dtype: str = "float32") -> Any:
    return BACKEND.asarray(np.asarray(x, dtype))


def dense(x: Any) -> np.ndarray[Any, Any]:
    return islices.to_dense(x).asnumpy()  # type: ignore[no-any-return]


def weights(rows: int, columns: int, dtype: str = "float32") -> Any:
    return array(np.arange(rows * columns).reshape(rows, columns) % 7 - 3, dtype)


# ---------------------------------------------------------------------- against MXNet's dense gradient
@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    ids_dtype=st.sampled_from(["int32", "int64"]),
    columns=st.integers(1, 3),
    shapes=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    data=st.data(),
)
def test_gradients_are_mxnets_own_dense_ones(
    dtype: str, ids_dtype: str, columns: int, shapes: list[list[int]], data: st.DataObject
) -> None:
    """Whole numbers, so that no sum is rounded and the bits must be equal."""
    rows = 6
    first, second = weights(rows, columns, dtype), weights(rows, columns, dtype) * 2
    lookups = []
    for shape in shapes:
        n = int(np.prod(shape))
        ids = data.draw(st.lists(st.integers(0, rows - 1), min_size=n, max_size=n))
        lookups.append((data.draw(st.integers(0, 1)), array(np.reshape(ids, shape), ids_dtype)))
    scale = array([2.0], dtype)

    def loss(read: Any, tables: Any, scale: Any) -> Any:
        parts = [(read(tables[k], ids) * (i + 1)).sum() * scale for i, (k, ids) in enumerate(lookups)]
        return sum(parts[1:], parts[0])

    value, (grads, d_scale) = islices.value_and_grad(lambda t, s: loss(islices.lookup, t, s), (0, 1))(
        [islices.Table(first), islices.Table(second)], scale
    )
    for x in (first, second, scale):
        x.attach_grad()
    with autograd.record():
        expected = loss(nd.take, [first, second], scale)
    expected.backward()
    assert value.asnumpy().tolist() == expected.asnumpy().tolist()
    assert d_scale.asnumpy().tolist() == scale.grad.asnumpy().tolist()
    for got, table in zip(grads, (first, second), strict=True):
        assert got.values.dtype == table.dtype
        np.testing.assert_array_equal(dense(got), table.grad.asnumpy())


def test_empty_ids_unused_lookups_and_unused_arguments() -> None:
    table, unused = islices.Table(weights(5, 2)), islices.Table(weights(4, 2, "float64"))

    def fn(table: Any, unused: Any, w: Any) -> Any:
        islices.lookup(table, array([[0, 1]], "int32"))
        with mx.util.np_shape(True):
            nothing = islices.lookup(table, array([], "int64")).sum()
            single = islices.lookup(table, array(3, "int64")).sum()
        return single.reshape((1,)) + nothing.reshape((1,))

    _, (grad, none, d_w) = islices.value_and_grad(fn, (0, 1, 2))(table, unused, array([[1.0]], "float64"))
    assert dense(grad).tolist() == [[0, 0], [0, 0], [0, 0], [1, 1], [0, 0]]
    assert grad.indices.shape == (3,)
    assert none.values.shape == (0, 2)
    assert none.values.dtype == d_w.dtype == np.float64
    assert d_w.asnumpy().tolist() == [[0.0]]


def test_a_loss_that_depends_on_nothing_has_gradients_of_zero() -> None:
    value, grad = islices.value_and_grad(lambda t: nd.ones((1,)) * 3)(islices.Table(weights(5, 2)))
    assert value.asscalar() == 3
    assert grad.values.shape == (0, 2)
    _, grad = islices.value_and_grad(lambda x: nd.ones((1,)))(array([1.0, 2.0]))
    assert grad.asnumpy().tolist() == [0, 0]
    _, grad = islices.value_and_grad(lambda x: x)(array([1.0]))
    assert grad.asnumpy().tolist() == [1]


def test_a_lookup_under_pause_is_a_constant() -> None:
    def fn(t: Any) -> Any:
        with autograd.pause():
            constant = islices.lookup(t, array([1], "int64"))
        return (constant * islices.lookup(t, array([2], "int64"))).sum()

    _, grad = islices.value_and_grad(fn)(islices.Table(array([[1.0], [3.0], [5.0]])))
    assert dense(grad).tolist() == [[0], [0], [3]]


def test_the_gradient_of_a_sparse_embedding_of_a_dense_argument_is_dense() -> None:
    w = weights(4, 2)
    _, grad = islices.value_and_grad(
        lambda w: nd.Embedding(array([1, 1]), w, input_dim=4, output_dim=2, sparse_grad=True).sum()
    )(w)
    assert grad.stype == "default"
    assert grad.asnumpy().tolist() == [[0, 0], [2, 2], [0, 0], [0, 0]]


def test_numpy_arrays_of_mxnet_and_losses_of_no_dimension_work_inside() -> None:
    def fn(t: Any) -> Any:
        with mx.util.np_shape(True):
            return (islices.lookup(t, array([1, 1], "int64")).as_np_ndarray() * 2).sum().as_nd_ndarray()

    value, grad = islices.value_and_grad(fn)(islices.Table(weights(3, 2)))
    assert value.shape == ()
    assert dense(grad).tolist() == [[0, 0], [4, 4], [0, 0]]


# ---------------------------------------------------------------------- the user's own recordings
def test_buffers_and_graphs_of_the_user_are_left_alone() -> None:
    outside, w, table = array([2.0, 3.0]), array([1.0, 1.0]), weights(4, 2)
    block = gluon.nn.Dense(1, in_units=2)
    block.initialize()
    outside.attach_grad()
    w.attach_grad(grad_req="add")
    table.attach_grad()
    for buffer in (outside.grad, w.grad, table.grad, block.weight.grad()):
        buffer[:] = 7
    with autograd.record():
        recorded = outside * 3
    islices.value_and_grad(
        lambda t, w: (block(islices.lookup(t, array([1], "int64")) * w) * recorded.sum()).sum(), (0, 1)
    )(islices.Table(table), w)
    for buffer in (outside.grad, w.grad, table.grad, block.weight.grad()):
        assert (buffer.asnumpy() == 7).all()
    recorded.backward()
    assert outside.grad.asnumpy().tolist() == [3, 3]


def test_a_hybridized_block_inside() -> None:
    block = gluon.nn.Dense(1, in_units=2, use_bias=False)
    block.initialize(init="ones")
    block.hybridize()
    _, grad = islices.value_and_grad(lambda t: block(t[array([1, 1], "int64")]).sum())(islices.Table(weights(3, 2)))
    assert dense(grad).tolist() == [[0, 0], [2, 2], [0, 0]]


@pytest.mark.parametrize("where", ["recording", "nested", "outer table"])
def test_second_derivatives_are_refused(where: str) -> None:
    table, ids = islices.Table(weights(3, 2)), array([1], "int64")

    def loss(t: Any) -> Any:
        return islices.lookup(t, ids).sum()

    def nested(t: Any) -> Any:
        return islices.value_and_grad(loss)(table)[0]

    def outer_table(t: Any) -> Any:
        with autograd.pause():
            return islices.value_and_grad(loss)(t)[0]

    def recording(t: Any) -> Any:
        with autograd.record():
            return islices.value_and_grad(loss)(t)

    calls = {
        "recording": recording,
        "nested": islices.value_and_grad(nested),
        "outer table": islices.value_and_grad(outer_table),
    }
    with pytest.raises(NotImplementedError, match=r"MXNet (cannot differentiate its gradients|has no second)"):
        calls[where](table)
    assert not autograd.is_recording()
    assert not autograd.is_training()


def test_a_backward_pass_within_is_refused_where_it_took_the_graph_apart() -> None:
    ids, table = array([1, 1], "int64"), islices.Table(weights(3, 2))

    def through(t: Any) -> Any:
        squares = islices.lookup(t, ids) ** 2
        squares.sum().backward()
        return squares.sum()

    def beside(t: Any) -> Any:
        x = array([1.0])
        x.attach_grad()
        (x * 3).backward()
        return islices.lookup(t, ids).sum() * x.grad

    with pytest.raises(NotImplementedError, match="backward pass within"):
        islices.value_and_grad(through)(table)
    assert dense(islices.value_and_grad(beside)(table)[1]).tolist() == [[0, 0], [6, 6], [0, 0]]


@pytest.mark.parametrize(
    ("loss", "error", "text"),
    [
        (lambda rows: rows, ValueError, r"shape \(2, 2\)"),
        (lambda rows: 3.0, TypeError, "returned float 3.0"),
        (lambda rows: rows.sum().astype("int32"), TypeError, "of dtype int32"),
        (lambda rows: rows.sum().tostype("row_sparse"), TypeError, "RowSparse"),
        (lambda rows: 1 // 0, ZeroDivisionError, "zero"),
    ],
)
def test_errors_pass_through_and_leave_nothing_behind(loss: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        islices.value_and_grad(lambda t: loss(t[array([1, 1], "int64")]))(islices.Table(weights(3, 2)))
    assert not autograd.is_recording()
    assert not autograd.is_training()


def test_a_table_of_a_function_that_returned_or_of_another_thread_is_refused() -> None:
    kept, seen = [], []
    ids = array([1], "int64")

    def look(t: Any) -> None:
        try:
            islices.lookup(t, ids)
        except TypeError as e:
            seen.append(str(e))

    def fn(t: Any) -> Any:
        kept.append(t)
        thread = threading.Thread(target=look, args=(t,))
        thread.start()
        thread.join()
        return islices.lookup(t, ids).sum()

    islices.value_and_grad(fn)(islices.Table(weights(3, 2)))
    look(kept[0])
    assert ["another thread" in seen[0], "has returned" in seen[1]] == [True, True], seen


def test_threads_do_not_disturb_one_another() -> None:
    got: list[list[float]] = []

    def work(k: int) -> None:
        table = islices.Table(weights(50, 2))
        for _ in range(20):
            ids = array([k, k + 1, k], "int64")
            _, grad = islices.value_and_grad(lambda t, ids=ids: t[ids].sum() * (k + 1))(table)
            expected = np.zeros((50, 2), np.float32)
            expected[k], expected[k + 1] = 2 * (k + 1), k + 1
            got.append((dense(grad) - expected).ravel().tolist())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 80
    assert not any(any(x) for x in got)


# ---------------------------------------------------------------------- functions with a gradient of their own
@pytest.mark.parametrize("attached", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("request_", ["write", "add"])
def test_a_custom_gradient_reaches_whoever_asked(attached: tuple[int, ...], request_: str) -> None:
    """MXNet's own Function stops at the first input without a gradient, and drops sums."""
    product = BACKEND.custom_gradient(lambda x, i, y: x * y, lambda r, u: (u * r[2], None, u * r[0]))
    inputs = [array([1.0, 2.0]), array([3.0, 4.0])]
    for k in attached:
        inputs[k].attach_grad(grad_req=request_)
    for _ in range(2):
        with autograd.record():
            out = product(inputs[0], array([1], "int64"), inputs[1])
        out.backward()
    times = 2 if request_ == "add" else 1
    for k in attached:
        assert (inputs[k].grad.asnumpy() == times * inputs[1 - k].asnumpy()).all()


def test_a_custom_gradient_runs_on_the_host_in_the_mode_of_its_caller() -> None:
    from islices import modes

    seen = []

    def look(x: Any) -> None:
        seen.append((autograd.is_recording(), modes.host_views(BACKEND, [x]) is not None))

    f = BACKEND.custom_gradient(lambda x: (look(x), x * 1)[1], lambda r, u: (look(u), (u * 2,))[1])
    for mode in ("host", "framework"):
        with islices.execution(mode):
            _, g = islices.value_and_grad(lambda x: f(x).sum())(array([1.0, 2.0]))
        assert g.asnumpy().tolist() == [2, 2]
    assert seen == [(False, True)] * 2 + [(False, False)] * 2


def test_errors_in_a_custom_gradient_come_out_as_they_are() -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("in backward")

    f = BACKEND.custom_gradient(lambda x: x * 1, fail)
    with pytest.raises(ZeroDivisionError, match="in backward"):
        islices.value_and_grad(lambda x: f(x).sum())(array([1.0]))
    broken = BACKEND.custom_gradient(fail, fail)
    with pytest.raises(ZeroDivisionError), autograd.record():
        broken(array([1.0]))
    assert not autograd.is_recording()


def test_a_bag_in_the_users_own_recording_and_a_bag_of_nothing() -> None:
    w, ids = weights(4, 2), array([1, 1, 3], "int64")
    w.attach_grad()
    with autograd.record():
        out = islices.lookup(w, ids, combiner="sum", offsets=array([0, 2, 3], "int64")).sum()
    out.backward()
    assert w.grad.asnumpy().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]

    def nothing(t: Any) -> Any:
        with mx.util.np_shape(True):
            bags = islices.lookup(t, array([], "int64"), combiner="mean", offsets=array([0, 0], "int64"))
            return bags.sum().reshape((1,))

    value, grad = islices.value_and_grad(nothing)(islices.Table(w))
    assert value.asscalar() == 0
    assert grad.values.shape == (0, 2)


# ---------------------------------------------------------------------- primitives
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
def test_rows_are_set_in_place(dtype: str, ids_dtype: str) -> None:
    table = BACKEND.zeros((5, 2), dtype, array([1.0]))
    values = BACKEND.astype(array([[1, 2], [3, 4]]), dtype)
    table.attach_grad()
    # Where the numbers lie, not the handles: each `.grad` is a new handle onto one buffer.
    grad, memory = (BACKEND.host_view(a).__array_interface__["data"] for a in (table.grad, table))
    assert BACKEND.set_rows(table, array([3, 0], ids_dtype), values) is table
    assert BACKEND.host_view(table.grad).__array_interface__["data"] == grad
    assert BACKEND.host_view(table).__array_interface__["data"] == memory
    assert BACKEND.astype(table, "float32").asnumpy().tolist() == [[3, 4], [0, 0], [0, 0], [1, 2], [0, 0]]


def test_a_step_on_a_large_table_allocates_nothing_of_its_size() -> None:
    """In a process of its own, since the peak of this one may be higher already."""
    code = """
import resource, numpy as np, islices
B = islices.get_backend("mxnet")
import mxnet as mx
W = mx.nd.zeros((10_000_000, 4)); W.wait_to_read()
ids = B.asarray(np.arange(1000) * 9999)
table = islices.Table(W)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def step():
    _, g = islices.value_and_grad(lambda t: (t[ids] ** 2).sum() + (t[ids] * 2).sum())(table)
    B.set_rows(W, ids, g.values[:1000])
    W.wait_to_read()
islices.value_and_grad(lambda t: (t[ids[:2]] ** 2).sum())(islices.Table(mx.nd.zeros((10_000, 4))))
before = peak()
for _ in range(3):
    step()
print(peak() - before)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert float(out.stdout) < 40, f"the table is 153 MiB, the step took {out.stdout} MiB"


# ---------------------------------------------------------------------- Gluon
class Net(gluon.HybridBlock):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.encoder = gluon.nn.HybridSequential()
            self.encoder.add(gluon.nn.Embedding(10, 3, **options))
            self.again = self.encoder[0]
            self.out = gluon.nn.Dense(2, flatten=False, in_units=3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.out(self.encoder(x) + self.again(x * 0 + 1))


def net(**options: Any) -> Net:
    mx.random.seed(3)
    model = Net(**options)
    model.initialize(init=mx.init.Normal(1.0))
    return model


@pytest.mark.parametrize("sparse_grad", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("frozen", [False, True])
def test_capture_a_gluon_model(sparse_grad: bool, passes: int, frozen: bool) -> None:
    model, ids = net(sparse_grad=sparse_grad), array([[1, 2], [2, 9]])
    expected = net()
    with autograd.record():
        plain = (expected(ids) ** 2).sum()
    plain.backward()
    if frozen:
        model.encoder[0].weight.grad_req = "null"
    uses: list[Any] = []
    with BACKEND.capture(model, uses) as found:
        with autograd.record():
            loss = (model(ids) ** 2).sum()
        assert [use.upstream for use in uses] == [None, None]
        for _ in range(passes):
            loss.backward(retain_graph=True)
    assert list(found) == ["encoder.0"]
    assert "forward" not in vars(model.encoder[0])
    assert loss.asnumpy().tolist() == plain.asnumpy().tolist()
    assert {(use.layer, use.ids.dtype, use.num_rows) for use in uses} == {("encoder.0", np.int64, 10)}
    got = np.zeros((10, 3), np.float32)
    for use in uses:
        np.add.at(got, use.ids.asnumpy(), use.upstream.asnumpy())
    np.testing.assert_allclose(got, passes * expected.encoder[0].weight.grad().asnumpy(), rtol=1e-5)


def test_capture_leaves_the_model_as_it_was_after_an_error() -> None:
    model = net()

    def fail() -> None:
        with islices.capture(model), autograd.record():
            model(array([[1]]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "forward" not in vars(model.encoder[0])
    assert not autograd.is_recording()


def test_capture_says_what_it_cannot_hook() -> None:
    class Scaled(gluon.nn.Embedding):
        def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:
            return super().hybrid_forward(F, x, weight) * 2

    hybridized = net()
    hybridized.hybridize()
    traced = hybridized(mx.sym.var("x"))
    symbols = gluon.SymbolBlock(traced, [mx.sym.var("x")])
    for model, text in [
        (hybridized, r"hybridize\(False\)"),
        (symbols, "SymbolBlock"),
        (Scaled(4, 2), "Scaled"),
        (gluon.contrib.nn.SparseEmbedding(4, 2), "SparseEmbedding"),
    ]:
        with pytest.raises(TypeError, match=text), BACKEND.capture(model, []):
            pass

    def hybridize_within(model: Any) -> None:
        with BACKEND.capture(model, []):
            model.hybridize()
            model(array([[1]]))

    with pytest.raises(TypeError, match=r"hybridize\(False\)"):
        hybridize_within(net())
    around = gluon.nn.HybridSequential()
    around.add(gluon.nn.Embedding(4, 2))
    around.initialize()
    around.hybridize()
    with pytest.raises(TypeError, match="a block around the model"), BACKEND.capture(around[0], []):
        around(array([[1]]))


@pytest.mark.parametrize("on", [False, True])
def test_capture_with_gluons_numpy_arrays(on: bool) -> None:
    with mx.util.np_shape(on), mx.util.np_array(on):
        layer = gluon.nn.Embedding(4, 2)
        layer.initialize()
        layer.hybridize()  # a layer that is not inside of a hybridized block can be hooked
        ids, uses = (mx.np if on else nd).array([1, 1]), []  # type: ignore[var-annotated]
        with BACKEND.capture(layer, uses):
            with autograd.record():
                loss = layer(ids).sum()
            loss.backward()
    assert BACKEND.is_array(uses[0].ids)
    assert BACKEND.is_array(uses[0].upstream)
    assert uses[0].upstream.asnumpy().tolist() == [[1, 1], [1, 1]]


def test_per_sample_gradients_of_dense_arguments_are_refused_with_the_way_out() -> None:
    with pytest.raises(NotImplementedError, match=r"no vmap.*Tables"):
        islices.value_and_grad(lambda t, w, ids: (t[ids] * w).sum(axis=1), (0, 1), per_sample=True)(
            islices.Table(weights(3, 2)), array([[1.0, 1.0]]), array([1, 2], "int64")
        )
