"""Probes of JAX. The probes cover at[].add, sums, norms, lookups, gradients, BCOO and rounding, in eager code and under
jit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import sparse

from islices.conformance.own_calls.jax import invalid_gradients
from islices.conformance.peak_memory import peak_growth
from islices.conformance.tools.audit.probe import REFUSED, Probe
from islices.conformance.tools.audit.probe_inputs import (
    CANCELLING,
    ROWS,
    SUBNORMAL,
    UNIQUE,
    WEIGHTS,
    ZEROS,
    GivenGradient,
    floats,
)  # fmt: skip

A, B, C = floats(999, 2), floats(999, 3), floats(999, 4)
TABLE, ONE, NEGATIVE, BEYOND = jnp.asarray(WEIGHTS), np.ones((1, 2), np.float32), np.array([-1]), np.array([ROWS])
LONG_ID = np.array([2**32 + 1])
ADD, COALESCE, LOOKUP = (
    "islices.scatter(table, gradient)",
    "islices.coalesce(gradient)",
    "islices.lookup(table, ids)",
)
GRAD, NORM = "islices.value_and_grad(loss)", "islices.norm(gradient)"
SGD, ADAGRAD = "islices.optim.sgd(lr)", "islices.optim.adagrad(lr)"


def native(g: GivenGradient) -> sparse.BCOO:
    return bcoo(g.values, g.indices)


def bcoo(values: Any, ids: Any) -> sparse.BCOO:
    return sparse.BCOO((jnp.asarray(values), jnp.asarray(ids, jnp.int32)[:, None]), shape=(ROWS, 2))


def at_add(values: Any, ids: Any) -> jax.Array:
    return jnp.zeros((ROWS, 2), values.dtype).at[ids].add(values)


def read(table: Any, ids: Any) -> jax.Array:
    return table[ids]  # type: ignore[no-any-return]


def trained(ids: Any) -> jax.Array:
    return jax.grad(lambda table: jnp.sum(read(table, ids)))(TABLE)  # type: ignore[no-any-return]


def scanned(delta: jax.Array) -> Any:
    """Return the loss of a `lax.scan` with two steps. Each step adds the same `delta` to the rows that the step looks
    up."""
    step = lambda total, ids: (total + jnp.sum((TABLE[ids] + delta) * ids[:, None]), None)  # noqa: E731
    return lax.scan(step, 0.0, jnp.array([[1, 2], [3, 0]]))[0]


def half_ones() -> jax.Array:
    return at_add(jnp.ones((4096, 2), jnp.float16), np.zeros(4096, int))


def grown() -> bool:
    """Return True if computing the gradient of a gather needs memory of more than half of the table's size."""
    table = jnp.zeros((1 << 20, 8))
    gradient = jax.grad(lambda table: jnp.sum(table[np.array([3, 1, 3])]))
    return peak_growth(lambda: jax.block_until_ready(gradient(table)))[1] > table.nbytes // 2


# fmt: off
PROBES = [
    # ------------------------------------------------------------------ sums and indices
    Probe("segment_sum, x.at[ids].add of 16-bit values", "3", "every addition is rounded to 16 bits: ones stop counting at 2048, or 256",
          COALESCE, "4096 ones, float16", half_ones, [[4096] * 2, [0] * 2, [0] * 2, [0] * 2]),
    Probe("x.at[ids].add(values)", "2", "a negative id adds to a row at the end of the table", ADD,
          "id -1 under jit", lambda: jax.jit(at_add)(ONE, NEGATIVE), ZEROS, issue="jax-ml/jax#17387"),
    Probe("x.at[ids].add, segment_sum, table[ids], jnp.take", "2", "a wrong id raises nothing in eager code either", ADD,
          f"x.at[ids].add, id {ROWS}", lambda: at_add(ONE, BEYOND), REFUSED),
    Probe("table[ids]", "12", "an id out of range reads the nearest row, -1 the last one", LOOKUP,
          f"id {ROWS} under jit", lambda: jax.jit(read)(TABLE, BEYOND), [[0, 0]]),
    Probe("jax.grad of table[ids]", "12", "id -1 trains the last row, others out of range train none", GRAD,
          "id -1", lambda: trained(NEGATIVE), ZEROS),
    Probe("int64 ids without jax_enable_x64", "1", "they are cut to 32 bits: 2**32 + 1 is row 1", LOOKUP,
          "table[ids], 2**32 + 1", lambda: read(TABLE, LONG_ID), REFUSED, issue="jax-ml/jax#18385"),
    # ------------------------------------------------------------------ gradients
    Probe("jax.grad, jax.experimental.sparse.grad of table[ids]", "12", "the gradient of a gather is an array of the table's size",
          GRAD, "memory grows with the table", grown, False, issue="jax-ml/jax#18601"),
    Probe("jax.grad with respect to rows + delta, inside lax.scan and vmap", "12",
          "the rounds share one delta, whose gradient is the sum over them: which id it belongs to is lost", GRAD,
          "two rounds of lax.scan", lambda: jax.grad(scanned)(jnp.zeros((2, 2))), [[[1, 1], [2, 2]], [[3, 3], [0, 0]]]),
    # ------------------------------------------------------------------ BCOO
    Probe("jax.experimental.sparse.BCOO((data, indices), shape=...)", "1", "it checks nothing", "islices.from_native(x)",
          "index out of range", invalid_gradients()["index out of range"][0], REFUSED),
    Probe("jnp.linalg.norm(bcoo.data)", "7", "duplicates count separately, and padding may hold anything", NORM,
          "cancelling duplicates", lambda: jnp.linalg.norm(native(CANCELLING).data), 5),
    Probe("jax.tree.map(lambda g: g * 0.5, bcoo)", "6", "the indices are leaves like the data: they are halved", "islices.scale(gradient, 0.5)",
          "unique rows, their indices", lambda: jax.tree.map(lambda x: x * 0.5, native(UNIQUE)).indices[:, 0], [1, 2], issue="jax-ml/jax#18601"),
    # ------------------------------------------------------------------ rounding
    Probe("jax.jit of a * b + c", "17", "XLA contracts it to a fused multiply-add, which rounds once", SGD,
          "999 random numbers", lambda: jax.jit(lambda a, b, c: a * b + c)(A, B, C), A * B + C, issue="openxla/xla#41579"),
    Probe("jax.jit of x / 3.0", "17", "it multiplies by the rounded reciprocal, 1 ulp off", ADAGRAD,
          "999 random numbers", lambda: jax.jit(lambda x: x / 3.0)(A), A / np.float32(3)),
    Probe("x * y, x + y, segment_sum", "3", "subnormal numbers are flushed to zero, which NumPy, torch and MXNet keep", COALESCE,
          "1e-40 * 1", lambda: jnp.asarray(SUBNORMAL) * np.float32(1), SUBNORMAL, issue="jax-ml/jax#16200"),
    Probe("jnp.linalg.norm", "7", "squares overflow, those of 16-bit numbers from 256 on", NORM,
          "four times 1e20", lambda: jnp.linalg.norm(np.full(4, 1e20, np.float32)), np.float32(2e20)),
]
