"""What optax does with row-sparse gradients: to it every array in a pytree is a gradient, indices included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import islices
from islices.conformance import oracle, oracle_optim
from islices.conformance.data import Array
from islices.conformance.tools.audit.inputs import ROWS, WEIGHTS, Given, gradients, plain
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.jax import native as as_bcoo

TABLE = plain(WEIGHTS)
NAMES = ("unsorted, unique", "cancelling duplicates", "none")


def as_islices(g: Given) -> islices.IndexedSlices:
    return islices.IndexedSlices(jnp.asarray(g.values), jnp.asarray(g.indices, jnp.int32), (ROWS, 2))


def sparse(*names: str) -> Iterator[tuple[str, Given, Any]]:
    """(name, what was given, it as a BCOO and as an IndexedSlices)"""
    for g in gradients(*names or NAMES):
        yield f"{g.name}, BCOO", g, as_bcoo(g)
    (g,) = gradients("duplicates")
    yield f"{g.name}, IndexedSlices", g, as_islices(g)


def parts(x: Any) -> list[np.ndarray]:
    """Its values and its indices, as optax left them."""
    values, indices, *_ = jax.tree.leaves(x)
    return [np.asarray(values, np.float64), np.asarray(indices, np.float64).reshape(-1)]


def indices_of(x: Any) -> np.ndarray:
    return parts(x)[1]


def clipped(transformation: optax.GradientTransformation, x: Any) -> Any:
    return transformation.update(x, transformation.init(x), x)[0]


# ---------------------------------------------------------------------- norms and clipping
@probe(
    "optax", "optax.global_norm, optax.tree.norm", "8",
    claim="the squares of the indices are added to those of the values",
    instead="islices.global_norm(tree)", issue="jax-ml/jax#18601",
)  # fmt: skip
def global_norm() -> Iterator[Ask]:
    for name, g, x in sparse():
        yield Ask(name, lambda x=x: optax.global_norm(x), oracle.global_norm([g.slices]))


@probe(
    "optax", "optax.clip_by_global_norm", "10", claim="it fails on the integer indices", trap="raises",
    instead="islices.clip_by_global_norm(tree, max_norm)", issue="jax-ml/jax#18601",
)  # fmt: skip
def clip_by_global_norm() -> Iterator[Ask]:
    for name, g, x in sparse():
        expected = oracle.clip_by_norm(g.slices, 2.0).values
        yield Ask(name, lambda x=x: parts(clipped(optax.clip_by_global_norm(2.0), x))[0], expected)


@probe(
    "optax", "optax.clip", "9", claim="the indices are clipped like the values: row 2 becomes row 1.5",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def clip() -> Iterator[Ask]:
    for name, g, x in sparse():
        yield Ask(f"{name}, its indices", lambda x=x: indices_of(clipped(optax.clip(1.5), x)), g.slices.indices)


@probe(
    "optax", "optax.clip", "9", claim="values are clipped one by one, before duplicates are summed",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def clip_values() -> Iterator[Ask]:
    for name, g, x in sparse():
        expected = oracle.to_dense(oracle.clip_by_value(g.slices, -4, 4))

        def call(g: Given = g, x: Any = x) -> np.ndarray:
            out = np.zeros((ROWS, 2))
            np.add.at(out, g.indices, parts(clipped(optax.clip(4.0), x))[0])
            return out

        yield Ask(name, call, expected)


@probe(
    "optax", "optax.clip_by_block_rms", "10", claim="the indices are a block of their own, scaled like the values",
    instead="islices.clip_by_norm(gradient, max_norm)",
)  # fmt: skip
def clip_by_block_rms() -> Iterator[Ask]:
    for name, g, x in sparse("unsorted, unique", "duplicates"):
        scaled: Callable[..., Any] = lambda x=x: indices_of(clipped(optax.clip_by_block_rms(0.5), x))  # noqa: E731
        yield Ask(f"{name}, its indices", scaled, g.slices.indices)


@probe(
    "optax", "optax.adaptive_grad_clip", "10", claim="a sparse gradient does not go with a dense table", trap="raises",
    instead="islices.clip_by_row_norm(gradient, max_norm)",
)  # fmt: skip
def adaptive_grad_clip() -> Iterator[Ask]:
    transformation = optax.adaptive_grad_clip(0.01)
    for name, g, x in sparse("duplicates"):
        call = lambda x=x: indices_of(transformation.update(x, transformation.init(x), jnp.asarray(WEIGHTS))[0])  # noqa: E731
        yield Ask(name, call, g.slices.indices)


@probe(
    "optax", "optax.global_norm, optax.clip_by_global_norm of dense gradients", "7",
    claim="the squares of float32 1e20 overflow, and clipping gives zeros",
    instead="islices.clip_by_global_norm(tree, max_norm)",
)  # fmt: skip
def overflow() -> Iterator[Ask]:
    x = jnp.full(4, 1e20, jnp.float32)
    yield Ask("norm of four times 1e20", lambda: optax.global_norm(x), 2e20)
    large = Array("float32", (4,), np.asarray(x).tolist())
    yield Ask("clipped to 2", lambda: clipped(optax.clip_by_global_norm(2.0), x), oracle.clip_by_norm(large, 2.0))


@probe(
    "optax", "optax.clip_by_global_norm of dense gradients", "10",
    claim="an infinity becomes NaN, and everything beside it zeros",
    instead="islices.clip_by_global_norm(tree, max_norm)",
)  # fmt: skip
def infinite() -> Iterator[Ask]:
    for name, value in (("infinity", np.inf), ("NaN", np.nan)):
        x = jnp.array([value, 1, 2, 3])
        yield Ask(f"{name}, 1, 2, 3", lambda x=x: clipped(optax.clip_by_global_norm(2.0), x), [np.nan] * 4)


@probe(
    "optax", "optax.clip_by_global_norm(0.0), (-1.0)", "10",
    claim="zeros clipped to 0 become NaN, and a negative bound turns gradients round",
    instead="islices.clip_by_global_norm(tree, max_norm)", issue="google-deepmind/optax#1752",
)  # fmt: skip
def bounds() -> Iterator[Ask]:
    yield Ask("zeros to 0", lambda: clipped(optax.clip_by_global_norm(0.0), jnp.zeros(2)), [0, 0])

    def negative() -> str:
        try:
            return str(clipped(optax.clip_by_global_norm(-1.0), jnp.array([3.0, 4.0])))
        except ValueError:
            return "ValueError"

    yield Ask("[3, 4] to -1", negative, "ValueError")


@probe(
    "optax", "optax.clip_by_global_norm of dense gradients", "10", claim="finite gradients are clipped as specified",
    trap="", instead="islices.clip_by_global_norm(tree, max_norm)",
)  # fmt: skip
def clip_dense() -> Iterator[Ask]:
    for g in gradients(*NAMES):
        dense = oracle.to_dense(g.slices)
        for bound in (2.5, 100.0):  # a factor that is exact, and none
            call: Callable[..., Any] = lambda g=g, b=bound: clipped(optax.clip_by_global_norm(b), jnp.asarray(g.dense))  # noqa: E731
            yield Ask(f"{g.name} to {bound:g}", call, oracle.clip_by_norm(dense, bound))


# ---------------------------------------------------------------------- optimizers
@probe(
    "optax", "optax.sgd", "16", claim="the indices are multiplied by the rate as well, and become negative fractions",
    instead="islices.optim.sgd(lr)", issue="jax-ml/jax#18601",
)  # fmt: skip
def sgd() -> Iterator[Ask]:
    optimizer = optax.sgd(0.5)
    for name, g, x in sparse("unsorted, unique", "duplicates"):
        steps: Callable[..., Any] = lambda x=x: indices_of(optimizer.update(x, optimizer.init(jnp.asarray(WEIGHTS)))[0])  # noqa: E731
        yield Ask(f"{name}, the step's indices", steps, g.slices.indices)


STATEFUL: dict[str, Callable[[], Any]] = {
    "adam": lambda: optax.adam(0.5), "adagrad": lambda: optax.adagrad(0.5), "rmsprop": lambda: optax.rmsprop(0.5),
    "sgd with momentum": lambda: optax.sgd(0.5, 0.9),
}  # fmt: skip


@probe(
    "optax", "optax.adam, adagrad, rmsprop, sgd with momentum", "16",
    claim="they refuse a sparse gradient of a dense table", trap="raises", instead="islices.optim.adam(lr)",
)  # fmt: skip
def stateful() -> Iterator[Ask]:
    for label, make in STATEFUL.items():
        (g,) = gradients("duplicates")

        def call(g: Given = g, make: Callable[[], Any] = make) -> np.ndarray:
            optimizer, table = make(), jnp.asarray(WEIGHTS)
            return indices_of(optimizer.update(as_bcoo(g), optimizer.init(table), table)[0])

        yield Ask(f"{label}, {g.name}", call, g.slices.indices)


@probe(
    "optax", "optax.adam, adagrad, rmsprop with a state made from the gradient", "16",
    claim="the indices get moments and steps of their own", instead="islices.optim.adam(lr)",
)  # fmt: skip
def stateful_on_itself() -> Iterator[Ask]:
    for label in ("adam", "adagrad", "rmsprop"):
        (g,) = gradients("duplicates")

        def call(g: Given = g, make: Callable[[], Any] = STATEFUL[label]) -> np.ndarray:
            optimizer, x = make(), as_bcoo(g)
            return indices_of(optimizer.update(x, optimizer.init(x), x)[0])

        yield Ask(f"{label}, the step's indices", call, g.slices.indices)


@probe(
    "optax", "optax.apply_updates(table, bcoo)", "15", claim="the step is added to the rows it names", trap="",
    instead="islices.scatter_add(table, gradient)",
)  # fmt: skip
def apply_updates() -> Iterator[Ask]:
    for g in gradients(*NAMES):
        call: Callable[..., Any] = lambda g=g: optax.apply_updates(jnp.asarray(WEIGHTS), as_bcoo(g))  # pyright: ignore[reportArgumentType]  # noqa: E731
        yield Ask(g.name, call, oracle.scatter("add", TABLE, g.slices))


@probe(
    "optax", "optax.tree.add, optax.tree.scale", "6",
    claim="gradients of different batches cannot be accumulated: indices are added to indices",
    instead="islices.add(a, b)",
)  # fmt: skip
def accumulate() -> Iterator[Ask]:
    (g,) = gradients("duplicates")
    expected = oracle.concat([g.slices, g.slices]).indices
    yield Ask("tree.add, its indices", lambda: indices_of(optax.tree.add(as_bcoo(g), as_bcoo(g))), expected)
    halved: Callable[..., Any] = lambda: indices_of(optax.tree.scale(0.5, as_bcoo(g)))  # noqa: E731
    yield Ask("tree.scale, its indices", halved, g.slices.indices)


@probe(
    "optax", "optax.sgd of dense gradients", "16", claim="the first step is the specification's", trap="",
    instead="islices.optim.sgd(lr)",
)  # fmt: skip
def dense_sgd() -> Iterator[Ask]:
    for g in gradients(*NAMES):
        yield Ask(g.name, lambda g=g: first_step(optax.sgd(0.5), g), stepped("sgd", g))


@probe(
    "optax", "optax.adam of dense gradients", "16",
    claim="it forms 1 - beta2**t in float32: early steps are off by almost 1e-5 of themselves",
    instead="islices.optim.adam(lr)",
)  # fmt: skip
def dense_adam() -> Iterator[Ask]:
    for g in gradients("duplicates", "cancelling duplicates"):
        yield Ask(g.name, lambda g=g: first_step(optax.adam(0.5), g), stepped("adam", g))


@probe(
    "optax", "optax.adagrad, optax.rmsprop of dense gradients", "16",
    claim="epsilon stands under the root, and adagrad begins with 0.1",
    instead="islices.optim.adagrad(lr)",
)  # fmt: skip
def other_formulas() -> Iterator[Ask]:
    (g,) = gradients("duplicates")
    for name, make in (("adagrad", optax.adagrad), ("rmsprop", optax.rmsprop)):
        call: Callable[..., Any] = lambda make=make: first_step(make(0.5, eps=0.01), g)  # noqa: E731
        yield Ask(f"{name} with eps 0.01, {g.name}", call, stepped(name, g, eps=0.01))


def first_step(optimizer: Any, g: Given) -> jax.Array:
    """The table after optax's first step."""
    table = jnp.asarray(WEIGHTS)
    steps, _ = optimizer.update(jnp.asarray(g.dense), optimizer.init(table), table)
    return optax.apply_updates(table, steps)  # type: ignore[no-any-return]


def stepped(name: str, g: Given, **hyper: float) -> Array:
    """The table after a step of clause 16 on all rows."""
    dense = oracle.to_dense(g.slices)
    return oracle_optim.optimizer_steps(name, {"lr": 0.5, **hyper}, TABLE, [dense], rows="all")["table"]
