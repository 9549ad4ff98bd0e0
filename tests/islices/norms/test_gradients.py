"""Test gradients of norms and clips with each framework's tape, including second-order gradients. Gradients of clipped
samples must raise.

The suite tests most norms and clips with value_and_grad. The values here are whole numbers, and most of their norms are
whole too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradient_tapes import FRAMEWORKS, MODES, Tape

import islices

NOT_MXNET = [name for name in FRAMEWORKS if name != "mxnet"]
IDS = np.array([1, 1, 3])
VALUES = np.array([[1, 0], [2, 4], [0, 0]], np.float32)  # rows with norm 5 and 0
UPSTREAM = np.array([[1, -2], [3, 1], [0.5, 2]], np.float32)


def slices(values: Any) -> Any:
    return islices.IndexedSlices(values, IDS, (4, 2))


def summed(values: np.ndarray) -> np.ndarray:
    """Return, for each slot, the sum of all values of the slot's row."""
    table = np.zeros((4, 2))
    np.add.at(table, IDS, values)
    return table[IDS]


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_a_clip_and_its_norm(framework: str, mode: str) -> None:
    """Compare the gradients of a clip and its norm with SPEC clauses 8 and 10. There are duplicates and a dense leaf,
    and the global norm is 13."""
    tape, other, limit = Tape(framework, mode), np.array([[12], [0]], np.float32), 6.5
    given = [UPSTREAM, UPSTREAM[:2, :1], np.array([2.0], np.float32)]

    def loss(v: Any, w: Any) -> Any:
        (a, b, _), norm = islices.clip_by_global_norm([slices(v), w, None], limit)
        return tape.weighted(list(zip((a.values, b, norm), map(tape.array, given), strict=True)))

    inner = float((UPSTREAM * VALUES).sum() + (given[1] * other).sum())
    for got, g, x in zip(tape.gradients(loss, VALUES, other), given, (summed(VALUES), other), strict=False):
        expected = g * (limit / 13) - limit / 13 * (inner / 13) * (x / 13) + 2 * x / 13
        np.testing.assert_allclose(got, expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("framework", NOT_MXNET)
def test_clips_of_samples_are_refused(framework: str) -> None:
    tape = Tape(framework)

    def loss(v: Any) -> Any:
        (clipped,), norms = islices.clip_per_sample([islices.per_sample(v, np.array([[0, 3], [3, 3]]), 5)], 5.0)
        return tape.weighted([(x, x) for x in (clipped.values, norms)])

    with pytest.raises(NotImplementedError, match="per_sample: got norms or clips"):
        tape.gradients(loss, np.ones((2, 2, 2), np.float32))


@pytest.mark.parametrize(("framework", "mode"), MODES)
def test_row_norms_of_order_1_refuse_a_gradient(framework: str, mode: str) -> None:
    tape = Tape(framework, mode)
    with pytest.raises(ValueError, match="ord: got 1"):
        tape.gradients(lambda v: tape.weighted([(islices.row_norms(v, ord=1), tape.array(IDS))]), VALUES)


def own_formulas(framework: str) -> dict[str, Callable[[Any], Any]]:
    """Return a dict from semantics to the framework's function that clips to norm 0.5. torch's clip has no gradient, so
    that torch gets a formula instead."""
    if framework == "torch":
        import torch

        return {"torch": lambda x: x * torch.clamp(0.5 / (torch.linalg.vector_norm(x) + 1e-6), max=1.0)}
    if framework == "tensorflow":
        import tensorflow as tf

        return {"tensorflow": lambda x: tf.clip_by_global_norm([x], 0.5)[0][0]}
    import optax

    how = optax.clip_by_global_norm(0.5)
    return {"optax": lambda x: how.update(x, how.init(x))[0]}


@pytest.mark.parametrize("framework", NOT_MXNET)
def test_presets_have_the_gradient_of_the_frameworks_own_function(framework: str) -> None:
    tape, x = Tape(framework), VALUES[:2]
    for semantics, own in own_formulas(framework).items():
        clips = own, lambda v, name=semantics: islices.clip_by_global_norm([v], 0.5, semantics=name)[0][0]
        (want,), (got,) = (
            tape.gradients(lambda v, f=clip: tape.weighted([(f(v), tape.array(UPSTREAM[:2]))]), x) for clip in clips
        )
        np.testing.assert_allclose(got, want, rtol=0, atol=4e-6, err_msg=semantics)


# ---------------------------------------------------------------------- twice, and forward
DIRECTION = np.array([[1.0, 0.0], [-1.0, 2.0], [0.5, 1.0]])
WIDE = UPSTREAM.astype(np.float64)
LIMIT = 1.5


def close(got: Any, want: Any) -> None:
    got, want = np.asarray(got), np.asarray(want)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * max(1.0, np.abs(want).max()))


def test_torch_differentiates_again_and_forward() -> None:
    torch = pytest.importorskip("torch")
    up, direction, x = (torch.from_numpy(a) for a in (WIDE, DIRECTION, VALUES.astype(np.float64)))

    def norm(x: Any) -> Any:
        return torch.linalg.vector_norm(torch.zeros(4, 2, dtype=x.dtype).index_add(0, torch.from_numpy(IDS), x))

    pairs: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
        (lambda x: islices.norm(slices(x)), norm),
        (
            lambda x: (islices.clip_by_norm(slices(x), LIMIT).values * up).sum(),
            lambda x: (x * (LIMIT / norm(x)) * up).sum(),
        ),
    ]
    for f, own in pairs:
        close(torch.func.hessian(f)(x), torch.func.hessian(own)(x))
        close(torch.func.jvp(f, (x,), (direction,))[1], torch.func.jvp(own, (x,), (direction,))[1])
        assert torch.autograd.gradgradcheck(f, x.clone().requires_grad_())


def test_jax_differentiates_again_and_forward() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    with islices.get_backend("jax").wide_types():
        x = jnp.asarray(VALUES.astype(np.float64))

        def f(x: Any) -> Any:
            return (islices.clip_by_norm(slices(x), LIMIT).values * WIDE).sum()

        def own(x: Any) -> Any:
            return (x * (LIMIT / jnp.sqrt((jnp.zeros((4, 2)).at[IDS].add(x) ** 2).sum())) * WIDE).sum()

        close(jax.jit(jax.hessian(f))(x), jax.jit(jax.hessian(own))(x))


def test_tensorflow_differentiates_again() -> None:
    tf = pytest.importorskip("tensorflow")
    x = tf.constant(VALUES.astype(np.float64))

    def product(clip: Callable[[Any], Any]) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = tf.reduce_sum(clip(x) * WIDE)
            first = inner.gradient(value, x)
        return outer.gradient(first, x, output_gradients=DIRECTION)

    want = product(lambda x: x * (LIMIT / tf.norm(tf.scatter_nd(IDS[:, None], x, (4, 2)))))
    for run in (product, tf.function(product, autograph=False)):
        close(run(lambda x: islices.clip_by_norm(slices(x), LIMIT).values), want)


def test_no_operation_of_jax_gives_a_nan_on_the_way() -> None:
    jax = pytest.importorskip("jax")

    def loss(x: Any) -> Any:
        norms = islices.norm(slices(x)) + islices.norm(x, 1)
        return norms + islices.clip_by_row_norm(slices(x), 0.5).values.sum()

    with jax.debug_nans(True):
        assert np.isfinite(jax.jit(jax.grad(loss))(jax.numpy.zeros((3, 2)))).all()
