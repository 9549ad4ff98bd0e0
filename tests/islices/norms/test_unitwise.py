"""Test clips along axes, by root mean squares, and by parameter norms: their gradients, the rows that they read, and
traced parameters.

The golden vectors test the bits of the clips.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import islices
from islices import IndexedSlices


def gradient() -> IndexedSlices:
    rng = np.random.default_rng(0)
    return IndexedSlices(rng.normal(size=(6, 3, 2)).astype("float32"), np.array([1, 4, 1, 0, 7, 4]), (9, 3, 2))


@pytest.mark.parametrize("axes", [(), (0,), (0, 2), (1, 2)], ids=str)
def test_gradients_are_those_of_the_formula(axes: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(6, 3, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    weights = torch.randn(9, 3, 2, dtype=torch.float64, generator=generator)
    ids = torch.tensor([1, 4, 1, 0, 7, 4])
    dense = torch.zeros(9, 3, 2, dtype=torch.float64).index_add(0, ids, values)
    norm = (dense * dense).sum(axes, keepdim=True).sqrt() if axes else dense.abs()
    expected = (torch.where(norm > 1.0, dense / norm, dense) * weights).sum()
    clipped = islices.clip_by_norm(IndexedSlices(values, ids, (9, 3, 2)), 1.0, axes=axes)
    got = (islices.to_dense(clipped) * weights).sum()
    (a,), (b,) = (torch.autograd.grad(loss, values) for loss in (got, expected))
    torch.testing.assert_close(a, b.nan_to_num(0.0), rtol=1e-12, atol=1e-14)


def test_a_unit_of_zeros_has_the_gradient_of_the_identity() -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(3, 2, requires_grad=True)
    for clip in (
        lambda: islices.clip_by_norm(x, 1.0, axes=0),
        lambda: islices.norms.clip_by_block_rms(x, 1.0),
        lambda: islices.norms.adaptive_grad_clip(x, torch.zeros(3, 2), 1.0),
    ):
        (found,) = torch.autograd.grad(clip().sum(), x)
        assert torch.equal(found, torch.ones(3, 2))


def test_rows_of_parameters_that_no_gradient_names_are_not_read() -> None:
    s = IndexedSlices(np.ones((2, 2)), np.array([3, 1]), (10**6, 2))
    table = np.ones((10**6, 2))
    islices.norms.adaptive_grad_clip(s, table, 0.5, axes=1)  # compiles and imports once
    tracemalloc.start()
    clipped = islices.norms.adaptive_grad_clip(s, table, 0.5, axes=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(clipped.values, 0.5)
    assert peak < 100_000


def test_a_known_gradient_clips_by_traced_parameters() -> None:
    jax = pytest.importorskip("jax")
    g, weights = islices.convert(gradient(), "jax"), jax.numpy.full((9, 3, 2), 0.1)
    for leaf in (g, islices.to_dense(g)):
        clipped = islices.norms.adaptive_grad_clip(leaf, weights, 0.1)
        traced = jax.jit(lambda w, leaf=leaf: islices.to_dense(islices.norms.adaptive_grad_clip(leaf, w, 0.1)))(weights)
        np.testing.assert_array_equal(np.asarray(traced), np.asarray(islices.to_dense(clipped)))
