"""How TensorFlow's own arithmetic rounds: orders of summation, graphs against eager code, subnormals, shared memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from islices.conformance import oracle
from islices.conformance.data import Slices
from islices.conformance.tools.audit.inputs import plain
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.tensorflow import answered

COALESCE = "islices.coalesce(x), islices.to_dense(x)"
DENSIFY = "islices.to_dense(x)"
#: The library's own operations are guarded against what graphs do to arithmetic.
GUARDED = "islices' own functions and islices.optim: traced results are those of eager code"
RANDOM = np.random.default_rng(0)
A, B, C = (RANDOM.random(512).astype(np.float32) + np.float32(0.5) for _ in range(3))


# ---------------------------------------------------------------------- orders of summation
def summations() -> Iterator[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any], Any]]:
    """(label, values, ids, the left fold of clause 3): one row's contributions, of widths that take other paths."""
    for n, width in ((9, 8), (17, 8), (1000, 8), (1000, 1)):
        values = RANDOM.standard_normal((n, width)).astype(np.float32)
        ids = np.zeros(n, np.int64)
        expected = oracle.to_dense(Slices(plain(values), plain(ids), (1, width)))
        yield f"{n} contributions of {width}", values, ids, expected


@probe(
    "tensorflow", "tf.math.segment_sum", "3",
    claim="the contributions to a row are not added in their order",
    instead=COALESCE,
)  # fmt: skip
def segment_sum() -> Iterator[Ask]:
    for label, values, ids, expected in summations():
        yield Ask(label, partial(tf.math.segment_sum, values, ids), expected)


@probe(
    "tensorflow", "tf.math.unsorted_segment_sum, tf.scatter_nd, tf.tensor_scatter_nd_add, Variable.scatter_add", "3",
    claim="contributions are added in their order", trap="",
    instead=COALESCE,
)  # fmt: skip
def left_folds() -> Iterator[Ask]:
    for label, values, ids, expected in summations():
        zeros = tf.zeros((1, values.shape[1]))
        slices = tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant(zeros.shape))
        calls = {
            "unsorted_segment_sum": partial(tf.math.unsorted_segment_sum, values, ids, 1),
            "scatter_nd": partial(tf.scatter_nd, ids[:, None], values, zeros.shape),
            "tensor_scatter_nd_add": partial(tf.tensor_scatter_nd_add, zeros, ids[:, None], values),
            "scatter_add": partial(lambda x, z: np.asarray(tf.Variable(z).scatter_add(x)), slices, zeros),
        }
        for name, call in calls.items():
            yield Ask(f"{name}, {label}", call, expected)


# ---------------------------------------------------------------------- graphs
def graph(f: Callable[..., Any], **options: Any) -> Callable[[], Any]:
    return lambda: tf.function(f, autograph=False, **options)(tf.constant(A), tf.constant(B), tf.constant(C))


@probe(
    "tensorflow", "x / y, tf.sqrt, x * y + z in eager code", "3",
    claim="each operation is rounded once, correctly", trap="",
    instead=GUARDED,
)  # fmt: skip
def eager() -> Iterator[Ask]:
    a, b, c = tf.constant(A), tf.constant(B), tf.constant(C)
    yield Ask("x / y", lambda: a / b, A / B)
    yield Ask("x / 3.", lambda: a / 3.0, A / np.float32(3))
    yield Ask("tf.sqrt(x)", lambda: tf.sqrt(a), np.sqrt(A))
    yield Ask("x * y + z", lambda: a * b + c, A * B + C)


@probe(
    "tensorflow", "tf.pow(x, 0.5), tf.math.rsqrt, tf.math.reciprocal", "3",
    claim="not the correctly rounded root, 1 / root, 1 / x",
    instead=GUARDED,
)  # fmt: skip
def approximations() -> Iterator[Ask]:
    a, one = tf.constant(A), np.float32(1)
    yield Ask("tf.pow(x, 0.5)", lambda: tf.pow(a, 0.5), np.sqrt(A))
    yield Ask("tf.math.rsqrt(x)", lambda: tf.math.rsqrt(a), one / np.sqrt(A))
    yield Ask("tf.math.reciprocal(x)", lambda: tf.math.reciprocal(a), one / A)


@probe(
    "tensorflow", "x / c in a tf.function", "17",
    claim="a division by a constant becomes a product with its reciprocal, one by a root a product with rsqrt",
    instead=GUARDED, issue="tensorflow/tensorflow#102771",
)  # fmt: skip
def graph_division() -> Iterator[Ask]:
    yield Ask("x / y", graph(lambda a, b, c: a / b), A / B)
    yield Ask("x / 3.", graph(lambda a, b, c: a / 3.0), A / np.float32(3))
    yield Ask("1. / x", graph(lambda a, b, c: 1.0 / a), np.float32(1) / A)
    yield Ask("x / tf.sqrt(y)", graph(lambda a, b, c: a / tf.sqrt(b)), A / np.sqrt(B))


@probe(
    "tensorflow", "sums and products in a tf.function", "17",
    claim="products with constants are merged and sums reassociated: other bits than eager",
    instead=GUARDED,
)  # fmt: skip
def graph_rewriting() -> Iterator[Ask]:
    yield Ask("x * 0.1 * 0.7", graph(lambda a, b, c: a * 0.1 * 0.7), A * np.float32(0.1) * np.float32(0.7))
    yield Ask("((x + y) + z) + x", graph(lambda a, b, c: ((a + b) + c) + a), ((A + B) + C) + A)


@probe(
    "tensorflow", "x * y + z in a tf.function(jit_compile=True)", "17",
    claim="XLA rounds once where eager code rounds twice (FMA), and divides by a constant as by a product",
    instead=GUARDED,
)  # fmt: skip
def xla() -> Iterator[Ask]:
    yield Ask("x * y + z", graph(lambda a, b, c: a * b + c, jit_compile=True), A * B + C)
    yield Ask("x / 3.", graph(lambda a, b, c: a / 3.0, jit_compile=True), A / np.float32(3))


@probe(
    "tensorflow", "tf.where(p == p, p, nan) + z, p = x * y, in a tf.function(jit_compile=True)", "17",
    claim="a product that passes through a comparison with itself is rounded before it is added", trap="",
    instead=GUARDED,
)  # fmt: skip
def xla_guarded() -> Iterator[Ask]:
    def call(a: Any, b: Any, c: Any) -> Any:
        p = a * b
        return tf.where(p == p, p, np.nan) + c

    yield Ask("random float32", graph(call, jit_compile=True), A * B + C)


def whose() -> str:
    """Where the code that runs as this function is written."""
    return "as written" if sys._getframe().f_code.co_filename == __file__ else "rewritten"


@probe(
    "tensorflow", "tf.function(f)", "17",
    claim="autograph rewrites the source of f and of the library code that it calls",
    instead="islices' lookup, value_and_grad and the others, which are left as they are",
)  # fmt: skip
def autograph() -> Iterator[Ask]:
    for label, options in (("tf.function", {}), ("autograph=False", {"autograph": False})):

        def call(options: dict[str, Any] = options) -> str:
            found = []

            def step(x: Any) -> Any:
                found.append(whose())
                return x

            tf.function(step, **options)(tf.constant(A))
            return found[0]

        yield Ask(label, call, "as written")


# ---------------------------------------------------------------------- numbers at the ends
TINY = np.array([1e-40, 2e-39], np.float32)


@probe(
    "tensorflow", "x * 1., x + y of subnormal numbers", "3",
    claim="they are taken as zeros, in float32 and float64, eager and compiled",
    instead="islices' functions of eager arrays, which run on NumPy views and keep them",
    issue="tensorflow/tensorflow#127905",
)  # fmt: skip
def subnormals() -> Iterator[Ask]:
    for label, values in (("float32 1e-40", TINY), ("float64 1e-310", np.array([1e-310, 2e-309]))):
        yield Ask(f"x * 1., {label}", lambda v=values: tf.constant(v) * 1.0, values)
    yield Ask("1e-30 * 1e-10", lambda: tf.constant([1e-30]) * 1e-10, [np.float32(1e-30) * np.float32(1e-10)])
    yield Ask("x + x", lambda: tf.constant(TINY) + tf.constant(TINY), TINY + TINY)
    yield Ask("x * 1.5, XLA", lambda: tf.function(lambda x: x * 1.5, jit_compile=True, autograph=False)(TINY),
              TINY * np.float32(1.5))  # fmt: skip


@probe(
    "tensorflow", "tf.convert_to_tensor(slices) of subnormal numbers", "5",
    claim="they become zeros, also where nothing is added to them",
    instead=DENSIFY,
)  # fmt: skip
def subnormal_densify() -> Iterator[Ask]:
    x = tf.IndexedSlices(tf.constant(TINY[None]), tf.constant([0]), tf.constant([1, 2]))
    yield Ask("one slice of 1e-40", lambda: tf.convert_to_tensor(x), TINY[None])


@probe(
    "tensorflow", "tf.numpy_function in a tf.function", "17",
    claim="NumPy code that a graph calls takes subnormal numbers as zeros, too",
    instead="islices' functions outside of the graph",
)  # fmt: skip
def subnormal_numpy() -> Iterator[Ask]:
    def numpy_times_1(x: Any) -> Any:
        return tf.numpy_function(lambda a: a * np.float32(1), [x], tf.float32)

    yield Ask("eager", lambda: numpy_times_1(tf.constant(TINY)), TINY)
    yield Ask("tf.function", lambda: tf.function(numpy_times_1, autograph=False)(tf.constant(TINY)), TINY)


@probe(
    "tensorflow", "tf.sign, tf.maximum of NaN", "9",
    claim="NaN stays NaN", trap="",
    instead="islices.clip_by_value(x, lo, hi)",
)  # fmt: skip
def nan() -> Iterator[Ask]:
    yield Ask("tf.sign(NaN)", lambda: tf.sign(tf.constant(np.nan)), np.nan)
    for pair in ((np.nan, 1.0), (1.0, np.nan)):
        yield Ask(f"tf.maximum{pair}", lambda p=pair: tf.maximum(tf.constant(p[0]), p[1]), np.nan)
    marked = np.array([0x7FC12345], np.uint32)
    payload = tf.constant(marked.view(np.float32))
    yield Ask("tf.sign(NaN): payload", lambda: np.asarray(tf.sign(payload)).view(np.uint32), marked)


@probe(
    "tensorflow", "tf.maximum(0., -0.)", "9",
    claim="of 0 and -0 either is the result, by chance: for this the specification counts them as equal",
    instead="islices.clip_by_value(x, lo, hi), which promises no sign of zero",
)  # fmt: skip
def maximum_of_zeros() -> Iterator[Ask]:
    zeros = np.zeros(8, np.float32)
    for first, last in ((zeros, -zeros), (-zeros, zeros)):
        call = partial(tf.maximum, tf.constant(first), tf.constant(last))
        yield Ask(f"{first[0]}, {last[0]}", partial(lambda f: str(np.asarray(f())[0]), call), "0.0")


# ---------------------------------------------------------------------- memory
def at_address(remainder: int) -> np.ndarray[Any, Any]:
    """Four float32 zeros whose address leaves that remainder by 64."""
    room = np.zeros(64, np.float32)
    start = (remainder - room.ctypes.data) % 64 // 4
    return room[start : start + 4]


@probe(
    "tensorflow", "tf.constant, tf.convert_to_tensor, tf.Variable of a NumPy array", "1",
    claim="they copy: what is written to the array later is not seen", trap="",
    instead='islices.convert(x, "tensorflow")',
)  # fmt: skip
def copies() -> Iterator[Ask]:
    for make in (tf.constant, tf.convert_to_tensor, tf.Variable):
        yield Ask(make.__name__, partial(seen_later, make), "not seen")


def seen_later(make: Callable[[Any], Any]) -> str:
    given = at_address(0)
    tensor = make(given)
    given[:] = 7
    return "seen" if np.asarray(tensor).any() else "not seen"


@probe(
    "tensorflow", "tf.experimental.dlpack.from_dlpack of a NumPy array", "1",
    claim="the tensor, which counts as immutable, changes with the array",
    instead='islices.convert(x, "tensorflow")',
)  # fmt: skip
def dlpack() -> Iterator[Ask]:
    yield Ask("memory at a multiple of 64 bytes",
              lambda: seen_later(lambda a: tf.experimental.dlpack.from_dlpack(a.__dlpack__())), "not seen")  # fmt: skip


@probe(
    "tensorflow", "tf.experimental.dlpack.from_dlpack of NumPy memory not at a multiple of 64 bytes", "1",
    claim="the process is aborted",
    trap="corrupts", instead='islices.convert(x, "tensorflow")', isolated=True,
)  # fmt: skip
def dlpack_unaligned() -> Iterator[Ask]:
    given = at_address(4)
    call = partial(answered, lambda: tf.experimental.dlpack.from_dlpack(given.__dlpack__()) + 1)
    yield Ask("an address of 4 bytes more than a multiple of 64", call, "accepted")
