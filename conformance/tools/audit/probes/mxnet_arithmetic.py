"""How MXNet rounds, and the order its backward passes sum in.

MXNet computes with half of the cores: on two of them one thread, which cannot race. So four threads are asked for.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "4"  # read as MXNet is imported

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from islices.conformance import oracle
from islices.conformance.data import Array
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.arithmetic import (
    LOPSIDED,
    SUBNORMAL,
    floats,
    left_fold,
    norm_of,
    scattered,
)
from islices.conformance.tools.audit.probes.mxnet import asked, mx, row_sparse

nd = mx.nd
Lookup = Callable[[Any, Any], Any]


def array(x: np.ndarray) -> Any:
    return nd.array(x, dtype=x.dtype)


def backward(lookup: Lookup, values: np.ndarray, ids: np.ndarray, rows: int, stype: str | None = None) -> np.ndarray:
    """The gradient of a table under the upstream gradient values."""
    table = nd.zeros((rows, values.shape[1]), dtype=values.dtype)
    table.attach_grad(stype=stype)
    with mx.autograd.record():
        read = lookup(table, array(ids))
    read.backward(array(values))
    return table.grad.asnumpy()  # type: ignore[no-any-return]


def embed(sparse: bool) -> Lookup:
    return lambda table, ids: nd.Embedding(
        ids, table, input_dim=table.shape[0], output_dim=table.shape[1], sparse_grad=sparse
    )


# ---------------------------------------------------------------------- sums
@probe(
    "mxnet", "backward of mx.nd.take, mx.nd.Embedding", "3", claim="they sum in order of occurrence", trap="",
    instead="islices.value_and_grad(loss)",
)  # fmt: skip
def backward_folds() -> Iterator[Ask]:
    values, ids = scattered(3000)
    expected = left_fold(values, ids, 3)
    yield asked("3000 random rows, take", lambda: backward(nd.take, values, ids, 3), expected)
    yield asked("3000 random rows, Embedding", lambda: backward(embed(False), values, ids, 3), expected)
    sparse: Callable[..., Any] = lambda: backward(embed(True), values, ids, 3, "row_sparse")  # noqa: E731
    yield asked("3000 random rows, Embedding(sparse_grad=True)", sparse, expected)


RACING: dict[str, Lookup] = {
    "gather_nd": lambda table, ids: nd.gather_nd(table, ids.reshape((1, -1))),
    "table[ids]": lambda table, ids: table[ids],
}


@probe(
    "mxnet", "backward of mx.nd.gather_nd, table[ids], with several threads", "3",
    claim="its threads race: the same gradient comes out with other bits in every run",
    instead="islices.value_and_grad(loss)",
)  # fmt: skip
def backward_races() -> Iterator[Ask]:
    values, ids = scattered(20_000)

    def call(lookup: Lookup) -> str:
        first = backward(lookup, values, ids, 3)
        again = (backward(lookup, values, ids, 3) for _ in range(50))
        return "other bits" if any((x != first).any() for x in again) else "the same bits"

    for name, lookup in RACING.items():
        yield asked(f"{name}, 20,000 rows, again and again", lambda lookup=lookup: call(lookup), "the same bits")


@probe(
    "mxnet", "backward of mx.nd.take, add_n of float16", "3",
    claim="every addition is rounded to 16 bits: ones stop counting at 2048", instead="islices.coalesce(gradient)",
)  # fmt: skip
def half_sums() -> Iterator[Ask]:
    ones, ids = np.ones((4096, 1), np.float16), np.zeros(4096, np.int64)
    yield asked("4096 ones, take", lambda: backward(nd.take, ones, ids, 2), [[4096], [0]])
    sparse = [row_sparse([[v, 0]], [1], "float16") for v in (2048, 1, 1, 1)]
    yield asked("2048 + 1 + 1 + 1, add_n", lambda: nd.add_n(*sparse).data.asnumpy(), [[2052, 0]])


@probe(
    "mxnet", "mx.nd.scatter_nd(values, ids, shape)", "3", claim="of an id that occurs several times one value is left",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def scatter_nd() -> Iterator[Ask]:
    ids = nd.array([[1, 2, 1]], dtype="int64")
    yield asked("[3, 8, 3] at 1, 2, 1", lambda: nd.scatter_nd(nd.array([3, 8, 3]), ids, (4,)).asnumpy(), [0, 6, 8, 0])


# ---------------------------------------------------------------------- norms
@probe(
    "mxnet", "mx.nd.norm of 1e20, of float64 1e200", "7", claim="it does not overflow", trap="",
    instead="islices.norm(gradient)",
)  # fmt: skip
def norm_of_large() -> Iterator[Ask]:
    for x in (np.full(4, 1e20, np.float32), np.full(4, 1e200)):
        yield asked(f"four times {x[0]:g} in {x.dtype}", lambda x=x: nd.norm(array(x)).asnumpy(), norm_of(x).data)


@probe(
    "mxnet", "mx.nd.norm", "7", claim="it accumulates in the values' type: several of the last digits are lost",
    instead="islices.norm(gradient)",
)  # fmt: skip
def norm_rounds() -> Iterator[Ask]:
    x = floats(4000)
    yield asked("4000 random float32", lambda: nd.norm(array(x)).asnumpy(), norm_of(x).data)
    expected = [norm_of(LOPSIDED).data[0] - 1]
    yield asked("1 and 4096 times 2**-27 in float64, less 1", lambda: nd.norm(array(LOPSIDED)).asnumpy() - 1, expected)


# ---------------------------------------------------------------------- elements
@probe(
    "mxnet", "mx.nd.sqrt, /", "16", claim="both are correctly rounded", trap="", instead="islices.optim.adagrad(lr)",
)  # fmt: skip
def correctly_rounded() -> Iterator[Ask]:
    for dtype in ("float32", "float64"):
        x, y = np.abs(floats(999, dtype=dtype)), floats(999, 1, dtype)
        yield asked(f"999 roots in {dtype}", lambda x=x: nd.sqrt(array(x)).asnumpy(), np.sqrt(x))
        yield asked(f"999 quotients in {dtype}", lambda x=x, y=y: (array(x) / array(y)).asnumpy(), x / y)


@probe(
    "mxnet", "x + y, x * c", "3", claim="subnormal numbers are kept", trap="", instead="islices.coalesce(gradient)",
)  # fmt: skip
def subnormals() -> Iterator[Ask]:
    x = np.full(2, SUBNORMAL)
    yield asked("1e-40 + 1e-40", lambda: (array(x) + array(x)).asnumpy(), x + x)
    yield asked("1e-40 * 1", lambda: (array(x) * 1).asnumpy(), x)


@probe(
    "mxnet", "float16 array * Python float", "6", claim="the factor becomes float16 first, 1 in 3 products is another",
    instead="islices.scale(gradient, factor)",
)  # fmt: skip
def half_times_float() -> Iterator[Ask]:
    x = floats(500, dtype="float16")
    expected = oracle.scale(Array("float16", (500,), x.tolist()), 0.1)
    yield asked("500 random numbers times 0.1", lambda: (array(x) * 0.1).asnumpy(), expected)


@probe(
    "mxnet", "float64 array * Python float", "6", claim="factors go through text: 1 in 10 loses its last bit",
    instead="islices.scale(gradient, factor)",
)  # fmt: skip
def scalars_as_text() -> Iterator[Ask]:
    def call() -> np.ndarray:
        one = nd.ones((1,), dtype="float64")
        return np.array([(one * float(c)).asscalar() for c in factors]) / factors - 1  # type: ignore[no-any-return]

    factors = floats(200, dtype="float64")
    yield asked("1 times 200 random numbers, relative errors", call, np.zeros(200))


@probe(
    "mxnet", "mx.nd.sign", "9", claim="the sign of NaN is 0", instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def sign_of_nan() -> Iterator[Ask]:
    yield asked("NaN", lambda: nd.sign(nd.array([np.nan])).asnumpy(), [np.nan])


@probe(
    "mxnet", "mx.nd.maximum, mx.nd.minimum", "9",
    claim="of 0 and -0 the answer is the second, whichever it is: for this the specification counts them as equal",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def signs_of_zero() -> Iterator[Ask]:
    for a, b in ((-0.0, 0.0), (0.0, -0.0)):
        for name, expected in (("maximum", "0.0"), ("minimum", "-0.0")):
            way = getattr(nd, name)
            got: Callable[..., Any] = lambda a=a, b=b, way=way: str(way(nd.array([a]), nd.array([b])).asscalar())  # noqa: E731
            yield asked(f"{name}({a}, {b})", got, expected)


@probe(
    "mxnet", "mx.nd.clip, mx.nd.maximum", "9", claim="NaN stays NaN", trap="",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def clip_of_nan() -> Iterator[Ask]:
    x = nd.array([np.nan])
    yield asked("clip", lambda: nd.clip(x, -1, 1).asnumpy(), [np.nan])
    yield asked("maximum(NaN, 0)", lambda: nd.maximum(x, nd.zeros((1,))).asnumpy(), [np.nan])
