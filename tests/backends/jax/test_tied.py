"""Test a table that a JAX model both looks up and multiplies. Most expected gradients come from jax.grad, per sample
under jax.vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

import islices  # noqa: E402
from islices import Table, lookup, value_and_grad  # noqa: E402

ROWS, WIDTH, BATCH, T = 11, 4, 4, 3
RNG = np.random.default_rng(0)
W = jnp.asarray(RNG.normal(size=(ROWS, WIDTH)), jnp.float32)
MIX = jnp.asarray(RNG.normal(size=(WIDTH, WIDTH)), jnp.float32)
IDS = jnp.asarray([[0, 3, 3], [5, 0, 10], [7, 7, 7], [1, 2, 3]])
TARGETS = jnp.asarray([[3, 3, 1], [0, 10, 4], [7, 7, 7], [2, 3, 0]])


def weights_of(table: Any) -> Any:
    return table.weights if isinstance(table, Table) else table


def entropy(logits: Any, targets: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).sum((1, 2))


def total(loss: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: loss(*args).sum()


def hidden(table: Any, ids: Any) -> Any:
    return jnp.tanh(lookup(table, ids) @ MIX)


PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "einsum, weights first": lambda h, w: jnp.einsum("vd,btd->vbt", w, h).transpose(1, 2, 0),
    "jit of the transposed": lambda h, w: jax.jit(lambda h, wt: h @ wt)(h, w.T),
    "half precision": lambda h, w: (h.astype("bfloat16") @ w.astype("bfloat16").T).astype("float32"),
    "twice": lambda h, w: h @ w.T + jnp.sin(2 * h) @ w.T,
    "cond": lambda h, w: lax.cond(h.sum() > -1e9, lambda: h @ w.T, lambda: h @ w.T * 2),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_per_sample_are_those_of_vmap(name: str) -> None:
    product = PRODUCTS[name]

    def loss(table: Any, ids: Any, targets: Any) -> Any:
        return entropy(product(hidden(table, ids), weights_of(table)), targets)

    want = jax.vmap(jax.grad(total(loss)), in_axes=(None, 0, 0))(W, IDS[:, None], TARGETS[:, None])
    norms = jnp.sqrt((want**2).sum((1, 2)))
    limit = float(jnp.median(norms))

    def found(table: Any, ids: Any, targets: Any) -> Any:
        value, g = value_and_grad(loss, per_sample=True)(table, ids, targets)
        measured = (g.norms(), g.clip(limit).sum()) if name == "twice" else ()  # norms and a clip compile slowly
        return value, g, g.to_dense(), measured

    value, g, dense, measured = jax.jit(found)(Table(W), IDS, TARGETS)
    close = {"rtol": 0.05, "atol": 0.05} if name == "half precision" else {"rtol": 2e-5, "atol": 1e-5}
    assert len(g.products) == {"twice": 2, "cond": 2}.get(name, 1)
    assert_allclose(value, loss(W, IDS, TARGETS), rtol=1e-5)
    assert_allclose(dense, want, **close)
    for got, expected in zip(
        measured, (norms, jnp.einsum("b,bvd->vd", jnp.minimum(1, limit / norms), want)), strict=False
    ):
        assert_allclose(got, expected, **close)
    whole, plain = jax.jit(value_and_grad(total(loss)))(Table(W), IDS, TARGETS)
    assert_allclose(whole, value.sum(), rtol=1e-6)
    assert_allclose(plain, want.sum(0), **close)


# ---------------------------------------------------------------------- other uses
def mapped_askew(h: Any, w: Any) -> Any:
    return jax.vmap(lambda x: x @ w.T, in_axes=1, out_axes=1)(h)


def looped(h: Any, w: Any) -> Any:
    return lax.scan(lambda c, x: (c, x @ w.T), 0.0, h.transpose(1, 0, 2))[1].transpose(1, 0, 2)


OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "penalty": lambda h, w: h @ w.T + (w**2).sum(),
    "penalty in a loop": lambda h, w: h @ w.T + lax.fori_loop(0, 2, lambda k, c: c + (w**2).sum(), jnp.float32(0)),
}


@pytest.mark.parametrize("name", [*OTHERS, "mapped askew", "looped"])
def test_other_uses_have_plain_gradients_and_none_per_sample(name: str) -> None:
    use = {**OTHERS, "mapped askew": mapped_askew, "looped": looped}[name]

    def loss(table: Any, ids: Any, targets: Any) -> Any:
        return entropy(use(hidden(table, ids), weights_of(table)), targets)

    want = jax.grad(total(loss))(W, IDS, TARGETS)
    _, g = jax.jit(value_and_grad(total(loss)))(Table(W), IDS, TARGETS)
    assert_allclose(g, want, rtol=2e-5, atol=1e-5)
    error = NotImplementedError if name not in OTHERS else TypeError
    with pytest.raises(error, match=r"per_sample: got .*table\.weights"):
        value_and_grad(loss, per_sample=True)(Table(W), IDS, TARGETS)


def test_second_derivatives_of_products_are_refused() -> None:
    def inner(table: Any) -> Any:
        _, g = value_and_grad(lambda t: (lookup(t, IDS) @ t.weights.T).sum())(table)
        return islices.to_dense(g).sum()

    with pytest.raises(NotImplementedError, match=r"table\.weights: got a product with those of a table whose"):
        value_and_grad(inner)(Table(W))


# ---------------------------------------------------------------------- cost, and the plain gradient
def test_nothing_of_the_tables_size_is_in_the_program_a_sample() -> None:
    rows, width, batch = 100_000, 64, 16
    table = Table(jnp.zeros((rows, width)))

    def loss(table: Any, ids: Any) -> Any:
        return (lookup(table, ids) @ table.weights.T).sum((1, 2))

    def norms(table: Any, ids: Any) -> Any:
        return value_and_grad(loss, per_sample=True)(table, ids)[1].norms()

    program = jax.make_jaxpr(norms)(table, jnp.zeros((batch, 2), jnp.int32))
    sizes = [int(np.prod(v.aval.shape)) for v in every_result(program.jaxpr)]
    assert max(sizes) <= rows * width  # no array exceeds the table; the batch's products have half its size


def every_result(jaxpr: Any) -> Any:
    for eqn in jaxpr.eqns:
        yield from eqn.outvars
        for x in eqn.params.values():
            inner = getattr(x, "jaxpr", x)
            if hasattr(inner, "eqns"):
                yield from every_result(inner)


def tied_samples(upstream: Any) -> Any:
    g, x = jnp.ones((2, 3, ROWS)), jnp.ones((2, 3, WIDTH))
    return islices.per_sample(upstream, jnp.asarray([[1], [2]]), ROWS, product=(g, x))


def test_a_traced_limit_clips_and_no_gradient_passes_in_silence() -> None:
    upstream = jnp.ones((2, 1, WIDTH))
    clipped = jax.jit(lambda u, limit: tied_samples(u).clip(limit).sum())(upstream, jnp.float32(2.0))
    assert_allclose(clipped, tied_samples(upstream).clip(2.0).sum(), rtol=1e-6)
    for loss in (
        lambda u: tied_samples(u).norms().sum(),
        lambda u: tied_samples(u).clip(1.0).sum().sum(),
    ):
        with pytest.raises(NotImplementedError, match="per_sample: got norms or clips"):
            jax.jit(jax.grad(loss))(upstream)


def test_the_gradient_of_a_tied_gradient() -> None:
    """Compare the gradient of a gradient with the result of jax.grad. The inner loss uses the weights twice: as
    looked-up rows and as a whole."""
    w = jnp.asarray(np.random.default_rng(3).standard_normal((5, 3)).astype(np.float32))
    ids = jnp.array([1, 1, 4])

    def loss(rows: Any, weights: Any) -> Any:
        return (rows**3).sum() + (weights**3).sum()

    def ours(t: Any) -> Any:
        _, grad = value_and_grad(lambda u: loss(lookup(u, ids), u.weights))(t)
        return (islices.to_dense(grad) ** 2).sum()

    def theirs(w: Any) -> Any:
        return (jax.grad(lambda v: loss(v[ids], v))(w) ** 2).sum()

    assert_allclose(jax.grad(ours)(Table(w)).weights, jax.grad(theirs)(w), rtol=1e-4)
    found = value_and_grad(jax.jit(ours))(Table(w))[1]
    assert_allclose(islices.to_dense(found), jax.grad(theirs)(w), rtol=1e-4)
