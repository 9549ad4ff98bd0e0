"""Tied weights on Gluon: Dense(params=embedding.params) against one backward pass a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import islices

try:
    from islices.backends.mxnet.memory import mx
except ImportError:
    pytest.skip("MXNet is not installed", allow_module_level=True)

from islices.backends.mxnet import gluon as front

nd, autograd, gluon = mx.nd, mx.autograd, mx.gluon
ROWS, WIDTH = 11, 4
IDS = np.array([[0, 3, 3], [5, 0, 10], [7, 7, 7], [1, 2, 3]])
WEIGHTS = np.random.default_rng(1).integers(-3, 4, (4, 3, ROWS)).astype(np.float32)


class Tied(gluon.Block):
    def __init__(self, activation: Any = None, *, flatten: bool = False, out: Any = gluon.nn.Dense) -> None:
        super().__init__()
        self.embed = gluon.nn.Embedding(ROWS, WIDTH)
        self.mix = gluon.nn.Dense(WIDTH, activation="tanh", flatten=False)
        self.out = out(ROWS, activation=activation, flatten=flatten, in_units=WIDTH, params=self.embed.params)
        self.pooled = flatten

    def forward(self, ids: Any) -> Any:
        hidden = self.mix(self.embed(ids))
        return self.out(hidden.sum(axis=1) if self.pooled else hidden)


def made(*args: Any, **options: Any) -> Any:
    mx.random.seed(3)
    model = Tied(*args, **options)
    model.initialize(mx.init.Normal(0.5))
    model(nd.array(IDS, dtype="int64"))
    return model


def loss_of(model: Any, ids: Any, weights: Any) -> Any:
    out = model(nd.array(ids, dtype="int64"))
    weights = weights[:, 0] if out.ndim == 2 else weights
    return (out * nd.array(weights)).sum() + (out**2).sum()


def alone(model: Any) -> np.ndarray[Any, Any]:
    """Each sample's gradient of the weights, by one backward pass each."""
    found = []
    for b in range(len(IDS)):
        with autograd.record():
            loss = loss_of(model, IDS[b : b + 1], WEIGHTS[b : b + 1])
        loss.backward()
        found.append(model.embed.weight.grad().asnumpy())
    return np.stack(found)


@pytest.mark.parametrize("options", [{}, {"activation": "tanh"}, {"flatten": True}], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_norms_clips_and_sums_are_those_of_one_backward_pass_a_sample(options: Any, frozen: bool) -> None:
    model = made(**options)
    assert model.out.weight is model.embed.weight
    wanted = alone(model)
    if frozen:
        model.embed.weight.grad_req = "null"
    with islices.capture(model) as captured:
        with autograd.record():
            loss = loss_of(model, IDS, WEIGHTS)
        loss.backward()
    (found,) = captured.per_sample().values()
    norms = np.sqrt((wanted**2).sum((1, 2)))
    np.testing.assert_allclose(found.norms().asnumpy(), norms, rtol=2e-5)
    np.testing.assert_allclose(found.to_dense().asnumpy(), wanted, rtol=1e-4, atol=1e-5)
    limit = float(np.median(norms))
    factors = np.minimum(1, limit / norms)
    clipped = (wanted * factors[:, None, None]).sum(0)
    np.testing.assert_allclose(found.clip(limit).sum().asnumpy(), clipped, rtol=1e-4, atol=1e-5)
    (whole,) = captured.gradients().values()
    np.testing.assert_allclose(whole.asnumpy(), wanted.sum(0), rtol=1e-4, atol=1e-4)
    assert "forward" not in vars(model.out)
    assert (model.out.act is None) == ("activation" not in options)
    assert "data" not in vars(model.embed.weight)


class Doubled(gluon.nn.Dense):
    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        return super().hybrid_forward(F, x, weight, bias) * 2


def test_other_uses_of_the_weight_are_refused() -> None:
    by_hand = made()
    own = made(out=Doubled)

    def penalised(model: Any) -> Any:
        return (model.embed.weight.data() ** 2).sum()

    for model, extra in ((by_hand, penalised), (own, lambda model: 0)):
        with islices.capture(model) as captured:
            model.embed.weight.data().asnumpy()  # nothing records
            with autograd.record():
                loss = loss_of(model, IDS, WEIGHTS) + extra(model)
            loss.backward()
        for read in (captured.per_sample, captured.gradients):
            with pytest.raises(TypeError, match="were read beside the layers that are captured"):
                read()


def test_a_hybridized_output_layer_is_refused() -> None:
    model = made()
    model.out.hybridize()
    with pytest.raises(TypeError, match=r"output layer of its weights.*hybridize\(False\)"), islices.capture(model):
        raise AssertionError("captured")


def test_the_plain_gradient_clipped_and_stepped() -> None:
    ours, theirs = made(), made()
    for model, kind, clip in (
        (ours, front.Trainer, front.clip_global_norm),
        (theirs, gluon.Trainer, gluon.utils.clip_global_norm),
    ):
        trainer = kind(model.collect_params(), "sgd", {"learning_rate": 0.05})
        for _ in range(2):
            with autograd.record():
                loss = loss_of(model, IDS, WEIGHTS)
            loss.backward()
            norm = clip([p.grad() for p in model.collect_params().values()], 1.0)
            assert float(norm) > 1
            trainer.step(1)
    a, b = ours.embed.weight.data().asnumpy(), theirs.embed.weight.data().asnumpy()
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
