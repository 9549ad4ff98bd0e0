"""Compare gradients of lookups in MXNet with MXNet's dense gradients, and test limits of autograd and Gluon."""

from __future__ import annotations

import threading
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import islices

BACKEND = islices.get_backend("mxnet")
nd, autograd = mx.nd, mx.autograd


def array(x: Any, dtype: str = "float32") -> Any:
    return BACKEND.asarray(np.asarray(x, dtype))


def weights(rows: int, columns: int, dtype: str = "float32") -> Any:
    return array(np.arange(rows * columns).reshape(rows, columns) % 7 - 3, dtype)


# ---------------------------------------------------------------------- the user's recordings
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


def test_second_derivatives_are_refused() -> None:
    table, ids = islices.Table(weights(3, 2)), array([1], "int64")

    def loss(t: Any) -> Any:
        return islices.lookup(t, ids).sum()

    def outer_table(t: Any) -> Any:
        with autograd.pause():
            return islices.value_and_grad(loss)(t)[0]

    nested = islices.value_and_grad(lambda t: islices.value_and_grad(loss)(table)[0])
    for call in (nested, islices.value_and_grad(outer_table)):
        with pytest.raises(NotImplementedError, match=r"MXNet (cannot differentiate its gradients|has no second)"):
            call(table)
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
    assert islices.to_dense(islices.value_and_grad(beside)(table)[1]).asnumpy().tolist() == [[0, 0], [6, 6], [0, 0]]


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


# ---------------------------------------------------------------------- functions with a custom gradient
@pytest.mark.parametrize(("attached", "request_"), [((1,), "write"), ((0, 1), "add")])
def test_a_custom_gradient_reaches_whoever_asked(attached: tuple[int, ...], request_: str) -> None:
    """Check that custom gradients work in two cases that MXNet's class Function cannot handle: an input without a
    gradient, and grad_req "add"."""
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


def test_a_bag_in_the_users_own_recording() -> None:
    w, ids = weights(4, 2), array([1, 1, 3], "int64")
    w.attach_grad()
    with autograd.record():
        out = islices.lookup(w, ids, combiner="sum", offsets=array([0, 2, 3], "int64")).sum()
    out.backward()
    assert w.grad.asnumpy().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


# ---------------------------------------------------------------------- primitives
def test_rows_are_set_in_place() -> None:
    table, values = BACKEND.zeros((5, 2), "bfloat16", array([1.0])), BACKEND.astype(array([[1, 2], [3, 4]]), "bfloat16")
    # the address of the numbers; handles may differ
    memory = BACKEND.host_view(table).__array_interface__["data"]
    assert BACKEND.set_rows(table, array([3, 0], "int64"), values) is table
    assert BACKEND.host_view(table).__array_interface__["data"] == memory
    assert BACKEND.astype(table, "float32").asnumpy().tolist() == [[3, 4], [0, 0], [0, 0], [1, 2], [0, 0]]


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


@pytest.mark.parametrize(("sparse_grad", "passes", "frozen"), [(True, 2, False), (False, 1, True)])
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
    assert {(use.layer, use.num_rows) for use in uses} == {("encoder.0", 10)}
    got = np.zeros((10, 3), np.float32)
    for use in uses:
        np.add.at(got, use.ids.asnumpy().astype(int), use.upstream.asnumpy())
    np.testing.assert_allclose(got, passes * expected.encoder[0].weight.grad().asnumpy(), rtol=1e-5)


def test_per_sample_gradients_come_of_one_backward_pass() -> None:
    """Compare per-sample gradients with one backward pass per sample. The model calls its embedding twice, with floats
    as ids."""
    model, ids = net(), array([[1, 2], [2, 9]])
    with islices.capture(model) as captured:
        with autograd.record():
            loss = (model(ids) ** 2).sum()
        loss.backward()
    (found,), (whole,) = captured.per_sample().values(), captured.gradients().values()
    wanted = []
    for k in range(2):
        with autograd.record():
            loss = (model(ids[k : k + 1]) ** 2).sum()
        loss.backward()
        wanted.append(model.again.weight.grad().asnumpy())
    np.testing.assert_allclose(found.to_dense().asnumpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(found.norms().asnumpy(), np.sqrt((np.stack(wanted) ** 2).sum((1, 2))), rtol=1e-5)
    np.testing.assert_allclose(islices.to_dense(whole).asnumpy(), sum(wanted), rtol=1e-5)


def test_capture_says_what_it_cannot_hook() -> None:
    class Scaled(gluon.nn.Embedding):
        def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:
            return super().hybrid_forward(F, x, weight) * 2

    def run(model: Any, then: Any = lambda model: None) -> None:
        with islices.capture(model), autograd.record():
            then(model)
            model(array([[1]]))

    hybridized, around, tied = net(), gluon.nn.HybridSequential(), gluon.nn.Sequential()
    hybridized.hybridize()
    around.add(gluon.nn.Embedding(4, 2))
    tied.add(gluon.nn.Embedding(4, 2))
    tied.add(gluon.nn.Dense(4, in_units=2, flatten=False, params=tied[0].params))
    for block in (around, tied):
        block.initialize()
    around.hybridize()
    for call, text in [
        (lambda: run(hybridized), r"hybridize\(False\)"),
        (lambda: run(net(), lambda model: model.hybridize()), r"hybridize\(False\)"),
        (lambda: run(around[0], lambda model: around(array([[1]]))), r"hybridize\(False\)"),
        (lambda: run(Scaled(4, 2)), "Scaled"),
        (lambda: run(tied), "a read of the weights of embedding layer '0' outside of the layer"),
        (lambda: run(net(), lambda model: model.again.weight.data()), "a read of the weights of embedding layer"),
        (lambda: run(gluon.nn.Dense(2)), "gluon"),
    ]:
        with pytest.raises(TypeError, match=text):
            call()
    for model in (around[0], tied[0]):
        assert "forward" not in vars(model)
        assert not {"data", "list_data"} & vars(model.weight).keys()
    assert not autograd.is_recording()
    with islices.capture(tied) as captured:
        tied[1].weight.data()  # outside of a recording
    assert len(captured._weights) == 1


def test_capture_with_gluons_numpy_arrays() -> None:
    with mx.util.np_shape(True), mx.util.np_array(True):
        layer = gluon.nn.Embedding(4, 2)
        layer.initialize()
        layer.hybridize()  # capture can hook a hybridized layer if no hybridized block contains the layer
        ids, uses = mx.np.array([1, 1]), []  # type: ignore[var-annotated]
        with BACKEND.capture(layer, uses):
            with autograd.record():
                loss = layer(ids).sum()
            loss.backward()
    assert BACKEND.is_array(uses[0].ids)
    assert BACKEND.is_array(uses[0].upstream)
    assert uses[0].upstream.asnumpy().tolist() == [[1, 1], [1, 1]]
