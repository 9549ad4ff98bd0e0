"""What Keras' own operations and layers do with tf.IndexedSlices, on the TensorFlow backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from islices.conformance import oracle
from islices.conformance.own_calls.tensorflow import embedding_gradient
from islices.conformance.tools.audit.inputs import ROWS, WEIGHTS, Given, gradients, plain
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.tensorflow import answered, array, kind, native, slices

os.environ["KERAS_BACKEND"] = "tensorflow"  # the only one of Keras' backends that has row-sparse gradients
import keras as keras

from islices.conformance.tools.audit.keras_dense import declare_rounding

COALESCE = "the operation of islices.coalesce(x)"
LOOKUP = "islices.lookup(table, ids)"
ops = keras.ops

NOT_EMPTY = ("sorted, unique", "unsorted, unique", "duplicates", "cancelling duplicates", "one")


# ---------------------------------------------------------------------- two operands
BINARY: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "keras.ops.add": ("islices.add(x, y)", np.add),
    "keras.ops.subtract": ("islices.add(x, islices.scale(y, -1))", np.subtract),
    "keras.ops.maximum": ("keras.ops.maximum of islices.coalesce(x), islices.coalesce(y)", np.maximum),
    "keras.ops.multiply": ("keras.ops.multiply of islices.coalesce(x), islices.coalesce(y)", np.multiply),
}


def asked(name: str, g: Given) -> Ask:
    """x with y, whose indices are sorted and unique; a product has more rows in common, so that something is left."""
    theirs, numpy = getattr(ops, name.rpartition(".")[2]), BINARY[name][1]
    values, ids = ([[1, 2], [4, 8]], [0, 3]) if numpy is not np.multiply else ([[2, 4], [8, 1], [1, 1]], [1, 2, 3])
    y = slices(values, ids)
    return Ask(g.name, lambda: array(theirs(native(g), y)), numpy(g.dense, array(y)))


def binary(name: str) -> None:
    instead = BINARY[name][0]

    @probe(
        "keras", f"{name}(slices, slices), sorted unique indices", "6",
        claim="right where the indices of both are sorted and unique", trap="",
        instead=instead,
    )  # fmt: skip
    def ask_sorted() -> Iterator[Ask]:
        for g in gradients("sorted, unique", "one"):
            yield asked(name, g)

    @probe(
        "keras", f"{name}(slices, slices), unsorted indices", "6",
        claim="the sum or product of other rows than the indices say: unique indices must be sorted, too",
        instead=instead,
    )  # fmt: skip
    def ask_unsorted() -> Iterator[Ask]:
        call = getattr(ops, name.rpartition(".")[2])
        x, y = slices([[10, 10], [20, 20]], [2, 0]), slices([[1, 1]], [0])
        if name == "keras.ops.multiply":
            y = slices([[2, 2], [3, 3]], [0, 2])
        yield Ask("rows 2, 0 with rows 0" + (", 2" if name.endswith("multiply") else ""), lambda: array(call(x, y)),
                  BINARY[name][1](array(x), array(y)))  # fmt: skip

    @probe(
        "keras", f"{name}(slices, slices), duplicate indices", "1",
        claim="only one of the duplicates counts" if name == "keras.ops.multiply" else
        "duplicate indices raise an error about an index that nobody gave, or give the values of other rows",
        trap="differs" if name == "keras.ops.multiply" else "raises", instead=instead,
    )  # fmt: skip
    def ask_duplicates() -> Iterator[Ask]:
        for g in gradients("duplicates", "cancelling duplicates"):
            yield asked(name, g)


for _name in BINARY:
    binary(_name)


@probe(
    "keras", "keras.ops.add(slices, slices), one of them empty", "6",
    claim="an empty gradient raises",
    trap="raises", instead="islices.add(x, y)",
)  # fmt: skip
def add_empty() -> Iterator[Ask]:
    empty, g = native(next(gradients("none"))), next(gradients("sorted, unique"))
    yield Ask("empty first", lambda: array(ops.add(empty, native(g))), g.dense)
    yield Ask("empty last", lambda: array(ops.add(native(g), empty)), g.dense)
    yield Ask("with itself", lambda: array(ops.add(empty, empty)), np.zeros((ROWS, 2)))


@probe(
    "keras", "keras.ops.multiply(x, x), keras.ops.add(x, x)", "6",
    claim="of slices with themselves the stored values are multiplied: duplicates are squared one by one",
    instead="keras.ops.square of islices.coalesce(x)",
)  # fmt: skip
def with_itself() -> Iterator[Ask]:
    for g in gradients(*NOT_EMPTY):
        yield Ask(f"add, {g.name}", partial(lambda x: array(ops.add(x, x)), native(g)), g.dense * 2)
        yield Ask(f"multiply, {g.name}", partial(lambda x: array(ops.multiply(x, x)), native(g)), g.dense**2)


@probe(
    "keras", "keras.ops.multiply, divide of slices by a scalar or a tensor of the table's shape", "6",
    claim="right, and row-sparse", trap="",
    instead="islices.scale(x, c)",
)  # fmt: skip
def with_dense() -> Iterator[Ask]:
    weights = tf.constant([[2.0, 4], [8, 2], [4, 4], [2, 1]])
    for g in gradients():
        for name, numpy in (("multiply", np.multiply), ("divide", np.divide)):
            for label, factor in (("2.", 2.0), ("a tensor", weights)):
                call = partial(lambda f, x, c: array(f(x, c)), getattr(ops, name), native(g), factor)
                yield Ask(f"{name} by {label}, {g.name}", call, numpy(g.dense, np.asarray(factor)))
    yield Ask("multiply by 2.: kind", lambda: kind(ops.multiply(native(g), 2.0)), "row-sparse")  # pyright: ignore[reportPossiblyUnboundVariable]


@probe(
    "keras", "keras.ops.divide(slices, NumPy array)", "6",
    claim="a divisor that is no tensor raises",
    trap="raises", instead="keras.ops.divide of islices.to_dense(x)",
)  # fmt: skip
def divided_by_numpy() -> Iterator[Ask]:
    g, twos = next(gradients("sorted, unique")), np.full((ROWS, 2), 2, np.float32)
    yield Ask("an array of twos", lambda: array(ops.divide(native(g), twos)), g.dense / 2)


@probe(
    "keras", "keras.ops.multiply(slices, array that broadcasts)", "6",
    claim="one row for all of the table raises: the array is taken for a table of fewer rows",
    trap="raises", instead="keras.ops.multiply of islices.to_dense(x)",
)  # fmt: skip
def broadcast() -> Iterator[Ask]:
    g = next(gradients("sorted, unique"))
    for shape in ((2,), (1, 2)):
        factor = np.array([2, 4], np.float32).reshape(shape)
        yield Ask(f"an array of shape {shape}", lambda f=factor: array(ops.multiply(native(g), f)), g.dense * factor)


@probe(
    "keras", "keras.ops.add, multiply, maximum of slices with slices", "5",
    claim="arrays of the table's number of rows are made, although the result is row-sparse",
    instead="islices.add(x, y)",
)  # fmt: skip
def table_sized_sets() -> Iterator[Ask]:
    rows = 1009
    x, y = slices([[1, 1], [2, 2]], [1, 2], rows), slices([[3, 3]], [2], rows)
    for name in ("add", "multiply", "maximum"):
        yield Ask(name, partial(sized, partial(getattr(ops, name), x, y), rows), "follows the slices")


def sized(call: Callable[[], Any], rows: int) -> str:
    """Whether the graph of a call makes an array of as many rows as the table has."""
    graph = tf.function(call, autograph=False).get_concrete_function().graph
    made = [out for op in graph.get_operations() if op.type != "ReadVariableOp" for out in op.outputs]
    found = any(out.shape.rank and out.shape[0] == rows for out in made)
    return "makes arrays of the table's rows" if found else "follows the slices"


# ---------------------------------------------------------------------- one operand
UNARY = {
    "zero-preserving": ("abs", "square", "sqrt", "sign", "expm1", "log1p", "sin", "tanh"),
    "densifying": ("exp", "cos", "reciprocal", "isfinite"),
}
CLAIMS = {
    "zero-preserving": "taken of each duplicate, and then summed: |-100| + |100| where the sum is 0",
    "densifying": "of duplicates only the last counts",
}


def unary(group: str) -> None:
    names = UNARY[group]
    text = f"keras.ops.{', '.join(names)} of slices"

    @probe("keras", text, "1", claim=CLAIMS[group], instead=COALESCE)
    def ask_duplicates() -> Iterator[Ask]:
        yield from of_all(names, "duplicates", "cancelling duplicates")

    @probe("keras", f"{text}, unique indices", "1", claim="right", trap="", instead=COALESCE)
    def ask_unique() -> Iterator[Ask]:
        yield from of_all(names, "sorted, unique", "unsorted, unique", "one", "none")


def of_all(names: tuple[str, ...], *given: str) -> Iterator[Ask]:
    """In float64 and rounded, since what differs by the last bits is no question of meaning."""

    def rounded(name: str, x: Any) -> Any:
        return array(getattr(ops, name)(x)).astype(np.float64).round(9)

    for name in names:
        for g in gradients(*given, dtype="float64"):
            yield Ask(f"{name}, {g.name}", partial(rounded, name, native(g)), rounded(name, tf.constant(g.dense)))


for _group in UNARY:
    unary(_group)


@probe(
    "keras", "keras.ops.clip", "9",
    claim="duplicates are clipped one by one, and rows that are not stored stay 0 whatever the bounds",
    instead="islices.clip_by_value(x, lo, hi)",
)  # fmt: skip
def clip() -> Iterator[Ask]:
    for g in gradients("sorted, unique", "duplicates"):
        for lo in (0.0, 0.5):
            yield Ask(f"bounds {lo} and 5, {g.name}", lambda g=g, lo=lo: array(ops.clip(native(g), lo, 5.0)),
                      np.clip(g.dense, lo, 5.0))  # fmt: skip


@probe(
    "keras", "keras.ops.sum, mean, max, norm, matmul, relu, sigmoid, power of slices", "1",
    claim="right: a dense array of the table's size is made first, for means none", trap="",
    instead="islices.norm(x), or islices.to_dense(x)",
)  # fmt: skip
def reductions() -> Iterator[Ask]:
    right = tf.ones((2, 2))
    calls: dict[str, Callable[[Any], Any]] = {
        "sum": ops.sum, "mean": ops.mean, "mean, axis 0": partial(ops.mean, axis=0), "max": ops.max, "norm": ops.norm,
        "mean, axis 1": lambda x: array(ops.mean(x, axis=1, keepdims=True)), "matmul": lambda x: ops.matmul(x, right),
        "relu": ops.relu, "sigmoid": ops.sigmoid, "power 2": lambda x: ops.power(x, 2.0),
    }  # fmt: skip
    for name, call in calls.items():
        for g in gradients():
            yield Ask(f"{name}, {g.name}", partial(call, native(g)), np.asarray(call(tf.constant(g.dense))))


@probe(
    "keras", "keras.ops.any, keras.ops.logical_not of slices", "5",
    claim="they raise: the slices are cast to bool, and bool cannot be summed into a dense array",
    trap="raises", instead="keras.ops.any of islices.to_dense(x)",
)  # fmt: skip
def booleans() -> Iterator[Ask]:
    for name in ("any", "logical_not"):
        for g in gradients("sorted, unique"):
            call = getattr(ops, name)
            yield Ask(f"{name}, {g.name}", partial(call, native(g)), np.asarray(call(tf.constant(g.dense))))


# ---------------------------------------------------------------------- indices
@probe(
    "keras", "keras.ops.take", "2",
    claim="-1 reads the last row, as in NumPy",
    instead=LOOKUP,
)  # fmt: skip
def take() -> Iterator[Ask]:
    for index in (-1, -ROWS - 1, ROWS):
        yield Ask(f"index {index}", partial(answered, partial(ops.take, WEIGHTS, [0, index], axis=0)), "refused")


@probe(
    "keras", "keras.layers.Embedding, an id of -1", "2",
    claim="the last row is read, and trained",
    instead=LOOKUP,
)  # fmt: skip
def embedding_negative() -> Iterator[Ask]:
    upstream = np.ones((2, 2), np.float32)
    for index in (-1, ROWS):
        call = partial(embedding_gradient, np.array([0, index], np.int32), upstream, ROWS, 0)
        yield Ask(f"id {index}", partial(answered, call), "refused")


@probe(
    "keras", "keras.layers.Embedding", "12",
    claim="the gradient has one slice for each of the ids, in order", trap="",
    instead="islices.capture(model)",
)  # fmt: skip
def embedding() -> Iterator[Ask]:
    upstream = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    for ids in ([1, 2, 1], [3, 0, 0]):
        given = np.array(ids, np.int32)
        expected = oracle.embedding_grad(plain(upstream), plain(given), ROWS)
        call = partial(embedding_gradient, given, upstream, ROWS, 0)
        yield Ask(f"ids {ids}", lambda f=call: array(f()), oracle.to_dense(expected))
        yield Ask(f"ids {ids}: indices", lambda f=call: f().indices, given)


def masked(pooled: bool) -> Iterator[Ask]:
    ids = np.array([[0, 2, 0, 1]], np.int32)

    def call() -> Any:
        layer = keras.layers.Embedding(ROWS, 2, mask_zero=True)
        layer.build()
        with tf.GradientTape() as tape:
            out = layer(tf.constant(ids))
            if pooled:
                out = keras.layers.GlobalAveragePooling1D()(out, mask=layer.compute_mask(tf.constant(ids))) * 2
            loss = tf.reduce_sum(out)
        return array(tape.gradient(loss, layer.embeddings.value))

    mask = plain(ids != 0)
    upstream = plain(np.ones((1, 4, 2), np.float32))
    yield Ask("ids 0, 2, 0, 1", call, oracle.to_dense(oracle.embedding_grad(upstream, plain(ids), ROWS, mask=mask)))


@probe(
    "keras", "keras.layers.Embedding(mask_zero=True)", "12",
    claim="row 0 gets a gradient: the layer only hands the mask on",
    instead="islices.lookup(table, ids, padding_idx=0)",
)  # fmt: skip
def mask_zero() -> Iterator[Ask]:
    yield from masked(pooled=False)


@probe(
    "keras", "keras.layers.Embedding(mask_zero=True), then GlobalAveragePooling1D", "12",
    claim="row 0 gets zeros where a later layer uses the mask", trap="",
    instead="islices.lookup(table, ids, padding_idx=0)",
)  # fmt: skip
def mask_zero_used() -> Iterator[Ask]:
    yield from masked(pooled=True)


@probe(
    "keras", "keras.ops.segment_sum", "2",
    claim="a negative index is dropped silently, one of the number of rows raises",
    instead="islices.coalesce(x)",
)  # fmt: skip
def segment_sum() -> Iterator[Ask]:
    for index in (-1, ROWS):
        call = partial(ops.segment_sum, tf.ones((3, 2)), tf.constant([1, index, 1]), ROWS)
        yield Ask(f"index {index}", partial(answered, call), "refused")


declare_rounding(__name__, "TensorFlow")
