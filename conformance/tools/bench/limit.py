"""Measure the limit of a call. The limit is the time in which a copy with the same number of threads reads and writes
as many bytes as the call must."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

#: The number of bytes to copy at a time, which is more than the caches of most processors hold.
BYTES = 1 << 26


class Copying:
    """A meter of the speed at which several threads copy memory. The copies run in parallel, because NumPy releases the
    GIL."""

    def __init__(self, threads: int, nbytes: int = BYTES) -> None:
        self.threads = threads
        # ones, so that the memory is allocated
        self._source, self._target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
        self._pool = ThreadPoolExecutor(threads)

    def bandwidth(self) -> float:
        """Return the number of bytes read and written per second in the fastest of six copies."""
        best = min(self._timed() for _ in range(6))
        return 2 * self._source.nbytes / best

    def _timed(self) -> float:
        before = time.perf_counter()
        list(self._pool.map(self._copy, range(self.threads)))
        return time.perf_counter() - before

    def _copy(self, part: int) -> None:
        size = math.ceil(self._source.nbytes / self.threads)
        here = slice(part * size, (part + 1) * size)
        np.copyto(self._target[here], self._source[here])

    def beside(self, nbytes: int, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of `measure()` with the entry "limit": the bytes, the bandwidth, and the milliseconds in
        which a copy reads and writes `nbytes`. The bandwidth is the higher of two, measured before and after the
        call."""
        best = self.bandwidth()
        result = measure()
        best = max(best, self.bandwidth())
        return {**result, "limit": {"bytes": nbytes, "bandwidth": best, "milliseconds": nbytes / best * 1e3}}
