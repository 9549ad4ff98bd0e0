"""Compare islices.backends.jax.optax with optax on dense gradients, and with steps of islices.optim."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import util
from typing import Any

import numpy as np
import pytest
from comparing import assert_same
from errors import each_raises

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
import jax.numpy as jnp  # noqa: E402

import islices  # noqa: E402
import islices.backends.jax.optax as front  # noqa: E402
from islices import IndexedSlices, Table, optim  # noqa: E402
from islices.optim.record import RECORDS  # noqa: E402

ROWS, DIM = 13, 3
START = {
    "table": jnp.asarray(np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)),
    "w": jnp.asarray(np.random.default_rng(2).standard_normal(4).astype(np.float32)),
}


@pytest.fixture(autouse=True)
def no_kernels() -> Iterator[None]:
    """Turn kernels off, because kernels have the same bits and take seconds to compile."""
    with islices.config.use_kernels(False):
        yield


def gradient(seed: int, n: int = 9, *, every_row: bool = False) -> Any:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, ROWS, n)
    if every_row:
        ids = rng.permutation(np.concatenate([np.arange(ROWS), ids]))
    values = rng.standard_normal((len(ids), DIM)).astype(np.float32)
    table = IndexedSlices(jnp.asarray(values), jnp.asarray(ids, jnp.int32), (ROWS, DIM))
    return {"table": table, "w": jnp.asarray(rng.standard_normal(4).astype(np.float32))}


def dense(grads: Any) -> Any:
    return {**grads, "table": islices.to_dense(grads["table"])}


def check_same(found: Any, expected: Any, where: object = "") -> None:
    """Check that both trees have the same structure, dtypes and numbers. -0 counts as equal to 0."""
    assert jax.tree.structure(found) == jax.tree.structure(expected), where
    assert_same(jax.tree.leaves(found), jax.tree.leaves(expected), str(where))


def train(tx: Any, params: Any, grads: Any, *, jit: bool = False, apply: Any = front.apply_updates) -> tuple[Any, Any]:
    def step(params: Any, state: Any, grad: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grad, state, params)
        return apply(params, updates), state

    step = jax.jit(step) if jit else step
    state = tx.init(params)
    for grad in grads:
        params, state = step(params, state, grad)
    return params, state


def stock(tx: Any, grads: Any) -> tuple[Any, Any]:
    """Run optax on dense gradients, without jit."""
    return train(tx, START, map(dense, grads), apply=optax.apply_updates)


# ---------------------------------------------------------------------- stock optax on slices
@pytest.mark.parametrize(
    ("make", "jit"),
    [(lambda: optax.sgd(0.1), True), (lambda: optax.sgd(lambda count: 0.1), False), (lambda: optax.scale(-1), False)],
)
def test_changed_indices_raise_where_they_are_used(make: Any, jit: bool) -> None:
    """Check that eager steps raise if an optax transformation has changed the indices. Under jit, steps raise only for
    indices that became floats; if integer indices changed, the table gets NaN."""
    for tx in (make(), optax.chain(make(), front.clip_by_global_norm(1.0))):
        with pytest.raises(ValueError, match=r"islices\.add\(g1, g2\).*on_rows"):
            train(tx, START, [gradient(0)], jit=jit)
    assert jit or jnp.isnan(train(make(), START, [gradient(0)], jit=True)[0]["table"]).any()


# ---------------------------------------------------------------------- optax's arithmetic on rows
SCHEDULE = optax.exponential_decay(0.1, 3, 0.7)
MADE: dict[str, Callable[[], Any]] = {
    "rmsprop": lambda: optax.rmsprop(SCHEDULE, centered=True, momentum=0.9, nesterov=True, bias_correction=True),
    "adamw": lambda: optax.apply_if_finite(optax.adamw(0.1, weight_decay=0.1, mask={"table": True, "w": False}), 3),
}


def lazily(theirs: Any, grads: Any) -> tuple[Any, Any]:
    """Run optax, but only on the rows that each gradient contains. These rows are cut from each leaf of the table's
    shape, updated, and written back."""
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


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_rows_have_the_bits_of_optax(make: Any) -> None:
    """Compare weights and states with those of optax in three cases: `rows="all"`, gradients with every row, and
    gradients with few rows."""
    few, every = ([gradient(seed, 5, every_row=named) for seed in range(3)] for named in (False, True))
    check_same(train(front.on_rows(make(), rows="all"), START, few), stock(make(), few))
    check_same(train(front.on_rows(make()), START, every), stock(make(), every))
    check_same(train(front.on_rows(make()), START, few), lazily(make(), few))


#: Transformations of optax, and True if `on_rows` accepts the transformation.
PROBED: dict[str, tuple[Callable[[], Any], bool]] = {
    "noise": (lambda: optax.chain(optax.add_noise(0.1, 0.55, 0), optax.sgd(0.1)), False),
    "lamb, warming up": (lambda: optax.lamb(optax.linear_schedule(0, 0.1, 1000)), False),
    "columns": (lambda: optax.adaptive_grad_clip(0.1), False),
    "norm of moments": (lambda: optax.chain(optax.scale_by_adam(), optax.clip_by_global_norm(1.0)), False),
    "value": (lambda: optax.polyak_sgd(), True),
}


@pytest.mark.parametrize("name", PROBED)
def test_what_on_rows_cannot_do_is_found_by_trying(name: str) -> None:
    make, by_rows = PROBED[name]
    tx, grads = front.on_rows(make()), gradient(3)
    if by_rows:
        ids, own = jnp.unique(grads["table"].indices), optax.with_extra_args_support(make())
        expected, _ = own.update(dense(grads), own.init(START), START, value=1.0)
        updates, _ = jax.jit(tx.update)(grads, tx.init(START), START, value=jnp.float32(1.0))
        np.testing.assert_allclose(islices.to_dense(updates["table"])[ids], expected["table"][ids], rtol=1e-5)
        return
    with pytest.raises(ValueError, match=r"inner: got a transformation that computes a row's update from.*rows=.all."):
        jax.jit(tx.update)(grads, tx.init(START), START)


def test_a_state_of_optax_continues_and_goes_back() -> None:
    grads = [gradient(seed, every_row=True) for seed in range(4)]
    params, state = stock(optax.adam(0.1), grads[:2])
    for grad in grads[2:]:
        updates, state = front.on_rows(optax.adam(0.1)).update(grad, state, params)
        params = front.apply_updates(params, updates)
    check_same((params, state), stock(optax.adam(0.1), grads))


# ---------------------------------------------------------------------- islices' arithmetic
def by_hand(optimizer: optim.Optimizer, grads: Any, start: Any = START["table"]) -> tuple[Any, Any]:
    table, state = start, optimizer.init(start)
    for grad in grads:
        table, state = optimizer.step(table, grad["table"], state)
    return table, state


@pytest.mark.filterwarnings("ignore:.* moves all rows")
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad", "rmsprop", "adam"])
def test_from_optim_has_the_bits_of_a_step(name: str) -> None:
    grads = [gradient(seed) for seed in range(2)]
    for semantics in RECORDS[name].presets:
        optimizer = getattr(optim, name)(0.1, semantics=semantics)
        params, state = train(front.from_optim(optimizer), START, grads)
        check_same((params["table"], state["table"]), by_hand(optimizer, grads), optimizer)


@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        (optim.adagrad(lambda step: 0.5**step), "float32"),
        (optim.rmsprop(0.1, centered=True, momentum=0.9), "bfloat16"),
        (optim.adam(0.1, rows="all", semantics="optax"), "float32"),
    ],
    ids=["schedule", "rmsprop", "all rows"],
)
def test_from_optim_has_these_bits_in_jit(optimizer: Any, dtype: str) -> None:
    grads = [jax.tree.map(lambda x: x.astype(dtype) if x.dtype == "float32" else x, gradient(k)) for k in range(4)]
    start = {"table": START["table"].astype(dtype)}
    params, state = train(front.from_optim(optimizer), start, [{"table": g["table"]} for g in grads], jit=True)
    check_same((params["table"], state["table"]), by_hand(optimizer, grads, start["table"]))


# ---------------------------------------------------------------------- gradients and updates
@pytest.mark.parametrize(("n", "jit"), [(0, True), (9, False), (9, True)])
def test_updates_are_added_as_the_dense_ones_are(n: int, jit: bool) -> None:
    grad = gradient(6, n=n)
    expected = optax.apply_updates(START, dense(grad))
    check_same((jax.jit(front.apply_updates) if jit else front.apply_updates)(START, grad), expected)
    check_same(optax.apply_updates(START, grad), expected)  # optax calls the addition of IndexedSlices


def test_none_among_parameters_and_updates() -> None:
    slices = gradient(1)["table"]
    got = front.apply_updates({"a": None, "t": Table(START["table"])}, {"a": slices, "t": slices})
    assert got["a"] is None
    np.testing.assert_array_equal(got["t"].weights, front.apply_updates(START["table"], slices))
    kept = front.apply_updates({"a": jnp.ones(2), "f": jnp.tanh}, {"a": None, "f": None})  # equinox makes such trees
    assert (kept["a"].tolist(), kept["f"]) == ([1, 1], jnp.tanh)
    assert front.apply_updates(None, {"a": jnp.ones(2)}) is None


# ---------------------------------------------------------------------- real training


def test_nothing_of_a_tables_size_is_made() -> None:
    rows, dim, n = 100_000, 32, 512
    table, size = Table(jnp.zeros((rows, dim))), rows * dim * 4
    for name, tx in {
        "chain": optax.chain(front.clip_by_global_norm(1.0), front.on_rows(optax.apply_if_finite(optax.adamw(0.1), 3))),
        "from_optim": front.from_optim(optim.adam(0.1)),
    }.items():

        def step(params: Any, state: Any, values: Any, ids: Any, tx: Any = tx) -> Any:
            updates, state = tx.update(IndexedSlices(values, ids, (rows, dim)), state, params)
            return front.apply_updates(params, updates), state

        state = tx.init(table)
        with islices.config.use_kernels(True):
            lowered = jax.jit(step, donate_argnums=(0, 1)).lower(
                table, state, jnp.ones((n, dim)), jnp.zeros(n, "int32")
            )
        memory = lowered.compile().memory_analysis()
        assert memory.temp_size_in_bytes < size / 8, (name, memory.temp_size_in_bytes)
        held = sum(x.nbytes for x in jax.tree.leaves((table, state)) if x.ndim)
        assert memory.alias_size_in_bytes >= held, (name, memory)


# ---------------------------------------------------------------------- optax's wrappers
LABELS = {"table": "sparse", "w": "dense"}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda sparse, dense: optax.multi_transform({"sparse": sparse, "dense": dense}, lambda params: LABELS),
        lambda sparse, dense: optax.chain(
            optax.masked(sparse, {"table": True, "w": False}), optax.masked(dense, {"table": False, "w": True})
        ),
    ],
    ids=["multi_transform", "masked"],
)
def test_wrappers_that_leave_leaves_alone(wrap: Any) -> None:
    grads, start = [gradient(seed) for seed in range(3)], {**START, "table": Table(START["table"])}
    found, _ = train(wrap(front.on_rows(optax.sgd(0.1, 0.9)), optax.sgd(0.1, 0.9)), start, grads)
    check_same({**found, "table": found["table"].weights}, lazily(optax.sgd(0.1, 0.9), grads)[0])


# ---------------------------------------------------------------------- errors
SLICES = gradient(0)["table"]
test_bad_input = each_raises([
    (lambda: front.on_rows(optax.adam(0.1), rows="some"), ValueError, "rows: got 'some'; accepted are 'touch"),
    (lambda: front.on_rows(0.1), TypeError, "inner: got .*GradientTransformation"),
    (
        lambda: front.on_rows(optax.MultiSteps(optax.sgd(0.1), 2)).init(START),
        ValueError,
        "inner: got optax.MultiSteps or apply_every.*islices.add",
    ),
    (lambda: front.from_optim(optax.adam(0.1)), TypeError, "optimizer: got .*islices.optim"),
    (lambda: front.from_optim(optim.ftrl(0.1)), ValueError, "accepted are those without .*ftrl"),
    (lambda: front.from_optim(optim.adamw(0.1)), ValueError, r"without weight_decay; chain on_rows\(optax"),
    (
        lambda: front.on_rows(optax.sgd(1)).update([Table(SLICES.values)], ()),
        TypeError,
        "updates: got",
    ),
    (
        lambda: front.from_optim(optim.adagrad(0.1)).update(SLICES, optim.adagrad(0.1).init(jnp.ones((4, DIM)))),
        ValueError,
        r"state\['accumulator'\]: got an array of shape \(4, 3\)",
    ),
    (
        lambda: train(front.on_rows(optax.adafactor(0.1, min_dim_size_to_factor=1)), START["table"], [SLICES]),
        ValueError,
        "treat each element by itself",
    ),
    (
        lambda: train(front.from_optim(optim.adam(0.1, rows="touched")), jnp.ones((2, 1)), [jnp.ones((2, 1))]),
        ValueError,
        "^rows: got 'touched' and a dense gradient.*value_and_grad.*or rows left out",
    ),
])  # fmt: skip


def test_optax_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    spec: Any = util.spec_from_file_location("again", front.__file__)
    with pytest.raises(ImportError, match=r'islices.backends.jax.optax needs optax: pip install "islices\[optax\]"'):
        spec.loader.exec_module(util.module_from_spec(spec))
