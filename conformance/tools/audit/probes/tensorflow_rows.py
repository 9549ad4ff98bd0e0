"""What TensorFlow's own lookups, their gradients, segment sums and scatters do with row indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from islices.conformance import oracle
from islices.conformance.oracle_embedding import lookup
from islices.conformance.oracles import ORACLES
from islices.conformance.own_calls.tensorflow import dense_gradient
from islices.conformance.tools.audit.inputs import ROWS, WEIGHTS, gradients, plain
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.tensorflow import (
    answered,
    array,
    kind,
    native,
    slices,
    summed,
    two_devices,
)

LOOKUP, GRADIENT = "islices.lookup(table, ids)", "islices.value_and_grad(fn)(islices.Table(weights), ...)"
BEYOND = {"index -1": -1, "index = rows": ROWS}
IDS = np.array([1, 2, 1])

two_devices()


# ---------------------------------------------------------------------- lookups
@probe(
    "tensorflow", "tf.gather, tf.nn.embedding_lookup", "2",
    claim="an index out of range raises on the CPU", trap="",
    instead=LOOKUP,
)  # fmt: skip
def gather() -> Iterator[Ask]:
    for name, call in (("gather", tf.gather), ("embedding_lookup", tf.nn.embedding_lookup)):
        yield Ask(f"{name}, in range", partial(call, tf.constant(WEIGHTS), IDS), WEIGHTS[[1, 2, 1]])
        for label, index in BEYOND.items():
            ask = partial(answered, partial(call, tf.constant(WEIGHTS), tf.constant([0, index])))
            yield Ask(f"{name}, {label}", ask, "refused")


@probe(
    "tensorflow", "tf.gather in a tf.function(jit_compile=True)", "12",
    claim="an index out of range reads the first or the last row",
    instead=f"{LOOKUP}: such a row reads as zeros", issue="tensorflow/tensorflow#115254",
)  # fmt: skip
def gather_xla() -> Iterator[Ask]:
    call = tf.function(tf.gather, jit_compile=True, autograph=False)
    for label, index in BEYOND.items():
        yield Ask(label, partial(call, tf.constant(WEIGHTS), tf.constant([0, index])), [[1.0, 2.0], [0.0, 0.0]])


#: ids, offsets, weights: of four bags, the second of them empty. All results are exact.
BAGS = ([1, 2, 1, 3, 0], [0, 2, 2, 4], [2.0, 2.0, 3.0, 1.0, 4.0])


@probe(
    "tensorflow", "tf.nn.embedding_lookup_sparse", "19",
    claim="sum and mean, weighted or not, are the bags' of the specification; an empty bag is zeros", trap="",
    instead="islices.lookup(table, ids, combiner=..., weights=..., offsets=...)",
)  # fmt: skip
def bags() -> Iterator[Ask]:
    ids, offsets, weights = (np.array(x) for x in BAGS)
    rows = tf.RaggedTensor.from_row_starts(ids, offsets)
    shares = tf.RaggedTensor.from_row_starts(tf.constant(weights, tf.float32), offsets)
    for combiner in ("sum", "mean"):
        for label, given in (("", None), ("weighted ", shares)):
            options: dict[str, Any] = {"weights": plain(weights.astype(np.float32))} if given is not None else {}
            expected = lookup(plain(WEIGHTS), plain(ids), combiner=combiner, offsets=plain(offsets), **options)
            call = partial(tf.nn.embedding_lookup_sparse, tf.constant(WEIGHTS), rows, given, combiner=combiner)
            yield Ask(f"{label}{combiner}", call, expected)


@probe(
    "tensorflow", "tf.nn.embedding_lookup_sparse", "19",
    claim="the gradient of a bag goes to its members, with their shares; an empty one sends none", trap="",
    instead=GRADIENT,
)  # fmt: skip
def bag_gradients() -> Iterator[Ask]:
    ids, offsets, weights = np.array(BAGS[0]), np.array(BAGS[1]), np.array(BAGS[2], np.float32)
    upstream = np.array([[2, 4], [1, 1], [8, 2], [4, 6]], np.float32)
    for combiner in ("sum", "mean"):
        given = {"combiner": combiner, "offsets": offsets, "weights": weights}
        taken = {k: v if isinstance(v, str) else plain(v) for k, v in given.items()}
        expected = ORACLES["lookup_gradient"](plain(WEIGHTS), plain(ids), plain(upstream), **taken)
        expected = oracle.to_dense(expected[0] if isinstance(expected, (list, tuple)) else expected)
        yield Ask(f"weighted {combiner}", lambda g=given: dense_gradient(WEIGHTS, [(ids, upstream, g)])[0], expected)


def safe(ids: list[int], weights: list[float], combiner: str) -> Any:
    at = [[0, k] for k in range(len(ids))]
    return tf.nn.safe_embedding_lookup_sparse(
        tf.constant(WEIGHTS),
        tf.SparseTensor(at, tf.constant(ids, tf.int64), [1, len(ids)]),
        tf.SparseTensor(at, tf.constant(weights), [1, len(ids)]),
        combiner=combiner,
    )


@probe(
    "tensorflow", "tf.nn.safe_embedding_lookup_sparse", "19",
    claim="a negative id is left out of its bag silently",
    instead="islices.lookup(table, ids, combiner=..., offsets=..., padding_idx=...)",
)  # fmt: skip
def safe_negative_id() -> Iterator[Ask]:
    yield Ask("ids 1, -1", lambda: answered(lambda: safe([1, -1], [1.0, 1.0], "sum")), "refused")


@probe(
    "tensorflow", "tf.nn.safe_embedding_lookup_sparse", "19",
    claim="for a mean, members of a weight of 0 or less are left out of the bag",
    instead="islices.lookup(table, ids, combiner='mean', weights=..., offsets=...)",
)  # fmt: skip
def safe_negative_weight() -> Iterator[Ask]:
    ids, weights = [1, 2], [2.0, -1.0]
    expected = lookup(plain(WEIGHTS), plain(np.array(ids)), combiner="mean", offsets=plain(np.array([0])),
                      weights=plain(np.array(weights, np.float32)))  # fmt: skip
    yield Ask("weights 2, -1", lambda: safe(ids, weights, "mean"), expected)


# ---------------------------------------------------------------------- gradients of lookups
def gradient(loss: Callable[[Any], Any], compiled: bool = False) -> Any:
    table = tf.Variable(WEIGHTS)

    def call() -> Any:
        with tf.GradientTape() as tape:
            value = loss(table)
        return tape.gradient(value, table)

    return tf.function(call, autograph=False)() if compiled else call()


def looped(table: Any) -> Any:
    def body(i: Any, total: Any) -> Any:
        return i + 1, total + tf.gather(table, IDS)

    return tf.while_loop(lambda i, total: i < 3, body, (0, tf.zeros((3, 2))))[1]


SPARSE: dict[str, Callable[[Any], Any]] = {
    "tf.gather(table, ids)": lambda w: tf.gather(w, IDS),
    "table.sparse_read(ids)": lambda w: w.sparse_read(IDS),
    "tf.nn.embedding_lookup(table, ids)": lambda w: tf.nn.embedding_lookup(w, IDS),
    "tf.gather_nd(table, ids[:, None])": lambda w: tf.gather_nd(w, IDS[:, None]),
    "tf.gather(tf.cast(table, float64), ids)": lambda w: tf.gather(tf.cast(w, tf.float64), IDS),
}
DENSE: dict[str, Callable[[Any], Any]] = {
    "tf.gather(table * 2, ids)": lambda w: tf.gather(w * 2, IDS),
    "tf.gather(tf.reshape(table, shape), ids)": lambda w: tf.gather(tf.reshape(w, (ROWS, 2)), IDS),
    "table[1:3]": lambda w: w[1:3],
    "tf.boolean_mask(table, mask)": lambda w: tf.boolean_mask(w, [True, False, True, True]),
    "tf.gather in a loop of a tf.function": looped,
}


@probe(
    "tensorflow", "tape.gradient of a lookup in a variable", "12",
    claim="lookups along axis 0 give slices, the ids in their order and of their type", trap="",
    instead=GRADIENT,
)  # fmt: skip
def sparse_gradients() -> Iterator[Ask]:
    for text, call in SPARSE.items():
        yield Ask(text, partial(lambda f: kind(gradient(f)), call), "row-sparse")
    for index_type in (tf.int32, tf.int64):

        def found(index_type: Any = index_type) -> Any:
            return gradient(lambda w: tf.gather(w, tf.cast(IDS, index_type))).indices

        yield Ask(f"indices, {index_type.name}", found, [1, 2, 1])
        yield Ask(f"type, {index_type.name}", partial(lambda f: f().dtype.name, found), index_type.name)


@probe(
    "tensorflow", "tape.gradient of a slice, a mask, or a lookup in what was computed from the table", "5",
    claim="the gradient is an array of the table's size",
    instead=GRADIENT,
)  # fmt: skip
def dense_gradients() -> Iterator[Ask]:
    for text, call in DENSE.items():
        yield Ask(text, partial(lambda f: kind(gradient(f, compiled=f is looped)), call), "row-sparse")


@probe(
    "tensorflow", "tape.gradient, tf.gradients of several lookups", "6",
    claim="the slices of all lookups stand one after the other, nothing is summed", trap="",
    instead=GRADIENT,
)  # fmt: skip
def aggregation() -> Iterator[Ask]:
    def twice(w: Any) -> Any:
        return tf.reduce_sum(tf.gather(w, IDS)) + 2 * tf.reduce_sum(tf.gather(w, tf.constant([3, 1], tf.int64)))

    yield Ask("indices of two lookups", lambda: gradient(twice).indices, [1, 2, 1, 3, 1])
    yield Ask("values of two lookups", lambda: gradient(twice).values, [[1.0, 1]] * 3 + [[2.0, 2]] * 2)
    for method in ("ADD_N", "EXPERIMENTAL_TREE"):

        def call(method: str = method) -> str:
            with tf.Graph().as_default():
                w = tf.compat.v1.get_variable("w", (ROWS, 2), use_resource=True)
                return kind(tf.gradients(twice(w), w, aggregation_method=getattr(tf.AggregationMethod, method))[0])

        yield Ask(f"tf.gradients, {method}", call, "row-sparse")


@probe(
    "tensorflow", "tape.gradient(loss, table).dense_shape", "1",
    claim="it is int32: of a table of 2^31 + 5 rows it holds a negative number",
    instead=GRADIENT, issue="tensorflow/tensorflow#9780",
)  # fmt: skip
def shape_type() -> Iterator[Ask]:
    ids = tf.constant([1], tf.int64)
    yield Ask("its type, ids of int64", lambda: gradient(lambda w: tf.gather(w, ids)).dense_shape.dtype.name, "int64")
    rows = 2**31 + 5  # of no columns: the table has no bytes

    def shape() -> Any:
        table = tf.Variable(tf.zeros((rows, 0)))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids))
        return tape.gradient(loss, table).dense_shape

    yield Ask(f"its value, a table of {rows} rows", shape, [rows, 0])


# ---------------------------------------------------------------------- scatters
SCATTERS = ("add", "sub", "update", "min", "max", "mul")


def scattered(op: str, table: np.ndarray[Any, Any], x: tf.IndexedSlices) -> np.ndarray[Any, Any]:
    variable = tf.Variable(table)
    getattr(variable, f"scatter_{op}")(x)
    return np.asarray(variable)


@probe(
    "tensorflow", "tf.Variable.scatter_add, _sub, _update, _min, _max, _mul", "15",
    claim="every slice is applied, in order", trap="",
    instead="islices.scatter_add(table, x), scatter_sub, scatter_update, ...",
)  # fmt: skip
def scatters() -> Iterator[Ask]:
    for op in SCATTERS:
        for g in gradients():
            yield Ask(f"{op}, {g.name}", partial(scattered, op, WEIGHTS, native(g)),
                      oracle.scatter(op, plain(WEIGHTS), g.slices))  # fmt: skip


@probe(
    "tensorflow", "tf.Variable.scatter_div", "15",
    claim="a divisor of 0 raises, in float types too",
    trap="raises", instead="islices.scatter_div(table, x)",
)  # fmt: skip
def scatter_div() -> Iterator[Ask]:
    for divisor, quotient in ((2, 1.5), (0, np.inf)):
        x = slices([[divisor, 4]], [1])
        yield Ask(
            f"(3, 4) by ({divisor}, 4)", partial(scattered, "div", WEIGHTS, x), [[1, 2], [quotient, 1], *WEIGHTS[2:]]
        )


@probe(
    "tensorflow", "tf.Variable.scatter_min, scatter_max", "15",
    claim="a NaN among the slices is passed over, one in the table stays",
    instead="islices.scatter_min(table, x), islices.scatter_max(table, x)",
)  # fmt: skip
def scatter_nan() -> Iterator[Ask]:
    for op in ("min", "max"):
        for label, old, new in (("in the slices", 1.0, np.nan), ("in the table", np.nan, 1.0)):
            table = np.array([[old, old]], np.float32)
            yield Ask(f"{op}, NaN {label}", partial(scattered, op, table, slices([[new, new]], [0], 1)), [[np.nan] * 2])


@probe(
    "tensorflow", "tf.Variable.scatter_add, float16", "15",
    claim="the sums are taken in 16 bits and stand still: 4096 ones give 2048",
    instead="islices.scatter_add(table, x)",
)  # fmt: skip
def scatter_float16() -> Iterator[Ask]:
    ones = slices(np.ones((4096, 2), np.float16), np.zeros(4096, np.int64), 1)
    yield Ask("4096 ones", partial(scattered, "add", np.zeros((1, 2), np.float16), ones), [[4096.0, 4096.0]])


@probe(
    "tensorflow", "tf.Variable.scatter_add, scatter_update", "15",
    claim="a call that raises for one index has written the rows before it",
    instead="islices.scatter_add(table, x): a call that raises has written nothing",
)  # fmt: skip
def half_written() -> Iterator[Ask]:
    for op in ("add", "update"):
        for label, index in BEYOND.items():

            def call(op: str = op, index: int = index) -> Any:
                variable = tf.Variable(WEIGHTS)
                said = answered(lambda: getattr(variable, f"scatter_{op}")(slices([[9, 9], [9, 9]], [0, index])))
                if said != "refused":
                    return said
                return "untouched" if np.array_equal(variable, WEIGHTS) else "partly written"

            yield Ask(f"{op}, {label} last", call, "untouched")


@probe(
    "tensorflow", "tf.scatter_nd, tf.tensor_scatter_nd_add", "15",
    claim="duplicates are summed, and an index out of range raises on the CPU", trap="",
    instead="islices.scatter_add(table, x)",
)  # fmt: skip
def scatter_nd() -> Iterator[Ask]:
    for g in gradients():
        yield Ask(f"scatter_nd, {g.name}", partial(tf.scatter_nd, g.indices[:, None], g.values, [ROWS, 2]), g.dense)
        call = partial(tf.tensor_scatter_nd_add, tf.constant(WEIGHTS), g.indices[:, None], g.values)
        yield Ask(f"tensor_scatter_nd_add, {g.name}", call, oracle.scatter("add", plain(WEIGHTS), g.slices))
    for label, index in BEYOND.items():
        call = partial(tf.scatter_nd, [[index]], tf.ones((1, 2)), [ROWS, 2])
        yield Ask(f"scatter_nd, {label}", partial(answered, call), "refused")


# ---------------------------------------------------------------------- optimizers' kernels and replicas
@probe(
    "tensorflow", "tf.raw_ops.ResourceSparseApplyAdagradV2", "16",
    claim="duplicates are steps of their own, one after the other",
    instead="islices.optim.adagrad(lr).step(table, grad, state)",
)  # fmt: skip
def sparse_apply() -> Iterator[Ask]:
    def stepped(x: tf.IndexedSlices) -> Any:
        table, state = tf.Variable(WEIGHTS), tf.Variable(tf.ones((ROWS, 2)))
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle, accum=state.handle, lr=0.5, epsilon=0.0, grad=x.values, indices=x.indices
        )
        return np.stack([np.asarray(table), np.asarray(state)])

    for g in gradients():
        x = native(g)
        yield Ask(f"{g.name}: table and state", partial(stepped, x), stepped(summed(x)))


V1 = tf.compat.v1.train
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "GradientDescentOptimizer": lambda: V1.GradientDescentOptimizer(0.5),
    "MomentumOptimizer": lambda: V1.MomentumOptimizer(0.5, 0.5),
    "AdagradOptimizer": lambda: V1.AdagradOptimizer(0.5),
    "RMSPropOptimizer": lambda: V1.RMSPropOptimizer(0.5),
    "AdamOptimizer": lambda: V1.AdamOptimizer(0.5),
    "FtrlOptimizer": lambda: V1.FtrlOptimizer(0.5),
}


@probe(
    "tensorflow", "tf.compat.v1.train.*Optimizer.apply_gradients", "16",
    claim="duplicates are summed before the step", trap="",
    instead='islices.optim.adam(lr, semantics="tensorflow") and the others',
)  # fmt: skip
def v1_optimizers() -> Iterator[Ask]:
    def stepped(make: Callable[[], Any], x: tf.IndexedSlices) -> Any:
        table, optimizer = tf.Variable(WEIGHTS), make()
        for grad in (x, slices([[1, 2], [3, 4]], [1, 3])):
            optimizer.apply_gradients([(grad, table)])
        return np.asarray(table)

    for name, make in OPTIMIZERS.items():
        for g in gradients("duplicates", "cancelling duplicates"):
            yield Ask(f"{name}, {g.name}", partial(stepped, make, native(g)), stepped(make, summed(native(g))))


@probe(
    "tensorflow", "tf.distribute.ReplicaContext.all_reduce, MirroredStrategy", "6",
    claim="the replicas' slices stand one after the other, a mean divides them", trap="",
    instead="islices.concat(xs)",
)  # fmt: skip
def all_reduce() -> Iterator[Ask]:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for op, share in (("SUM", 1.0), ("MEAN", 0.5)):

        def replica(op: str = op) -> Any:
            context = tf.distribute.get_replica_context()
            k = context.replica_id_in_sync_group
            values = tf.fill((2, 2), tf.cast(k + 1, tf.float32))
            return context.all_reduce(op, tf.IndexedSlices(values, tf.stack([k, 1]), tf.constant([ROWS, 2])))

        expected = share * np.array([[1.0, 1], [5, 5], [0, 0], [0, 0]])
        yield Ask(op, lambda f=replica: array(strategy.experimental_local_results(strategy.run(f))[1]), expected)
