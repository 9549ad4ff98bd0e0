"""What TensorFlow makes of tf.IndexedSlices: the type itself, its operators, the dense array that it denotes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from islices.conformance import oracle
from islices.conformance.own_calls.tensorflow import invalid_gradients
from islices.conformance.tools.audit.inputs import ROWS, Given, gradients, plain
from islices.conformance.tools.audit.probe import Ask, probe

__all__ = ["answered", "array", "kind", "native", "slices", "summed", "two_devices"]

#: What says "no" in TensorFlow.
REFUSALS = (TypeError, ValueError, tf.errors.OpError)


# ---------------------------------------------------------------------- both sides
def slices(values: Any, ids: Any, rows: int = ROWS) -> tf.IndexedSlices:
    """A gradient of a table of rows x 2; lists become float32 and int64."""
    values = values if isinstance(values, np.ndarray) else np.array(values, np.float32).reshape(-1, 2)
    ids = ids if isinstance(ids, np.ndarray) else np.array(ids, np.int64)
    return tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([rows, 2], tf.int64))


def native(g: Given) -> tf.IndexedSlices:
    return slices(g.values, g.indices)


def array(x: Any) -> np.ndarray[Any, Any]:
    """What x denotes, by NumPy: duplicates summed in order."""
    if not isinstance(x, tf.IndexedSlices):
        return np.asarray(x)
    values = np.asarray(x.values)
    out = np.zeros((int(x.dense_shape[0]), *values.shape[1:]), values.dtype)
    np.add.at(out, np.asarray(x.indices), values)
    return out


def summed(x: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient without duplicates."""
    ids = np.unique(np.asarray(x.indices))
    return tf.IndexedSlices(tf.constant(array(x)[ids]), tf.constant(ids), x.dense_shape)


def kind(x: Any) -> str:
    return "row-sparse" if isinstance(x, tf.IndexedSlices) else "dense"


def answered(call: Callable[[], Any]) -> str:
    """ "accepted", or "refused"."""
    try:
        call()
    except REFUSALS:
        return "refused"
    return "accepted"


def two_devices() -> None:
    """Two CPU devices, for replicas. TensorFlow's devices are fixed by its first operation: called on import."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


DUPLICATES = next(gradients("duplicates"))


# ---------------------------------------------------------------------- the type
@probe(
    "tensorflow", "tf.IndexedSlices(values, indices, dense_shape)", "2",
    claim="nothing is checked when it is built: dtypes, shapes and ranges that contradict each other are accepted",
    instead="islices.IndexedSlices(values, indices, dense_shape)",
)  # fmt: skip
def construction() -> Iterator[Ask]:
    for label, (build, _) in invalid_gradients().items():
        yield Ask(label, partial(answered, build), "refused")


@probe(
    "tensorflow", "tf.is_tensor", "1",
    claim="slices count as a tensor, although they are no tf.Tensor and have few of its operations",
    instead='isinstance(x, tf.IndexedSlices), or islices.get_backend(x)',
)  # fmt: skip
def is_tensor() -> Iterator[Ask]:
    x = native(DUPLICATES)
    yield Ask("slices", lambda: bool(tf.is_tensor(x)), isinstance(x, tf.Tensor))


@probe(
    "tensorflow", "np.asarray(slices)", "1",
    claim="NumPy makes an array of no dimensions of it, which holds one object",
    instead="islices.to_dense(x), then NumPy",
)  # fmt: skip
def numpy_array() -> Iterator[Ask]:
    x = native(DUPLICATES)
    yield Ask("slices", lambda: "refused" if answered(lambda: np.asarray(x)) == "refused" else "an object", "refused")


Operation = Callable[[Any], Any]
#: text -> (theirs, the specification's, ours)
OPERATORS: dict[str, tuple[Operation, Operation, str]] = {
    "slices * 2": (lambda x: x * 2, lambda s: oracle.scale(s, 2.0), "scale(x, c)"),
    "slices / 2": (lambda x: x / 2, lambda s: oracle.scale(s, 0.5), "scale(x, 1 / c)"),
    "slices + slices": (lambda x: x + x, lambda s: oracle.add(s, s), "add(x, y)"),
    "slices - slices": (
        lambda x: x - x, lambda s: oracle.add(s, oracle.scale(s, -1.0)), "add(x, islices.scale(y, -1))"
    ),
}  # fmt: skip


def operator(text: str) -> None:
    theirs, specified, instead = OPERATORS[text]

    @probe(
        "tensorflow", text, "6",
        claim="the operator does not exist for tf.IndexedSlices",
        trap="raises",
        instead=f"islices.{instead}",
    )  # fmt: skip
    def ask() -> Iterator[Ask]:
        for g in gradients("sorted, unique", "duplicates", "none"):
            yield Ask(g.name, partial(lambda x: array(theirs(x)), native(g)), oracle.to_dense(specified(g.slices)))


for _text in OPERATORS:
    operator(_text)


@probe(
    "tensorflow", "slices * tensor", "6",
    claim="a tensor of one number makes a dense array of the table's size of it; a Python number raises",
    instead="islices.scale(x, c)",
)  # fmt: skip
def times_tensor() -> Iterator[Ask]:
    x, two = native(DUPLICATES), tf.constant(2.0)
    yield Ask("slices * tensor", lambda: kind(x * two), "row-sparse")
    yield Ask("tensor * slices", lambda: kind(two * x), "row-sparse")


LINEAR: dict[str, Callable[[Any], Any]] = {
    "tf.multiply(slices, 2.)": lambda x: tf.multiply(x, 2.0),
    "tf.negative(slices)": tf.negative,
    "tf.add(slices, slices)": lambda x: tf.add(x, x),
    "tf.subtract(slices, slices)": lambda x: tf.subtract(x, x),
    "tf.add_n([slices, slices])": lambda x: tf.add_n([x, x]),
    "tf.add_n([slices])": lambda x: tf.add_n([x]),
}


@probe(
    "tensorflow", "tf.add, tf.add_n, tf.subtract, tf.negative, tf.multiply", "6",
    claim="linear operations that could keep the stored rows make an array of the table's size",
    instead="islices.add(*xs), islices.scale(x, c)",
)  # fmt: skip
def linear_kinds() -> Iterator[Ask]:
    for text, call in LINEAR.items():
        yield Ask(text, partial(lambda f: kind(f(native(DUPLICATES))), call), "row-sparse")


@probe(
    "tensorflow", "tf.add_n", "6",
    claim="the sum is that of the dense arrays", trap="",
    instead="islices.add(*xs), which stays row-sparse",
)  # fmt: skip
def add_n() -> Iterator[Ask]:
    for g in gradients():
        expected = oracle.to_dense(oracle.add(g.slices, g.slices))
        yield Ask(g.name, partial(lambda x: tf.add_n([x, x]), native(g)), expected)


@probe(
    "tensorflow", "tf.math.scalar_mul, -slices, tf.cast, tf.identity", "6",
    claim="they act on the stored values and stay row-sparse", trap="",
    instead="islices.scale(x, c)",
)  # fmt: skip
def kept() -> Iterator[Ask]:
    for g in gradients():
        x = native(g)
        double, negative = (oracle.to_dense(oracle.scale(g.slices, c)) for c in (2.0, -1.0))
        yield Ask(f"scalar_mul, {g.name}", partial(lambda x: array(tf.math.scalar_mul(2.0, x)), x), double)
        yield Ask(f"-slices, {g.name}", partial(lambda x: array(-x), x), negative)
    calls = {"scalar_mul": partial(tf.math.scalar_mul, 2.0), "-slices": lambda x: -x, "identity": tf.identity}
    for name, call in {**calls, "cast": partial(tf.cast, dtype="float64")}.items():
        yield Ask(name, partial(lambda f: kind(f(native(DUPLICATES))), call), "row-sparse")


@probe(
    "tensorflow", "tf.math.scalar_mul", "6",
    claim="the factor is rounded to float16 first, so that the product is rounded twice",
    instead="islices.scale(x, c)",
)  # fmt: skip
def scale_float16() -> Iterator[Ask]:
    values = np.array([[3, 7]], np.float16)
    yield Ask("float16 times 0.1", lambda: tf.math.scalar_mul(0.1, slices(values, [1])).values,
              oracle.scale(plain(values), 0.1))  # fmt: skip


@probe(
    "tensorflow", "tf.nest.map_structure(f, slices, expand_composites=True)", "6",
    claim="f is applied to the indices and the shape too: a factor of 2 moves the gradient to other rows",
    instead="islices.scale(gradients, c): trees of gradients go in and come out",
)  # fmt: skip
def mapped_structure() -> Iterator[Ask]:
    def call(x: tf.IndexedSlices) -> Any:
        return tf.nest.map_structure(lambda part: part * 2, x, expand_composites=True).indices

    for g in gradients("sorted, unique", "duplicates"):
        yield Ask(f"times 2, {g.name}: indices", partial(call, native(g)), g.indices)


# ---------------------------------------------------------------------- dense arrays
@probe(
    "tensorflow", "tf.convert_to_tensor(slices)", "5",
    claim="duplicates are summed", trap="",
    instead="islices.to_dense(x)",
)  # fmt: skip
def densify() -> Iterator[Ask]:
    for index_type in ("int32", "int64"):
        for g in gradients(index_type=index_type):
            yield Ask(f"{g.name}, {index_type}", partial(tf.convert_to_tensor, native(g)), oracle.to_dense(g.slices))
    unknown = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]))
    yield Ask("dense_shape None", lambda: answered(lambda: tf.convert_to_tensor(unknown)), "refused")


@probe(
    "tensorflow", "tf.convert_to_tensor(slices)", "1",
    claim="of dense_shape only the first number is used: rows of another length than it says pass",
    instead="islices.from_native(x), which checks, then islices.to_dense(x)",
)  # fmt: skip
def densify_wrong_rows() -> Iterator[Ask]:
    bad = tf.IndexedSlices(tf.ones((1, 3)), tf.constant([1]), tf.constant([4, 2]))
    yield Ask("dense_shape (4, 2), values (1, 3)", lambda: answered(lambda: tf.convert_to_tensor(bad)), "refused")


@probe(
    "tensorflow", "tf.convert_to_tensor(slices)", "3",
    claim="16-bit sums are taken in 16 bits and stand still: 4096 ones give 2048 in float16, 256 in bfloat16",
    instead="islices.to_dense(x)",
)  # fmt: skip
def densify_16_bits() -> Iterator[Ask]:
    for dtype in (tf.float16, tf.bfloat16):
        x = tf.IndexedSlices(tf.ones((4096, 2), dtype), tf.zeros(4096, tf.int64), tf.constant([1, 2], tf.int64))
        yield Ask(f"4096 ones, {dtype.name}", partial(tf.convert_to_tensor, x), [[4096.0, 4096.0]])


BEYOND = {"index -1": -1, "index = rows": ROWS}


def refusal(index: int) -> str:
    return answered(lambda: tf.convert_to_tensor(slices([[1, 1], [2, 2]], [0, index])))


@probe(
    "tensorflow", "tf.convert_to_tensor(slices)", "2",
    claim="a row of a negative index is dropped silently",
    instead="islices.to_dense(x)",
)  # fmt: skip
def densify_negative() -> Iterator[Ask]:
    yield Ask("index -1", partial(refusal, -1), "refused")


@probe(
    "tensorflow", "tf.convert_to_tensor(slices)", "2",
    claim="an index of the number of rows or more raises on the CPU", trap="",
    instead="islices.to_dense(x)",
)  # fmt: skip
def densify_beyond() -> Iterator[Ask]:
    yield Ask("index = rows", partial(refusal, ROWS), "refused")


def traced_densify(**options: Any) -> Iterator[Ask]:
    @tf.function(autograph=False, **options)  # type: ignore[untyped-decorator]
    def call(values: Any, ids: Any) -> Any:
        return tf.convert_to_tensor(tf.IndexedSlices(values, ids, tf.constant([ROWS, 2], tf.int64)))

    values, stored = tf.constant([[1.0, 1], [2, 2]]), np.array([[1.0, 1], [0, 0], [0, 0], [0, 0]])
    for label, index in BEYOND.items():
        yield Ask(label, partial(call, values, tf.constant([0, index], tf.int64)), stored)


@probe(
    "tensorflow", "tf.convert_to_tensor(slices) in a tf.function", "2",
    claim="negative indices are dropped, one of the number of rows ends the whole graph",
    trap="raises", instead="islices.to_dense(x)",
)  # fmt: skip
def densify_graph() -> Iterator[Ask]:
    yield from traced_densify()


@probe(
    "tensorflow", "tf.convert_to_tensor(slices) in a tf.function(jit_compile=True)", "2",
    claim="what is out of range is dropped, while the same call raises in eager code", trap="",
    instead="islices.to_dense(x)", issue="tensorflow/tensorflow#120245",
)  # fmt: skip
def densify_xla() -> Iterator[Ask]:
    yield from traced_densify(jit_compile=True)
