"""The part "memory": what coalesce, clipping and an Adam step need at their peak beside what they are given.

The allowance is what they return and 32 bytes a slice.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import islices
from islices import IndexedSlices, get_backend
from islices.conformance.memory import peak_growth
from islices.conformance.operations import UnsupportedError
from islices.conformance.tools.bench.cases import draw_ids
from islices.conformance.tools.bench.rounds import Call
from islices.conformance.tools.bench.update_ways import FRAMEWORKS
from islices.conformance.tools.bench.updates import DIM, IDS, ROWS, our_step

__all__ = ["ALLOWED", "run"]

#: Bytes a slice beside inputs and outputs.
ALLOWED = 32
SLICES, TRIES = 131_072, 3


def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure the three."""
    name = job["backend"]
    B, block = get_backend(name), importlib.import_module(f"islices.conformance.own_calls.{name}").block
    for operation, slices in (("coalesce", SLICES), ("clip_by_global_norm", SLICES), ("adam", IDS)):
        try:
            grown, returned = _peak(B, operation, slices, block)
        except UnsupportedError as reason:
            emit(operation=operation, skipped=str(reason))
            continue
        beside = (grown - returned) / slices
        emit(operation=operation, slices=slices, peak=grown, returned=returned, a_slice=beside, allowed=ALLOWED)


def _peak(B: Any, operation: str, slices: int, block: Callable[[Any], None]) -> tuple[int, int]:
    """(bytes at the peak, bytes of them that are returned)"""
    _call(B, operation, 1_024, block)()  # code is loaded, threads are started
    call = _call(B, operation, slices, block)
    peaks = []
    for _ in range(TRIES):
        _give_back()
        result, grown = peak_growth(call)
        peaks.append(grown)
        returned = 0 if operation == "adam" else _bytes(B, result)
        del result
    return int(median(peaks)), returned  # pyright: ignore[reportPossiblyUnboundVariable]


def _call(B: Any, operation: str, slices: int, block: Callable[[Any], None]) -> Call:
    values = np.random.default_rng(1).standard_normal((slices, DIM), np.float32)
    ids = draw_ids("zipf", slices, ROWS).astype(np.int32 if B.name == "jax" else np.int64)
    v, i = B.asarray(values), B.asarray(ids)
    if operation == "adam":
        step = our_step(FRAMEWORKS[B.name](), "adam", (ROWS, DIM), v, i, "islices", block)
    else:
        gradient, limit = IndexedSlices(v, i, (ROWS, DIM)), float(np.linalg.norm(values)) / 2

        def step() -> Any:
            if operation == "coalesce":
                return islices.coalesce(gradient)
            return islices.clip_by_global_norm([gradient], limit)[0][0]

    def call() -> Any:
        result = step()
        block(result)
        return result

    return call


def _bytes(B: Any, s: IndexedSlices) -> int:
    return sum(B.to_numpy(x).nbytes for x in (s.values, s.indices))


def _give_back() -> None:
    """The C library's free memory to the system, so that none of it hides what a call takes."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
