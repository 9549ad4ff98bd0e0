"""The limit: the bytes that a call must move, each input read once and each output written once, at the speed at which
as many threads copy memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from islices.conformance.tools.bench.cases import Benchmark

__all__ = ["MOVED", "Copying", "bytes_of_operation", "bytes_of_step"]

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
#: Arrays of the table's shape that a step reads and writes, and columns of one number a row: weights, then state.
MOVED = {
    "scatter_add": (1, 0), "sgd": (1, 0), "momentum": (2, 0), "adagrad": (2, 0), "rowwise_adagrad": (1, 1),
    "rmsprop": (2, 0), "adam": (3, 0), "ftrl": (3, 0),
}  # fmt: skip
#: Copied at a time: more than the caches hold.
BYTES = 1 << 26


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
    wide, narrow = MOVED[kind]
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
