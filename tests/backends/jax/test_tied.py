"""A Table that is looked up and multiplied with, on JAX: against jax.vmap(jax.grad)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
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
    "matmul": lambda h, w: h @ w.T,
    "dot": lambda h, w: jnp.dot(h, w.T),
    "einsum": lambda h, w: jnp.einsum("btd,vd->btv", h, w),
    "einsum, weights first": lambda h, w: jnp.einsum("vd,btd->vbt", w, h).transpose(1, 2, 0),
    "one-hot": lambda h, w: (jnp.ones((BATCH, T, ROWS))[: h.shape[0]] @ w) @ MIX[:, :1] * jnp.ones(ROWS) + h @ w.T,
    "jit": lambda h, w: jax.jit(lambda h, w: h @ w.T)(h, w),
    "jit of the transposed": lambda h, w: jax.jit(lambda h, wt: h @ wt)(h, w.T),
    "checkpoint": lambda h, w: jax.checkpoint(lambda h, w: jnp.sin(h @ w.T))(h, w),
    "half precision": lambda h, w: (h.astype("bfloat16") @ w.astype("bfloat16").T).astype("float32"),
    "twice": lambda h, w: h @ w.T + jnp.sin(2 * h) @ w.T,
    "cond": lambda h, w: lax.cond(h.sum() > -1e9, lambda: h @ w.T, lambda: h @ w.T * 2),
}


@pytest.mark.repeats_where(lambda name, wrap: wrap is not jax.jit or name not in ("matmul", "half precision"))
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_per_sample_are_those_of_vmap(name: str, wrap: Any) -> None:
    product = PRODUCTS[name]

    def loss(table: Any, ids: Any, targets: Any) -> Any:
        return entropy(product(hidden(table, ids), weights_of(table)), targets)

    want = jax.vmap(jax.grad(total(loss)), in_axes=(None, 0, 0))(W, IDS[:, None], TARGETS[:, None])
    norms = jnp.sqrt((want**2).sum((1, 2)))
    limit = float(jnp.median(norms))

    def found(table: Any, ids: Any, targets: Any) -> Any:
        value, g = value_and_grad(loss, per_sample=True)(table, ids, targets)
        return value, g, g.norms(), g.clip(limit).sum(), g.to_dense()

    value, g, got, clipped, dense = wrap(found)(Table(W), IDS, TARGETS)
    close = {"rtol": 0.05, "atol": 0.05} if name == "half precision" else {"rtol": 2e-5, "atol": 1e-5}
    assert len(g.products) == {"twice": 2, "one-hot": 2, "cond": 2}.get(name, 1)
    np.testing.assert_allclose(value, loss(W, IDS, TARGETS), rtol=1e-5)
    np.testing.assert_allclose(dense, want, **close)
    np.testing.assert_allclose(got, norms, **close)
    factors = jnp.minimum(1, limit / norms)
    np.testing.assert_allclose(clipped, jnp.einsum("b,bvd->vd", factors, want), **close)
    whole, plain = wrap(value_and_grad(total(loss)))(Table(W), IDS, TARGETS)
    np.testing.assert_allclose(whole, value.sum(), rtol=1e-6)
    np.testing.assert_allclose(plain, want.sum(0), **close)


# ---------------------------------------------------------------------- other uses
def mapped(h: Any, w: Any) -> Any:
    return jax.vmap(lambda x: x @ w.T)(h)


def mapped_askew(h: Any, w: Any) -> Any:
    return jax.vmap(lambda x: x @ w.T, in_axes=1, out_axes=1)(h)


def looped(h: Any, w: Any) -> Any:
    return lax.scan(lambda c, x: (c, x @ w.T), 0.0, h.transpose(1, 0, 2))[1].transpose(1, 0, 2)


OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "penalty": lambda h, w: h @ w.T + (w**2).sum(),
    "elementwise": lambda h, w: (h[:, :, None] * w).sum(-1),
    "gathered": lambda h, w: h @ w[:5].T @ jnp.ones((5, ROWS)),
    "returned by a loop": lambda h, w: h @ lax.fori_loop(0, 2, lambda k, c: c * 1.0, w).T,
    "penalty in a loop": lambda h, w: h @ w.T + lax.fori_loop(0, 2, lambda k, c: c + (w**2).sum(), jnp.float32(0)),
    "a map of its own": lambda h, w: h @ jnp.where(w > 0, w, w).T,
    "scanned over": lambda h, w: lax.scan(lambda c, r: (c, (h * r).sum(-1)), 0.0, w)[1].transpose(1, 2, 0),
}


@pytest.mark.parametrize("name", [*OTHERS, "mapped", "mapped askew", "looped"])
@pytest.mark.repeats_where(lambda name: name not in ("penalty", "looped"))
def test_other_uses_have_plain_gradients_and_none_per_sample(name: str) -> None:
    use = {**OTHERS, "mapped": mapped, "mapped askew": mapped_askew, "looped": looped}[name]

    def loss(table: Any, ids: Any, targets: Any) -> Any:
        return entropy(use(hidden(table, ids), weights_of(table)), targets)

    want = jax.grad(total(loss))(W, IDS, TARGETS)
    for run in (value_and_grad(total(loss)), jax.jit(value_and_grad(total(loss)))):
        _, g = run(Table(W), IDS, TARGETS)
        np.testing.assert_allclose(g, want, rtol=2e-5, atol=1e-5)
    error = NotImplementedError if name not in OTHERS else TypeError
    with pytest.raises(error, match=r"per_sample: got .*table\.weights"):
        value_and_grad(loss, per_sample=True)(Table(W), IDS, TARGETS)


def test_weights_of_three_axes() -> None:
    w = W[:, :, None] * jnp.arange(1.0, 3.0)

    def loss(t: Any) -> Any:
        return (weights_of(t).transpose(2, 1, 0)[0] ** 3).sum() + jnp.einsum("vdk,bd->bvk", weights_of(t), MIX).sum()

    np.testing.assert_allclose(value_and_grad(loss)(Table(w))[1], jax.grad(loss)(w), rtol=1e-5)


def test_a_table_that_is_no_operand_has_slices_as_before() -> None:
    def loss(table: Any) -> Any:
        return (lookup(table, IDS) ** 2).sum() + lax.stop_gradient(table.weights).sum()

    _, g = value_and_grad(loss)(Table(W))
    np.testing.assert_allclose(islices.to_dense(g), jax.grad(lambda w: (w[IDS] ** 2).sum())(W), rtol=1e-6)


def test_padding_masks_and_a_dense_argument_beside_it() -> None:
    mask = jnp.asarray(np.arange(12).reshape(4, 3) % 5 != 0)

    def loss(table: Any, mix: Any, ids: Any, mask: Any, targets: Any) -> Any:
        padding = {} if not isinstance(table, Table) else {"mask": mask}
        rows = lookup(table, ids, **padding)
        rows = rows if padding else jnp.where((mask & (ids != 3))[..., None], rows, lax.stop_gradient(rows))
        return entropy(jnp.tanh(rows @ mix) @ weights_of(table).T, targets)

    table = Table(W, padding_idx=3)
    _, (g, dense) = value_and_grad(loss, (0, 1), per_sample=True)(table, MIX, IDS, mask, TARGETS)
    split = tuple(x[:, None] for x in (IDS, mask, TARGETS))
    want, want_dense = jax.vmap(jax.grad(total(loss), (0, 1)), in_axes=(None, None, 0, 0, 0))(W, MIX, *split)
    np.testing.assert_allclose(g.to_dense(), want, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(dense, want_dense, rtol=2e-5, atol=1e-5)
    _, norms = islices.clip_per_sample([g, dense], 1.0)
    np.testing.assert_allclose(norms, jnp.sqrt((want**2).sum((1, 2)) + (want_dense**2).sum((1, 2))), rtol=2e-5)


def test_second_derivatives_of_products_are_refused() -> None:
    def inner(table: Any) -> Any:
        _, g = value_and_grad(lambda t: (lookup(t, IDS) @ t.weights.T).sum())(table)
        return islices.to_dense(g).sum()

    with pytest.raises(NotImplementedError, match=r"table\.weights: got a product with those of a table whose"):
        value_and_grad(inner)(Table(W))


def test_samples_that_do_not_come_first_are_refused() -> None:
    def loss(table: Any, ids: Any) -> Any:
        return (hidden(table, ids).reshape(-1, WIDTH) @ table.weights.T).reshape(len(ids), -1).sum(1)

    with pytest.raises(ValueError, match=r"table\.weights: got 12 samples; accepted is the lookups' 4"):
        value_and_grad(loss, per_sample=True)(Table(W), IDS)


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
    assert max(sizes) <= rows * width  # one table in all, the batch's products are half of it


def every_result(jaxpr: Any) -> Any:
    for eqn in jaxpr.eqns:
        yield from eqn.outvars
        for x in eqn.params.values():
            inner = getattr(x, "jaxpr", x)
            if hasattr(inner, "eqns"):
                yield from every_result(inner)


def test_the_plain_gradient_clipped_and_stepped() -> None:
    optax = pytest.importorskip("optax", reason="optax is not installed")
    from islices.backends.jax import optax as front

    def loss(table: Any, ids: Any, targets: Any) -> Any:
        return entropy(hidden(table, ids) @ weights_of(table).T, targets)

    ours = theirs = W
    mine = optax.chain(front.clip_by_global_norm(1.0), front.sgd(0.5))
    stock = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.5))
    state, stock_state = mine.init(ours), stock.init(theirs)
    for _ in range(3):
        _, g = value_and_grad(total(loss))(Table(ours), IDS, TARGETS)
        updates, state = mine.update(g, state, ours)
        ours = front.apply_updates(ours, updates)
        updates, stock_state = stock.update(jax.grad(total(loss))(theirs, IDS, TARGETS), stock_state, theirs)
        theirs = optax.apply_updates(theirs, updates)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def tied_samples(upstream: Any) -> Any:
    g, x = jnp.ones((2, 3, ROWS)), jnp.ones((2, 3, WIDTH))
    return islices.per_sample(upstream, jnp.asarray([[1], [2]]), ROWS, product=(g, x))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_traced_limit_clips_and_no_gradient_passes_in_silence(wrap: Any) -> None:
    upstream = jnp.ones((2, 1, WIDTH))
    clipped = wrap(lambda u, limit: tied_samples(u).clip(limit).sum())(upstream, jnp.float32(2.0))
    np.testing.assert_allclose(clipped, tied_samples(upstream).clip(2.0).sum(), rtol=1e-6)
    for loss in (
        lambda u: tied_samples(u).norms().sum(),
        lambda u: tied_samples(u).clip(1.0).sum().sum(),
        lambda u: tied_samples(lax.stop_gradient(u)).clip(u.sum()).sum().sum(),
    ):
        with pytest.raises(NotImplementedError, match=r"PerSample\.products"):
            wrap(jax.grad(loss))(upstream)
    held = wrap(jax.grad(lambda u: (u * jax.tree.map(lax.stop_gradient, tied_samples(u)).norms().sum()).sum()))(
        upstream
    )
    np.testing.assert_allclose(held, tied_samples(upstream).norms().sum(), rtol=1e-6)


def test_the_gradient_of_a_tied_gradient() -> None:
    """An outer gradient sees lookups and other uses of the weights through the inner one; products refuse it."""
    w = jnp.asarray(np.random.default_rng(3).standard_normal((5, 3)).astype(np.float32))
    ids = jnp.array([1, 1, 4])

    def loss(rows: Any, weights: Any) -> Any:
        return (rows**3).sum() + (weights**3).sum()

    def ours(t: Any) -> Any:
        _, grad = value_and_grad(lambda u: loss(lookup(u, ids), u.weights))(t)
        return (islices.to_dense(grad) ** 2).sum()

    def theirs(w: Any) -> Any:
        return (jax.grad(lambda v: loss(v[ids], v))(w) ** 2).sum()

    for wrap in (lambda f: f, jax.jit):
        found = jax.grad(wrap(ours))(Table(w))
        np.testing.assert_allclose(found.weights, jax.grad(theirs)(w), rtol=1e-4)
        found = value_and_grad(wrap(ours))(Table(w))[1]
        np.testing.assert_allclose(islices.to_dense(found), jax.grad(theirs)(w), rtol=1e-4)
