"""What JAX's own functions do with the parts of a row-sparse gradient, and with BCOO. Its rounding: jax_arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

from islices.conformance import oracle
from islices.conformance.memory import peak_growth
from islices.conformance.own_calls.jax import invalid_gradients
from islices.conformance.tools.audit.inputs import ROWS, WEIGHTS, Given, gradients
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.arithmetic import left_fold, raised, scattered

OUT_OF_RANGE = (ROWS, -ROWS - 1, 2**31 - 1)
NONE = np.zeros((ROWS, 2), np.float32)
ONE = np.ones((1, 2), np.float32)


def native(g: Given) -> sparse.BCOO:
    return bcoo(g.values, g.indices)


def bcoo(values: Any, indices: Any) -> sparse.BCOO:
    places = jnp.asarray(indices, jnp.int32)[:, None]
    return sparse.BCOO((jnp.asarray(values), places), shape=(ROWS, np.shape(values)[1]))


def dense_of(values: Any, ids: Any) -> jax.Array:
    return bcoo(values, ids).todense()


def at_add(values: Any, ids: Any) -> jax.Array:
    return jnp.zeros((ROWS, values.shape[1])).at[ids].add(values)


def segment_sum(values: Any, ids: Any) -> jax.Array:
    return jax.ops.segment_sum(values, ids, ROWS)


def read(table: Any, ids: Any) -> jax.Array:
    return table[ids]  # type: ignore[no-any-return]


def trained(reads: Callable[[Any, Any], jax.Array], ids: Any) -> jax.Array:
    """The table's gradient of the sum of what is read."""
    return jax.grad(lambda table: jnp.sum(reads(table, ids)))(jnp.asarray(WEIGHTS))  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- sums
@probe(
    "jax", "x.at[ids].add(values)", "3", claim="duplicates are summed, in order of occurrence", trap="",
    instead="islices.scatter_add(table, gradient)",
)  # fmt: skip
def at_add_sums() -> Iterator[Ask]:
    yield from sums(at_add)


@probe(
    "jax", "jax.ops.segment_sum(values, ids, rows)", "3", claim="duplicates are summed, in order of occurrence",
    trap="", instead="islices.coalesce(gradient)",
)  # fmt: skip
def segment_sums() -> Iterator[Ask]:
    yield from sums(segment_sum)


def sums(by: Callable[[Any, Any], Any]) -> Iterator[Ask]:
    for g in gradients("unsorted, unique", "cancelling duplicates", "none"):
        yield Ask(g.name, lambda g=g: by(g.values, g.indices), oracle.to_dense(g.slices))
    values, ids = scattered()
    yield Ask("600 random rows", lambda: by(values, ids), left_fold(values, ids, ROWS))


@probe(
    "jax", "jax.ops.segment_sum(..., bucket_size=64)", "3", claim="it sums in blocks, not in order of occurrence",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def bucketed() -> Iterator[Ask]:
    values, ids = scattered()
    call: Callable[..., Any] = lambda: jax.ops.segment_sum(values, ids, ROWS, bucket_size=64)  # noqa: E731
    yield Ask("600 random rows", call, left_fold(values, ids, ROWS))


@probe(
    "jax", "segment_sum, x.at[ids].add of 16-bit values", "3",
    claim="every addition is rounded to 16 bits: ones stop counting at 2048, or 256",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def half_sums() -> Iterator[Ask]:
    ids, expected = np.zeros(4096, np.int32), [[4096, 4096], [0, 0]]
    for dtype in ("float16", "bfloat16"):
        ones, zeros = jnp.ones((4096, 2), dtype), jnp.zeros((2, 2), dtype)
        yield Ask(f"segment_sum, {dtype}", lambda v=ones: jax.ops.segment_sum(v, ids, 2), expected)
        yield Ask(f".at[].add, {dtype}", lambda v=ones, z=zeros: z.at[ids].add(v), expected)


# ---------------------------------------------------------------------- indices
@probe(
    "jax", "x.at[ids].add(values)", "2", claim="a negative id adds to a row at the end of the table",
    instead="islices.scatter_add(table, gradient)", issue="jax-ml/jax#17387",
)  # fmt: skip
def at_add_wraps() -> Iterator[Ask]:
    for index in (-1, -ROWS):
        yield Ask(f"id {index} under jit", lambda i=index: jax.jit(at_add)(ONE, np.array([i])), NONE)


@probe(
    "jax", "x.at[ids].add(values)", "2", claim="ids past either end add nothing", trap="",
    instead="islices.scatter_add(table, gradient)",
)  # fmt: skip
def at_add_drops() -> Iterator[Ask]:
    for index in OUT_OF_RANGE:
        yield Ask(f"id {index} under jit", lambda i=index: jax.jit(at_add)(ONE, np.array([i])), NONE)


@probe(
    "jax", "jax.ops.segment_sum", "2", claim="all ids out of range add nothing, -1 included", trap="",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def segment_sum_drops() -> Iterator[Ask]:
    for index in (-1, *OUT_OF_RANGE):
        yield Ask(f"id {index} under jit", lambda i=index: jax.jit(segment_sum)(ONE, np.array([i])), NONE)


@probe(
    "jax", "x.at[ids].add, segment_sum, table[ids], jnp.take", "2",
    claim="a wrong id raises nothing in eager code either", instead="islices.scatter_add(table, gradient)",
)  # fmt: skip
def silence() -> Iterator[Ask]:
    ways = {"x.at[ids].add": lambda i: at_add(ONE, i), "segment_sum": lambda i: segment_sum(ONE, i),
            "table[ids]": lambda i: jnp.asarray(WEIGHTS)[i],
            "jnp.take": lambda i: jnp.take(WEIGHTS, i, axis=0)}  # fmt: skip
    for name, way in ways.items():
        yield Ask(f"{name}, id {ROWS}", lambda way=way: raised(lambda: way(np.array([ROWS]))), "IndexError")


@probe(
    "jax", "table[ids]", "12", claim="an id out of range reads the nearest row, -1 the last one",
    instead="islices.lookup(table, ids)",
)  # fmt: skip
def lookup_clamps() -> Iterator[Ask]:
    for index in (-1, *OUT_OF_RANGE):
        yield Ask(f"id {index} under jit", lambda i=index: jax.jit(read)(WEIGHTS, np.array([i])), [[0, 0]])


@probe(
    "jax", "jax.grad of table[ids]", "12", claim="id -1 trains the last row, others out of range train none",
    instead="islices.value_and_grad(loss)",
)  # fmt: skip
def lookup_trains() -> Iterator[Ask]:
    for index in (-1, *OUT_OF_RANGE):
        yield Ask(f"id {index}", lambda i=index: trained(read, np.array([i])), NONE)


@probe(
    "jax", "jnp.take(table, ids, axis=0)", "12", claim="an id out of range reads NaN, -1 the last row",
    instead="islices.lookup(table, ids)",
)  # fmt: skip
def take_reads_nan() -> Iterator[Ask]:
    take = jax.jit(lambda table, ids: jnp.take(table, ids, axis=0))
    for index in (-1, *OUT_OF_RANGE):
        yield Ask(f"id {index} under jit", lambda i=index: take(WEIGHTS, np.array([i])), [[0, 0]])


@probe(
    "jax", "int64 ids without jax_enable_x64", "1", claim="they are cut to 32 bits: 2**32 + 1 is row 1",
    instead="islices.lookup(table, ids)", issue="jax-ml/jax#18385",
)  # fmt: skip
def ids_are_cut() -> Iterator[Ask]:
    ids = np.array([2**32 + 1])
    ways = {"table[ids]": lambda: jnp.asarray(WEIGHTS)[ids], "segment_sum": lambda: segment_sum(ONE, ids),
            "x.at[ids].add": lambda: at_add(ONE, ids)}  # fmt: skip
    for name, way in ways.items():
        yield Ask(f"{name}, 2**32 + 1", lambda way=way: raised(way), "IndexError")


@probe(
    "jax", "jnp.unique(ids, size=n)", "4", claim="spare places hold the smallest id again, not a sentinel",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def unique_pads() -> Iterator[Ask]:
    ids = jnp.array([3, 2, 3, 2])
    yield Ask("[3, 2, 3, 2]", lambda: jnp.unique(ids, size=4), [2, 3, ROWS, ROWS])


@probe(
    "jax", "jnp.unique(ids, size=n, fill_value=rows)", "4", claim="spare places hold the sentinel", trap="",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def unique_fills() -> Iterator[Ask]:
    ids = jnp.array([3, 2, 3, 2])
    yield Ask("[3, 2, 3, 2]", lambda: jnp.unique(ids, size=4, fill_value=ROWS), [2, 3, ROWS, ROWS])


# ---------------------------------------------------------------------- gradients
@probe(
    "jax", "jax.grad, jax.experimental.sparse.grad of table[ids]", "12",
    claim="the gradient of a gather is an array of the table's size", instead="islices.value_and_grad(loss)",
    issue="jax-ml/jax#18601",
)  # fmt: skip
def gather_gradient() -> Iterator[Ask]:
    rows, ids = 1 << 20, np.array([3, 1, 3])
    table, small = jnp.zeros((rows, 8)), jnp.zeros((ROWS, 8))

    def loss(table: jax.Array) -> jax.Array:
        return jnp.sum(table[ids])

    def grows() -> bool:
        return peak_growth(lambda: jax.block_until_ready(gradient(table)))[1] > table.nbytes // 2

    gradient = jax.grad(loss)
    for name, grad in (("jax.grad", gradient), ("sparse.grad", sparse.grad(loss))):
        kind = lambda grad=grad: "row-sparse" if isinstance(grad(small), sparse.JAXSparse) else "dense"  # noqa: E731
        yield Ask(name, kind, "row-sparse")
    yield Ask("memory grows with the table", grows, False)


@probe(
    "jax", "jax.grad with respect to rows + delta, inside lax.scan and vmap", "12",
    claim="the rounds share one delta, whose gradient is the sum over them: which id it belongs to is lost",
    instead="islices.value_and_grad(loss)",
)  # fmt: skip
def shared_delta() -> Iterator[Ask]:
    ids = np.array([[1, 2], [1, 1], [3, 0]])
    upstream = np.arange(12, dtype=np.float32).reshape(3, 2, 2)

    def round_(delta: jax.Array, ids: Any, upstream: Any) -> jax.Array:
        return jnp.sum((jnp.asarray(WEIGHTS)[ids] + delta) * upstream)

    def scanned(delta: jax.Array) -> Any:
        step: Callable[..., Any] = lambda total, x: (total + round_(delta, *x), None)  # noqa: E731
        return jax.lax.scan(step, 0.0, (ids, upstream))[0]

    def mapped(delta: jax.Array) -> jax.Array:
        return jnp.sum(jax.vmap(lambda i, u: round_(delta, i, u))(ids, upstream))

    delta = jnp.zeros((2, 2))
    yield Ask("three rounds of lax.scan", lambda: jax.grad(scanned)(delta), upstream)
    yield Ask("vmap over three", lambda: jax.grad(mapped)(delta), upstream)


# ---------------------------------------------------------------------- BCOO
@probe(
    "jax", "jax.experimental.sparse.BCOO((data, indices), shape=...)", "1", claim="it checks nothing",
    instead="islices.from_native(x)",
)  # fmt: skip
def unchecked() -> Iterator[Ask]:
    for label, (build, error) in invalid_gradients().items():
        if label not in ("two sparse dimensions", "batched"):  # BCOOs in order, only not row-sparse
            yield Ask(label, lambda build=build: raised(build), error)


@probe(
    "jax", "BCOO.todense()", "5", claim="duplicates are summed, padding is left out", trap="",
    instead="islices.to_dense(gradient)",
)  # fmt: skip
def todense() -> Iterator[Ask]:
    yield from sums(dense_of)
    padded = bcoo([[3, 4], [5, 5]], [1, ROWS])
    yield Ask("padding that holds something", padded.todense, [[0, 0], [3, 4], [0, 0], [0, 0]])


@probe(
    "jax", "BCOO.todense()", "2", claim="a negative index lands at the end of the table",
    instead="islices.to_dense(gradient)",
)  # fmt: skip
def todense_wraps() -> Iterator[Ask]:
    yield Ask("index -1 under jit", lambda: jax.jit(dense_of)(ONE, np.array([-1])), NONE)


@probe(
    "jax", "jnp.linalg.norm(bcoo.data)", "7", claim="duplicates count apart, and padding may hold anything",
    instead="islices.norm(gradient)",
)  # fmt: skip
def norm_of_data() -> Iterator[Ask]:
    for g in gradients("unsorted, unique", "duplicates", "cancelling duplicates"):
        yield Ask(g.name, lambda g=g: jnp.linalg.norm(native(g).data), oracle.norm(g.slices))
    padded = bcoo([[3, 4], [5, 5]], [1, ROWS])
    yield Ask("padding that holds something", lambda: jnp.linalg.norm(padded.data), 5)


@probe(
    "jax", "jnp.linalg.norm(bcoo)", "7", claim="it refuses BCOO", trap="raises", instead="islices.norm(gradient)",
)  # fmt: skip
def norm_of_bcoo() -> Iterator[Ask]:
    for g in gradients():
        yield Ask(g.name, lambda g=g: jnp.linalg.norm(native(g)), oracle.norm(g.slices))


@probe(
    "jax", "sparse.sparsify(jnp.linalg.norm)(bcoo)", "7", claim="duplicates are summed first", trap="",
    instead="islices.norm(gradient)",
)  # fmt: skip
def norm_sparsified() -> Iterator[Ask]:
    for g in gradients("unsorted, unique", "cancelling duplicates"):
        yield Ask(g.name, lambda g=g: sparse.sparsify(jnp.linalg.norm)(native(g)), oracle.norm(g.slices))


@probe(
    "jax", "sparse.sparsify(jnp.clip)(bcoo, lo, hi)", "9", claim="it has no rule for clipping", trap="raises",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def clip_sparsified() -> Iterator[Ask]:
    clip = sparse.sparsify(lambda x: jnp.clip(x, -3.5, 3.5))
    for g in gradients("duplicates"):
        expected = oracle.to_dense(oracle.clip_by_value(g.slices, -3.5, 3.5))
        yield Ask(g.name, lambda g=g: clip(native(g)).todense(), expected)


@probe(
    "jax", "table - lr * bcoo", "15", claim="a sparse array cannot be subtracted from a dense one", trap="raises",
    instead="islices.scatter_sub(table, gradient)",
)  # fmt: skip
def dense_minus_sparse() -> Iterator[Ask]:
    minus = sparse.sparsify(lambda table, x: table - x)
    for g in gradients("duplicates"):
        yield Ask(g.name, lambda g=g: jnp.asarray(WEIGHTS) - native(g), WEIGHTS - g.dense)
        yield Ask(f"{g.name}, sparsify", lambda g=g: minus(jnp.asarray(WEIGHTS), native(g)), WEIGHTS - g.dense)


@probe(
    "jax", "bcoo + bcoo, bcoo + dense, bcoo * c, -bcoo", "6", claim="they mean what the specification says", trap="",
    instead="islices.add(a, b)",
)  # fmt: skip
def linear() -> Iterator[Ask]:
    for g in gradients("cancelling duplicates"):
        yield Ask(f"{g.name}: x + x", lambda g=g: (native(g) + native(g)).todense(), 2 * g.dense)
        yield Ask(f"{g.name}: slices of x + x", lambda g=g: (native(g) + native(g)).nse, 2 * len(g.indices))
        yield Ask(f"{g.name}: x + dense", lambda g=g: native(g) + jnp.asarray(WEIGHTS), g.dense + WEIGHTS)
        yield Ask(f"{g.name}: 2 x", lambda g=g: (native(g) * 2).todense(), 2 * g.dense)
        yield Ask(f"{g.name}: -x", lambda g=g: (-native(g)).todense(), -g.dense)


@probe(
    "jax", "BCOO.sum_duplicates()", "4", claim="ascending rows, summed in order of occurrence", trap="",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def sum_duplicates() -> Iterator[Ask]:
    for g in gradients("cancelling duplicates", "none"):
        expected = oracle.coalesce(g.slices)
        yield Ask(f"{g.name}, values", lambda g=g: native(g).sum_duplicates().data, expected.values)
        yield Ask(f"{g.name}, indices", lambda g=g: native(g).sum_duplicates().indices[:, 0], expected.indices)
    values, ids = scattered()
    call: Callable[..., Any] = lambda: bcoo(values[:, :2], ids).sum_duplicates().data  # noqa: E731
    yield Ask("600 random rows", call, left_fold(values[:, :2], ids, 3))


@probe(
    "jax", "BCOO.sum_duplicates() in jax.jit", "4", claim="it raises unless nse= is given", trap="raises",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def sum_duplicates_jitted() -> Iterator[Ask]:
    summed = jax.jit(lambda x: x.sum_duplicates())
    for g in gradients("duplicates"):
        yield Ask(g.name, lambda g=g: summed(native(g)).todense(), g.dense)


@probe(
    "jax", "jax.tree.map(lambda g: g * 0.5, bcoo)", "6", claim="the indices are leaves like the data: they are halved",
    instead="islices.scale(gradient, 0.5)", issue="jax-ml/jax#18601",
)  # fmt: skip
def tree_map() -> Iterator[Ask]:
    for g in gradients("sorted, unique", "duplicates"):
        halved: Callable[..., Any] = lambda g=g: jax.tree.map(lambda x: x * 0.5, native(g)).indices[:, 0]  # noqa: E731
        yield Ask(f"{g.name}, its indices", halved, g.slices.indices)


@probe(
    "jax", "jax.example_libraries.optimizers.l2_norm(bcoo)", "8", claim="the squares of the indices are added too",
    instead="islices.global_norm(tree)",
)  # fmt: skip
def l2_norm() -> Iterator[Ask]:
    from jax.example_libraries import optimizers

    for g in gradients("unsorted, unique", "cancelling duplicates", "none"):
        yield Ask(g.name, lambda g=g: optimizers.l2_norm(native(g)), oracle.global_norm([g.slices]))
