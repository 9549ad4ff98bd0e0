"""The limit: the bytes that a call must move, each input read once and each output written once, at the speed at which
as many threads copy memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from islices import optim
from islices.conformance.tools.bench.cases import Benchmark
from islices.optim.record import RECORDS

__all__ = [
    "BETA1", "BETA2", "MU", "OPTIMIZERS", "RATE", "RHO", "Copying", "bytes_of_operation", "bytes_of_step", "moved",
]  # fmt: skip

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
RATE, BETA1, BETA2 = 0.01, 0.9, 0.999
MU, RHO = 0.9, 0.9
#: The optimizers that are measured, the first four by default.
OPTIMIZERS = {
    "sgd": optim.sgd(RATE),
    "adagrad": optim.adagrad(RATE, eps=1e-10),
    "rowwise_adagrad": optim.rowwise_adagrad(RATE, eps=1e-8),
    "adam": optim.adam(RATE, beta1=BETA1, beta2=BETA2, eps=1e-8),
    "momentum": optim.sgd(RATE, momentum=MU),
    "rmsprop": optim.rmsprop(RATE, rho=RHO, eps=1e-8),
    "ftrl": optim.ftrl(RATE, beta=1.0, initial_accumulator=0.0),
}
#: Copied at a time: more than the caches hold.
BYTES = 1 << 26


def moved(kind: str) -> tuple[int, int]:
    """Arrays of the table's shape that a step reads and writes, weights first, and columns of one number a row."""
    own = RECORDS[OPTIMIZERS[kind].name].states(OPTIMIZERS[kind].hyper) if kind in OPTIMIZERS else ()
    narrow = sum(spec.per_row for spec in own)
    return 1 + len(own) - narrow, narrow


def bytes_of_operation(case: Benchmark, distinct: int, index_dtype: str) -> int:
    """What must be read and written.

    distinct is how many different rows the indices name. clip_by_global_norm returns values for the indices that it was
    given; norm returns one number; scatter_add reads and writes the rows that are named, in place.
    """
    row, index = case.dim * ITEMSIZE[case.dtype], ITEMSIZE[index_dtype]
    read = case.slices * (row + index)
    if case.operation == "scatter_add":
        return bytes_of_step("scatter_add", case.slices, distinct, case.dim, index)
    written = {
        "coalesce": distinct * (row + index),
        "clip_by_global_norm": case.slices * row,
        "norm": 0,
        "to_dense": case.rows * row,
    }
    return read + written[case.operation]


def bytes_of_step(kind: str, slices: int, distinct: int, dim: int, index: int = 8) -> int:
    """What a step on float32 rows must move: the gradient and its indices read, and of weights and state the rows that
    are named read and written."""
    wide, narrow = moved(kind)
    return slices * (4 * dim + index) + 2 * distinct * 4 * (wide * dim + narrow)


class Copying:
    """How fast threads copy memory: NumPy lets go of the GIL while it does."""

    def __init__(self, threads: int, nbytes: int = BYTES) -> None:
        self.threads = threads
        self._source, self._target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)  # ones: memory is there
        self._pool = ThreadPoolExecutor(threads)

    def bandwidth(self, rounds: int = 6) -> float:
        """Bytes read and written in a second, in the best of several copies."""
        best = min(self._timed() for _ in range(rounds))
        return 2 * self._source.nbytes / best

    def _timed(self) -> float:
        before = time.perf_counter()
        list(self._pool.map(self._copy, range(self.threads)))
        return time.perf_counter() - before

    def _copy(self, part: int) -> None:
        size = math.ceil(self._source.nbytes / self.threads)
        here = slice(part * size, (part + 1) * size)
        np.copyto(self._target[here], self._source[here])

    def limit(self, nbytes: int, measure: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        """(what measure returns, the limit of moving so many bytes), by copies before and after."""
        best = self.bandwidth()
        result = measure()
        best = max(best, self.bandwidth())
        return result, {"bytes": nbytes, "bandwidth": best, "milliseconds": nbytes / best * 1e3}
