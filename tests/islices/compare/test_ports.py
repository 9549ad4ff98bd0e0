"""The differences that ports meet, each made by the frameworks themselves, alone and in pairs: each is explained.

Gradients are those of a lookup; a step is taken by torch.optim, Keras, optax or MXNet on the tables before.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorflow as tf
import torch

import islices
from islices import IndexedSlices
from islices.compare import Step, explain_steps

keras = tf.keras
ROWS, WIDTH, LIMIT = {"u": 120, "v": 60, "w": 40}, 8, 0.2
NAMES = tuple(ROWS)
Tree = dict[str, Any]


class Batch:
    """Tables, ids and upstream gradients of one batch."""

    def __init__(self, seed: int) -> None:
        r = np.random.default_rng(seed)
        self.tables = {n: (r.standard_normal((rows, WIDTH)) * 0.1).astype("f4") for n, rows in ROWS.items()}
        self.ids = {n: r.integers(0, rows // 3, rows // 2) for n, rows in ROWS.items()}
        sizes = {"u": 0.03, "v": 0.04, "w": 0.001}
        self.rows = {n: (r.standard_normal((len(self.ids[n]), WIDTH)) * sizes[n]).astype("f4") for n in NAMES}

    def slices(self, n: str) -> IndexedSlices:
        return IndexedSlices(self.rows[n], self.ids[n], self.tables[n].shape)

    @property
    def raw(self) -> Tree:
        return {n: self.slices(n) for n in NAMES}


# ---------------------------------------------------------------------- what a gradient goes through, by a framework
def regularised(d: Batch, g: Tree) -> Tree:
    """Keras's L2(1e-3), by TensorFlow's tape."""
    out = {}
    for n in NAMES:
        table = tf.Variable(d.tables[n])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table * g[n]) + keras.regularizers.L2(1e-3)(table)
        out[n] = tape.gradient(loss, table).numpy()
    return out


def in_float16(d: Batch, g: Tree) -> Tree:
    return {n: torch.from_numpy(np.array(x)).half().float().numpy() for n, x in g.items()}


def in_bfloat16(d: Batch, g: Tree) -> Tree:
    return {n: torch.from_numpy(np.array(x)).bfloat16().float().numpy() for n, x in g.items()}


def scaled_float16(d: Batch, g: Tree) -> Tree:
    return {n: (torch.from_numpy(np.array(x)) * 1024).half().float().div(1024).numpy() for n, x in g.items()}


def last_wins(d: Batch, g: Tree) -> Tree:
    return {n: np.array(jnp.zeros(d.tables[n].shape).at[d.ids[n]].set(d.rows[n])) for n in NAMES}


def values_clipped(d: Batch, g: Tree) -> Tree:
    parameters = [torch.nn.Parameter(torch.zeros(x.shape)) for x in g.values()]
    for p, x in zip(parameters, g.values(), strict=True):
        p.grad = torch.from_numpy(np.array(x))
    torch.nn.utils.clip_grad_value_(parameters, 0.02)
    return {n: p.grad.numpy() for n, p in zip(g, parameters, strict=True)}


def rows_clipped(d: Batch, g: Tree) -> Tree:
    return {n: tf.clip_by_norm(x, 0.05, axes=[1]).numpy() for n, x in g.items()}


def clipped(d: Batch, g: Tree) -> Tree:
    return dict(zip(g, (np.array(x) for x in tf.clip_by_global_norm(list(g.values()), LIMIT)[0]), strict=True))


def each_clipped(d: Batch, g: Tree) -> Tree:
    return {n: tf.clip_by_norm(x, LIMIT).numpy() for n, x in g.items()}


def clipped_but_one(d: Batch, g: Tree) -> Tree:
    return {**clipped(d, {n: g[n] for n in "uw"}), "v": g["v"]}


#: cause -> what makes it, before clipping
BEFORE: dict[str, tuple[Callable[[Batch, Tree], Tree], str]] = {
    "last wins": (last_wins, "last_duplicate"),
    "regulariser": (regularised, "regulariser"),
    "float16": (in_float16, "sixteen_bits"),
    "bfloat16": (in_bfloat16, "sixteen_bits"),
    "float16 by 1024": (scaled_float16, "sixteen_bits"),
    "value clip": (values_clipped, "value_clip"),
    "row clip": (rows_clipped, "row_clip"),
}
#: cause -> how one side clips where the other clips all tensors together
CLIPPING: dict[str, tuple[Callable[[Batch, Tree], Tree], str]] = {
    "each tensor": (each_clipped, "per_tensor"),
    "left out": (clipped_but_one, "left_out"),
}


def summed(d: Batch) -> Tree:
    return {n: torch.sparse_coo_tensor(torch.from_numpy(d.ids[n])[None], torch.from_numpy(d.rows[n]), d.tables[n].shape)
            .to_dense().numpy() for n in NAMES}  # fmt: skip


def difference(d: Batch, names: tuple[str, ...]) -> Any:
    ours: Tree = d.raw
    theirs = summed(d)
    for name in names:
        if name in BEFORE:
            theirs = BEFORE[name][0](d, theirs)
    clipping = [CLIPPING[name][0] for name in names if name in CLIPPING]
    limit = None
    if clipping:
        ours, theirs, limit = clipped(d, summed(d)), clipping[0](d, theirs), LIMIT
    tables = d.tables if "regulariser" in names else None
    return islices.diff(ours, theirs, before=d.raw, tables=tables, max_norm=limit)


def causes(names: tuple[str, ...]) -> set[str]:
    return {(BEFORE | CLIPPING)[name][1] for name in names}


ALONE = [(name,) for name in (*BEFORE, *CLIPPING)]
PAIRS = [p for p in combinations((*BEFORE, *CLIPPING), 2) if len(causes(p)) == 2 and not set(p) <= set(CLIPPING)]
#: Every third of them, of which each cause has some, is a repeat; all are soak's.
SOME = [pytest.param(p, marks=[pytest.mark.soak] if k % 3 else []) for k, p in enumerate(PAIRS)]


@pytest.mark.parametrize("names", ALONE, ids=" and ".join)
def test_what_a_gradient_went_through_is_named(names: tuple[str, ...]) -> None:
    found = difference(Batch(1), names)
    assert found.causes, str(found)
    assert set(found.causes[0].names) == causes(names), str(found)


@pytest.mark.repeats
@pytest.mark.parametrize("names", SOME, ids=" and ".join)
def test_two_that_a_gradient_went_through_are_named(names: tuple[str, ...]) -> None:
    found = difference(Batch(1), names)
    assert found.causes, str(found)
    assert causes(names) <= set(found.causes[0].names), str(found)


def test_a_gradient_of_a_real_autocast_run_is_said_to_be_of_16_bits() -> None:
    r = np.random.default_rng(0)
    ids, target = torch.from_numpy(r.integers(0, 40, 64)), torch.from_numpy(r.standard_normal((64, 16)).astype("f4"))
    grads = []
    for enabled in (False, True):
        torch.manual_seed(0)
        table, head = torch.nn.Embedding(60, 16, sparse=True), torch.nn.Linear(16, 16)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = (head(table(ids)).float() - target).square().mean()
        loss.backward()
        grads.append({"table": table.weight.grad})
    found = islices.diff(*grads)
    assert found.causes, str(found)
    assert found.causes[0].names == ("autocast",), str(found)


# ---------------------------------------------------------------------- steps
def torch_step(d: Batch, make: Any, grads: Tree, sparse: bool = False) -> Tree:
    parameters = [torch.nn.Parameter(torch.from_numpy(d.tables[n].copy())) for n in NAMES]
    for p, n in zip(parameters, NAMES, strict=True):
        if sparse:
            p.grad = torch.sparse_coo_tensor(torch.from_numpy(d.ids[n])[None], torch.from_numpy(d.rows[n]), p.shape)
        else:
            p.grad = torch.from_numpy(np.array(grads[n]))
    make(parameters).step()
    return {n: p.detach().numpy() for n, p in zip(NAMES, parameters, strict=True)}


def keras_step(d: Batch, optimizer: Any, grads: Tree | None = None) -> Tree:
    """grads: None for slices whose duplicates nobody has summed."""
    variables = [keras.Variable(d.tables[n]) if hasattr(keras, "Variable") else tf.Variable(d.tables[n]) for n in NAMES]
    given = [
        tf.IndexedSlices(d.rows[n], d.ids[n], d.tables[n].shape) if grads is None else tf.constant(grads[n])
        for n in NAMES
    ]
    optimizer.apply_gradients(list(zip(given, variables, strict=True)))
    return {n: np.array(v) for n, v in zip(NAMES, variables, strict=True)}


def optax_step(d: Batch, optimizer: Any, grads: Tree) -> Tree:
    tables = jax.tree.map(jnp.asarray, d.tables)
    update, _ = optimizer.update(jax.tree.map(jnp.asarray, grads), optimizer.init(tables), tables)
    return {n: np.array(x) for n, x in optax.apply_updates(tables, update).items()}


K, T = keras.optimizers, torch.optim
STEPS: dict[str, tuple[Callable[[Batch, Tree], Tree], Callable[[Batch, Tree], Tree], set[str]]] = {
    "SparseAdam and Keras's Adam": (
        lambda d, g: torch_step(d, lambda p: T.SparseAdam(p, 1e-3), g, True),
        lambda d, g: keras_step(d, K.Adam(1e-3), g), {"step_epsilon"},
    ),
    "epsilon": (
        lambda d, g: torch_step(d, lambda p: T.Adam(p, 1e-3, eps=1e-8), g),
        lambda d, g: torch_step(d, lambda p: T.Adam(p, 1e-3, eps=1e-7), g), {"step_epsilon"},
    ),
    "raw duplicates": (
        lambda d, g: keras_step(d, K.Adagrad(0.1), g), lambda d, g: keras_step(d, K.Adagrad(0.1)), {"step_duplicates"},
    ),
    "initial accumulator": (
        lambda d, g: torch_step(d, lambda p: T.Adagrad(p, 0.01), g),
        lambda d, g: optax_step(d, optax.adagrad(0.01, initial_accumulator_value=0.1), g), {"initial_accumulator"},
    ),
    "decoupled decay": (
        lambda d, g: torch_step(d, lambda p: T.Adam(p, 1e-2, weight_decay=0.1), g),
        lambda d, g: optax_step(d, optax.adamw(1e-2, weight_decay=0.1), g), {"weight_decay"},
    ),
    "learning rate": (
        lambda d, g: torch_step(d, lambda p: T.SGD(p, 0.1), g),
        lambda d, g: optax_step(d, optax.sgd(0.3), g), {"learning_rate"},
    ),
    "optimizer": (
        lambda d, g: torch_step(d, lambda p: T.SGD(p, 0.1), g),
        lambda d, g: torch_step(d, lambda p: T.Adam(p, 0.1), g), {"optimizer"},
    ),
    "epsilon and rate": (
        lambda d, g: torch_step(d, lambda p: T.Adam(p, 1e-3), g),
        lambda d, g: torch_step(d, lambda p: T.Adam(p, 2e-3, eps=1e-6), g), {"step_epsilon", "learning_rate"},
    ),
    "decay and rate": (
        lambda d, g: torch_step(d, lambda p: T.SGD(p, 0.1), g),
        lambda d, g: torch_step(d, lambda p: T.SGD(p, 0.2, weight_decay=0.01), g), {"weight_decay", "learning_rate"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_what_makes_a_step_another_is_named(name: str) -> None:
    d = Batch(2)
    one, other, names = STEPS[name]
    g = summed(d)
    found = islices.diff(one(d, g), other(d, g), before=d.tables, grad=d.raw)
    assert any(names <= set(e.names) for e in found.causes), str(found)


@pytest.mark.repeats
@pytest.mark.parametrize("gradient", BEFORE)
@pytest.mark.parametrize(
    "step",
    [
        "epsilon",
        *(pytest.param(x, marks=pytest.mark.soak) for x in ("initial accumulator", "learning rate", "optimizer")),
    ],
)
def test_a_gradient_and_a_step_are_each_explained(gradient: str, step: str) -> None:
    """The port's own gradient goes into its step: the gradients are compared first, then the steps."""
    d = Batch(3)
    ours = summed(d)
    theirs = BEFORE[gradient][0](d, ours)
    tables = d.tables if gradient == "regulariser" else None
    between = islices.diff(d.raw, theirs, tables=tables)
    assert between.causes, str(between)
    assert between.causes[0].names == (BEFORE[gradient][1],), str(between)
    one, other, names = STEPS[step]
    steps = [Step(d.tables, take(d, g), g) for take, g in ((one, ours), (other, theirs))]
    found = explain_steps(*steps)
    assert any(names <= set(e.names) for e in found.causes), str(found)


@pytest.mark.parametrize("count", [1, 10, 200])
def test_sparse_adam_against_kerass_adam_at_later_steps(count: int) -> None:
    """Each with its own state; tables before are SparseAdam's."""
    d = Batch(4)
    n = "u"
    p = torch.nn.Parameter(torch.from_numpy(d.tables[n].copy()))
    v = tf.Variable(d.tables[n])
    ours, theirs = T.SparseAdam([p], 1e-3), K.Adam(1e-3)
    r = np.random.default_rng(count)
    for k in range(count):
        ids = r.integers(0, 60, 40)
        rows = (r.standard_normal((40, WIDTH)) * 0.01).astype("f4")
        if k == count - 1:
            held = ours.state[p] if k else {}
            states = [
                {"step": k, "m": np.array(held["exp_avg"]), "v": np.array(held["exp_avg_sq"])} if k else None,
                {"step": k, "m": np.array(theirs._momentums[0]), "v": np.array(theirs._velocities[0])} if k else None,
            ]
            before = [p.detach().numpy().copy(), v.numpy()]
        p.grad = torch.sparse_coo_tensor(torch.from_numpy(ids)[None], torch.from_numpy(rows), p.shape)
        ours.step()
        summed_ = np.zeros(p.shape, "f4")
        np.add.at(summed_, ids, rows)
        theirs.apply_gradients([(tf.constant(summed_), v)])
    grad = {n: IndexedSlices(rows, ids, tuple(p.shape))}
    after = [p.detach().numpy(), v.numpy()]
    steps = [
        Step({n: before[k]}, {n: after[k]}, grad, None if states[k] is None else {n: states[k]}) for k in (0, 1)
    ]  # fmt: skip
    found = explain_steps(*steps)
    if count == 1:
        assert any(set(e.names) == {"step_epsilon"} for e in found.causes), str(found)
    else:  # beside roots that have grown for 200 steps the epsilons do not show
        assert any({"lazy_step"} <= set(e.names) <= {"lazy_step", "step_epsilon"} for e in found.causes), str(found)
