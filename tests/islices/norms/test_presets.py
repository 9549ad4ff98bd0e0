"""Test clipping presets against the functions of the frameworks, on sparse gradients and dense arrays.

The bounds are in ulps, the spacing of floats at each value. The norm of islices is exact to half an ulp; frameworks sum
in float32. The factors differ by as much as the norms, so the bounds are a few ulps. A comment next to each
bound gives the largest measured difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import islices
from islices.norms.clip_formulas import BY_GLOBAL_NORM, BY_NORM, BY_VALUE

ROWS, DIM = 40, 4
LIMITS = (0.25, 1.0, 7.5, 1e4)


def batches() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return (values, ids, dense) for batches of different sizes. Ids repeat, except in the first batch."""
    out = []
    for seed, n in enumerate((12, 24, 64, 512)):
        rng = np.random.default_rng(seed)
        ids = rng.permutation(ROWS)[:n] if seed == 0 else rng.zipf(1.4, n) % ROWS
        values = rng.normal(size=(n, DIM)) * 10.0 ** rng.integers(-3, 3)
        out.append((values.astype(np.float32), ids.astype(np.int64), rng.normal(size=(3, 5)).astype(np.float32)))
    return out


def ulps(got: Any, expected: Any) -> float:
    """Return the largest difference, in ulps of the expected values."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert np.isfinite(expected).all()
    wide = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return float((wide / np.spacing(np.abs(expected)).astype(np.float64)).max(initial=0.0))


def largest(pairs: Callable[..., list[tuple[Any, Any]]]) -> float:
    """Return the largest difference in ulps between islices and the framework, over all batches and limits."""
    return max(ulps(*pair) for batch in batches() for limit in LIMITS for pair in pairs(*batch, limit))


def test_every_preset_is_tested_here() -> None:
    assert set(BY_GLOBAL_NORM) == {"islices", "tensorflow", "keras", "torch", "mxnet", "optax"}
    assert set(BY_NORM) == {"islices", "tensorflow", "keras"}
    assert set(BY_VALUE) == {"islices", "tensorflow", "keras", "fbgemm"}


# ---------------------------------------------------------------------- TensorFlow and Keras
@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def tf_slices(tf: Any, values: np.ndarray, ids: np.ndarray) -> Any:
    return tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([ROWS, DIM], tf.int64))


def test_tensorflow_clip_by_global_norm(tf: Any) -> None:
    def pairs(values: Any, ids: Any, dense: Any, limit: float) -> list[tuple[Any, Any]]:
        grads = [tf_slices(tf, values, ids), tf.constant(dense), None]
        (a, b, none), norm = islices.clip_by_global_norm(grads, limit, semantics="tensorflow")
        (c, d, _), theirs = tf.clip_by_global_norm(grads, limit)
        assert isinstance(a, tf.IndexedSlices)
        assert none is None
        assert a.indices.numpy().tolist() == ids.tolist()
        return [(a.values, c.values), (b, d), (norm, theirs)]

    # the factor has the norm's error (1 ulp, up to 2 next to a power of two) and two roundings
    assert largest(pairs) <= 4  # measured: 0, because in this build even the sums agree


def test_tensorflow_clip_by_norm(tf: Any) -> None:
    def pairs(values: Any, ids: Any, dense: Any, limit: float) -> list[tuple[Any, Any]]:
        s, d = tf_slices(tf, values, ids), tf.constant(dense)
        a, b = islices.clip_by_norm([s, d], limit, semantics="tensorflow")
        return [(a.values, tf.clip_by_norm(s, limit).values), (b, tf.clip_by_norm(d, limit))]

    assert largest(pairs) <= 4  # measured: 2


@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm", "clipvalue"])
def test_keras_optimizers(tf: Any, option: str) -> None:
    """Compare the clips of Keras's optimizers with those of islices. Except for global_clipnorm, a step of SGD from
    zeros with rate 1 shows that the optimizer uses the compared clip."""
    keras = pytest.importorskip("keras")
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another framework here")

    def pairs(values: Any, ids: Any, dense: Any, limit: float) -> list[tuple[Any, Any]]:
        grads = [tf_slices(tf, values, ids), tf.constant(dense)]
        optimizer = keras.optimizers.SGD(1.0, **{option: limit})
        theirs = optimizer._clip_gradients(grads)
        if option == "clipnorm":
            ours = islices.clip_by_norm(grads, limit, semantics="keras")
        elif option == "clipvalue":
            ours = islices.clip_by_value(grads, -limit, limit, semantics="keras")
        else:
            ours, _ = islices.clip_by_global_norm(grads, limit, semantics="keras")
        if option == "global_clipnorm":
            # Keras multiplies slices by a tensor, which makes them dense: the factor is the same, but multiplies summed
            # rows
            assert not isinstance(theirs[0], tf.IndexedSlices)
            rows = tf_slices(tf, islices.to_dense(grads[0]).numpy(), np.arange(ROWS))
            factor = float(theirs[1][0, 0]) / float(dense[0, 0])
            np.testing.assert_allclose(
                islices.to_dense(ours[0]), rows.values * factor, rtol=1e-5, atol=1e-6 * float(np.abs(values).max())
            )
            return [(ours[1], theirs[1])]
        variables = [keras.Variable(np.zeros((ROWS, DIM), np.float32)), keras.Variable(np.zeros((3, 5), np.float32))]
        optimizer.apply(grads, variables)
        assert ulps(variables[1].numpy(), -theirs[1]) == 0, "what was compared is what the step uses"
        return [(ours[0].values, theirs[0].values), (ours[1], theirs[1])]

    # Keras calls TensorFlow's functions; measured: clipnorm 2, global_clipnorm 3, clipvalue 0
    assert largest(pairs) <= (0 if option == "clipvalue" else 4)


# ---------------------------------------------------------------------- PyTorch
def test_torch_clip_grad_norm() -> None:
    torch = pytest.importorskip("torch")

    def pairs(values: Any, ids: Any, dense: Any, limit: float) -> list[tuple[Any, Any]]:
        sparse = torch.sparse_coo_tensor(ids[None], torch.from_numpy(values), (ROWS, DIM))
        # torch raises for sparse gradients, so that the comparison uses the dense gradient
        parameters = [torch.nn.Parameter(torch.zeros(ROWS, DIM)), torch.nn.Parameter(torch.zeros(3, 5))]
        parameters[0].grad = islices.to_dense(sparse).clone()
        parameters[1].grad = torch.from_numpy(dense.copy())
        grads = [sparse, torch.from_numpy(dense)]
        (a, b), norm = islices.clip_by_global_norm(grads, limit, semantics="torch")
        theirs = torch.nn.utils.clip_grad_norm_(parameters, limit)
        coalesced, _ = islices.clip_by_global_norm([islices.coalesce(sparse), grads[1]], limit, semantics="torch")
        assert a.is_sparse
        np.testing.assert_allclose(islices.to_dense(a), parameters[0].grad, rtol=1e-4, atol=1e-6 * float(norm))
        return [(islices.to_dense(coalesced[0]), parameters[0].grad), (b, parameters[1].grad), (norm, theirs)]

    assert largest(pairs) <= 4  # measured: 1


# ---------------------------------------------------------------------- MXNet
def test_mxnet_clip_global_norm() -> None:
    if "mxnet" not in islices.list_backends():
        pytest.skip("mxnet is not installed")
    islices.get_backend("mxnet")  # imports MXNet with a current NumPy
    import mxnet as mx

    def pairs(values: Any, ids: Any, dense: Any, limit: float) -> list[tuple[Any, Any]]:
        rows = islices.coalesce(islices.IndexedSlices(values, ids, (ROWS, DIM)))
        sparse = islices.to_native(islices.convert(rows, "mxnet"))
        d = mx.nd.array(dense, dtype="float32")
        (a, b), norm = islices.clip_by_global_norm([sparse, d], limit, semantics="mxnet")
        theirs = [mx.nd.array(islices.to_dense(rows), dtype="float32"), d.copy()]
        their_norm = mx.gluon.utils.clip_global_norm(theirs, limit)  # in place
        assert a.stype == "row_sparse"
        norms = norm.asnumpy().reshape(()), np.float32(their_norm).reshape(())
        return [(islices.to_dense(a).asnumpy(), theirs[0].asnumpy()), (b.asnumpy(), theirs[1].asnumpy()), norms]

    assert largest(pairs) <= 4  # measured: 2, including the norm


# ---------------------------------------------------------------------- optax
def test_optax_clip_by_global_norm() -> None:
    pytest.importorskip("jax")
    optax = pytest.importorskip("optax")
    import jax.numpy as jnp

    def pairs(values: Any, ids: Any, dense: Any, limit: float) -> list[tuple[Any, Any]]:
        rows = islices.coalesce(islices.IndexedSlices(values, ids, (ROWS, DIM)))
        s, d = islices.convert(rows, "jax"), jnp.asarray(dense)
        (a, b), _ = islices.clip_by_global_norm([s, d], limit, semantics="optax")
        grads = [islices.to_dense(s), d]
        (c, e), _ = optax.clip_by_global_norm(limit).update(grads, optax.EmptyState())
        return [(islices.to_dense(a), c), (b, e)]

    assert largest(pairs) <= 4  # measured: 2
