"""The part "operations": coalesce, clipping, norms, to_dense and scatter_add on one kind of gradient after the other.

From a framework's arrays of values and indices to a result that is computed. Every way is run once and its result
compared with sums in float64 before anything is timed: a way of the framework's own that is off, or raises, is said so.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

import islices
from islices import IndexedSlices, get_backend
from islices.backend import Backend
from islices.conformance.tools.bench.cases import Benchmark, draw_ids
from islices.conformance.tools.bench.limit import Copying, bytes_of_operation
from islices.conformance.tools.bench.modes import modes_of, running
from islices.conformance.tools.bench.rounds import Call, blocking, does_less, measure, ratio, summary
from islices.conformance.tools.bench.updates import scatter_ways
from islices.host import bfloat16_bits

__all__ = ["Gradient", "run"]

TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2}
#: Columns compared: sums in float64 of all would take longer than the measurement.
SOME = 2


# ---------------------------------------------------------------------- what goes in
class Gradient(NamedTuple):
    """The same gradient as NumPy's and as the framework's arrays, and what its sums are."""

    values: np.ndarray[Any, Any]
    """float32, shape (slices, dim), of numbers that the case's dtype holds."""
    ids: np.ndarray[Any, Any]
    v: Any
    i: Any
    distinct: np.ndarray[Any, Any]
    sums: np.ndarray[Any, Any]
    """Of the first columns, in float64."""
    norm: float

    @property
    def max_norm(self) -> float:
        """Below the norm: there is something to clip."""
        return self.norm / 2


@lru_cache(maxsize=1)
def _gradient(
    B: Backend, slices: int, dim: int, distribution: str, dtype: str, index_dtype: str, rows: int
) -> Gradient:
    ids = draw_ids(distribution, slices, rows).astype(_index_dtype(B, index_dtype))
    values = np.random.default_rng(1).standard_normal((slices, dim), np.float32)
    given = values
    if dtype == "bfloat16":
        given = bfloat16_bits(values)
        values = (given.astype(np.uint32) << 16).view(np.float32)
    order = np.argsort(ids, kind="stable")
    distinct, starts = np.unique(ids[order], return_index=True)
    norm = np.sqrt((np.add.reduceat(values[order], starts, axis=0).astype(np.float64) ** 2).sum())
    sums = np.add.reduceat(values[order, :SOME].astype(np.float64), starts, axis=0)
    return Gradient(values, ids, B.asarray(given), B.asarray(ids), distinct, sums, float(norm))


def _index_dtype(B: Backend, wanted: str) -> str:
    if wanted != "own":
        return wanted
    return "int32" if B.name == "jax" else "int64"  # JAX without x64 has no other


# ---------------------------------------------------------------------- measuring
def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure every case of the job."""
    B = get_backend(job["backend"])
    copying = Copying(job["threads"])
    cases = [Benchmark(*x) for x in job["cases"]]
    for case in cases:
        same = case._replace(index_dtype="own")
        twice = case != same and same in cases and case.index_dtype == _index_dtype(B, "own")
        reason = f"{case.index_dtype} is what {B.name} has anyway" if twice else _missing(B, case)
        if reason:
            emit(case=case._asdict(), skipped=reason)
            continue
        try:
            found = _measured(B, case, copying, job)
        except Exception as error:  # a case that fails is reported, and the others are measured all the same
            found = {"error": f"{type(error).__name__}: {error}"}
        emit(case=case._asdict(), **found)


def _missing(B: Backend, case: Benchmark) -> str:
    """Why a framework has no such case; "" where it does."""
    if case.dtype not in B.float_dtypes:
        return f"{B.name} has no {case.dtype} here"
    if case.index_dtype != "own" and B.dtype(B.asarray(np.zeros(1, case.index_dtype))) != case.index_dtype:
        return f"{B.name} has no {case.index_dtype} here"
    return "scatter_add is measured in float32" if case.operation == "scatter_add" and case.dtype != "float32" else ""


def _measured(B: Backend, case: Benchmark, copying: Copying, job: dict[str, Any]) -> dict[str, Any]:
    own_calls = importlib.import_module(f"islices.conformance.own_calls.{B.name}")
    g = _gradient(B, case.slices, case.dim, case.distribution, case.dtype, case.index_dtype, case.rows)
    ours, own = _ways(B, case, g, own_calls)
    modes = list(ours)
    ours = blocking(ours, own_calls.block)
    own = blocking(own, own_calls.block)
    for label, way in ours.items():
        error = _error(B, case, g, way())
        if not error <= TOLERANCE[case.dtype]:
            raise RuntimeError(f"{B.name} {case}, {label}: off by {error:.2g} of the largest")
    own, failed = _checked(B, case, g, own)
    other = _scipy(B, case, g)
    ways = ours | own | other

    def rounds() -> Any:
        return measure(ways, job["repeat"], seconds=job["seconds"], rivals=frozenset(own))

    nbytes = bytes_of_operation(case, len(g.distinct), B.dtype(g.i))
    times, limit = copying.limit(nbytes, rounds)
    found = summary(times, modes, list(own))
    found["ratios"] |= {label: {mode: ratio(times[mode], times[label]) for mode in modes} for label in other}
    found["limit"] = limit
    found["over_limit"] = {mode: found["milliseconds"][mode] / limit["milliseconds"] for mode in modes}
    return found | {"distinct": len(g.distinct), "index_dtype": B.dtype(g.i), "failed": failed}


def _ways(B: Backend, case: Benchmark, g: Gradient, own_calls: Any) -> tuple[dict[str, Call], dict[str, Call]]:
    """(islices' ways, the framework's own)."""
    if case.operation == "scatter_add":
        return scatter_ways(B.name, modes_of(B), g.values, g.ids, case.rows)
    functions: dict[str, Callable[[IndexedSlices], Any]] = {
        "coalesce": islices.coalesce,
        "to_dense": islices.to_dense,
        "norm": islices.norm,
        "clip_by_global_norm": lambda s: islices.clip_by_global_norm([s], g.max_norm)[0],
    }

    def way(mode: str) -> Call:
        def call() -> Any:
            with running(mode):
                return functions[case.operation](IndexedSlices(g.v, g.i, (case.rows, case.dim)))

        return call

    ours = {mode: way(mode) for mode in modes_of(B)}
    return ours, own_calls.timed_calls(case.operation, g.v, g.i, case.rows, g.max_norm)


def _scipy(B: Backend, case: Benchmark, g: Gradient) -> dict[str, Call]:
    """The sums by a product of SciPy's, on the host: no framework's own way, but a common one."""
    if case.operation != "coalesce" or case.dtype != "float32" or not importlib.util.find_spec("scipy"):
        return {}
    from scipy.sparse import csr_matrix

    def call() -> Any:
        ids, place = np.unique(g.ids, return_inverse=True)
        ones, ends = np.ones(len(g.ids), np.float32), np.arange(len(g.ids) + 1)
        return csr_matrix((ones, place.reshape(-1), ends), shape=(len(g.ids), len(ids))).T @ g.values, ids

    return {"scipy csr.T @ v": call}


# ---------------------------------------------------------------------- checking
def _checked(B: Backend, case: Benchmark, g: Gradient, own: dict[str, Call]) -> tuple[dict[str, Call], dict[str, str]]:
    """(own ways, with what they get wrong remarked, those that raised)."""
    found, failed = {}, {}
    for label, way in own.items():
        try:
            result = way()
        except Exception as error:  # whatever a framework raises for what it does not have: the others are measured
            failed[label] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        if not does_less(label):
            off = _error(B, case, g, result)
            label += "" if off <= TOLERANCE[case.dtype] else f" (off by {off:.0%})"
        found[label] = way
        del result
    return found, failed


def _error(B: Backend, case: Benchmark, g: Gradient, result: Any) -> float:
    """The largest difference from the sums, as a share of the largest of them."""
    if case.operation == "norm":
        number = result.asscalar() if hasattr(result, "asscalar") else result  # MXNet's do not convert
        return abs(float(number) / g.norm - 1)
    if case.operation in ("to_dense", "scatter_add"):
        rows = B.to_numpy(B.read_rows(result, B.asarray(g.distinct)))
        return _off(_widened(rows)[:, :SOME], g.sums)
    values, ids = _pair(B, result)
    values, ids = values[: len(ids)], ids[: len(values)]  # room for a power of two
    named = ids < case.rows  # padding
    values, ids = values[named, :SOME], ids[named]
    if case.operation == "coalesce":
        return _off(values, g.sums) if np.array_equal(ids, g.distinct) else np.inf
    place = np.searchsorted(g.distinct, ids)
    sums = np.zeros_like(g.sums)
    np.add.at(sums, place, values)
    return _off(sums, g.sums * (g.max_norm / g.norm))


def _off(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    if got.shape != expected.shape:
        return np.inf
    return float(np.max(np.abs(got - expected)) / np.max(np.abs(expected)))


def _pair(B: Backend, result: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(values, indices) of a sparse gradient of any kind, in NumPy."""
    if isinstance(result, list):
        (result,) = result
    if not isinstance(result, IndexedSlices) and B.is_native(result):
        result = islices.from_native(result, validate=False)
    values, ids = (result.values, result.indices) if hasattr(result, "indices") else result  # pyright: ignore[reportGeneralTypeIssues]
    return _numpy(B, values), _numpy(B, ids)


def _numpy(B: Backend, x: Any) -> np.ndarray[Any, Any]:
    return _widened(B.to_numpy(x) if B.is_array(x) else np.asarray(x))


def _widened(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x
