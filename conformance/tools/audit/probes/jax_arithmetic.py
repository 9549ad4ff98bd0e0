"""How JAX rounds on the CPU, in eager code and under jit: the arithmetic below gradients, norms and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from islices.conformance import oracle
from islices.conformance.data import Array
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.arithmetic import SUBNORMAL, floats, norm_of, raised

if TYPE_CHECKING or hasattr(jax, "enable_x64"):
    wide: Callable[[bool], Any] = jax.enable_x64
else:  # before 0.8
    from jax.experimental import enable_x64 as wide

A, B, C = floats(999, 2), floats(999, 3), floats(999, 4)


# ---------------------------------------------------------------------- a product and a sum
@probe(
    "jax", "a * b + c", "16", claim="eager code rounds twice, as NumPy does", trap="", instead="islices.optim.sgd(lr)",
)  # fmt: skip
def eager_product() -> Iterator[Ask]:
    yield Ask("999 random numbers", lambda: jnp.asarray(A) * B + C, A * B + C)


@probe(
    "jax", "jax.jit of a * b + c", "17", claim="XLA contracts it to a fused multiply-add, which rounds once",
    instead="islices.optim.sgd(lr)", issue="openxla/xla#41579",
)  # fmt: skip
def contracted() -> Iterator[Ask]:
    yield Ask("999 random numbers", lambda: jax.jit(lambda a, b, c: a * b + c)(A, B, C), A * B + C)


@probe(
    "jax", "jax.jit with lax.optimization_barrier, lax.reduce_precision", "17",
    claim="neither keeps a product and a sum apart", instead="islices.optim.sgd(lr)", issue="openxla/xla#41579",
)  # fmt: skip
def contracted_behind_barriers() -> Iterator[Ask]:
    ways = {
        "optimization_barrier": lax.optimization_barrier,
        "reduce_precision": lambda p: lax.reduce_precision(p, 8, 23),
    }
    for name, way in ways.items():
        call = jax.jit(lambda a, b, c, way=way: way(a * b) + c)
        yield Ask(f"{name}(a * b) + c", lambda call=call: call(A, B, C), A * B + C)


@probe(
    "jax", "jax.jit of jnp.where(p == p, p, nan) + c, p = a * b", "17", claim="a selection keeps them apart", trap="",
    instead="islices.optim.sgd(lr)",
)  # fmt: skip
def kept_apart() -> Iterator[Ask]:
    def call(a: Any, b: Any, c: Any) -> jax.Array:
        p = a * b
        return jnp.where(p == p, p, jnp.nan) + c  # type: ignore[no-any-return]

    yield Ask("999 random numbers", lambda: jax.jit(call)(A, B, C), A * B + C)


# ---------------------------------------------------------------------- quotients and roots
@probe(
    "jax", "x / scalar, x / c[:, None]", "16", claim="eager code multiplies by the rounded reciprocal, 1 ulp off",
    instead="islices.optim.adagrad(lr)",
)  # fmt: skip
def eager_quotient() -> Iterator[Ask]:
    yield Ask("x / 3.0", lambda: jnp.asarray(A) / 3.0, A / np.float32(3))
    rows, c = A.reshape(333, 3), B[:333, None]
    yield Ask("x / c[:, None]", lambda: jnp.asarray(rows) / jnp.asarray(c), rows / c)


@probe(
    "jax", "jax.jit of x / 3.0", "17", claim="it multiplies by the rounded reciprocal, 1 ulp off",
    instead="islices.optim.adagrad(lr)",
)  # fmt: skip
def jitted_quotient() -> Iterator[Ask]:
    yield Ask("999 random numbers", lambda: jax.jit(lambda x: x / 3.0)(A), A / np.float32(3))


@probe(
    "jax", "x / y of one shape", "16", claim="it is correctly rounded", trap="", instead="islices.optim.adagrad(lr)",
)  # fmt: skip
def quotient() -> Iterator[Ask]:
    yield Ask("eager", lambda: jnp.asarray(A) / B, A / B)
    yield Ask("under jit", lambda: jax.jit(lambda x, y: x / y)(A, B), A / B)


@probe(
    "jax", "jnp.sqrt, lax.sqrt", "16", claim="it is correctly rounded", trap="", instead="islices.optim.adagrad(lr)",
)  # fmt: skip
def root() -> Iterator[Ask]:
    x = np.abs(A)
    yield Ask("eager", lambda: jnp.sqrt(x), np.sqrt(x))
    yield Ask("under jit", lambda: jax.jit(lax.sqrt)(x), np.sqrt(x))


@probe(
    "jax", "lax.rsqrt", "16", claim="it is not the rounded reciprocal root: optax's adagrad and rmsprop inherit that",
    instead="islices.optim.rmsprop(lr)",
)  # fmt: skip
def reciprocal_root() -> Iterator[Ask]:
    x = np.abs(A)
    expected = (1 / np.sqrt(x.astype(np.float64))).astype(np.float32)
    yield Ask("999 random numbers", lambda: lax.rsqrt(x), expected)


# ---------------------------------------------------------------------- small and large
@probe(
    "jax", "x * y, x + y, segment_sum", "3",
    claim="subnormal numbers are flushed to zero, which NumPy, torch and MXNet keep",
    instead="islices.coalesce(gradient)", issue="jax-ml/jax#16200",
)  # fmt: skip
def flushed() -> Iterator[Ask]:
    x = np.full(2, SUBNORMAL)
    yield Ask("1e-40 * 1", lambda: jnp.asarray(x) * np.float32(1), x)
    yield Ask("1e-40 + 1e-40", lambda: jnp.asarray(x) + x, x + x)
    yield Ask("1e-40 and 1e-40, segment_sum", lambda: jax.ops.segment_sum(x, np.zeros(2, int), 1), [x[0] + x[1]])


@probe(
    "jax", "jax.pure_callback(numpy function)", "3",
    claim="NumPy called from JAX flushes subnormal numbers too: the processor's mode is JAX's there",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def flushed_in_callbacks() -> Iterator[Ask]:
    x = np.full(2, SUBNORMAL)
    shape = jax.ShapeDtypeStruct((2,), np.float32)

    def call(x: Any) -> jax.Array:
        return jax.pure_callback(lambda x: np.asarray(x) * np.float32(1), shape, x)  # type: ignore[no-any-return]

    yield Ask("1e-40 * 1 in NumPy", lambda: call(x), x)
    yield Ask("1e-40 * 1 in NumPy, under jit", lambda: jax.jit(call)(x), x)


@probe(
    "jax", "jnp.linalg.norm", "7", claim="squares overflow, those of 16-bit numbers from 256 on",
    instead="islices.norm(gradient)",
)  # fmt: skip
def norm_overflows() -> Iterator[Ask]:
    yield Ask("four times 1e20", lambda: jnp.linalg.norm(np.full(4, 1e20, np.float32)), 2e20)
    yield Ask("four times 300 in float16", lambda: jnp.linalg.norm(jnp.full(4, 300, jnp.float16)), 600)


@probe(
    "jax", "jnp.linalg.norm", "7", claim="it accumulates in the values' type: the last bits depend on the order",
    instead="islices.norm(gradient)",
)  # fmt: skip
def norm_rounds() -> Iterator[Ask]:
    x = floats(8 * 999).reshape(8, 999)
    yield Ask("8 of 999 random float32", lambda: jnp.linalg.norm(x, axis=1), [norm_of(row).data[0] for row in x])

    def call() -> np.ndarray:
        with wide(True):
            return np.asarray(jnp.linalg.norm(double, axis=1)) / exact - 1  # type: ignore[no-any-return]

    double = floats(8 * 999, dtype="float64").reshape(8, 999)
    exact = np.array([norm_of(row).data[0] for row in double])
    yield Ask("8 of 999 random float64, relative errors", call, np.zeros(8))


@probe(
    "jax", "float16 array * Python float", "6", claim="the factor becomes float16 first: 1e-8 is 0 then",
    instead="islices.scale(gradient, factor)",
)  # fmt: skip
def half_times_float() -> Iterator[Ask]:
    expected = oracle.scale(Array("float16", (2,), [60000.0, 1.0]), 1e-8)
    yield Ask("60000 and 1 times 1e-8", lambda: jnp.array([60000, 1], jnp.float16) * 1e-8, expected)


# ---------------------------------------------------------------------- signs
@probe(
    "jax", "jax.jit of segment_sum with one segment", "17",
    claim="a sum of -0 is -0 under jit and 0 in eager code: for this the specification counts them as equal",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def negative_zero() -> Iterator[Ask]:
    def call(values: Any, ids: Any) -> jax.Array:
        return jax.ops.segment_sum(values, ids, 1)

    given = np.full(1, -0.0, np.float32), np.zeros(1, int)
    yield Ask("-0 under jit", lambda: str(jax.jit(call)(*given)[0]), str(call(*given)[0]))


@probe(
    "jax", "jnp.sign, jnp.maximum, jnp.minimum, jnp.clip", "9", claim="NaN stays NaN, and -0 is below 0", trap="",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def signs() -> Iterator[Ask]:
    yield Ask("sign(NaN)", lambda: jnp.sign(jnp.nan), np.nan)
    yield Ask("clip(NaN, -1, 1)", lambda: jnp.clip(jnp.nan, -1, 1), np.nan)
    for a, b in ((-0.0, 0.0), (0.0, -0.0)):
        yield Ask(f"maximum({a}, {b})", lambda a=a, b=b: str(jnp.maximum(a, b)), "0.0")
        yield Ask(f"minimum({a}, {b})", lambda a=a, b=b: str(jnp.minimum(a, b)), "-0.0")


@probe(
    "jax", "jnp.clip, jnp.maximum of a signalling NaN", "9",
    claim="it becomes a number: no arithmetic makes such a NaN, but memory may hold one",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def signalling_nan() -> Iterator[Ask]:
    x = nan_of(0x7F801234)
    yield Ask("clip to -1, 1", lambda: jnp.clip(x, -1, 1), [np.nan])
    yield Ask("maximum(NaN, 0)", lambda: jnp.maximum(x, 0), [np.nan])


@probe(
    "jax", "jnp.minimum of two NaNs", "9",
    claim="the second's payload is left, NumPy keeps the first's: for this the specification counts every NaN as equal",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def payload() -> Iterator[Ask]:
    x, y = nan_of(0xFFC01234), nan_of(0x7FC00000)

    def bits(of: Any) -> str:
        return hex(np.asarray(of).view(np.uint32)[0])

    yield Ask("minimum(NaN 0xffc01234, NaN 0x7fc00000)", lambda: bits(jnp.minimum(x, y)), bits(np.minimum(x, y)))


def nan_of(pattern: int) -> np.ndarray:
    return np.array([pattern], np.uint32).view(np.float32)


# ---------------------------------------------------------------------- 64 bits
@probe(
    "jax", "float64 without jax_enable_x64", "1", claim="it becomes float32 without a word",
    instead="islices.convert(gradient, 'jax')",
)  # fmt: skip
def narrowed() -> Iterator[Ask]:
    ways: dict[str, Callable[[], Any]] = {
        "jnp.asarray(float64)": lambda: jnp.asarray(np.ones(2)), "float32 + float64": lambda: jnp.ones(2) + np.ones(2),
    }  # fmt: skip
    for name, way in ways.items():
        yield Ask(name, lambda way=way: raised(way), "TypeError")


@probe(
    "jax", "jax.enable_x64(True) inside jax.jit", "7", claim="float64 sums of float32 arrays are taken there", trap="",
    instead="islices.norm(gradient)",
)  # fmt: skip
def widened() -> Iterator[Ask]:
    def squares(x: Any) -> jax.Array:
        with wide(True):
            return jnp.sum(jnp.square(x.astype(np.float64))).astype(np.float32)

    x = np.array([1e15, 1, 1, 1], np.float32)
    expected = np.float32(np.sum(np.square(x.astype(np.float64))))
    yield Ask("1e15 squared and others", lambda: jax.jit(squares)(x), expected)
    large = np.full(4, 1e18, np.float32)
    yield Ask("four times 1e18", lambda: jax.jit(squares)(large), np.float32(4 * float(large[0]) ** 2))
