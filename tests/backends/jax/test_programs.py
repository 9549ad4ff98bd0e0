"""Test that flax and equinox programs with plain arrays train as optax does on dense gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import islices  # noqa: E402
import islices.backends.jax.optax as front  # noqa: E402
from islices import optim  # noqa: E402

ROWS, WIDTH = 40, 4
IDS, TARGET = jnp.asarray([[7, 7, 9], [2, 7, 0]]), jnp.asarray([1.0, 0.0])
PARAMS = {"table": jax.random.normal(jax.random.key(0), (ROWS, WIDTH)), "out": jnp.ones(WIDTH)}


@pytest.fixture(autouse=True)
def no_kernels() -> Iterator[None]:
    """Turn kernels off, because kernels have the same bits and take seconds to compile."""
    with islices.config.use_kernels(False):
        yield


def plain(params: Any, ids: Any, target: Any) -> Any:
    return ((params["table"][ids].mean(1) @ params["out"] - target) ** 2).mean()


def auto(fn: Any, **options: Any) -> Any:
    return islices.value_and_grad(fn, sparse="auto", **options)


def assert_close(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- whole programs: (value_and_grad, tx, apply)
def nnx_(vg: Any, tx: Any, apply: Any) -> Any:
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):  # type: ignore[name-defined, misc]
        def __init__(self, rngs: Any) -> None:
            self.embed = nnx.Embed(ROWS, WIDTH, rngs=rngs)
            self.out = nnx.Linear(WIDTH, 1, rngs=rngs)

        def __call__(self, ids: Any) -> Any:
            return self.out(self.embed(ids).mean(1))[:, 0]

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> None:
        _, grads = vg(lambda m: ((m(IDS) - TARGET) ** 2).mean())(model)
        optimizer.update(model, grads)

    for _ in range(3):
        step(model, optimizer)
    return nnx.to_pure_dict(nnx.state((model, optimizer)))


def equinox(vg: Any, tx: Any, apply: Any, whole: bool = False) -> Any:
    eqx = pytest.importorskip("equinox")

    class Model(eqx.Module):  # type: ignore[name-defined, misc]
        embed: Any
        out: Any
        activation: Any

        def __call__(self, ids: Any) -> Any:
            return self.activation(self.out(jax.vmap(self.embed)(ids).mean(0)))[0]

    keys = jax.random.split(jax.random.key(1))
    model = Model(eqx.nn.Embedding(ROWS, WIDTH, key=keys[0]), eqx.nn.Linear(WIDTH, 1, key=keys[1]), jax.nn.tanh)
    if vg is jax.value_and_grad:
        vg = eqx.filter_value_and_grad
    state = tx.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        _, grads = vg(lambda m: ((jax.vmap(m)(IDS) - TARGET) ** 2).mean())(model)
        updates, state = tx.update(grads, state, model if whole else eqx.filter(model, eqx.is_array))
        return apply(model, updates), state

    apply = eqx.apply_updates if apply is optax.apply_updates else apply
    for _ in range(3):
        model, state = step(model, state)
    return jax.tree.leaves((eqx.filter(model, eqx.is_array), state))


def stock() -> Any:
    return optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.1))


@pytest.mark.parametrize("program", [nnx_, equinox, partial(equinox, whole=True)])
def test_two_changed_lines(program: Callable[..., Any]) -> None:
    expected = program(jax.value_and_grad, stock(), optax.apply_updates)
    assert_close(program(auto, front.on_rows(stock()), front.apply_updates), expected)


def trained(vg: Any, tx: Any) -> Any:
    params, state = PARAMS, tx.init(PARAMS)

    def step(_: Any, carry: Any) -> Any:
        params, state = carry
        updates, state = tx.update(vg(plain)(params, IDS, TARGET)[1], state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(lambda carry: jax.lax.fori_loop(0, 3, step, carry))((params, state))


def by_name(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "out" if "out" in jax.tree_util.keystr(path) else "table", params
    )


def test_labels_by_a_function() -> None:
    tx = optax.multi_transform({"table": optax.adam(0.1), "out": optax.sgd(0.1)}, by_name)
    assert_close(trained(auto, front.on_rows(tx)), trained(jax.value_and_grad, tx))


def test_a_module_that_the_loss_changes_is_not_left_unchanged_in_silence() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.List([nnx.Embed(ROWS, WIDTH, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))])

    def loss(model: Any) -> Any:
        return model[1](model[0](IDS)).sum()

    with pytest.raises(ValueError, match=r"fn: changed the leaves .*rngs\.count.*has_aux=True"):
        auto(loss)(model)
    returning = auto(lambda model: (loss(model), nnx.state(model, nnx.RngState)), has_aux=True)
    (_, changed), _ = returning(model)
    nnx.update(model, changed)
    assert model[1].rngs.count[...] == 1


# ---------------------------------------------------------------------- islices' functions on a library's structures
def test_optim_and_clips_take_pytrees() -> None:
    eqx, core = pytest.importorskip("equinox"), pytest.importorskip("flax.core")
    linear = eqx.nn.Linear(WIDTH, 1, use_bias=False, key=jax.random.key(0))  # a module with None
    params = [linear, core.freeze(PARAMS), optax.ScaleByAdamState(PARAMS["out"], PARAMS, None)]
    optimizer = optim.adam(0.1)
    (leaves, structure), state = jax.tree.flatten(params), optimizer.init(params)
    expected = optimizer.step(leaves, leaves, optimizer.init(leaves))
    clipped, norm = islices.clip_by_global_norm(params, 0.5)
    assert norm == islices.global_norm(leaves)
    assert jax.tree.structure(clipped) == structure
    params, state = optimizer.step(params, params, state)
    assert jax.tree.structure(params) == structure
    assert_close(jax.tree.leaves((params, state)), jax.tree.leaves(expected))
    with pytest.raises(ValueError, match=r"grad: got .* accepted is the same structure"):
        optimizer.step(params, leaves[0], state)


# ---------------------------------------------------------------------- donated arrays
def test_donated_tables_are_not_copied() -> None:
    optimizer = optim.adam(0.1)
    params = {"table": jax.ShapeDtypeStruct((20_000, 16), np.float32), "out": jax.ShapeDtypeStruct((16,), np.float32)}

    def step(params: Any, state: Any, ids: Any) -> Any:
        _, grads = auto(plain)(params, ids, TARGET)
        return optimizer.step(params, islices.clip_by_global_norm(grads, 1.0)[0], state)

    state = jax.eval_shape(lambda: optimizer.init(jax.tree.map(jnp.zeros_like, params)))
    used = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, IDS).compile().memory_analysis()
    table = 20_000 * 16 * 4
    assert used.alias_size_in_bytes >= 3 * table
    assert used.temp_size_in_bytes < table // 8
