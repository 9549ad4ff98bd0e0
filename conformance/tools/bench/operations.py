"""Run the part "operations": coalesce, clipping, norms and to_dense on several kinds of gradients.

A measurement starts with a framework's arrays of values and indices and ends when the result is computed. Before the
timing, every implementation runs once, and the norm of its result is compared with NumPy's norm. A framework's call
whose label ends in a remark in brackets is not compared. The report names each call of the framework that gives a wrong
result or raises an error. If islices gives a wrong result, the case fails.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import islices
from islices import IndexedSlices, get_backend
from islices.backend import Backend, Host
from islices.conformance.tools.bench.benchmarks import Benchmark, draw_ids
from islices.conformance.tools.bench.limit import Copying
from islices.conformance.tools.bench.rounds import Call, Record, blocking, does_less, timed
from islices.conformance.tools.bench.variants import index_dtype

TOLERANCE = 1e-3


class Gradient(NamedTuple):
    """A gradient in arrays of the framework. The object also contains the distinct row numbers and the norm of the
    gradient. For the norm, duplicates are summed in float32, and squares in float64."""

    v: Any
    i: Any
    distinct: Host
    norm: float

    @property
    def max_norm(self) -> float:
        """Return half of the norm, so that a clip to this limit changes the gradient."""
        return self.norm / 2


@lru_cache(maxsize=1)
def _gradient(B: Backend, slices: int, dim: int, distribution: str, rows: int) -> Gradient:
    ids = draw_ids(distribution, slices, rows).astype(index_dtype(B.name))
    values = np.random.default_rng(1).standard_normal((slices, dim), np.float32)
    order = np.argsort(ids, kind="stable")
    distinct, starts = np.unique(ids[order], return_index=True)
    norm = np.sqrt((np.add.reduceat(values[order], starts, axis=0).astype(np.float64) ** 2).sum())
    return Gradient(B.asarray(values), B.asarray(ids), distinct, float(norm))


def bytes_of_operation(case: Benchmark, distinct: int, index: int) -> int:
    """Return the number of bytes that an operation must read and write.

    `distinct` is the number of distinct rows, and `index` is the size of an index in bytes. clip_by_global_norm writes
    new values, but no indices. The single number that norm writes is not counted.
    """
    row = case.dim * 4
    written = {
        "coalesce": distinct * (row + index),
        "clip_by_global_norm": case.slices * row,
        "norm": 0,
        "to_dense": case.rows * row,
    }
    return case.slices * (row + index) + written[case.operation]


def run(job: Record, emit: Callable[..., None]) -> None:
    B, copying = get_backend(job["backend"]), Copying(job["threads"])
    for case in (Benchmark(*x) for x in job["cases"]):
        subject = f"{case.slices:,} x {case.dim} {case.distribution}"
        try:
            found = _measured(B, case, copying, job)
        except Exception as error:  # report a case that fails, and measure the others
            found = {"error": f"{type(error).__name__}: {error}"}
        emit(title=f"{case.operation}, milliseconds", operation=subject, **found)


def _measured(B: Backend, case: Benchmark, copying: Copying, job: Record) -> Record:
    own_calls = importlib.import_module(f"islices.conformance.own_calls.{B.name}")
    g = _gradient(B, case.slices, case.dim, case.distribution, case.rows)
    ours = blocking({"islices": _ours(case, g)}, own_calls.block)
    for label, variant in ours.items():
        error = _error(B, case, g, variant())
        if not error <= TOLERANCE:
            raise RuntimeError(f"{B.name} {case}, {label}: off by {error:.2g}")
    calls = own_calls.timed_calls(case.operation, g.v, g.i, case.rows, g.max_norm)
    own, failed = _checked(B, case, g, blocking(calls, own_calls.block))
    nbytes = bytes_of_operation(case, len(g.distinct), np.dtype(B.dtype(g.i)).itemsize)
    return {**copying.beside(nbytes, lambda: timed(job, ours | own, own)), "remarks": failed}


def _ours(case: Benchmark, g: Gradient) -> Call:
    functions: dict[str, Callable[[IndexedSlices], Any]] = {
        "coalesce": islices.coalesce,
        "to_dense": islices.to_dense,
        "norm": islices.norm,
        "clip_by_global_norm": lambda s: islices.clip_by_global_norm([s], g.max_norm)[0],
    }

    return lambda: functions[case.operation](IndexedSlices(g.v, g.i, (case.rows, case.dim)))


def _checked(B: Backend, case: Benchmark, g: Gradient, own: dict[str, Call]) -> tuple[dict[str, Call], dict[str, str]]:
    """Run every call once. Return ({label: call}, {label: error message}).

    A call that raises an error is only in the second dict. If a result is wrong, the label in the first dict gets a
    remark.
    """
    found, failed = {}, {}
    for label, variant in own.items():
        try:
            result = variant()
        except Exception as error:  # any error of a framework; the other calls are measured
            failed[label] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        if not does_less(label):
            off = _error(B, case, g, result)
            label += "" if off <= TOLERANCE else f" (off by {off:.0%})"
        found[label] = variant
        del result
    return found, failed


def _error(B: Backend, case: Benchmark, g: Gradient, result: Any) -> float:
    """Return the relative error of the norm of a result."""
    if isinstance(result, list):
        (result,) = result
    if isinstance(result, tuple):  # JAX and NumPy: values beyond the ids and ids beyond the table are padding
        values, ids = result
        pair = B.asarray(values[: len(ids)]), B.asarray(ids)
        result = IndexedSlices(*pair, (case.rows, case.dim), padded=True, validate=False)
    norm = result if case.operation == "norm" else islices.norm(result)
    return abs(float(norm) / (g.max_norm if case.operation == "clip_by_global_norm" else g.norm) - 1)
