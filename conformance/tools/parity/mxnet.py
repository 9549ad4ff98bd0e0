"""The models in MXNet: the losses in its own functions, and training without islices.

MXNet 1.9.1 does not import beside a NumPy of today by itself: the caller loads it first, by `islices.backends.mxnet`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import mxnet as mx

__all__ = ["OwnTraining", "skipgram", "translation"]


def skipgram(centre: Any, context: Any, sign: Any) -> Any:
    score = (centre.expand_dims(1) * context).sum(axis=-1)
    return mx.nd.Activation(-sign.expand_dims(0) * score, act_type="softrelu").sum() / len(centre)


def translation(bag: Any, bridge: Any, target: Any, negative: Any, share: Any) -> Any:
    hidden = mx.nd.tanh(mx.nd.dot(bag, bridge))
    own = (hidden.expand_dims(1) * target).sum(axis=-1, keepdims=True)
    other = mx.nd.dot(hidden, negative, transpose_b=True).expand_dims(1)
    logits = mx.nd.concat(own, other.broadcast_axes(axis=1, size=own.shape[1]), dim=-1)
    return -(share * mx.nd.log_softmax(logits)[:, :, 0]).sum()


class OwnTraining:
    """gluon.nn.Embedding(sparse_grad=True), gluon.utils.clip_global_norm, gluon.Trainer.

    There is no padding index: the padding's row is trained like any other, and read wherever a line has ended.
    """

    def __init__(self, model: Any, start: Mapping[str, Any], optimizer: str, lr: float, max_norm: float) -> None:
        # that clip_global_norm makes row_sparse gradients dense is what is shown here, not news
        os.environ.setdefault("MXNET_STORAGE_FALLBACK_LOG_VERBOSE", "0")
        self.model, self.max_norm = model, max_norm
        self.of_rows = {"skipgram": skipgram, "translation": translation}[model.name]
        self.layers = {
            name: mx.gluon.nn.Embedding(*start[name].shape, sparse_grad=True, weight_initializer=_constant(start[name]))
            for name in model.tables
        }
        for layer in self.layers.values():
            layer.initialize()
        self.dense = {name: mx.gluon.Parameter(name, shape=start[name].shape) for name in model.dense}
        for name, parameter in self.dense.items():
            parameter.initialize(_constant(start[name]))
        everything = [layer.weight for layer in self.layers.values()] + list(self.dense.values())
        self.trainer = mx.gluon.Trainer(everything, optimizer, {"learning_rate": lr})
        self.everything = everything

    def step(self, batch: Mapping[str, Any]) -> float:
        arrays = {name: mx.nd.array(x, dtype=x.dtype) for name, x in batch.items()}
        with mx.autograd.record():
            parameters = self.layers | {name: p.data() for name, p in self.dense.items()}
            loss = self.model.loss(self.of_rows, _lookup, parameters, arrays)
        loss.backward()
        mx.gluon.utils.clip_global_norm([p.grad() for p in self.everything], self.max_norm)
        self.trainer.step(1)
        return float(loss.asscalar())

    def tables(self) -> dict[str, Any]:
        found = {name: layer.weight for name, layer in self.layers.items()} | self.dense
        return {name: p.data().asnumpy() for name, p in found.items()}


def _constant(array: Any) -> Any:
    return mx.init.Constant(mx.nd.array(array, dtype=array.dtype))


def _lookup(layer: Any, ids: Any, mean: bool = False) -> Any:
    rows = layer(ids)
    if not mean:
        return rows
    words = (ids != 0).astype("float32").expand_dims(-1)
    return (rows * words).sum(axis=1) / words.sum(axis=1)
