"""Test that `islices.diff` names the cause of a difference between layers, losses and clips of frameworks.

Each report names the cause, and no cause that contradicts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import islices

torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
from jax.experimental import sparse as jsparse  # noqa: E402

ROWS, DIM, BATCH, LENGTH, PAD = 40, 6, 4, 9, 0
Case = Callable[[np.random.Generator], tuple[Any, Any, dict[str, Any]]]
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {}


def case(*names: str) -> Callable[[Case], Case]:
    """Return a decorator that registers a case. `names` are the causes that together explain the case."""

    def register(fn: Case) -> Case:
        CASES[fn.__name__] = (fn, names)
        return fn

    return register


# ---------------------------------------------------------------------- one model, written for each framework
class Data:
    def __init__(self, r: np.random.Generator, scale: float = 1.0) -> None:
        ids = np.minimum(1 + r.zipf(1.3, (BATCH, LENGTH)), ROWS - 2).astype(np.int64)
        for line, n in enumerate(r.integers(3, LENGTH, BATCH)):
            ids[line, n:] = PAD
        self.ids = ids
        self.weights = (scale * r.standard_normal((BATCH, LENGTH, DIM))).astype(np.float32)
        self.start = r.standard_normal((ROWS, DIM)).astype(np.float32)
        self.dense = (scale * r.standard_normal((DIM, 5))).astype(np.float32)


def by_torch(d: Data, reduce: Callable[[Any], Any] = torch.sum, **options: Any) -> Any:
    """Return the gradient of torch.nn.Embedding, which is sparse unless `options` has sparse=False."""
    layer = torch.nn.Embedding(ROWS, DIM, **{"sparse": True, **options})
    out = layer(torch.from_numpy(d.ids))
    reduce((out * torch.from_numpy(d.weights)).sum(-1)).backward()
    return layer.weight.grad


def by_keras(d: Data, masked: bool = False) -> Any:
    """Return the gradient of keras.layers.Embedding. If `masked`, the layer masks zeros and the loss uses its mask."""
    layer = keras.layers.Embedding(ROWS, DIM, mask_zero=masked)
    layer.build()
    given = tf.constant(d.ids)
    with tf.GradientTape() as tape:
        losses = tf.reduce_sum(layer(given) * tf.constant(d.weights), -1)
        if masked:
            losses *= tf.cast(layer.compute_mask(given), losses.dtype)
        loss = tf.reduce_sum(losses)
    return tape.gradient(loss, layer.embeddings.value)


def by_jax(d: Data) -> Any:
    """Differentiate with respect to the gathered rows, as JAX users do. Return the gradient of the table as a BCOO."""
    ids = jnp.asarray(d.ids)
    gathered = jax.grad(lambda x: (x * d.weights).sum(-1).sum())(jnp.zeros((ROWS, DIM))[ids])
    return jsparse.BCOO((gathered.reshape(-1, DIM), ids.reshape(-1, 1)), shape=(ROWS, DIM))


def torch_clipped(tree: dict[str, Any], max_norm: float) -> dict[str, Any]:
    """Clip coalesced values with clip_grad_norm_, as torch users do, because the function raises for sparse
    gradients."""
    grads = {k: g.coalesce() if g.is_sparse else g.clone() for k, g in tree.items()}
    parameters = []
    for g in grads.values():
        p = torch.nn.Parameter(torch.zeros_like(g.values() if g.is_sparse else g))
        p.grad = g.values() if g.is_sparse else g
        parameters.append(p)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return grads


def tf_clipped(tree: dict[str, Any], max_norm: float) -> dict[str, Any]:
    return dict(zip(tree, tf.clip_by_global_norm(list(tree.values()), max_norm)[0], strict=True))


def optax_clipped(tree: Any, max_norm: float) -> Any:
    transform = optax.clip_by_global_norm(max_norm)
    return transform.update(tree, transform.init(tree))[0]


# ---------------------------------------------------------------------- clipping


@case("epsilon")
def torch_and_optax_clip_small_gradients(r: np.random.Generator) -> Any:
    d = Data(r, scale=1e-4)
    a = torch_clipped({"e": by_torch(d)}, 1e-4)["e"]
    return a, optax_clipped({"e": by_jax(d).todense()}, 1e-4)["e"], {"before": by_torch(d)}


# ---------------------------------------------------------------------- padding, masks


@case("zero_rows")
def keras_mask_zero_stores_the_row_that_torch_drops(r: np.random.Generator) -> Any:
    d = Data(r)
    return by_keras(d, masked=True), by_torch(d, padding_idx=PAD), {}


# ---------------------------------------------------------------------- means
@case("mean")
def means_over_tokens_and_over_tokens_that_are_no_padding(r: np.random.Generator) -> Any:
    d = Data(r)
    a = by_torch(d, lambda x: x.sum() / (d.ids != PAD).sum(), padding_idx=PAD)
    return a, by_torch(d, torch.mean, padding_idx=PAD), {"tokens": d.ids.size, "padding_idx": PAD}


# ---------------------------------------------------------------------- precision
@case("rounded")
def a_gradient_rounded_to_float16(r: np.random.Generator) -> Any:
    d = Data(r)
    g = by_torch(d).coalesce()
    return by_jax(d), g.half(), {}


# ---------------------------------------------------------------------- two causes at once
@case("padding", "duplicates")
def padding_kept_and_clipped_without_summing(r: np.random.Generator) -> Any:
    d = Data(r)
    a = torch_clipped({"e": by_torch(d, padding_idx=PAD)}, 1.0)["e"]
    return a, tf_clipped({"e": by_keras(d)}, 1.0)["e"], {"padding_idx": PAD}


@case("padding", "clip_after")
def padding_kept_counts_in_the_norm(r: np.random.Generator) -> Any:
    d = Data(r)
    a = torch_clipped({"e": by_torch(d, padding_idx=PAD)}, 1.0)["e"]
    return a, optax_clipped({"e": by_jax(d).todense()}, 1.0)["e"], {"padding_idx": PAD}


# ---------------------------------------------------------------------- models with different arithmetic
def classifier(d: Data, by: str, reduction: str = "mean", padding_idx: int | None = None) -> dict[str, Any]:
    """Return the gradients of a classifier, computed by the framework `by`. The classifier adds positions to the
    embedding, and applies tanh, a mean, a linear layer and cross entropy."""
    positions, labels = d.start[:LENGTH], np.arange(BATCH) % 5
    if by == "torch":
        table, place, head = (torch.from_numpy(x.copy()).requires_grad_() for x in (d.start, positions, d.dense))
        rows = torch.nn.functional.embedding(torch.from_numpy(d.ids), table, padding_idx, sparse=True)
        logits = torch.tanh(rows + place).mean(1) @ head
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction=reduction).backward()
        return {"embedding": table.grad, "positions": place.grad, "head": head.grad}
    weights = [tf.Variable(x) for x in (d.start, positions, d.dense)]
    with tf.GradientTape() as tape:
        logits = tf.reduce_mean(tf.tanh(tf.gather(weights[0], d.ids) + weights[1]), 1) @ weights[2]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses) if reduction == "mean" else tf.reduce_sum(losses)
    return dict(zip(("embedding", "positions", "head"), tape.gradient(loss, weights), strict=True))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, []),
        ({"reduction": "sum", "padding_idx": PAD}, [("padding", "mean")]),
    ],
    ids=str,
)
def test_the_cause_is_named_where_the_models_round_on_ways_of_their_own(options: Any, names: Any) -> None:
    d = Data(np.random.default_rng(1))
    found = islices.diff(classifier(d, "torch", **options), classifier(d, "tensorflow"), batch_size=BATCH)
    assert [e.names for e in found.causes] == names, str(found)
    assert all(e.slack < 1e-4 for e in found.causes)
    if not names:
        assert found.rounding or (found.arithmetic is not None and found.arithmetic < 1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named(name: str) -> None:
    make, names = CASES[name]
    a, b, context = make(np.random.default_rng(1))
    found = islices.diff(a, b, **context)
    assert not found.equal
    assert [set(e.names) for e in found.causes] == [set(names)], str(found)
