"""The parts "gradient" and "samples": one gradient step while the table grows, and the gradients of single samples.

Each size of table runs in a process of its own. All ways are first run on the same data and compared, and only then
timed. What a framework's users write stands in `islices.conformance.tools.bench.embedding_ways`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from islices import get_backend
from islices.conformance.memory import peak_growth
from islices.conformance.tools.bench.cases import zipf_ids
from islices.conformance.tools.bench.embedding_ways import STEPS, Steps
from islices.conformance.tools.bench.rounds import blocking, measure, ratio

__all__ = ["gradient", "samples"]

SMALLEST = 10**5
IDS, DIM = 16_384, 4
DENSE_ROWS = 10**7  # the dense gradient of a larger table is not measured
BATCH, PER_SAMPLE_IDS, SAMPLES_ROWS, SAMPLES_DIM, OUT = 64, 50, 200_000, 32, 8


# ---------------------------------------------------------------------- the gradient step
def gradient(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure the step on one size of table."""
    name, rows, repeat = job["backend"], job["rows"], job["repeat"]
    steps, block = STEPS[name](), importlib.import_module(f"islices.conformance.own_calls.{name}").block
    upstream = np.random.default_rng(1).standard_normal((IDS, DIM), np.float32)
    drawn = zipf_ids(IDS, SMALLEST)
    ids = drawn * (rows // SMALLEST)  # the same rows' frequencies, spread over the table
    # code is loaded by a small table, so that the peak is the step's own
    for warming in steps.gradient(steps.table(SMALLEST // 10, DIM), drawn // 10, upstream).values():
        ways = blocking(warming, block)
        for way in ways.values():
            way()
    table = steps.table(rows, DIM)
    block(table)
    variants = {key: blocking(ways, block) for key, ways in steps.gradient(table, ids, upstream).items()}
    peaks: dict[str, dict[str, float]] = {}
    for variant, ways in variants.items():
        if rows > DENSE_ROWS:
            del ways["dense"]
        peaks[variant] = {}
        for label, way in ways.items():
            result, grown = peak_growth(way)
            peaks[variant][label] = max(grown, 0) / 2**20  # the operating system counts roughly
            _check_gradient(f"{name} {variant}, {rows} rows, {label}", result, ids, upstream)
            del result
    # not before: while a view of it is held, TensorFlow copies a Variable at its first gather
    floor = _floor(name, table, ids, upstream)
    for variant, ways in variants.items():
        dense = {label: ways.pop(label) for label in ("dense",) if label in ways}
        times = measure(ways | floor, repeat)
        if dense:  # apart: it sweeps the caches, and the way after it would pay for that
            times |= measure(dense, 3)
        emit(rows=rows, variant=variant, peaks=peaks[variant], **_found(times, ids=IDS, dim=DIM))


def _floor(name: str, table: Any, ids: Any, upstream: Any) -> dict[str, Callable[[], Any]]:
    view = get_backend(name).host_view(table)
    if view is None:
        return {}
    rows, copy = np.empty_like(upstream), np.empty_like(upstream)

    def call() -> None:  # what any way must do: read the rows, write their gradient
        np.take(view, ids, axis=0, out=rows, mode="clip")
        np.copyto(copy, upstream)

    return {"floor": call}


def _check_gradient(what: str, result: Any, ids: Any, upstream: Any) -> None:
    value, *found = result
    distinct, place = np.unique(ids, return_inverse=True)
    expected = np.zeros((len(distinct), DIM))
    np.add.at(expected, place.reshape(-1), upstream)
    if len(found) == 1 and _is_dense(found[0]):
        got = _numpy(found[0])[distinct]
    else:
        got = _sums(*_parts(found), distinct, what)
    # the table is ones: the loss is the sum of upstream, in float32
    _compare(f"{what}: loss", _numpy(value).reshape(()), upstream.sum(dtype=np.float64), 0.05)
    _compare(f"{what}: gradient", got, expected, 1e-3)


def _is_dense(x: Any) -> bool:
    if hasattr(x, "stype"):  # MXNet
        return bool(x.stype == "default")
    return not (x.is_sparse if hasattr(x, "is_sparse") else hasattr(x, "indices"))


def _parts(found: list[Any]) -> tuple[Any, Any]:
    """(values, indices) of a sparse gradient, in NumPy."""
    if len(found) == 2:
        return _numpy(found[0]), _numpy(found[1])
    x = found[0]
    if hasattr(x, "_indices"):  # torch, perhaps uncoalesced
        return _numpy(x._values()), _numpy(x._indices()[0])
    return _numpy(x.data if hasattr(x, "stype") else x.values), _numpy(x.indices)


def _sums(values: Any, indices: Any, distinct: Any, what: str) -> np.ndarray[Any, Any]:
    place = np.searchsorted(distinct, indices).clip(max=len(distinct) - 1)
    known = distinct[place] == indices
    if np.any(values[~known] != 0):  # a compiled way's empty slots are zeros
        raise RuntimeError(f"{what}: a gradient at a row that was not looked up")
    sums = np.zeros((len(distinct), values.shape[-1]))
    np.add.at(sums, place[known], values[known])
    return sums


# ---------------------------------------------------------------------- per sample
def samples(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure norms and the clipped sum of a batch."""
    name = job["backend"]
    steps: Steps = STEPS[name]()
    block = importlib.import_module(f"islices.conformance.own_calls.{name}").block
    rng = np.random.default_rng(2)
    head = rng.standard_normal((SAMPLES_DIM, OUT), np.float32)
    targets = 3 * rng.standard_normal((BATCH, OUT), np.float32)
    ids = zipf_ids(BATCH * PER_SAMPLE_IDS, SAMPLES_ROWS).reshape(BATCH, PER_SAMPLE_IDS)
    max_norm = float(np.median(_sample_norms(head, ids, targets, with_head=name != "mxnet")))
    table = steps.table(SAMPLES_ROWS, SAMPLES_DIM)
    distinct = np.unique(ids)
    expected = None
    for variant, own in steps.samples(table, head, ids, targets, max_norm).items():
        ways = blocking(own, block)
        for label, way in ways.items():
            norms, values, indices, dense = (None if x is None else _numpy(x) for x in way())
            what = f"{name} {variant}, per sample, {label}"
            _compare(f"{what}: norms", norms, _sample_norms(head, ids, targets, with_head=dense is not None), 1e-3)
            got = _sums(values, indices, distinct, what)
            expected = (got, dense) if expected is None else expected
            _compare(f"{what}: clipped sum", got, expected[0], 1e-3)
            if dense is not None:
                _compare(f"{what}: clipped sum of the head", dense, expected[1], 1e-3)
        size = {"batch": BATCH, "ids": PER_SAMPLE_IDS, "rows": SAMPLES_ROWS, "dim": SAMPLES_DIM, "out": OUT}
        emit(variant=variant, **_found(measure(ways, job["repeat"]), **size))


def _sample_norms(head: Any, ids: Any, targets: Any, *, with_head: bool) -> np.ndarray[Any, Any]:
    """The norms by hand, in float64: the table is ones, so every sample's mean of rows is."""
    error = 2 * (head.sum(0, dtype=np.float64) - targets)
    row = error @ head.T.astype(np.float64) / PER_SAMPLE_IDS  # the gradient of each of the looked-up rows
    repeats = np.array([(np.unique(x, return_counts=True)[1] ** 2).sum() for x in ids])
    squares = repeats * (row**2).sum(1)
    return np.sqrt(squares + (SAMPLES_DIM * (error**2).sum(1) if with_head else 0))  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- both
def _numpy(x: Any) -> np.ndarray[Any, Any]:
    if hasattr(x, "asnumpy"):
        x = x.asnumpy()
    found: np.ndarray[Any, Any] = np.asarray(x.detach() if hasattr(x, "detach") else x)
    return found


def _compare(what: str, got: Any, expected: Any, tolerance: float) -> None:
    error = float(np.max(np.abs(got - expected))) / max(1.0, float(np.max(np.abs(expected))))
    if not error <= tolerance:
        raise RuntimeError(f"{what}: off by {error:.2g} of the largest, expected at most {tolerance}")


def _found(times: dict[str, list[float]], **size: int) -> dict[str, Any]:
    own = times["islices"]
    ratios = {label: ratio(own, t) for label, t in times.items() if len(t) == len(own)}
    return {"milliseconds": {label: median(t) for label, t in times.items()}, "ratios": ratios, "size": size}
