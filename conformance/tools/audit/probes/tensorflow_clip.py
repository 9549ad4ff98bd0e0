"""What TensorFlow's own norms and clipping do with tf.IndexedSlices, and with large, small and not finite norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from islices.conformance import oracle
from islices.conformance.tools.audit.inputs import Given, gradients, plain
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.tensorflow import answered, array, native, slices

NORM, CLIP = "islices.global_norm(gradients)", "islices.clip_by_global_norm(gradients, clip_norm)"
CLIP_NORM = "islices.clip_by_norm(gradient, clip_norm)"
#: Half the smallest norm of the inputs: all are clipped, and the factors are exact.
LIMIT = 2.5

Clip = Callable[[Any, float], Any]


def by_global_norm(x: Any, limit: float) -> Any:
    return tf.clip_by_global_norm([x], limit)[0][0]


#: The two that clip by one norm: call -> (function of one gradient, what to use instead)
CLIPS: dict[str, tuple[Clip, str]] = {
    "tf.clip_by_global_norm": (by_global_norm, CLIP),
    "tf.clip_by_norm": (tf.clip_by_norm, CLIP_NORM),
}


def both(ask: Callable[[str, Clip], Iterator[Ask]]) -> Callable[[], Iterator[Ask]]:
    """The same questions of both functions."""
    return lambda: (question for text, (clip, _) in CLIPS.items() for question in ask(text, clip))


# ---------------------------------------------------------------------- duplicates
@probe(
    "tensorflow", "tf.linalg.global_norm", "8",
    claim="the stored values' norm: duplicates count as rows of their own",
    instead=NORM,
)  # fmt: skip
def global_norm() -> Iterator[Ask]:
    for g in gradients():
        yield Ask(g.name, partial(tf.linalg.global_norm, [native(g)]), oracle.norm(g.slices))
    yield Ask("(3, 0), (0, 4), (3, 0) in rows 1, 2, 1",
              lambda: tf.linalg.global_norm([slices([[3, 0], [0, 4], [3, 0]], [1, 2, 1])]), 52.0**0.5)  # fmt: skip


@probe(
    "tensorflow", "tf.norm", "7",
    claim="duplicates are summed, in an array of the table's size", trap="",
    instead="islices.norm(x)",
)  # fmt: skip
def norm() -> Iterator[Ask]:
    for g in gradients():
        yield Ask(g.name, partial(tf.norm, native(g)), oracle.norm(g.slices))


def clipping(text: str) -> None:
    clip, instead = CLIPS[text]

    @probe(
        "tensorflow", text, "10",
        claim="clips by the stored values' norm: too little where duplicates add up, too much where they cancel",
        instead=instead,
    )  # fmt: skip
    def ask() -> Iterator[Ask]:
        for g in gradients():
            expected = oracle.to_dense(oracle.clip_by_norm(g.slices, LIMIT))
            yield Ask(g.name, partial(lambda x: array(clip(x, LIMIT)), native(g)), expected)
        x = slices([[3, 0], [0, 4], [3, 0]], [1, 2, 1])
        yield Ask("norm of 7.21 clipped to 5: its norm", lambda: np.linalg.norm(array(clip(x, 5.0))).round(5), 5.0)


for _text in CLIPS:
    clipping(_text)


@probe(
    "tensorflow", "tf.clip_by_norm(slices, clip_norm, axes=[1])", "10",
    claim="each duplicate of a row is clipped by itself, and their sum exceeds the bound",
    instead="islices.clip_by_row_norm(x, max_norm)",
)  # fmt: skip
def clip_rows() -> Iterator[Ask]:
    for g in gradients():
        expected = oracle.to_dense(oracle.clip_by_row_norm(g.slices, 2.0))
        yield Ask(g.name, partial(lambda x: array(tf.clip_by_norm(x, 2.0, axes=[1])), native(g)), expected)


@probe(
    "tensorflow", "tf.clip_by_value", "9",
    claim="duplicates are clipped one by one, and their sum lies out of the bounds",
    instead="islices.clip_by_value(x, lo, hi)",
)  # fmt: skip
def clip_by_value() -> Iterator[Ask]:
    for g in gradients():
        expected = oracle.to_dense(oracle.clip_by_value(g.slices, -3.5, 3.5))
        yield Ask(g.name, partial(lambda x: array(tf.clip_by_value(x, -3.5, 3.5)), native(g)), expected)


@probe(
    "tensorflow", "tf.clip_by_value", "9",
    claim="bounds that do not hold 0 are applied to the stored rows only: the others stay 0, outside of them",
    instead="islices.clip_by_value(x, lo, hi), which refuses; densify first",
)  # fmt: skip
def clip_above_zero() -> Iterator[Ask]:
    g = next(gradients("sorted, unique"))
    yield Ask("bounds 1 and 3.5", lambda: array(tf.clip_by_value(native(g), 1.0, 3.5)), np.clip(g.dense, 1.0, 3.5))


@probe(
    "tensorflow", "tf.clip_by_value", "9",
    claim="NaN stays NaN", trap="",
    instead="islices.clip_by_value(x, lo, hi)",
)  # fmt: skip
def clip_value_nan() -> Iterator[Ask]:
    yield Ask("NaN and 5", lambda: tf.clip_by_value(tf.constant([np.nan, 5.0]), -1.0, 1.0), [np.nan, 1.0])


# ---------------------------------------------------------------------- norms that are not finite, bounds at an end
def vector(clip: Clip, values: Any, limit: float) -> Callable[[], Any]:
    return lambda: clip(tf.constant(values, tf.float32), limit)


@probe(
    "tensorflow", "tf.clip_by_global_norm", "10",
    claim="an infinity or NaN anywhere makes every value NaN", trap="",
    instead=f"{CLIP[:-1]}, nonfinite=...)", issue="tensorflow/tensorflow#21363",
)  # fmt: skip
def global_nonfinite() -> Iterator[Ask]:
    for bad in (np.inf, -np.inf, np.nan):

        def call(bad: float = bad) -> Any:
            return tf.concat(tf.clip_by_global_norm([tf.constant([3.0, bad]), tf.constant([1.0])], LIMIT)[0], 0)

        yield Ask(f"(3, {bad}), (1,)", call, [np.nan] * 3)


@probe(
    "tensorflow", "tf.clip_by_norm", "10",
    claim="an infinity becomes NaN and every other value 0, where tf.clip_by_global_norm makes all NaN",
    instead=f"{CLIP_NORM[:-1]}, nonfinite=...)",
)  # fmt: skip
def norm_nonfinite() -> Iterator[Ask]:
    for bad in (np.inf, np.nan):
        yield Ask(f"(1, {bad})", vector(tf.clip_by_norm, [1.0, bad], LIMIT), [np.nan] * 2)


@probe(
    "tensorflow", "tf.clip_by_norm, tf.clip_by_global_norm, clip_norm=inf", "10",
    claim="a bound of infinity, which clips nothing, makes every value NaN",
    instead=CLIP, issue="tensorflow/tensorflow#109146",
)  # fmt: skip
@both
def infinite_bound(text: str, clip: Clip) -> Iterator[Ask]:
    yield Ask(f"{text}, (3, 4)", vector(clip, [3.0, 4.0], np.inf), [3.0, 4.0])


@probe(
    "tensorflow", "tf.clip_by_norm, tf.clip_by_global_norm, clip_norm=0", "10",
    claim="a bound of 0 makes NaN of a gradient of zeros",
    instead=CLIP,
)  # fmt: skip
@both
def zero_bound(text: str, clip: Clip) -> Iterator[Ask]:
    yield Ask(f"{text}, zeros", vector(clip, [0.0, 0.0], 0.0), [0.0, 0.0])
    yield Ask(f"{text}, (3, 4)", vector(clip, [3.0, 4.0], 0.0), [0.0, 0.0])


@probe(
    "tensorflow", "tf.clip_by_norm, tf.clip_by_global_norm, clip_norm < 0", "10",
    claim="a negative bound is accepted: one makes zeros of the gradient, the other leaves it as it is",
    instead=CLIP, issue="tensorflow/tensorflow#54414",
)  # fmt: skip
@both
def negative_bound(text: str, clip: Clip) -> Iterator[Ask]:
    yield Ask(f"{text}, (3, 4)", lambda: answered(vector(clip, [3.0, 4.0], -5.0)), "refused")


@probe(
    "tensorflow", "tf.clip_by_norm, tf.clip_by_global_norm", "10",
    claim="a gradient whose norm is below the bound does not come back as it was: it is multiplied by bound / bound",
    instead=CLIP,
)  # fmt: skip
@both
def below_bound(text: str, clip: Clip) -> Iterator[Ask]:
    values = np.random.default_rng(0).random(64).astype(np.float32)
    for limit in (41.0, 64.0):
        yield Ask(f"{text}, norm 4.3, bound {limit:.0f}", vector(clip, values, limit), values)


@probe(
    "tensorflow", "tf.clip_by_norm", "10",
    claim="values are multiplied by the bound before they are divided: a bound of 1e38 makes infinities",
    instead=CLIP_NORM,
)  # fmt: skip
def huge_bound() -> Iterator[Ask]:
    yield Ask("(3, 4), bound 1e38", vector(tf.clip_by_norm, [3.0, 4.0], 1e38), [3.0, 4.0])


# ---------------------------------------------------------------------- range and rounding
def sized(dtype: str, *values: float) -> tuple[str, np.ndarray[Any, Any]]:
    return f"{len(values)} of {values[0]:g}, {dtype}", np.array(values, dtype)


RANGE = [sized("float32", *[1e20] * 4), sized("float32", *[1e-30] * 4), sized("float64", *[1e200] * 4),
         sized("float16", *[400.0] * 4)]  # fmt: skip


@probe(
    "tensorflow", "tf.linalg.global_norm", "8",
    claim="squares overflow and vanish: float32 of 1e20 has an infinite norm, of 1e-30 none, float16 of 400 infinity",
    instead=NORM,
)  # fmt: skip
def norm_range() -> Iterator[Ask]:
    for label, values in RANGE:
        yield Ask(label, partial(lambda v: tf.linalg.global_norm([tf.constant(v)]), values), oracle.norm(plain(values)))


@probe(
    "tensorflow", "tf.clip_by_norm, tf.clip_by_global_norm", "10",
    claim="where squares overflow although the norm does not, one makes zeros of the gradient, the other NaN",
    instead=CLIP,
)  # fmt: skip
@both
def clip_range(text: str, clip: Clip) -> Iterator[Ask]:
    for label, values in RANGE[:1] + RANGE[3:]:
        limit = float(oracle.exact_norm([plain(values)], 2)) / 2  # half of each: exact, so that only range matters
        yield Ask(f"{text}, {label}", partial(lambda v, b: clip(tf.constant(v), b), values, limit), values / 2)


@probe(
    "tensorflow", "tf.linalg.global_norm, tf.clip_by_global_norm", "8",
    claim="gradients of float16 and float32 together are refused",
    trap="raises", instead="islices.global_norm(gradients), islices.clip_by_global_norm(gradients, clip_norm)",
)  # fmt: skip
def mixed_types() -> Iterator[Ask]:
    leaves = [np.array([3], np.float16), np.array([4], np.float32)]
    given = [tf.constant(x) for x in leaves]
    yield Ask("norm of float16 3, float32 4", lambda: tf.linalg.global_norm(given), 5.0)
    yield Ask("clipped to 2.5", lambda: [float(x[0]) for x in tf.clip_by_global_norm(given, 2.5)[0]], [1.5, 2.0])


@probe(
    "tensorflow", "tf.linalg.global_norm", "8",
    claim="a dict of gradients is refused; None among them is skipped, and no gradients have the norm 0",
    trap="raises", instead=NORM,
)  # fmt: skip
def norm_trees() -> Iterator[Ask]:
    three, four = tf.constant([3.0]), tf.constant([4.0])
    for label, tree, expected in (("3, None, 4", [three, None, four], 5.0), ("nothing", [], 0.0),
                                  ("a dict", {"a": three, "b": four}, 5.0)):  # fmt: skip
        yield Ask(label, partial(tf.linalg.global_norm, tree), expected)


@probe(
    "tensorflow", "tf.linalg.global_norm", "7",
    claim="the sum of squares is rounded at every step: the norm is some ulps off, in float64 too",
    instead=NORM,
)  # fmt: skip
def norm_rounding() -> Iterator[Ask]:
    for dtype, large in (("float32", 4096.0), ("float64", 1e8)):
        values = np.array([large, *[1.0] * 4096], dtype)
        call = partial(tf.linalg.global_norm, [tf.constant(values)])
        yield Ask(f"{large:g} and 4096 ones, {dtype}", call, oracle.norm(plain(values)))


def kept_parts(g: Given) -> Iterator[tuple[str, tf.IndexedSlices, tf.IndexedSlices]]:
    x = tf.IndexedSlices(tf.constant(g.values), tf.constant(g.indices), tf.constant([4, 2], tf.int32))
    for text, (clip, _) in CLIPS.items():
        yield text, x, clip(x, LIMIT)
    yield "tf.clip_by_value", x, tf.clip_by_value(x, -1.0, 1.0)


@probe(
    "tensorflow", "tf.clip_by_norm, tf.clip_by_global_norm, tf.clip_by_value", "1",
    claim="slices stay slices, with the indices and the type of dense_shape that they had", trap="",
    instead=CLIP,
)  # fmt: skip
def clipped_types() -> Iterator[Ask]:
    for g in gradients("duplicates", index_type="int32"):
        for text, before, after in kept_parts(g):
            yield Ask(f"{text}: indices", partial(np.asarray, after.indices), g.indices)
            types = f"{before.indices.dtype.name}, {before.dense_shape.dtype.name}"
            yield Ask(f"{text}: types", lambda x=after: f"{x.indices.dtype.name}, {x.dense_shape.dtype.name}", types)
