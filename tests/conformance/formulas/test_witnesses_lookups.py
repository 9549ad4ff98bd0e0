"""Frameworks confirm the formulas of clips of several tensors, of bags and of the gradients of lookups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.formulas.judge import judge


def confirmed(formula: str, step: Callable[..., Any]) -> None:
    found = judge(step, formula)
    assert found.grade == 1, str(found)
    assert not found.unsupported, str(found)


def mxnet() -> Any:
    """MXNet, imported as it has to be beside NumPy 2."""
    pytest.importorskip("islices.backends.mxnet")
    islices.get_backend("mxnet")
    import mxnet as mx

    return mx


# ---------------------------------------------------------------------- clips
def torch_parameters(tensors: list[Any]) -> list[Any]:
    import torch

    found = []
    for x in tensors:
        found.append(torch.nn.Parameter(torch.zeros(x.shape)))
        found[-1].grad = torch.from_numpy(x)
    return found


def torch_several(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    import torch

    parameters = torch_parameters(g)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=bool(t % 2))
    return [p.grad for p in parameters]


def torch_value(w: Any, g: Any, state: Any, t: int, *, limit: float) -> Any:
    import torch

    (parameter,) = torch_parameters([g])
    torch.nn.utils.clip_grad_value_([parameter], limit)
    return parameter.grad


def tensorflow_several(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    import tensorflow as tf

    return tf.clip_by_global_norm([tf.constant(x) for x in g], max_norm)[0]


def tensorflow_sparse(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    import tensorflow as tf

    slices = tf.IndexedSlices(tf.constant(g.values), tf.constant(g.indices), tf.constant(g.dense_shape))
    return tf.convert_to_tensor(tf.clip_by_global_norm([slices], max_norm)[0][0])


def keras_clip(option: str) -> Callable[..., Any]:
    """What is left of the gradient in a step of plain descent from 0."""

    def step(w: Any, g: Any, state: Any, t: int, **options: Any) -> Any:
        import keras
        import tensorflow as tf

        tensors = g if isinstance(g, list) else [g]
        weights = [tf.Variable(np.zeros_like(x)) for x in tensors]
        optimizer = keras.optimizers.SGD(1.0, **{option: next(iter(options.values()))})
        optimizer.apply_gradients([(tf.constant(x), w) for x, w in zip(tensors, weights, strict=True)])
        found = [-w.numpy() for w in weights]
        return found if isinstance(g, list) else found[0]

    return step


def optax_several(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    import optax

    made = optax.clip_by_global_norm(max_norm)
    return made.update(g, made.init(g))[0]


def optax_value(w: Any, g: Any, state: Any, t: int, *, limit: float) -> Any:
    import optax

    made = optax.clip(limit)
    return made.update(g, made.init(g))[0]


def mxnet_several(w: Any, g: Any, state: Any, t: int, *, max_norm: float) -> Any:
    mx = mxnet()
    arrays = [mx.nd.array(x) for x in g]
    mx.gluon.utils.clip_global_norm(arrays, max_norm)
    return [x.asnumpy() for x in arrays]


def mxnet_value(w: Any, g: Any, state: Any, t: int, *, limit: float) -> Any:
    mx = mxnet()
    weight = mx.nd.zeros(g.shape)
    mx.optimizer.SGD(learning_rate=1.0, clip_gradient=limit).update(0, weight, mx.nd.array(g), None)
    return -weight.asnumpy()


CLIPS: dict[str, Callable[..., Any]] = {
    "torch.clip_grad_norm_ of several": torch_several,
    "torch.clip_grad_value_": torch_value,
    "tensorflow.clip_by_global_norm of several": tensorflow_several,
    "tensorflow.clip_by_global_norm sparse": tensorflow_sparse,
    "keras.clipnorm": keras_clip("clipnorm"),
    "keras.global_clipnorm": keras_clip("global_clipnorm"),
    "keras.clipvalue": keras_clip("clipvalue"),
    "optax.clip_by_global_norm of several": optax_several,
    "optax.clip": optax_value,
    "mxnet.clip_global_norm of several": mxnet_several,
    "mxnet.clip_gradient": mxnet_value,
}


@pytest.mark.repeats_where(lambda formula: not formula.startswith("torch"))
@pytest.mark.parametrize("formula", CLIPS)
def test_clips(formula: str) -> None:
    confirmed(formula, CLIPS[formula])


# ---------------------------------------------------------------------- torch's lookups
def torch_bags(w: Any, x: Any, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    import torch

    table = torch.from_numpy(w).requires_grad_()
    weights = None if x.weights is None else torch.from_numpy(x.weights).requires_grad_()
    given = {("mode" if name == "combiner" else name): value for name, value in given.items()}
    found = torch.nn.functional.embedding_bag(
        torch.from_numpy(x.ids), table, torch.from_numpy(x.offsets[:-1]), per_sample_weights=weights, **given
    )
    return table, weights, found


def torch_bag(w: Any, x: Any, state: Any, t: int, **options: Any) -> Any:
    return torch_bags(w, x, options)[2]


@pytest.mark.parametrize("sparse", [False, True])
def test_torch_bags(sparse: bool) -> None:
    import torch

    def gradient(w: Any, x: Any, state: Any, t: int, **options: Any) -> Any:
        if sparse and (options["combiner"] == "max" or options["scale_grad_by_freq"]):
            raise NotImplementedError("torch has no sparse gradient of it")
        table, _, found = torch_bags(w, x, {**options, "sparse": sparse})
        found.backward(torch.from_numpy(x.upstream))
        return table.grad.to_dense()

    found = judge(gradient, "torch.embedding_bag gradient")
    outside = {score.trajectory for score in found.scores if score.by_grade[0] > 1.0}
    # torch to 2.13 divides by the count of another row (pytorch/pytorch#190063)
    assert outside <= {"frequency"}, str(found)
    assert list(found.unsupported) == (["max", "frequency"] if sparse else [])


def test_torch_bags_forward() -> None:
    confirmed("torch.embedding_bag", torch_bag)


def test_torch_weights_of_bags() -> None:
    import torch

    def step(w: Any, x: Any, state: Any, t: int, *, padding_idx: int | None) -> Any:
        weights = torch.ones(len(x.ids)).requires_grad_()
        found = torch.nn.functional.embedding_bag(
            torch.from_numpy(x.ids), torch.from_numpy(w), torch.from_numpy(x.offsets[:-1]), mode="sum",
            per_sample_weights=weights, padding_idx=padding_idx,
        )  # fmt: skip
        found.backward(torch.from_numpy(x.upstream))
        return weights.grad

    confirmed("torch.embedding_bag weight gradient", step)


@pytest.mark.parametrize("sparse", [False, True])
def test_torch_embedding(sparse: bool) -> None:
    import torch

    def step(w: Any, x: Any, state: Any, t: int, *, padding_idx: int | None, scale_grad_by_freq: bool) -> Any:
        if sparse and scale_grad_by_freq:
            raise NotImplementedError("torch has no sparse gradient of it")
        table = torch.from_numpy(w).requires_grad_()
        ids = torch.from_numpy(x.ids)
        found = torch.nn.functional.embedding(
            ids, table, padding_idx=padding_idx, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse
        )
        found.backward(torch.from_numpy(x.upstream))
        return table.grad.to_dense()

    found = judge(step, "torch.embedding gradient")
    assert found.grade == 1, str(found)
    assert list(found.unsupported) == (["frequency"] if sparse else [])


# ---------------------------------------------------------------------- TensorFlow's, MXNet's, FBGEMM's
def tensorflow_bags(table: Any, x: Any, options: dict[str, Any]) -> Any:
    import tensorflow as tf

    places = [(k, j - x.offsets[k]) for k in range(len(x.upstream)) for j in range(x.offsets[k], x.offsets[k + 1])]
    shape = (len(x.upstream), 8)
    ids = tf.SparseTensor(places, x.ids, shape)
    weights = None if x.weights is None else tf.SparseTensor(places, x.weights, shape)
    return tf.nn.embedding_lookup_sparse(table, ids, weights, **options)


@pytest.mark.repeats
def test_tensorflow_bags() -> None:
    import tensorflow as tf

    def forward(w: Any, x: Any, state: Any, t: int, **options: Any) -> Any:
        return tensorflow_bags(tf.constant(w), x, options)

    def gradient(w: Any, x: Any, state: Any, t: int, **options: Any) -> Any:
        table = tf.Variable(w)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tensorflow_bags(table, x, options) * x.upstream)
        return tf.convert_to_tensor(tape.gradient(total, table))

    confirmed("tensorflow.embedding_lookup_sparse", forward)
    confirmed("tensorflow.embedding_lookup_sparse gradient", gradient)


@pytest.mark.repeats
def test_tensorflow_embedding() -> None:
    import tensorflow as tf

    def step(w: Any, x: Any, state: Any, t: int) -> Any:
        table = tf.Variable(w)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.nn.embedding_lookup(table, x.ids) * x.upstream)
        return tf.convert_to_tensor(tape.gradient(total, table))

    confirmed("tensorflow.embedding_lookup gradient", step)


@pytest.mark.repeats
@pytest.mark.parametrize("sparse", [False, True])
def test_mxnet_embedding(sparse: bool) -> None:
    mx = mxnet()

    def step(w: Any, x: Any, state: Any, t: int) -> Any:
        table = mx.nd.array(w)
        table.attach_grad(stype="row_sparse" if sparse else None)
        with mx.autograd.record():
            found = mx.nd.Embedding(mx.nd.array(x.ids), table, *w.shape, sparse_grad=sparse)
        found.backward(mx.nd.array(x.upstream))
        return table.grad.asnumpy()

    confirmed("mxnet.Embedding gradient", step)


@pytest.mark.repeats
def test_fbgemm_pooled() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("fbgemm_gpu")
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops

    def step(w: Any, x: Any, state: Any, t: int, *, combiner: str) -> Any:
        op = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(*w.shape, ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)],
            pooling_mode=ops.PoolingMode[combiner.upper()],
        )
        op.split_embedding_weights()[0].copy_(torch.from_numpy(w))
        weights = None if x.weights is None else torch.from_numpy(x.weights)
        return op(torch.from_numpy(x.ids), torch.from_numpy(x.offsets), weights)

    confirmed("fbgemm.pooled", step)
