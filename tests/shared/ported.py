"""The typical differences between a program and a port of the program, computed by the frameworks themselves.

The gradients are random slices of three tables, with duplicates. torch.optim, Keras or optax takes a step on these
tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import tensorflow as tf
import torch

import islices
from islices import IndexedSlices

__all__ = [
    "CHANGES",
    "LIMIT",
    "NAMES",
    "STEPS",
    "WIDTH",
    "Batch",
    "Change",
    "StepPair",
    "clipped_by_torch",
    "compared",
    "keras_step",
    "optax_step",
    "summed",
    "torch_step",
]  # fmt: skip

ROWS, WIDTH, LIMIT = {"u": 120, "v": 60, "w": 40}, 8, 0.2
NAMES = tuple(ROWS)
COUNT = 4
Tree = dict[str, Any]


class Batch:
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


def summed(d: Batch) -> Tree:
    """Return the gradients of the tables, with duplicates summed by torch."""
    return {n: torch.sparse_coo_tensor(torch.from_numpy(d.ids[n])[None], torch.from_numpy(d.rows[n]), d.tables[n].shape)
            .to_dense().numpy() for n in NAMES}  # fmt: skip


# ---------------------------------------------------------------------- changes of a gradient
def by_torch(change: Callable[[Any], Any]) -> Callable[[Batch, Tree], Tree]:
    return lambda d, g: {n: change(torch.from_numpy(np.array(x))).numpy() for n, x in g.items()}


def by_tensorflow(change: Callable[[Any], Any]) -> Callable[[Batch, Tree], Tree]:
    return lambda d, g: {n: change(tf.constant(x)).numpy() for n, x in g.items()}


def regularized(penalty: Any) -> Callable[[Batch, Tree], Tree]:
    """Return a function that adds the gradient of a Keras regularizer, computed by TensorFlow's tape."""

    def made(d: Batch, g: Tree) -> Tree:
        out = {}
        for n in NAMES:
            table = tf.Variable(d.tables[n])
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(table * g[n]) + penalty(table)
            out[n] = tape.gradient(loss, table).numpy()
        return out

    return made


def last_wins(d: Batch, g: Tree) -> Tree:
    return {n: np.array(jnp.zeros(d.tables[n].shape).at[d.ids[n]].set(d.rows[n])) for n in NAMES}


def clipped_by_torch(clip: Callable[..., Any], g: Tree, limit: float = LIMIT) -> Tree:
    """Clip all gradients with one call of `clip`, a function of torch.nn.utils."""
    parameters = [torch.nn.Parameter(torch.zeros(x.shape)) for x in g.values()]
    for p, x in zip(parameters, g.values(), strict=True):
        p.grad = torch.from_numpy(np.array(x))
    clip(parameters, limit)
    return {n: p.grad.numpy() for n, p in zip(g, parameters, strict=True)}


def clipped(d: Batch, g: Tree) -> Tree:
    return dict(zip(g, (np.array(x) for x in tf.clip_by_global_norm(list(g.values()), LIMIT)[0]), strict=True))


def each_clipped(d: Batch, g: Tree) -> Tree:
    return {n: tf.clip_by_norm(x, LIMIT).numpy() for n, x in g.items()}


def clipped_but_one(d: Batch, g: Tree) -> Tree:
    return {**clipped(d, {n: g[n] for n in "uw"}), "v": g["v"]}


class Change(NamedTuple):
    """A change of one side's gradients, and the cause that `diff` must report. The function `make` maps (batch,
    gradients) to changed gradients. If `clips`, the other side clips all tensors together."""

    make: Callable[[Batch, Tree], Tree]
    cause: str
    clips: bool = False
    reported: dict[str, Any] = {}  # noqa: RUF012


#: Changes, in the order in which programs make them.
CHANGES: dict[str, Change] = {
    "last wins": Change(last_wins, "last_duplicate"),
    "l2": Change(regularized(keras.regularizers.L2(1e-3)), "regularizer"),
    "float16": Change(by_torch(lambda x: x.half().float()), "autocast"),
    "bfloat16": Change(by_torch(lambda x: x.bfloat16().float()), "autocast"),
    "value clip": Change(lambda d, g: clipped_by_torch(torch.nn.utils.clip_grad_value_, g, 0.02), "value_clip"),
    "row clip": Change(by_tensorflow(lambda x: tf.clip_by_norm(x, 0.05, axes=[1])), "row_clip"),
    "mean": Change(by_torch(lambda x: x / COUNT), "mean", reported={"batch_size": COUNT}),
    "each tensor": Change(each_clipped, "per_tensor", True),
    "left out": Change(clipped_but_one, "left_out", True),
}


def compared(d: Batch, names: tuple[str, ...]) -> Any:
    """Run `diff` on the gradients and on gradients with the named changes. The options of `diff` describe the
    changes."""
    changes = [CHANGES[n] for n in names]
    ours: Tree = d.raw
    theirs = summed(d)
    reported: dict[str, Any] = {k: v for c in changes for k, v in c.reported.items()}
    if any(c.clips for c in changes):
        ours, reported["max_norm"] = clipped(d, summed(d)), LIMIT
    for c in changes:
        theirs = c.make(d, theirs)
    tables = d.tables if any(c.cause == "regularizer" for c in changes) else None
    return islices.diff(ours, theirs, before=d.raw, tables=tables, **reported)


# ---------------------------------------------------------------------- steps
def torch_step(d: Batch, make: Any, grads: Tree, sparse: bool = False) -> Tree:
    parameters = [torch.nn.Parameter(torch.from_numpy(d.tables[n].copy())) for n in NAMES]
    for p, n in zip(parameters, NAMES, strict=True):
        if sparse:
            p.grad = torch.sparse_coo_tensor(torch.from_numpy(d.ids[n])[None], torch.from_numpy(d.rows[n]), p.shape)
        else:
            p.grad = torch.from_numpy(np.array(grads[n]))
    make(parameters).step()
    return {n: p.detach() for n, p in zip(NAMES, parameters, strict=True)}


def keras_step(d: Batch, optimizer: Any, grads: Tree | None = None) -> Tree:
    """Take a step of a Keras optimizer. Without `grads`, the gradients are slices with unsummed duplicates."""
    variables = [keras.Variable(d.tables[n]) for n in NAMES]
    given = [
        tf.IndexedSlices(d.rows[n], d.ids[n], d.tables[n].shape) if grads is None else tf.constant(grads[n])
        for n in NAMES
    ]
    optimizer.apply(given, variables)
    return {n: tf.identity(v.value) for n, v in zip(NAMES, variables, strict=True)}


def optax_step(d: Batch, optimizer: Any, grads: Tree) -> Tree:
    tables = jax.tree.map(jnp.asarray, d.tables)
    update, _ = optimizer.update(jax.tree.map(jnp.asarray, grads), optimizer.init(tables), tables)
    return dict(optax.apply_updates(tables, update))


class StepPair(NamedTuple):
    one: Callable[[Batch, Tree], Tree]
    other: Callable[[Batch, Tree], Tree]
    names: set[str]


K, T = keras.optimizers, torch.optim
STEPS: dict[str, StepPair] = {
    "SparseAdam and Keras's Adam": StepPair(
        lambda d, g: torch_step(d, lambda p: T.SparseAdam(p, 1e-3), g, True),
        lambda d, g: keras_step(d, K.Adam(1e-3), g), {"step_epsilon"},
    ),
    "raw duplicates": StepPair(
        lambda d, g: keras_step(d, K.Adagrad(0.1), g), lambda d, g: keras_step(d, K.Adagrad(0.1)), {"step_duplicates"},
    ),
    "initial accumulator": StepPair(
        lambda d, g: torch_step(d, lambda p: T.Adagrad(p, 0.01), g),
        lambda d, g: optax_step(d, optax.adagrad(0.01, initial_accumulator_value=0.1), g), {"initial_accumulator"},
    ),
    "optimizer": StepPair(
        lambda d, g: torch_step(d, lambda p: T.SGD(p, 0.1), g),
        lambda d, g: torch_step(d, lambda p: T.Adam(p, 0.1), g), {"optimizer"},
    ),
    # two causes at once
    "epsilon and rate": StepPair(
        lambda d, g: torch_step(d, lambda p: T.Adam(p, 1e-3), g),
        lambda d, g: torch_step(d, lambda p: T.Adam(p, 2e-3, eps=1e-6), g), {"step_epsilon", "learning_rate"},
    ),
}  # fmt: skip
