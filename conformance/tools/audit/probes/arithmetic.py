"""What NumPy and numba themselves do: the arithmetic under every host path, and under most tests of frameworks.

Frameworks' own arithmetic stands in their modules; the data that those ask about is here.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from islices.conformance import oracle
from islices.conformance.data import Array
from islices.conformance.operations import UnsupportedError
from islices.conformance.tools.audit.inputs import ROWS, gradients
from islices.conformance.tools.audit.probe import Ask, probe

__all__ = ["LOPSIDED", "SUBNORMAL", "floats", "left_fold", "norm_of", "raised", "scattered"]

SUBNORMAL = np.float32(1e-40)
KERNELS = "islices' own functions: their kernels stand several callers, and forks"
#: Squares that vanish one by one beside the first one's, and do not together.
LOPSIDED = np.concatenate([[1.0], np.full(4096, 2.0**-27)])


def floats(n: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """n numbers of all sizes from 1e-3 to 1e3, none of them zero."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3, n), dtype)


def scattered(n: int = 600, rows: int = 3, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """(values of shape (n, 3), ids): sums that show the order they were taken in."""
    return floats(3 * n, dtype=dtype).reshape(n, 3), np.random.default_rng(1).integers(0, rows, n)


def left_fold(values: np.ndarray, ids: np.ndarray, rows: int) -> np.ndarray:
    """Clause 3, addition by addition."""
    out = np.zeros((rows, *values.shape[1:]), values.dtype)
    for k, row in enumerate(ids):
        out[row] = out[row] + values[k]
    return out


def norm_of(x: np.ndarray) -> Array:
    return oracle.norm(Array(x.dtype.name, x.shape, x.reshape(-1).tolist()))


def raised(call: Callable[[], Any]) -> str:
    """The name of what a call raises, or "no error"."""
    try:
        call()
    except Exception as error:  # whatever is raised is what was asked for
        return type(error).__name__
    return "no error"


# ---------------------------------------------------------------------- sums
@probe(
    "numpy", "numpy.add.at(out, ids, values)", "3",
    claim="it adds in order of occurrence", trap="", instead="islices.coalesce(gradient)",
)  # fmt: skip
def add_at() -> Iterator[Ask]:
    for g in gradients():
        yield Ask(g.name, lambda g=g: g.dense, oracle.to_dense(g.slices))

    def random() -> np.ndarray:
        out = np.zeros((3, 3), np.float32)
        np.add.at(out, ids, values)
        return out

    values, ids = scattered()
    yield Ask("600 random rows", random, left_fold(values, ids, 3))


@probe(
    "numpy", "numpy.add.at(out, ids, float16)", "3",
    claim="it rounds after every addition, so that ones stop counting at 2048", instead="islices.coalesce(gradient)",
)  # fmt: skip
def add_at_half() -> Iterator[Ask]:
    def call() -> np.ndarray:
        out = np.zeros(1, np.float16)
        np.add.at(out, np.zeros(4096, int), np.ones(4096, np.float16))
        return out

    yield Ask("4096 ones", call, [4096])


@probe(
    "numpy", "numpy.add.reduceat(values[order], starts)", "3",
    claim="it sums in pairs and blocks, not in order of occurrence", instead="islices.coalesce(gradient)",
    issue="numpy/numpy#15122",
)  # fmt: skip
def reduceat() -> Iterator[Ask]:
    values, ids = scattered()
    order = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[order], range(3))
    for column in range(3):
        expected = left_fold(values, ids, 3)[:, column]
        yield Ask(f"column {column}", lambda c=column: np.add.reduceat(values[order, c], starts), expected)


@probe(
    "numpy", "table[ids] += values", "15",
    claim="of an id that occurs several times the last occurrence alone counts",
    instead="islices.scatter_add(table, gradient)",
)  # fmt: skip
def fancy_add() -> Iterator[Ask]:
    for g in gradients():

        def call(g: Any = g) -> np.ndarray:
            table = np.zeros((ROWS, 2), np.float32)
            table[g.indices] += g.values
            return table

        yield Ask(g.name, call, oracle.to_dense(g.slices))


@probe(
    "numpy", "table[ids]", "12",
    claim="a negative id reads a row from the table's end", instead="islices.lookup(table, ids)",
)  # fmt: skip
def negative_id() -> Iterator[Ask]:
    table = np.ones((ROWS, 2), np.float32)
    for index in (-1, -ROWS, ROWS):
        yield Ask(f"id {index}", lambda i=index: raised(lambda: table[[i]]), "IndexError")


# ---------------------------------------------------------------------- norms and clipping
@probe(
    "numpy", "numpy.linalg.norm", "7",
    claim="squares overflow, in float16 from 256 on", instead="islices.norm(gradient)",
)  # fmt: skip
def norm_overflows() -> Iterator[Ask]:
    for dtype, value in (("float16", 300.0), ("float32", 1e20), ("float64", 1e200)):
        x = np.full(4, value, dtype)
        yield Ask(f"four times {value:g} in {dtype}", lambda x=x: np.linalg.norm(x), norm_of(x))


@probe(
    "numpy", "numpy.linalg.norm", "7",
    claim="float64 accumulates in float64, and the order of its sum shows", instead="islices.norm(gradient)",
)  # fmt: skip
def norm_rounds() -> Iterator[Ask]:
    exact = norm_of(LOPSIDED).data[0]
    yield Ask("1 and 4096 times 2**-27, less 1", lambda: np.linalg.norm(LOPSIDED) - 1, exact - 1)


@probe(
    "numpy", "numpy.clip(values, lo, hi)", "9",
    claim="lo above hi is taken without a word", instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def clip_bounds() -> Iterator[Ask]:
    yield Ask("from 3 to 1", lambda: raised(lambda: np.clip(np.zeros(2), 3, 1)), "ValueError")


# ---------------------------------------------------------------------- elements
@probe(
    "numpy", "numpy.sqrt, /", "16", claim="both are correctly rounded", trap="", instead="islices.optim.adagrad(lr)",
)  # fmt: skip
def correctly_rounded() -> Iterator[Ask]:
    for dtype in ("float32", "float64"):
        x, y = np.abs(floats(500, dtype=dtype)), floats(500, 1, dtype)
        roots = [oracle.round_to(oracle.square_root(float(v)), dtype) for v in x]
        yield Ask(f"500 roots in {dtype}", lambda x=x: np.sqrt(x), roots)
        quotients = [oracle.over(float(a), float(b), dtype) for a, b in zip(x, y, strict=True)]
        yield Ask(f"500 quotients in {dtype}", lambda x=x, y=y: x / y, quotients)


@probe(
    "numpy", "x + y, x * y", "3", claim="subnormal numbers are kept", trap="", instead="islices.coalesce(gradient)",
)  # fmt: skip
def subnormals() -> Iterator[Ask]:
    x = np.full(2, SUBNORMAL)
    yield Ask("1e-40 + 1e-40", lambda: x + x, [oracle.plus(float(SUBNORMAL), float(SUBNORMAL), "float32")] * 2)
    yield Ask("1e-40 * 1", lambda: x * np.float32(1), x)


@probe(
    "numpy", "float16 array * Python float", "6",
    claim="the factor becomes float16 first: 1e-8 is 0 then", instead="islices.scale(gradient, factor)",
)  # fmt: skip
def half_times_float() -> Iterator[Ask]:
    x = np.array([60000.0, 1.0], np.float16)
    expected = oracle.scale(Array("float16", (2,), x.tolist()), 1e-8)
    yield Ask("60000 and 1 times 1e-8", lambda: x * 1e-8, expected)


@probe(
    "numpy", "array * numpy.float32(c), array * numpy.float64(c)", "18",
    claim="since NumPy 2 a NumPy scalar of more bits widens the array", instead="islices.scale(gradient, factor)",
)  # fmt: skip
def scalar_promotion() -> Iterator[Ask]:
    for dtype, scalar in (("float16", np.float32(0.5)), ("float32", np.float64(0.5))):
        x = np.ones(2, dtype)
        yield Ask(f"{dtype} times {type(scalar).__name__}", lambda x=x, c=scalar: (x * c).dtype.name, dtype)


@probe(
    "numpy", "numpy.maximum, numpy.minimum", "9",
    claim="of 0 and -0 the answer is the second, whichever it is: for this the specification counts them as equal",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def signs_of_zero() -> Iterator[Ask]:
    for a, b in ((-0.0, 0.0), (0.0, -0.0)):
        yield Ask(f"maximum({a}, {b})", lambda a=a, b=b: str(np.maximum(np.array([a]), np.array([b]))[0]), "0.0")
        yield Ask(f"minimum({a}, {b})", lambda a=a, b=b: str(np.minimum(np.array([a]), np.array([b]))[0]), "-0.0")


@probe(
    "numpy", "numpy.sign, numpy.maximum, numpy.clip", "9",
    claim="NaN stays NaN", trap="", instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def nan() -> Iterator[Ask]:
    x = np.array([np.nan])
    yield Ask("sign", lambda: np.sign(x), [np.nan])
    yield Ask("maximum", lambda: np.maximum(x, 0), [np.nan])
    yield Ask("clip", lambda: np.clip(x, -1, 1), [np.nan])


# ---------------------------------------------------------------------- memory
@probe(
    "numpy", "array.__dlpack__(), numpy.from_dlpack", "1", trap="raises",
    claim="a read-only array, as JAX and pandas hand them out, is refused",
    instead="islices.convert(gradient, backend)", issue="numpy/numpy#20742",
)  # fmt: skip
def dlpack_read_only() -> Iterator[Ask]:
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    yield Ask("__dlpack__", lambda: x.__dlpack__() is not None, True)
    yield Ask("from_dlpack", lambda: np.from_dlpack(x), x)


@probe(
    "numba", "numba.njit over float16", "1", trap="raises",
    claim="it has no 16-bit floats", instead="islices.coalesce(gradient)",
)  # fmt: skip
def numba_half() -> Iterator[Ask]:
    import numba

    x = np.ones(2, np.float16)
    yield Ask("x[0]", lambda: numba.njit(lambda x: x[0])(x), 1)


def parallel_sum(layer: str) -> Callable[[np.ndarray], float]:
    """A compiled parallel sum whose threads are that layer's."""
    os.environ["NUMBA_THREADING_LAYER"] = layer
    import numba

    @numba.njit(parallel=True)  # type: ignore[untyped-decorator]
    def total(x: Any) -> float:
        out = 0.0
        for k in numba.prange(len(x)):
            out += x[k]
        return out

    try:
        total(np.ones(2))
    except ValueError as error:
        raise UnsupportedError(f"numba has no {layer} threads here") from error
    return total  # type: ignore[no-any-return]


@probe(
    "numba", "numba.njit(parallel=True), workqueue threads, several callers", "20", trap="corrupts", isolated=True,
    claim="two callers at once end the process", instead=KERNELS, issue="numba/numba#9327",
)  # fmt: skip
def numba_callers() -> Iterator[Ask]:
    def call() -> float:
        total = parallel_sum("workqueue")
        callers = [threading.Thread(target=lambda: [total(x) for _ in range(1000)]) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        return total(x)

    x = np.ones(100_000)
    yield Ask("four Python threads", call, 100_000)


@probe(
    "numba", "numba.njit(parallel=True), OpenMP threads, os.fork", "20", isolated=True,
    claim="a forked child, of a data loader say, is killed at its first parallel call",
    instead=KERNELS,
)  # fmt: skip
def numba_fork() -> Iterator[Ask]:
    def call() -> str:
        total = parallel_sum("omp")
        child = os.fork()
        if child == 0:
            total(x)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        return f"it is killed by {signal.Signals(status).name}" if os.WIFSIGNALED(status) else "it goes on"

    x = np.ones(100_000)
    yield Ask("a child that sums", call, "it goes on")
