"""islices.backends.jax.optax: against optax itself, on dense gradients, and against islices.optim by hand."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
optax = pytest.importorskip("optax", reason="optax is not installed")
import jax.numpy as jnp  # noqa: E402

import islices  # noqa: E402
import islices.backends.jax.optax as front  # noqa: E402
from islices import IndexedSlices, Table, optim  # noqa: E402
from islices.backends.jax.optax import accumulation, optimizers, transforms  # noqa: E402
from islices.optim.record import RECORDS  # noqa: E402

ROWS, DIM, STEPS = 13, 3, 4
START = {
    "table": jnp.asarray(np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)),
    "w": jnp.asarray(np.random.default_rng(2).standard_normal(4).astype(np.float32)),
}


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Without kernels, which are compiled for each rule, unless a test asks for them: the bits are the same."""
    with islices.use_kernels("compiled" in request.fixturenames):
        yield


@pytest.fixture
def compiled() -> None:
    """Asks `kernels` for them."""


def gradient(seed: int, n: int = 9, *, every_row: bool = False, factor: float = 1.0, dtype: str = "int32") -> Any:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, ROWS, n)
    if every_row:
        ids = rng.permutation(np.concatenate([np.arange(ROWS), ids]))
    values = (factor * rng.standard_normal((len(ids), DIM))).astype(np.float32)
    table = IndexedSlices(jnp.asarray(values), jnp.asarray(ids.astype(dtype)), (ROWS, DIM))
    return {"table": table, "w": jnp.asarray(rng.standard_normal(4).astype(np.float32))}


def dense(grads: Any) -> Any:
    return {**grads, "table": islices.to_dense(grads["table"])}


def arrays(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def assert_same(found: Any, expected: Any, where: object = "") -> None:
    """The same structure and the same bits (-0 being 0)."""
    assert jax.tree.structure(found) == jax.tree.structure(expected), where
    for x, y in zip(arrays(found), arrays(expected), strict=True):
        assert x.dtype == y.dtype, (where, x.dtype, y.dtype)
        np.testing.assert_array_equal(x, y, err_msg=str(where))


def train(tx: Any, params: Any, grads: Any, *, jit: bool = False, apply: Any = front.apply_updates) -> tuple[Any, Any]:
    def step(params: Any, state: Any, grad: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grad, state, params)
        return apply(params, updates), state

    step = jax.jit(step) if jit else step
    state = tx.init(params)
    for grad in grads:
        params, state = step(params, state, grad)
    return params, state


# ---------------------------------------------------------------------- what stock optax does
TAMPERING = {
    "sgd": (lambda: optax.sgd(0.1), "float32"),
    "sgd, schedule": (lambda: optax.sgd(lambda count: 0.1), "int32"),
    "scale": (lambda: optax.scale(0.5), "float32"),
    "scale(-1)": (lambda: optax.scale(-1), "int32"),
    "clip": (lambda: optax.clip(1.0), "float32"),
    "clip(1)": (lambda: optax.clip(1), "int32"),
    "clip_by_block_rms": (lambda: optax.clip_by_block_rms(1.0), "float32"),
    "normalize_by_update_norm": (lambda: optax.normalize_by_update_norm(), "float32"),
    "scale_by_sign": (lambda: optax.scale_by_sign(), "int32"),
}
RAISING = {
    "clip_by_global_norm": lambda: optax.clip_by_global_norm(1.0),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(0.1),
    "adamw": lambda: optax.adamw(0.1),
    "adagrad": lambda: optax.adagrad(0.1),
    "rmsprop": lambda: optax.rmsprop(0.1),
    "add_decayed_weights": lambda: optax.add_decayed_weights(0.1),
    "MultiSteps": lambda: optax.MultiSteps(optax.sgd(0.1), 2),
}


@pytest.mark.repeats_where(lambda jit: jit)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", TAMPERING)
def test_what_changes_indices_is_refused_in_chain(name: str, jit: bool) -> None:
    make, dtype = TAMPERING[name]
    grad = gradient(0)
    changed = make().update(grad, make().init(START), START)[0]["table"]
    indices = jax.tree.leaves(changed)[1]
    assert indices.dtype == dtype
    assert not np.array_equal(indices, grad["table"].indices)
    for position, parts in enumerate([(make(), front.adam(0.1)), (front.coalesce(), make())]):
        with pytest.raises(TypeError, match=rf"args\[{position}\]: got \w+, which changed the indices"):
            train(front.chain(*parts), START, [grad], jit=jit)
    if dtype == "float32":  # noticed without islices' chain too
        for tx in (make(), optax.chain(make(), front.adam(0.1)), optax.chain(front.coalesce(), make())):
            with pytest.raises(TypeError, match=r"updates\['table'\]: got slices with float32 indices"):
                train(tx, START, [grad], jit=jit)


@pytest.mark.parametrize("name", RAISING)
def test_what_raises_in_optax_is_explained_in_chain(name: str) -> None:
    grad = gradient(0)
    with pytest.raises((TypeError, ValueError)) as raised:
        train(front.chain(front.coalesce(), RAISING[name]()), START, [grad])
    assert any("args[1] of chain, " in note for note in raised.value.__notes__)


@pytest.mark.parametrize("make", [lambda: optax.scale(-1), lambda: optax.scale_by_sign(), lambda: optax.clip(1)])
def test_whole_numbers_raise_outside_of_jit_and_are_nan_in_it(make: Any) -> None:
    with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\)") as raised:
        train(make(), START, [gradient(0)])
    assert "updates['table']" in raised.value.__notes__[0]
    assert "on_rows" in raised.value.__notes__[0]
    assert jnp.isnan(train(make(), START, [gradient(0)], jit=True)[0]["table"]).any()


def test_the_norm_of_optax_counts_indices_and_not_duplicates() -> None:
    grad = IndexedSlices(jnp.asarray([[3.0, 0], [0, 4], [3, 0]]), jnp.asarray([1, 2, 1]), (6, 2))
    values, indices, _ = jax.tree.leaves(grad)
    assert np.float32(np.sqrt(3.0**2 + 4**2 + 3**2 + 1 + 4 + 1)) == optax.tree.norm([values, indices])
    assert not optax.tree.norm(grad) < 1e3, "the guard's squares, whose integers wrap around"
    assert np.float32(np.sqrt(6.0**2 + 4.0**2)) == islices.global_norm(grad)


# ---------------------------------------------------------------------- optax's arithmetic on rows
SCHEDULE = optax.exponential_decay(0.1, 3, 0.7)
ALIASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", {"learning_rate": 0.1}),
    "sgd, schedule": ("sgd", {"learning_rate": SCHEDULE}),
    "nesterov": ("sgd", {"learning_rate": SCHEDULE, "momentum": 0.9, "nesterov": True}),
    "adagrad": ("adagrad", {"learning_rate": 0.1}),
    "rmsprop": ("rmsprop", {"learning_rate": 0.1}),
    "rmsprop, all": ("rmsprop", {"learning_rate": 0.1, "centered": True, "momentum": 0.9, "bias_correction": True}),
    "adam": ("adam", {"learning_rate": SCHEDULE}),
    "nadam": ("adam", {"learning_rate": 0.1, "nesterov": True, "eps_root": 1e-6}),
    "adamw": ("adamw", {"learning_rate": 0.1, "weight_decay": 0.1}),
    "adamw, mask": ("adamw", {"learning_rate": 0.1, "mask": {"table": True, "w": False}}),
}


def both(name: str, **options: Any) -> tuple[Any, Any]:
    function, arguments = ALIASES[name]
    return getattr(front, function)(**arguments, **options), getattr(optax, function)(**arguments)


@pytest.mark.repeats_where(lambda name: name not in ("adam", "rmsprop"))
@pytest.mark.parametrize("name", ALIASES)
def test_all_rows_are_those_of_optax(name: str) -> None:
    """On densified gradients, weights and state; "touched" too where every row is named. Operation by operation."""
    grads = [gradient(seed) for seed in range(STEPS)]
    ours, theirs = both(name, rows="all")
    expected = train(theirs, START, map(dense, grads), apply=optax.apply_updates)
    assert_same(train(ours, START, grads), expected)
    grads = [gradient(seed, every_row=True) for seed in range(STEPS)]
    ours, theirs = both(name)
    assert_same(train(ours, START, grads), train(theirs, START, map(dense, grads), apply=optax.apply_updates))


def lazily(theirs: Any, grads: Any) -> tuple[Any, Any]:
    """optax on arrays of the named rows alone, cut out and put back by hand; a leaf of the table's shape is one."""
    params, state = START, theirs.init(START)
    for grad in grads:
        slices = grad["table"]
        ids = np.unique(np.asarray(slices.indices))
        summed = np.zeros((ROWS, DIM), np.float32)
        np.add.at(summed, np.asarray(slices.indices), np.asarray(slices.values))

        def cut(x: Any, ids: Any = ids) -> Any:
            return x[ids] if np.shape(x) == (ROWS, DIM) else x

        def put(x: Any, new: Any, ids: Any = ids) -> Any:
            return x.at[ids].set(new) if np.shape(x) == (ROWS, DIM) else new

        some = jax.tree.map(cut, (params, state))
        updates, after = theirs.update({"table": jnp.asarray(summed[ids]), "w": grad["w"]}, some[1], some[0])
        params, state = jax.tree.map(put, (params, state), (optax.apply_updates(some[0], updates), after))
    return params, state


@pytest.mark.parametrize("name", ALIASES)
def test_touched_rows_are_those_of_optax_on_these_rows(name: str) -> None:
    grads = [gradient(seed, n=5) for seed in range(STEPS)]
    named = np.unique(np.concatenate([np.asarray(g["table"].indices) for g in grads]))
    away = np.setdiff1d(np.arange(ROWS), named)
    assert len(away)
    ours, theirs = both(name)
    params, state = train(ours, START, grads)
    assert_same((params, state), lazily(theirs, grads))
    np.testing.assert_array_equal(np.asarray(params["table"])[away], np.asarray(START["table"])[away])


def largest_difference(found: Any, theirs: Any, grads: Any, *, weights: bool = False) -> float:
    """From optax operation by operation on densified gradients, in units of eps * (|x| + the sum of its changes); of
    weights and state, or of the weights alone."""
    start = {name: START[name] for name in grads[0]}
    now: tuple[Any, Any] = (start, theirs.init(start))
    before = [np.asarray(x, np.float64) for x in arrays(now[0] if weights else now)]
    units = [np.abs(x) for x in before]
    for grad in grads:
        updates, state = theirs.update(dense(grad), now[1], now[0])
        now = (optax.apply_updates(now[0], updates), state)
        after = [np.asarray(x, np.float64) for x in arrays(now[0] if weights else now)]
        units = [unit + np.abs(y - x) for unit, x, y in zip(units, before, after, strict=True)]
        before = after
    eps = np.finfo(np.float32).eps
    return max(
        float(np.max(np.abs(x - y) / np.maximum(eps * unit, np.finfo(np.float32).tiny)))
        for x, y, unit in zip(arrays(found[0] if weights else found), before, units, strict=True)
    )


@pytest.mark.parametrize(("name", "rows"), [("nesterov", "touched"), ("rmsprop", "touched"), ("adamw", "all")])
def test_jitted(name: str, rows: str) -> None:
    """XLA contracts products into sums; the bound is that of optax in jit (docs/optimizers.md)."""
    ours, theirs = both(name, rows=rows)
    grads = [gradient(seed, every_row=True) for seed in range(12)]
    found = train(ours, START, grads, jit=True)
    assert largest_difference(found, theirs, grads) <= 4  # 2.2 measured, seeds 0 to 400 by 100


@pytest.mark.parametrize("make", [optax.lion, optax.amsgrad, optax.adabelief, optax.yogi], ids=lambda f: f.__name__)
def test_other_optimizers_on_rows(make: Any) -> None:
    grads = [gradient(seed, n=5) for seed in range(STEPS)]
    assert_same(train(front.on_rows(make(0.1)), START, grads), lazily(make(0.1), grads))


NOISE, OTHERS = "gives equal rows without a gradient different updates", "computes a row's update from the other rows"
#: what on_rows finds in a transformation of optax; "" where it has optax's updates on named rows
PROBED: dict[str, tuple[Callable[[], Any], str]] = {
    "noise": (lambda: optax.chain(optax.add_noise(0.1, 0.55, 0), optax.sgd(0.1)), NOISE),
    "noisy_sgd": (lambda: optax.noisy_sgd(0.1, key=0), NOISE),
    "lamb": (lambda: optax.lamb(0.1), OTHERS),
    "lamb, warming up": (lambda: optax.lamb(optax.linear_schedule(0, 0.1, 1000)), OTHERS),
    "lamb, injected": (lambda: optax.inject_hyperparams(optax.lamb)(learning_rate=0.1), OTHERS),
    "lars": (lambda: optax.lars(0.1), OTHERS),
    "fromage": (lambda: optax.fromage(0.1), OTHERS),
    "rms of elements": (lambda: optax.clip_by_block_rms(1.0), OTHERS),
    "columns": (lambda: optax.adaptive_grad_clip(0.1), OTHERS),
    "norm of moments": (lambda: optax.chain(optax.scale_by_adam(), optax.clip_by_global_norm(1.0)), OTHERS),
    "distance": (lambda: optax.contrib.dog(1.0), OTHERS),
    "mean over rows": (
        lambda: optax.stateless(lambda u, p: jax.tree.map(lambda x: x - x.mean(0) if x.ndim > 1 else x, u)),
        OTHERS,
    ),
    "norm of the gradient": (lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)), ""),
    "novograd": (lambda: optax.novograd(0.1), ""),
    "centralize": (lambda: optax.chain(optax.centralize(), optax.sgd(0.1)), ""),
    "yogi": (lambda: optax.yogi(0.1), ""),
    "if finite": (lambda: optax.apply_if_finite(optax.adam(0.1), 3), ""),
    "value": (lambda: optax.polyak_sgd(), ""),
}


@pytest.mark.repeats_where(lambda name, jit: jit or name not in ("noise", "lamb", "columns", "norm of the gradient"))
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", PROBED)
def test_what_on_rows_cannot_do_is_found_by_trying(name: str, jit: bool) -> None:
    make, found = PROBED[name]
    tx, grads = front.on_rows(make()), gradient(3)
    if name in ("distance", "norm of moments"):  # these agree in the first step
        assert found
    elif not found:
        ids = jnp.unique(grads["table"].indices)
        own = optax.with_extra_args_support(make())
        expected, _ = own.update(dense(grads), own.init(START), START, value=1.0)
        updates, _ = (jax.jit(tx.update) if jit else tx.update)(grads, tx.init(START), START, value=jnp.float32(1.0))
        np.testing.assert_allclose(islices.to_dense(updates["table"])[ids], expected["table"][ids], rtol=1e-5)
        return
    with pytest.raises(ValueError, match=rf"inner: got a transformation that {found}.*rows=.all."):
        (jax.jit(tx.update) if jit else tx.update)(grads, tx.init(START), START)
    every = front.on_rows(make(), rows="all")
    every.update(grads, every.init(START), START)


def test_a_transformation_of_traced_numbers_is_not_judged() -> None:
    grads = gradient(3)

    def updated(rate: Any) -> Any:
        tx = front.on_rows(optax.lion(rate))
        return tx.update(grads, tx.init(START), START)[0]

    assert_same(jax.jit(updated)(0.5), updated(0.5))


def test_arguments_are_those_of_optax() -> None:
    for name in ("sgd", "adagrad", "rmsprop", "adam", "adamw", "scale", "clip", "clip_by_global_norm", "apply_updates"):
        ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (front, optax))
        kept = {
            k: p
            for k, p in ours.items()
            if k not in ("rows", "semantics", "nonfinite", "donate", "group", "replicated")
        }
        assert list(kept) == list(theirs), name
        for k, p in kept.items():
            assert (p.default, p.kind) == (theirs[k].default, theirs[k].kind), (name, k)


def test_a_state_of_optax_continues_and_goes_back() -> None:
    grads = [gradient(seed, every_row=True) for seed in range(4)]
    half = train(optax.adam(0.1), START, map(dense, grads[:2]), apply=optax.apply_updates)
    expected = train(optax.adam(0.1), START, map(dense, grads), apply=optax.apply_updates)
    params, state = half
    for grad in grads[2:]:
        updates, state = front.adam(0.1).update(grad, state, params)
        params = front.apply_updates(params, updates)
    assert_same((params, state), expected)


# ---------------------------------------------------------------------- islices' arithmetic
VARIANTS: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"centered": True},
    {"centered": True, "momentum": 0.9},
]


def rules(name: str) -> list[optim.Optimizer]:
    """All optimizers of a name that an update can stand for."""
    found = []
    for semantics in RECORDS[name].presets:
        for rows in ("touched", "all"):
            for variant in VARIANTS:
                try:
                    optimizer = getattr(optim, name)(0.1, rows=rows, semantics=semantics, **variant)
                except (TypeError, ValueError):  # not of this semantics, or not with these rows
                    continue
                found.append(optimizer)
    return found


def by_hand(optimizer: optim.Optimizer, grads: Any, start: Any = START["table"]) -> tuple[Any, Any]:
    table, state = start, optimizer.init(start)
    for grad in grads:
        table, state = optimizer.step(table, grad["table"], state)
    return table, state


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad", "rmsprop", "adam"])
def test_from_optim_has_the_bits_of_a_step(name: str) -> None:
    made = rules(name)
    assert len(made) >= 5
    grads = [gradient(seed) for seed in range(3)]
    for optimizer in made:
        found = train(front.from_optim(optimizer), {"table": START["table"]}, [{"table": g["table"]} for g in grads])
        table, state = by_hand(optimizer, grads)
        assert_same(found, ({"table": table}, {"table": state}), optimizer)


JITTED = {
    "nesterov": optim.sgd(0.1, momentum=0.9, nesterov=True),
    "adagrad, schedule": optim.adagrad(lambda step: 0.5**step),
    "rmsprop": optim.rmsprop(0.1, centered=True, momentum=0.9),
    "adam, torch": optim.adam(0.1, semantics="torch", maximize=True),
    "adam, optax": optim.adam(0.1, rows="all", semantics="optax"),
}


@pytest.mark.parametrize("name", JITTED)
def test_from_optim_has_these_bits_in_jit(name: str) -> None:
    optimizer, grads = JITTED[name], [gradient(seed) for seed in range(12)]
    params, state = train(front.from_optim(optimizer), START, grads, jit=True)
    assert_same((params["table"], state["table"]), by_hand(optimizer, grads))


def test_from_optim_takes_single_numbers() -> None:
    params, state = train(front.from_optim(optim.sgd(0.5)), {"t": jnp.float32(1)}, [{"t": jnp.float32(2)}])
    assert params["t"].shape == ()
    assert (float(params["t"]), int(state["t"]["step"][0])) == (0.0, 1)


def test_a_transformation_may_densify_in_chain() -> None:
    densify = optax.stateless(lambda updates, _: dense(updates))
    grads = [gradient(seed) for seed in range(2)]
    expected = train(optax.adam(0.1), START, map(dense, grads), apply=optax.apply_updates)
    params, state = train(front.chain(densify, optax.adam(0.1)), START, grads)
    assert_same((params, state[1]), expected)


@pytest.mark.parametrize("leaves", [("table", "w"), ("table",)], ids=" and ".join)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_from_optim_is_optax_on_densified_gradients(leaves: tuple[str, ...], jit: bool) -> None:
    """Operation by operation, as docs/optimizers.md says of sgd and adam."""
    grads = [{name: g[name] for name in leaves} for g in map(gradient, range(12))]
    for ours, theirs, units in (
        (optim.sgd(0.1, momentum=0.9, rows="all", semantics="optax"), optax.sgd(0.1, 0.9), 0),
        # XLA multiplies by the reciprocal of a bias correction: 1.8 measured
        (optim.adam(0.1, rows="all", semantics="optax"), optax.adam(0.1), 4),
    ):
        found = train(front.from_optim(ours), {name: START[name] for name in leaves}, grads, jit=jit)
        assert largest_difference(found, theirs, grads, weights=True) <= units, ours


@pytest.mark.parametrize(("dtype", "jit"), [("bfloat16", True), ("float16", False)])
def test_16_bits_are_rounded_once(dtype: str, jit: bool) -> None:
    grads = [jax.tree.map(lambda x: x.astype(dtype) if x.dtype == "float32" else x, gradient(k)) for k in range(STEPS)]
    start, optimizer, tables = START["table"].astype(dtype), optim.adagrad(0.1), [{"table": g["table"]} for g in grads]
    params, state = train(front.from_optim(optimizer), {"table": start}, tables, jit=jit)
    assert_same((params["table"], state["table"]), by_hand(optimizer, grads, start))


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (optim.ftrl(0.1), "ftrl"),
        (optim.adamw(0.1), "weight_decay"),
        (optim.sgd(0.1, weight_decay=0.1), "weight_decay"),
        (optim.adam(0.1, frozen=[1]), "frozen rows"),
        (optim.sgd(0.1, semantics="keras", duplicates="raw"), 'duplicates="raw"'),
    ],
    ids=["ftrl", "adamw", "weight_decay", "frozen", "raw"],
)
def test_from_optim_refuses(optimizer: optim.Optimizer, words: str) -> None:
    with pytest.raises(ValueError, match=f"optimizer: got .*; accepted are those without .*{words}"):
        front.from_optim(optimizer)


# ---------------------------------------------------------------------- gradients
STATELESS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "coalesce": (front.coalesce, islices.coalesce),
    "clip": (lambda: front.clip(0.5), lambda x: islices.clip_by_value(x, -0.5, 0.5)),
    "clip_by_global_norm": (lambda: front.clip_by_global_norm(1.0), lambda x: islices.clip_by_global_norm(x, 1.0)[0]),
    "semantics": (
        lambda: front.clip_by_global_norm(1.0, semantics="torch"),
        lambda x: islices.clip_by_global_norm(x, 1.0, semantics="torch")[0],
    ),
    "scale": (lambda: front.scale(-0.25), lambda x: jax.tree.map(lambda y: y * -0.25, x)),
}


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", STATELESS)
def test_gradients_are_changed_as_islices_changes_them(name: str, jit: bool) -> None:
    make, expected = STATELESS[name]
    tx, grad = make(), gradient(3)
    update = jax.jit(tx.update) if jit else tx.update
    found, _ = update(grad, tx.init(START))
    if name == "scale":
        assert_same(dense(found), expected(dense(grad)))
    else:
        assert_same(dense(found), dense(expected(grad)))


def test_dense_leaves_are_those_of_optax() -> None:
    grad = {"w": gradient(4)["w"], "v": jnp.asarray([np.nan, -3.0, 0.5, np.inf])}
    params = jax.tree.map(jnp.ones_like, grad)
    for ours, theirs in (
        (front.clip(0.5), optax.clip(0.5)),
        (front.scale(0.3), optax.scale(0.3)),
        (front.scale_by_schedule(SCHEDULE), optax.scale_by_schedule(SCHEDULE)),
        (front.scale_by_learning_rate(0.3), optax.scale_by_learning_rate(0.3)),
        (front.add_decayed_weights(0.1), optax.add_decayed_weights(0.1)),
    ):
        assert_same(train(ours, params, [grad] * 3), train(theirs, params, [grad] * 3, apply=optax.apply_updates))


def test_decay_reaches_the_rows_of_the_gradient_alone() -> None:
    tx, grad = front.add_decayed_weights(0.5), gradient(5, n=3)
    update, _ = tx.update(grad, tx.init(START), START)
    ids = np.unique(np.asarray(grad["table"].indices))
    expected = np.zeros((ROWS, DIM), np.float32)
    expected[ids] = np.asarray(islices.to_dense(grad["table"]))[ids] + np.float32(0.5) * np.asarray(START["table"])[ids]
    np.testing.assert_array_equal(islices.to_dense(update["table"]), expected)


@pytest.mark.parametrize(
    ("n", "dtype", "jit"),
    [(0, "int32", False), (0, "int32", True), (1, "int64", False), (9, "int32", False), (9, "int64", True)],
)
def test_updates_are_added_as_the_dense_ones_are(n: int, dtype: str, jit: bool) -> None:
    from islices.backends.jax.precision import enable_x64

    with enable_x64(dtype == "int64"):
        grad = gradient(6, n=n, dtype=dtype)
        assert grad["table"].indices.dtype == dtype
        apply = jax.jit(front.apply_updates) if jit else front.apply_updates
        expected = optax.apply_updates(START, dense(grad))
        assert_same(apply(START, grad), expected)
        assert_same(optax.apply_updates(START, grad), expected)  # IndexedSlices has an addition
        params, _ = train(front.adam(0.1), START, [grad], jit=jit)
        named = np.unique(np.asarray(grad["table"].indices))
        moved = np.flatnonzero(np.any(np.asarray(params["table"]) != np.asarray(START["table"]), axis=1))
        np.testing.assert_array_equal(moved, named)


def test_donated_arrays_are_written_into() -> None:
    params = jax.tree.map(jnp.array, START)
    expected = front.apply_updates(params, gradient(7))
    assert_same(front.apply_updates(params, gradient(7), donate=True), expected)
    assert params["table"].is_deleted()


# ---------------------------------------------------------------------- real training
IDS = np.random.default_rng(8).integers(0, 50, (50, 12)).astype(np.int32)
TARGETS = (1 + np.random.default_rng(9).random(50)).astype(np.float32)


def model() -> dict[str, Any]:
    rng = np.random.default_rng(10)
    table = rng.standard_normal((50, 4)).astype(np.float32)
    return {"emb": Table(jnp.asarray(table), padding_idx=0), "out": jnp.asarray(rng.standard_normal(4), jnp.float32)}


def loss(params: Any, ids: Any, target: Any) -> Any:
    rows = islices.lookup(params["emb"], ids)
    return (jnp.tanh(rows).mean(0) @ params["out"] - target) ** 2


@pytest.mark.repeats_where(lambda rows: rows == "all")
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("rows", ["touched", "all"])
def test_fifty_jitted_steps_are_those_by_hand(rows: str) -> None:
    optimizer = optim.adam(0.05) if rows == "touched" else optim.adam(0.05, rows="all", semantics="optax")
    tx = front.chain(front.clip_by_global_norm(0.5), front.from_optim(optimizer))
    params = model()
    state = tx.init(params)

    def step(params: Any, state: Any, ids: Any, target: Any) -> Any:
        value, grads = islices.value_and_grad(loss)(params, ids, target)
        updates, state = tx.update(grads, state, params)
        return front.apply_updates(params, updates), state, value, grads

    compiled = jax.jit(step, donate_argnums=(0, 1))
    by_hand = {name: x.weights if isinstance(x, Table) else x for name, x in model().items()}
    own = {name: optimizer.init(x) for name, x in by_hand.items()}
    stock, stock_state = dict(by_hand), optax.adam(0.05).init(by_hand)
    losses, clipped_once = [], False
    for ids, target in zip(IDS, TARGETS, strict=True):
        params, state, value, grads = compiled(params, state, ids, target)
        losses.append(float(value))
        clipped, norm = islices.clip_by_global_norm(grads, 0.5)
        clipped_once |= float(norm) > 0.5
        by_hand, own = optimizer.step(by_hand, clipped, own)
        dense_grads = {"emb": islices.to_dense(clipped["emb"]), "out": clipped["out"]}
        updates, stock_state = optax.adam(0.05).update(dense_grads, stock_state)
        stock = optax.apply_updates(stock, updates)
    assert clipped_once
    assert isinstance(params["emb"], Table)
    assert params["emb"].padding_idx == 0
    found = {"emb": params["emb"].weights, "out": params["out"]}
    assert_same((found, state[1]), (by_hand, own))
    if rows == "all":  # and those of optax, operation by operation
        assert_same(found, stock)
    np.testing.assert_array_equal(found["emb"][0], model()["emb"].weights[0])
    assert np.mean(losses[-10:]) < np.mean(losses[:10])


def test_a_scan_has_the_bits_of_a_loop() -> None:
    tx = front.chain(front.clip(0.5), front.from_optim(optim.adagrad(0.1)))

    def body(carry: Any, batch: Any) -> Any:
        params, state = carry
        value, grads = islices.value_and_grad(loss)(params, *batch)
        updates, state = tx.update(grads, state, params)
        return (front.apply_updates(params, updates), state), (value, grads)

    (params, state), (_, grads) = jax.jit(lambda carry: jax.lax.scan(body, carry, (IDS, TARGETS)))(
        (model(), tx.init(model()))
    )
    expected, own = model(), tx.init(model())
    for k in range(len(IDS)):
        one = jax.tree.map(lambda x, k=k: x[k], grads)
        updates, own = tx.update(one, own, expected)
        expected = front.apply_updates(expected, updates)
    assert_same((params, state), (expected, own))


def test_a_checkpoint_continues() -> None:
    serialization = pytest.importorskip("flax.serialization", reason="flax is not installed")
    grads = [gradient(seed) for seed in range(8)]
    for tx in (
        front.chain(front.clip(0.5), front.adam(SCHEDULE)),
        front.accumulate(front.from_optim(optim.sgd(0.1, momentum=0.9)), 3),
    ):

        @jax.jit
        def step(carry: Any, grad: Any, tx: Any = tx) -> Any:
            updates, state = tx.update(grad, carry[1], carry[0])
            return front.apply_updates(carry[0], updates), state

        carry = expected = (START, tx.init(START))
        for k, grad in enumerate(grads):
            if k == 4:
                carry = serialization.from_bytes((START, tx.init(START)), serialization.to_bytes(carry))
            carry, expected = step(carry, grad), step(expected, grad)
        assert_same(carry, expected)


@pytest.mark.usefixtures("compiled")
def test_nothing_of_a_tables_size_is_made() -> None:
    rows, dim, n = 100_000, 32, 512
    table, size = Table(jnp.zeros((rows, dim))), rows * dim * 4
    for name, tx in {
        "chain": front.chain(front.clip_by_global_norm(1.0), front.apply_if_finite(front.adamw(0.1), 3)),
        "accumulate": front.accumulate(front.from_optim(optim.adam(0.1)), 2),
    }.items():

        def step(params: Any, state: Any, values: Any, ids: Any, tx: Any = tx) -> Any:
            updates, state = tx.update(IndexedSlices(values, ids, (rows, dim)), state, params)
            return front.apply_updates(params, updates), state

        state = tx.init(table)
        lowered = jax.jit(step, donate_argnums=(0, 1)).lower(table, state, jnp.ones((n, dim)), jnp.zeros(n, "int32"))
        memory = lowered.compile().memory_analysis()
        assert memory.temp_size_in_bytes < size / 8, (name, memory.temp_size_in_bytes)
        held = sum(x.nbytes for x in jax.tree.leaves((table, state)) if x.ndim)
        assert memory.alias_size_in_bytes >= held, (name, memory)


# ---------------------------------------------------------------------- optax's wrappers
LABELS = {"table": "sparse", "w": "dense"}
WRAPPED: dict[str, Callable[[Any, Any], Any]] = {
    "optax.chain": lambda sparse, dense: optax.chain(front.coalesce(), sparse, optax.identity()),
    "chain": lambda sparse, dense: front.chain(front.coalesce(), sparse, optax.identity()),
    "named_chain": lambda sparse, dense: optax.named_chain(("first", front.coalesce()), ("second", sparse)),
    "multi_transform": lambda sparse, dense: optax.multi_transform({"sparse": sparse, "dense": dense}, LABELS),
    "multi_transform in chain": lambda sparse, dense: front.chain(
        front.coalesce(), optax.multi_transform({"sparse": sparse, "dense": dense}, lambda params: LABELS)
    ),
    "masked": lambda sparse, dense: front.chain(
        optax.masked(sparse, {"table": True, "w": False}), optax.masked(dense, {"table": False, "w": True})
    ),
    "schedule": lambda sparse, dense: front.chain(front.scale_by_schedule(lambda count: 1.0), sparse),
}


@pytest.mark.repeats_where(lambda name, table: table and name != next(iter(WRAPPED)))
@pytest.mark.parametrize("table", [False, True], ids=["array", "Table"])
@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_that_leave_leaves_alone(name: str, table: bool) -> None:
    grads = [gradient(seed) for seed in range(3)]
    start = {**START, "table": Table(START["table"])} if table else START
    # optax compiles a tree's bias corrections as one program, whose rounding depends on what else is in the tree
    trees = [["table"], ["w"]] if "multi_transform" in name or name == "masked" else [["table", "w"]]
    expected = {}
    for names in trees:
        picked = [{leaf: grad[leaf] for leaf in names} for grad in grads]
        expected |= train(front.adam(0.1), {leaf: START[leaf] for leaf in names}, picked)[0]
    found, _ = train(WRAPPED[name](front.adam(0.1), optax.adam(0.1)), start, grads)
    assert_same({**found, "table": found["table"].weights} if table else found, expected)


def test_inject_hyperparams() -> None:
    grads = [gradient(seed, every_row=True) for seed in range(3)]
    theirs = optax.inject_hyperparams(optax.adam)(learning_rate=SCHEDULE)
    expected = train(theirs, START, map(dense, grads), apply=optax.apply_updates)
    for ours in (
        optax.inject_hyperparams(front.adam)(learning_rate=SCHEDULE),
        front.on_rows(optax.inject_hyperparams(optax.adam)(learning_rate=SCHEDULE)),
    ):
        params, state = train(ours, START, grads)
        assert_same(params, expected[0])
        assert_same(state.hyperparams["learning_rate"], expected[1].hyperparams["learning_rate"])
        state.hyperparams["b1"] = jnp.float32(0.5)
        ours.update(grads[0], state, params)


def test_apply_if_finite() -> None:
    grads = [gradient(seed) for seed in range(4)]
    grads[2] = {**grads[2], "table": grads[2]["table"].replace(values=jnp.full((9, DIM), 3e38))}  # infinite once summed
    assert len(np.unique(grads[2]["table"].indices)) < 9
    optimizer = front.from_optim(optim.adagrad(0.1))
    params, state = train(front.apply_if_finite(optimizer, 3), START, grads, jit=True)
    expected, own = train(optimizer, START, [grads[k] for k in (0, 1, 3)], jit=True)
    assert_same((params, state.inner_state), (expected, own))
    assert int(state.total_notfinite) == 1
    with pytest.raises(TypeError, match="pytree structure"):  # optax's own: its branches differ
        train(optax.apply_if_finite(optimizer, 3), START, grads)


# ---------------------------------------------------------------------- accumulation
def exact(seed: int) -> Any:
    """A gradient whose sums and quarters are exact."""
    rng = np.random.default_rng(seed)
    values = jnp.asarray((rng.integers(-8, 8, (5, DIM)) / 4).astype(np.float32))
    table = IndexedSlices(values, jnp.asarray(rng.integers(0, ROWS, 5).astype(np.int32)), (ROWS, DIM))
    return {"table": table, "w": jnp.asarray(rng.integers(-8, 8, 4).astype(np.float32))}


@pytest.mark.parametrize("slots", [None, 3])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("ids", [([0, 1, 2], [5, 5, 5]), ([5], [0, 1, 2]), ([0, 1, 2], [5])], ids=str)
def test_accumulate_leaves_no_row_out(ids: tuple[list[int], ...], jit: bool, slots: int | None) -> None:
    """Whatever the last gradient's number of slices: a step has room for the largest, or raises when it is compiled."""
    tx = front.accumulate(front.sgd(1.0), len(ids), use_grad_mean=False, slots=slots)
    update, table = jax.jit(tx.update) if jit else tx.update, jnp.zeros((9, 1))
    state = tx.init(table)
    grads = [IndexedSlices(jnp.ones((len(rows), 1)), jnp.array(rows), (9, 1)) for rows in ids]
    updates, state = update(grads[0], state, table)
    if jit and len(ids[0]) < len(ids[1]) and slots is None:
        with pytest.raises(ValueError, match=r"got 3 slices .* room for 2 rows of 2 gradients; accepted is .*slots=N"):
            update(grads[1], state, table)
        return
    updates, state = update(grads[1], state, table)
    expected = np.zeros((9, 1), np.float32)
    np.subtract.at(expected, np.concatenate(ids), 1.0)
    np.testing.assert_array_equal(np.asarray(front.apply_updates(table, updates)), expected)
    assert not np.any(state.sums)
    if slots is not None:
        with pytest.raises(ValueError, match=r"got 4 slices for a table of .*; accepted are at most slots=3"):
            update(IndexedSlices(jnp.ones((4, 1)), jnp.arange(4), (9, 1)), state, table)


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_accumulate(mean: bool) -> None:
    inner = front.chain(front.clip_by_global_norm(1.0), front.from_optim(optim.adagrad(0.1)))
    tx = front.accumulate(inner, 4, use_grad_mean=mean)
    step = jax.jit(lambda p, s, g: tx.update(g, s, p))
    params, state = START, tx.init(START)
    expected, own = START, inner.init(START)
    for k in range(8):
        updates, state = step(params, state, exact(k))
        params = front.apply_updates(params, updates)
        if k % 4 == 3:
            some = [exact(j) for j in range(k - 3, k + 1)]
            share = 0.25 if mean else 1.0
            joined = islices.coalesce(islices.add(*(g["table"] for g in some)))
            means = {"table": islices.scale(joined, share), "w": sum(g["w"] for g in some) * share}
            more, own = inner.update(means, own, expected)
            expected = front.apply_updates(expected, more)
        assert_same((params, state.inner_state), (expected, own), k)
        assert isinstance(updates["table"], IndexedSlices)


@pytest.mark.repeats_where(lambda kind, dtype: (kind, dtype) not in (("sgd", "float16"), ("from_optim", "bfloat16")))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["adam", "sgd", "from_optim"])
def test_accumulate_16_bits(kind: str, dtype: str) -> None:
    """The sum is rounded once, to what inner gets without accumulation: 256 + 1 + 1 is 258 in 8 bits too."""
    inner = {"adam": front.adam(0.1), "sgd": front.sgd(1.0, 0.5), "from_optim": front.from_optim(optim.adam(0.1))}[kind]
    tx = front.accumulate(inner, 3, use_grad_mean=False)
    start = {"table": jnp.zeros((4, 1), dtype), "w": jnp.zeros(1, dtype)}
    params, state, expected, own = start, tx.init(start), start, inner.init(start)
    for _ in range(2):
        for value in (256.0, 1.0, 1.0, 258.0):
            table = IndexedSlices(jnp.full((1, 1), value, dtype), jnp.array([2], jnp.int32), (4, 1))
            grads = {"table": table, "w": jnp.full(1, value, dtype)}
            if value < 258.0:
                updates, state = tx.update(grads, state, params)
                params = front.apply_updates(params, updates)
        more, own = inner.update(grads, own, expected)
        expected = front.apply_updates(expected, more)
    assert_same((params, state.inner_state), (expected, own))
    assert params["table"].dtype == params["w"].dtype == dtype


def test_multi_steps_of_optax() -> None:
    grads = [exact(k) for k in range(6)]
    start = jax.tree.map(jnp.ones_like, START)
    steps = optax.MultiSteps(optax.sgd(0.25, momentum=0.5), 2)  # powers of two: no rounding in either program
    expected = train(steps, start, [dense(g) for g in grads], apply=optax.apply_updates, jit=True)
    assert_same(train(front.on_rows(steps, rows="all"), start, grads, jit=True), expected)
    for waiting in (steps, optax.chain(optax.apply_every(2), optax.sgd(0.1))):
        with pytest.raises(ValueError, match=r"inner: got optax.MultiSteps or apply_every.*accumulate"):
            front.on_rows(waiting).init(START)
    with pytest.raises(ValueError, match=r"node type mismatch|different types"):
        train(optax.MultiSteps(front.adam(0.1), 3), START, grads)


# ---------------------------------------------------------------------- errors
SLICES = gradient(0)["table"]
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "rows": (lambda: front.adam(0.1, rows="some"), ValueError, "rows: got 'some'; accepted are 'touched', 'all'"),
    "inner": (lambda: front.on_rows(0.1), TypeError, "inner: got .*GradientTransformation"),
    "chain": (lambda: front.chain(front.clip(1.0), 3), TypeError, r"args\[1\]: got"),
    "max_norm": (lambda: front.clip_by_global_norm(-1.0), ValueError, "max_norm: got -1.0"),
    "semantics": (lambda: front.clip_by_global_norm(1.0, semantics="x"), ValueError, "semantics: got 'x'"),
    "nonfinite": (lambda: front.clip_by_global_norm(1.0, nonfinite="x"), ValueError, "nonfinite: got 'x'"),
    "max_delta": (lambda: front.clip(-1.0), ValueError, "max_delta: got -1.0; accepted is a number >= 0"),
    "max_delta type": (lambda: front.clip("1"), TypeError, "max_delta: got"),
    "optimizer": (lambda: front.from_optim(optax.adam(0.1)), TypeError, "optimizer: got .*islices.optim"),
    "every_k": (lambda: front.accumulate(front.sgd(0.1), 0), ValueError, "every_k: got 0; accepted is an int >= 1"),
    "slots": (
        lambda: front.accumulate(front.sgd(0.1), 2, slots=0),
        ValueError,
        "slots: got 0; accepted is an int >= 1",
    ),
    "slots type": (lambda: front.accumulate(front.sgd(0.1), 2, slots=1.5), TypeError, "slots: got 1.5"),
    "every_k type": (lambda: front.accumulate(front.sgd(0.1), 1.5), TypeError, "every_k: got 1.5"),
    "a table as update": (lambda: front.coalesce().update([Table(SLICES.values)], ()), TypeError, r"updates\[0\]: got"),
    "NumPy": (
        lambda: front.coalesce().update(IndexedSlices(np.ones((1, 1)), np.array([0]), (2, 1)), ()),
        TypeError,
        "accepted are slices of JAX arrays",
    ),
    "rows unknown": (
        lambda: front.coalesce().update(IndexedSlices(SLICES.values, SLICES.indices, (None, DIM)), ()),
        ValueError,
        "know their number of rows",
    ),
    "shape": (
        lambda: front.apply_updates(jnp.ones((4, DIM)), SLICES),
        ValueError,
        r"updates: got .* for a parameter of shape \(4, 3\); accepted is one shape",
    ),
    "shape in on_rows": (
        lambda: front.adamw(0.1).update(SLICES, front.adamw(0.1).init(jnp.ones((4, DIM))), jnp.ones((4, DIM))),
        ValueError,
        "for a parameter of shape",
    ),
    "state": (
        lambda: front.from_optim(optim.adagrad(0.1)).update(SLICES, optim.adagrad(0.1).init(jnp.ones((4, DIM)))),
        ValueError,
        r"state\['accumulator'\]: got an array of shape \(4, 3\)",
    ),
    "state in on_rows": (
        lambda: front.adagrad(0.1).update(SLICES, front.adagrad(0.1).init(jnp.ones((4, DIM)))),
        ValueError,
        r"state: got an array of shape \(4, 3\)",
    ),
    "no elements": (
        lambda: front.on_rows(optax.adafactor(0.1, min_dim_size_to_factor=1)).update(
            SLICES, optax.adafactor(0.1, min_dim_size_to_factor=1).init(START["table"]), START["table"]
        ),
        ValueError,
        "treat each element by itself",
    ),
    "touched": (
        lambda: front.from_optim(optim.adam(0.1, rows="touched")).update(
            jnp.ones((2, 1)), optim.adam(0.1).init(jnp.ones((2, 1)))
        ),
        ValueError,
        "^rows: got 'touched' and a dense gradient.*value_and_grad.*or rows left out",
    ),
    "donate": (lambda: front.apply_updates(START, gradient(0), donate="yes"), TypeError, "donate: got 'yes'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input(case: str) -> None:
    call, kind, words = WRONG[case]
    with pytest.raises(kind, match=words):
        call()


def test_optax_missing() -> None:
    code = "import sys; sys.modules['optax'] = None; import islices.backends.jax.optax"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        'ImportError: islices.backends.jax.optax needs optax: pip install "islices[optax]"'
    )


@pytest.mark.parametrize("module", [front, transforms, optimizers, accumulation], ids=lambda m: m.__name__)
def test_examples(module: Any) -> None:
    results = doctest.testmod(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert results.attempted > 5
    assert results.failed == 0


NONE = {
    "alone": (None, jnp.ones(2)),
    "in the place of a tree": (None, {"a": jnp.ones(2)}),
    "beside an update": ({"a": None, "b": jnp.ones(2)}, {"a": jnp.ones(3), "b": jnp.ones(2)}),
    "beside None": ({"a": None}, {"a": None}),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("case", NONE)
def test_a_parameter_of_none_takes_any_update_as_in_optax(case: str, jit: bool) -> None:
    apply = jax.jit(front.apply_updates) if jit else front.apply_updates
    got, expected = apply(*NONE[case]), optax.apply_updates(*NONE[case])
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for g, e in zip(arrays(got), arrays(expected), strict=True):
        np.testing.assert_array_equal(g, e)


def test_a_parameter_of_none_takes_slices_too_and_an_update_of_none_leaves_it_as_equinox_does() -> None:
    slices = gradient(1)["table"]
    got = front.apply_updates({"a": None, "t": Table(START["table"])}, {"a": slices, "t": slices}, donate=False)
    assert got["a"] is None
    np.testing.assert_array_equal(got["t"].weights, front.apply_updates(START["table"], slices))
    kept = front.apply_updates({"a": jnp.ones(2), "f": jnp.tanh}, {"a": None, "f": None})
    assert kept["a"].tolist() == [1, 1]
    assert kept["f"] is jnp.tanh


@pytest.mark.parametrize("name", ["scale", "add_decayed_weights"])
def test_updates_without_slices_are_handed_to_optax_with_any_state(name: str) -> None:
    """None, and a state that init did not make: neither is looked at by these."""
    params = {"a": jnp.ones(2)}
    ours, theirs = (getattr(module, name)(0.5) for module in (front, optax))
    assert ours.update(None, 0, params) == theirs.update(None, 0, params)
    got, expected = (tx.update(params, {}, params)[0] for tx in (ours, theirs))
    np.testing.assert_array_equal(got["a"], expected["a"])


def test_an_array_at_two_places_is_not_given_away() -> None:
    table = islices.Table(jnp.ones((3, 1)))
    update = IndexedSlices(jnp.array([[0.5]]), jnp.array([2]), (3, 1))
    with pytest.raises(ValueError, match=r"^params, leaf 1: got memory of params, leaf 0; accepted are arrays of"):
        front.apply_updates([table, table], [update, update], donate=True)
    kept = front.apply_updates([table, table], [update, update])  # copies
    assert [x.weights.tolist() for x in kept] == [[[1.0], [1.0], [1.5]]] * 2
    assert table.weights.tolist() == [[1.0], [1.0], [1.0]]
