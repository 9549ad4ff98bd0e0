"""Probes of tf.IndexedSlices in TensorFlow. The probes cover the type, operators, norms, clips, lookups, scatters,
rounding, XLA and memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from islices.conformance.own_calls.tensorflow import invalid_gradients
from islices.conformance.tools.audit.probe import REFUSED, Probe
from islices.conformance.tools.audit.probe_inputs import (
    CANCELLING,
    DUPLICATES,
    ROWS,
    SUBNORMAL,
    UNIQUE,
    WEIGHTS,
    ZEROS,
    GivenGradient,
    floats,
    left_fold,
    norm_of,
)  # fmt: skip

DENSIFY, SCALE = "islices.to_dense(x)", "islices.scale(x, c)"
NORM, CLIP = "islices.global_norm(gradients)", "islices.clip_by_global_norm(gradients, clip_norm)"
CLIP_NORM, CLIP_VALUE = "islices.clip_by_norm(gradient, clip_norm)", "islices.clip_by_value(x, lo, hi)"
GRADIENT, ADD = "islices.value_and_grad(fn)(islices.Table(weights), ...)", "islices.scatter(table, x)"
#: The recommendation of probes about arithmetic that has other results in a tf.function than in eager code.
GUARDED = "islices' own functions and islices.optim: traced results are those of eager code"
CONVERT = 'islices.convert(x, "tensorflow")'
A, B, C = (np.random.default_rng(k).random(512).astype(np.float32) + np.float32(0.5) for k in range(3))
HALF = tf.IndexedSlices(tf.ones((4096, 2), tf.float16), tf.zeros(4096, tf.int64), tf.constant([1, 2], tf.int64))
FROM_DLPACK = tf.experimental.dlpack.from_dlpack
THREE_FOUR = tf.constant([3.0, 4.0])


def slices(values: Any, ids: Any, rows: int = ROWS) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(ids), tf.constant([rows, 2], tf.int64))


def native(g: GivenGradient) -> tf.IndexedSlices:
    return slices(g.values, g.indices)


X, Y, U, OUTSIDE = native(DUPLICATES), native(CANCELLING), native(UNIQUE), slices([[1, 1], [2, 2]], [0, -1])


def dense(x: Any) -> Any:
    """Return x as a dense NumPy array, in which duplicates are summed in order."""
    if not isinstance(x, tf.IndexedSlices):
        return np.asarray(x)
    return left_fold(np.asarray(x.values), np.asarray(x.indices), int(x.dense_shape[0]))


def kind(x: Any) -> str:
    return "row-sparse" if isinstance(x, tf.IndexedSlices) else "dense"


def traced(f: Any, *arguments: Any, **options: Any) -> Any:
    return tf.function(f, autograph=False, **options)(*arguments)


def graph(f: Any, **options: Any) -> Any:
    return traced(f, tf.constant(A), tf.constant(B), tf.constant(C), **options)


def by_global_norm(x: Any, limit: float) -> Any:
    return tf.clip_by_global_norm([x], limit)[0][0]


def gradient(loss: Any, table: Any = WEIGHTS) -> Any:
    variable = tf.Variable(table)
    with tf.GradientTape() as tape:
        value = loss(variable)
    return tape.gradient(value, variable)


def scattered(op: str, x: tf.IndexedSlices, table: Any = WEIGHTS) -> Any:
    return np.asarray(getattr(tf.Variable(table), f"scatter_{op}")(x))


def half_written() -> str:
    variable = tf.Variable(WEIGHTS)
    try:
        variable.scatter_add(OUTSIDE)
    except tf.errors.OpError:
        return "untouched" if np.array_equal(variable, WEIGHTS) else "partly written"
    return "no error"


def at_address(remainder: int) -> np.ndarray[Any, Any]:
    """Return four float32 zeros whose memory address modulo 64 is `remainder`."""
    room = np.zeros(64, np.float32)
    start = (remainder - room.ctypes.data) % 64 // 4
    return room[start : start + 4]


WIDE, NAUGHT = floats(8000).reshape(1000, 8), np.zeros(1000, np.int64)
LOUD = np.array([1e8, *[1.0] * 4096])

# fmt: off
PROBES = [
    # ------------------------------------------------------------------ the type and its operators
    Probe("tf.IndexedSlices(values, indices, dense_shape)", "2",
          "nothing is checked when it is built: dtypes, shapes and ranges that contradict each other are accepted",
          "islices.IndexedSlices(values, indices, dense_shape)", "float indices", invalid_gradients()["float indices"][0], REFUSED),
    *(Probe(name, "6", "the operator does not exist for tf.IndexedSlices", instead, "duplicates", partial(lambda f: dense(f(X)), f), expected, "raises")
      for name, f, expected, instead in [
          ("slices * 2", lambda x: x * 2, DUPLICATES.dense * 2, SCALE),
          ("slices / 2", lambda x: x / 2, DUPLICATES.dense / 2, "islices.scale(x, 1 / c)"),
          ("slices + slices", lambda x: x + x, DUPLICATES.dense * 2, "islices.add(x, y)"),
          ("slices - slices", lambda x: x - x, ZEROS, "islices.add(x, islices.scale(y, -1))")]),
    Probe("tf.add, tf.add_n, tf.subtract, tf.negative, tf.multiply", "6",
          "linear operations that could keep the stored rows make an array of the table's size", "islices.add(*xs), islices.scale(x, c)",
          "tf.add_n([slices])", lambda: kind(tf.add_n([X])), "row-sparse"),
    Probe("tf.nest.map_structure(f, slices, expand_composites=True)", "6",
          "f is applied to the indices and the shape too: a factor of 2 moves the gradient to other rows",
          "islices.scale(gradients, c): trees of gradients go in and come out", "times 2, unique rows: indices",
          lambda: tf.nest.map_structure(lambda part: part * 2, U, expand_composites=True).indices, [1, 2]),
    Probe("tf.convert_to_tensor(slices)", "1", "of dense_shape only the first number is used: rows of another length than it says pass",
          "islices.from_native(x), which checks, then islices.to_dense(x)", "dense_shape (4, 2), values (1, 3)",
          lambda: tf.convert_to_tensor(tf.IndexedSlices(tf.ones((1, 3)), tf.constant([1]), tf.constant([4, 2]))), REFUSED),
    Probe("tf.convert_to_tensor(slices)", "3",
          "16-bit sums are taken in 16 bits and stop growing: 4096 ones give 2048 in float16, 256 in bfloat16", DENSIFY,
          "4096 ones, float16", lambda: tf.convert_to_tensor(HALF), [[4096, 4096]]),
    Probe("tf.convert_to_tensor(slices)", "2", "a row of a negative index is dropped silently", DENSIFY,
          "index -1", lambda: tf.convert_to_tensor(OUTSIDE), REFUSED),
    # ------------------------------------------------------------------ norms and clips
    Probe("tf.linalg.global_norm", "8", "the stored values' norm: duplicates count as separate rows", NORM,
          "cancelling duplicates", lambda: tf.linalg.global_norm([Y]), 5),
    *(Probe(name, "10", "clips by the stored values' norm: too little where duplicates add up, too much where they cancel", instead,
            "cancelling duplicates to 2.5", partial(lambda clip: dense(clip(Y, 2.5)), clip), CANCELLING.dense / 2)
      for name, clip, instead in [("tf.clip_by_global_norm", by_global_norm, CLIP), ("tf.clip_by_norm", tf.clip_by_norm, CLIP_NORM)]),
    Probe("tf.clip_by_value", "9", "duplicates are clipped one by one, and their sum lies out of the bounds", CLIP_VALUE,
          "duplicates", lambda: dense(tf.clip_by_value(X, -3.5, 3.5)), DUPLICATES.dense.clip(-3.5, 3.5)),
    Probe("tf.clip_by_norm, tf.clip_by_global_norm, clip_norm=inf", "10", "a bound of infinity, which clips nothing, makes every value NaN",
          CLIP, "tf.clip_by_norm, (3, 4)", lambda: tf.clip_by_norm(THREE_FOUR, np.inf), [3, 4], issue="tensorflow/tensorflow#109146"),
    Probe("tf.clip_by_norm, tf.clip_by_global_norm, clip_norm=0", "10", "a bound of 0 makes NaN of a gradient of zeros", CLIP,
          "tf.clip_by_global_norm, zeros", lambda: by_global_norm(tf.zeros(2), 0.0), [0, 0]),
    Probe("tf.clip_by_norm, tf.clip_by_global_norm, clip_norm < 0", "10",
          "a negative bound is accepted: one makes zeros of the gradient, the other leaves it as it is", CLIP,
          "tf.clip_by_norm, (3, 4)", lambda: tf.clip_by_norm(THREE_FOUR, -5.0), REFUSED, issue="tensorflow/tensorflow#54414"),
    Probe("tf.clip_by_norm, tf.clip_by_global_norm", "10",
          "a gradient whose norm is below the bound does not come back as it was: it is multiplied by bound / bound", CLIP,
          "tf.clip_by_global_norm, norm 23, bound 41", lambda: by_global_norm(tf.constant(A), 41.0), A),
    Probe("tf.clip_by_norm", "10", "values are multiplied by the bound before they are divided: a bound of 1e38 makes infinities", CLIP_NORM,
          "(3, 4), bound 1e38", lambda: tf.clip_by_norm(THREE_FOUR, 1e38), [3, 4]),
    Probe("tf.linalg.global_norm", "8",
          "squares overflow and vanish: float32 of 1e20 has an infinite norm, of 1e-30 none, float16 of 400 infinity", NORM,
          "four of 1e20", lambda: tf.linalg.global_norm([tf.fill(4, 1e20)]), np.float32(2e20)),
    Probe("tf.clip_by_norm, tf.clip_by_global_norm", "10",
          "where squares overflow although the norm does not, one makes zeros of the gradient, the other NaN", CLIP,
          "tf.clip_by_norm, four of 1e20", lambda: tf.clip_by_norm(tf.fill(4, 1e20), 4.0), [2] * 4),
    Probe("tf.linalg.global_norm", "7", "the sum of squares is rounded at every step: the norm is some ulps off, in float64 too", NORM,
          "1e8 and 4096 ones, float64", lambda: tf.linalg.global_norm([tf.constant(LOUD)]), norm_of(LOUD)),
    # ------------------------------------------------------------------ lookups and their gradients
    Probe("tf.gather in a tf.function(jit_compile=True)", "12", "an index out of range reads the first or the last row",
          "islices.lookup(table, ids): such a row reads as zeros", "index = rows",
          lambda: traced(tf.gather, tf.constant(WEIGHTS), tf.constant([ROWS]), jit_compile=True), [[0, 0]], issue="tensorflow/tensorflow#115254"),
    Probe("tape.gradient of a slice, a mask, or a lookup in what was computed from the table", "5", "the gradient is an array of the table's size",
          GRADIENT, "tf.gather(table * 2, ids)", lambda: kind(gradient(lambda w: tf.gather(w * 2, [1, 2]))), "row-sparse"),
    # ------------------------------------------------------------------ scatters
    Probe("tf.Variable.scatter_add, float16", "15", "the sums are taken in 16 bits and stop growing: 4096 ones give 2048", ADD,
          "4096 ones", lambda: scattered("add", HALF, np.zeros((1, 2), np.float16)), [[4096, 4096]]),
    Probe("tf.Variable.scatter_add, scatter_update", "15", "a call that raises for one index has written the rows before it",
          "islices.scatter(table, x): a call that raises has written nothing", "add, index -1 last", half_written, "untouched"),
    # ------------------------------------------------------------------ rounding
    Probe("tf.math.segment_sum", "3", "the contributions to a row are not added in their order", "islices.coalesce(x), islices.to_dense(x)",
          "1000 random rows of width 8", lambda: tf.math.segment_sum(WIDE, NAUGHT), left_fold(WIDE, NAUGHT, 1)),
    Probe("x / c in a tf.function", "17",
          "a division by a constant becomes a product with its reciprocal, one by a root a product with rsqrt", GUARDED,
          "x / 3.", lambda: graph(lambda a, b, c: a / 3.0), A / np.float32(3), issue="tensorflow/tensorflow#102771"),
    Probe("sums and products in a tf.function", "17", "products with constants are merged and sums reassociated: other bits than eager", GUARDED,
          "x * 0.1 * 0.7", lambda: graph(lambda a, b, c: a * 0.1 * 0.7), A * np.float32(0.1) * np.float32(0.7)),
    Probe("x * y + z in a tf.function(jit_compile=True)", "17",
          "XLA rounds once where eager code rounds twice (FMA), and divides by a constant as by a product", GUARDED,
          "x * y + z", lambda: graph(lambda a, b, c: a * b + c, jit_compile=True), A * B + C),
    Probe("x * 1., x + y of subnormal numbers", "3", "they count as zeros, in float32 and float64, eager and compiled",
          "islices' functions of eager arrays, which run on NumPy views and keep them", "x * 1., float32 1e-40",
          lambda: tf.constant(SUBNORMAL) * 1.0, SUBNORMAL, issue="tensorflow/tensorflow#127905"),
    # ------------------------------------------------------------------ memory
    Probe("tf.experimental.dlpack.from_dlpack of NumPy memory not at a multiple of 64 bytes", "1", "the process is aborted", CONVERT,
          "an address of 4 bytes more than a multiple of 64", lambda: FROM_DLPACK(at_address(4).__dlpack__()) + 1, [1] * 4,
          "corrupts", "", True),
]
