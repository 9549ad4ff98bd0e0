"""Compare clip_global_norm for Gluon with islices.clip_by_global_norm, and Trainer with mxnet.gluon.Trainer after a
clip by islices. Some tests train a real model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from comparing import assert_same
from errors import each_raises
from mxnet import autograd, gluon, nd

import islices
from islices.backends.mxnet import gluon as front

RNG = np.random.default_rng(0)
STEPS, BATCH, ROWS = 5, 8, 12
IDS = RNG.integers(0, 10, (STEPS, BATCH, 5))  # no batch contains row 10 or row 11
LABELS = RNG.standard_normal((STEPS, BATCH, 1))
MAX_NORM = 0.05  # below the norm of every gradient in this file
Step = Callable[[Any, list[Any]], None]


# ---------------------------------------------------------------------- the function
def sparse(rows: Any, values: Any, shape: tuple[int, ...] = (6, 2)) -> Any:
    return nd.sparse.row_sparse_array((nd.array(values), rows), shape=shape)


def some() -> list[Any]:
    rng = np.random.default_rng(2)
    values = nd.array(rng.standard_normal((3, 2)))
    return [sparse([1, 4], rng.standard_normal((2, 2))), values, nd.sparse.zeros("row_sparse", (4, 2))]


def test_arrays_are_clipped_in_place_as_islices_clips() -> None:
    arrays = some()
    expected, norm = islices.clip_by_global_norm(some(), 0.5, semantics="mxnet")
    got = front.clip_global_norm(arrays, 0.5)
    assert got == norm.asscalar()
    assert [x.stype for x in arrays] == ["row_sparse", "default", "row_sparse"]
    assert arrays[0].indices.asnumpy().tolist() == [1, 4]
    assert_same([x.asnumpy() for x in arrays], [x.asnumpy() for x in expected])


def test_a_norm_that_is_not_finite_fills_no_row_that_is_not_stored() -> None:
    arrays = [sparse([1, 4], [[np.nan, 1.0], [2.0, 3.0]]), nd.array([1.0])]
    with pytest.warns(UserWarning, match="the norm of the arrays is nan"):
        assert np.isnan(front.clip_global_norm(arrays, 1.0))
    assert np.isnan(arrays[0].asnumpy()).all(1).tolist() == [False, True, False, False, True, False]
    arrays = [sparse([1], [[np.inf, 1.0]])]
    with pytest.raises(FloatingPointError, match="the norm of the gradient is inf"):
        front.clip_global_norm(arrays, 1.0, nonfinite="raise")
    assert arrays[0].data.asnumpy().tolist() == [[np.inf, 1.0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        front.clip_global_norm(arrays, 1.0, False, nonfinite="zero")
    assert arrays[0].asnumpy().tolist() == [[0.0, 0.0]] * 6


test_bad_input_is_named = each_raises([
    (lambda: front.clip_global_norm([], 1.0), ValueError, "arrays: got an empty list"),
    (lambda: front.clip_global_norm(nd.ones(3), 1.0), TypeError, "arrays: got .*accepted is a list"),
    (
        lambda: front.clip_global_norm([nd.ones(3), nd.ones(3, dtype="int32")], 1.0), TypeError,
        "arrays: got .* of dtype int32 .* at position 1; accepted are NDArrays of floats"
    ),
    (lambda: trainer(model(), clip_global_norm="1"), TypeError, "clip_global_norm: got str '1'"),
    (
        lambda: trainer(model(), clip_global_norm=1.0, update_on_kvstore=True), ValueError, "update_on_kvstore: got"
    ),
    (lambda: trainer(model(), clip_global_norm=1.0).step(0), ValueError, "batch_size: got 0"),
    (lambda: trainer(sparse_weight(), clip_global_norm=1.0), ValueError, "weight is row_sparse"),
])  # fmt: skip


# ---------------------------------------------------------------------- training
def model() -> Any:
    mx.random.seed(1)
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Embedding(ROWS, 4, sparse_grad=True),
        gluon.nn.GlobalAvgPool1D(layout="NWC"),
        gluon.nn.Flatten(),
        gluon.nn.Dense(1, in_units=4),
    )
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    return net


def sparse_weight() -> Any:
    net = gluon.contrib.nn.SparseEmbedding(4, 2)
    net.initialize()
    return net


def trainer(net: Any, *, make: Any = front.Trainer, **options: Any) -> Any:
    return make(net.collect_params(), "adam", {"learning_rate": 0.01, "lazy_update": True}, **options)


def train(net: Any, t: Any, step: Step) -> list[np.ndarray]:
    params = list(net.collect_params().values())
    for ids, labels in zip(IDS, LABELS, strict=True):
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(nd.array(ids)), nd.array(labels))
        loss.backward()
        step(t, params)
    return [p.data().asnumpy() for p in params]


def by_hand(t: Any, params: list[Any]) -> None:
    """Clip with islices, then step with the Trainer `t`. The limit is ``MAX_NORM * BATCH``, because the gradients are
    sums over BATCH samples."""
    t.allreduce_grads()
    grads = [p.grad() for p in params]
    clipped, _ = islices.clip_by_global_norm(grads, MAX_NORM * BATCH, semantics="mxnet")
    for new, grad in zip(clipped, grads, strict=True):
        new.copyto(grad)
    t.update(BATCH)


def test_the_trainer_takes_the_course_of_the_loop_by_hand() -> None:
    net, other = model(), model()
    got = train(net, trainer(net, clip_global_norm=MAX_NORM), lambda t, _: t.step(BATCH))
    assert_same(got, train(other, trainer(other, make=gluon.Trainer), by_hand))
    assert net[0].weight.grad().stype == "row_sparse"
    assert np.array_equal(got[0][10:], model()[0].weight.data().asnumpy()[10:]), "no gradient has named these rows"


def test_two_contexts_are_added_up_before_the_clip() -> None:
    """Check that the clip uses the sum of all contexts' gradients. With two contexts, each context has half of the
    batch; all numbers are exact."""
    found = []
    for contexts in ([mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]):
        layer = gluon.nn.Embedding(4, 1, sparse_grad=True)
        layer.initialize(mx.init.One(), ctx=contexts)
        t = front.Trainer(layer.collect_params(), "sgd", {"learning_rate": 0.1}, clip_global_norm=2.5)
        xs = gluon.utils.split_and_load(nd.array([1, 1, 1, 2]), contexts)
        ws = gluon.utils.split_and_load(nd.array([[2.0], [2.0], [2.0], [8.0]]), contexts)
        with autograd.record():
            losses = [(layer(x) * w).sum() for x, w in zip(xs, ws, strict=True)]
        autograd.backward(losses)
        t.step(2)
        grads = [g.asnumpy().ravel().tolist() for g in layer.weight.list_grad()]
        assert grads == [[0.0, 3.0, 4.0, 0.0]] * len(contexts), "half of the sum, whose norm was 10, in each context"
        found += [w.asnumpy() for w in layer.weight.list_data()]
    assert_same(found[1:], found[:1] * 2)


def test_stale_gradients_are_counted_only_where_they_are_used() -> None:
    used, unused = gluon.nn.Embedding(3, 1, sparse_grad=True), gluon.nn.Dense(1, in_units=1, use_bias=False)
    frozen = gluon.nn.Dense(1, in_units=1, use_bias=False)
    for layer in (used, unused, frozen):
        layer.initialize(mx.init.One())
    frozen.collect_params().setattr("grad_req", "null")
    unused.weight.grad()[:] = 100
    params = [p for layer in (used, unused, frozen) for p in layer.collect_params().values()]
    t = front.Trainer(params, "sgd", {"learning_rate": 1.0}, clip_global_norm=0.5)

    def backward() -> None:
        with autograd.record():
            loss = used(nd.array([1, 1])).sum()
        loss.backward()

    backward()
    with pytest.raises(UserWarning, match="has not been updated"):
        t.step(1)
    assert used.weight.grad().asnumpy().ravel().tolist() == [0.0, 2.0, 0.0], "nothing has been clipped"
    backward()  # the failed step has marked the gradient as used
    t.step(1, ignore_stale_grad=True)
    assert used.weight.data().asnumpy().ravel().tolist() == [1.0, 0.5, 1.0]
    assert unused.weight.data().asnumpy().ravel().tolist() == [1.0]


def test_a_scaled_loss_is_clipped_at_its_own_scale_and_overflow_skips_the_step() -> None:
    """Train with the loss scaler of mxnet.contrib.amp, but without the operators that amp replaces."""
    from mxnet.contrib.amp.loss_scaler import LossScaler

    layer = gluon.nn.Embedding(3, 1)
    layer.initialize(mx.init.One())
    t = front.Trainer(layer.collect_params(), "sgd", {"learning_rate": 1.0}, clip_global_norm=0.5, nonfinite="zero")
    scaler = t._amp_loss_scaler = LossScaler()
    for factor, expected in ((1.0, 0.5), (1e38, 0.5), (1.0, 0.0)):
        t._scale = 1.0 / scaler.loss_scale
        with autograd.record():
            loss = (layer(nd.array([1, 1])) * factor).sum() * scaler.loss_scale
        loss.backward()
        t.step(1)
        assert layer.weight.data().asnumpy().ravel().tolist() == [1.0, expected, 1.0]
    assert scaler.loss_scale == 2.0**15


def test_nothing_changes_in_a_record_section_that_has_the_weights() -> None:
    layer = gluon.nn.Embedding(4, 1, sparse_grad=True)
    layer.initialize(mx.init.One())
    trainer = front.Trainer(layer.collect_params(), "sgd", {"learning_rate": 1.0}, clip_global_norm=0.5)
    (weight,), (grad,) = layer.weight.list_data(), layer.weight.list_grad()
    with autograd.record():
        layer(nd.array([1, 2])).sum().backward()
        for call in (lambda: trainer.step(1), lambda: front.clip_global_norm([nd.ones((2, 2)), weight], 0.5)):
            with pytest.raises(ValueError, match=r"got .* that autograd.record\(\) has in its graph; accepted"):
                call()
        assert weight.asnumpy().ravel().tolist() == [1.0] * 4
        assert grad.asnumpy().ravel().tolist() == [0.0, 1.0, 1.0, 0.0]
    trainer.step(1)
    np.testing.assert_allclose(weight.asnumpy().ravel(), [1.0, 1 - 0.125**0.5, 1 - 0.125**0.5, 1.0], rtol=1e-6)
