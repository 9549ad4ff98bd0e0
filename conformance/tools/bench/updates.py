"""The parts "updates" and "growth": a step of optimizers beside each framework's own, and the same step while the table
grows.

The gradient comes in as a lookup leaves it, with duplicates. Every way has a table and a state of its own, takes its
first step from the same start, is compared with the formula in float64, and only then timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from islices import IndexedSlices, get_backend, scatter_add
from islices.conformance.memory import peak_growth
from islices.conformance.tools.bench.cases import zipf_ids
from islices.conformance.tools.bench.limit import OPTIMIZERS, Copying, bytes_of_step, moved
from islices.conformance.tools.bench.modes import modes_of, running
from islices.conformance.tools.bench.rounds import Call, blocking, does_less, measure, ratio, summary
from islices.conformance.tools.bench.update_ways import (
    FRAMEWORKS,
    Framework,
    corrections,
    rule,
    shapes,
)

__all__ = ["DIM", "IDS", "ROWS", "growth", "our_step", "run", "scatter_ways"]

ROWS, DIM, IDS = 1_000_000, 64, 65_536
GROWTH_ROWS, GROWTH_DIM, GROWTH_IDS = (10**5, 10**8), 4, 65_536
GROWING = ("sgd", "adagrad", "adam")


# ---------------------------------------------------------------------- islices
def _step(kind: str, rows: int, dim: int) -> Callable[..., Any]:
    def step(table: Any, state: Any, v: Any, i: Any) -> Any:
        gradient = IndexedSlices(v, i, (rows, dim))
        if kind == "scatter_add":
            return scatter_add(table, gradient, donate=True), state
        return OPTIMIZERS[kind].step(table, gradient, state, donate=True)

    return step


def our_step(
    framework: Framework, kind: str, shape: tuple[int, int], v: Any, i: Any, mode: str, block: Callable[[Any], None]
) -> Call:
    """A call that takes islices' step on a table of its own and returns it; mode is one of `modes_of`, or
    "compiled" for the framework's compiler."""
    table = framework.zeros(shape)
    state = {} if kind == "scatter_add" else OPTIMIZERS[kind].init(table)
    if get_backend(table).name in ("numpy", "torch"):  # whose zeros are not given memory before they are written
        for x in state.values():
            x += 0
    block([table, *state.values()])
    step = _step(kind, *shape)
    if mode == "compiled":
        assert framework.compiled is not None
        step = framework.compiled(step, table, state)
    held = [table, state]

    def call() -> Any:
        with running("islices" if mode == "compiled" else mode):
            held[:] = step(*held, v, i)
        return held[0]

    return call


def scatter_ways(
    name: str, modes: list[str], values: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], rows: int
) -> tuple[dict[str, Call], dict[str, Call]]:
    """islices' and the framework's own ways to add slices to a table, each to one of its own, zeros at first."""
    framework, B = FRAMEWORKS[name](), get_backend(name)
    block = importlib.import_module(f"islices.conformance.own_calls.{name}").block
    v, i = B.asarray(values), B.asarray(ids)
    shape = (rows, values.shape[1])
    ours = {mode: our_step(framework, "scatter_add", shape, v, i, mode, block) for mode in modes}
    return ours, {label: ready() for label, ready in framework.own("scatter_add", values, ids, rows).items()}


# ---------------------------------------------------------------------- the part "updates"
def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure a step of every optimizer."""
    name = job["backend"]
    framework, block = FRAMEWORKS[name](), importlib.import_module(f"islices.conformance.own_calls.{name}").block
    B, copying = get_backend(name), Copying(job["threads"])
    modes = [*modes_of(B), *([] if framework.compiled is None else ["compiled"])]
    values = np.random.default_rng(1).standard_normal((IDS, DIM), np.float32)
    ids = zipf_ids(IDS, ROWS).astype(np.int32 if name == "jax" else np.int64)
    v, i, distinct = B.asarray(values), B.asarray(ids), np.unique(ids)
    for kind in job["optimizers"]:
        expected = _expected(kind, values, ids)
        ours = {mode: our_step(framework, kind, (ROWS, DIM), v, i, mode, block) for mode in modes}
        own = {label: ready() for label, ready in framework.own(kind, values, ids, ROWS).items()}
        ways = blocking(ours | own, block)
        for label, way in ways.items():
            result = B.to_numpy(B.read_rows(way(), B.asarray(distinct)))
            if not does_less(label.removesuffix(" (of a gradient coalesced before)")):  # which changes no result
                _check(f"{name} {kind}, {label}", result, expected)

        def rounds(ways: dict[str, Call] = ways) -> Any:
            return measure(ways, job["repeat"], seconds=job["seconds"])  # slow ones too: people use them

        nbytes = bytes_of_step(kind, IDS, len(distinct), DIM, ids.itemsize)
        times, limit = copying.limit(nbytes, rounds)
        found = summary(times, modes, list(own))
        over = {mode: found["milliseconds"][mode] / limit["milliseconds"] for mode in modes}
        size = {"rows": ROWS, "dim": DIM, "slices": IDS, "distinct": len(distinct)}
        emit(operation=kind, size=size, limit=limit, over_limit=over, **found)
        del ways, ours, own, rounds


# ---------------------------------------------------------------------- the part "growth"
def growth(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure the steps on a small and a very large table, round by round."""
    name, repeat = job["backend"], job["repeat"]
    framework, block = FRAMEWORKS[name](), importlib.import_module(f"islices.conformance.own_calls.{name}").block
    B, (small, large) = get_backend(name), GROWTH_ROWS
    values = np.random.default_rng(1).standard_normal((GROWTH_IDS, GROWTH_DIM), np.float32)
    drawn = zipf_ids(GROWTH_IDS, small).astype(np.int32 if name == "jax" else np.int64)
    v, size = B.asarray(values), {"rows": GROWTH_ROWS, "dim": GROWTH_DIM, "slices": GROWTH_IDS}

    def timed(kind: str, mode: str, ways: dict[str, Call], **found: Any) -> None:
        times = measure(ways, repeat)
        ratios = {str(large): ratio(times[str(large)], times[str(small)])}
        milliseconds = {label: median(t) for label, t in times.items()}
        emit(operation=kind, mode=mode, **found, ratios=ratios, milliseconds=milliseconds, size=size)

    for kind in GROWING:
        expected = _expected(kind, values, drawn)
        for mode in ("islices", *([] if framework.compiled is None else ["compiled"])):
            ways: dict[str, Call] = {}
            peaks: dict[int, float] = {}
            for rows in GROWTH_ROWS:  # the small one first: it loads the code, so that the peak is the step's own
                ids = drawn * (rows // small)  # the same rows' frequencies, spread over the table
                way = our_step(framework, kind, (rows, GROWTH_DIM), v, B.asarray(ids), mode, block)
                ways |= blocking({str(rows): way}, block)
                table, grown = peak_growth(ways[str(rows)])
                peaks[rows] = max(grown, 0) / 2**20  # the operating system counts roughly
                found = B.to_numpy(B.read_rows(table, B.asarray(np.unique(ids))))
                _check(f"{name} {kind}, {rows} rows, {mode}", found, expected)
                del table, way
            timed(kind, mode, ways, peaks=peaks)
            del ways
        if B.host_only:  # what of this is the memory's: the same rows read and written, and nothing computed
            bare = {str(rows): _rows_alone(kind, rows, drawn * (rows // small)) for rows in GROWTH_ROWS}
            timed(kind, "x[ids] = x[ids] alone", bare)
            del bare


def _rows_alone(kind: str, rows: int, ids: np.ndarray[Any, Any]) -> Call:
    arrays = [np.full((rows, GROWTH_DIM), 0.0, np.float32) for _ in range(moved(kind)[0])]
    distinct = np.unique(ids)

    def call() -> None:
        for x in arrays:
            x[distinct] = x[distinct]

    return call


def _expected(kind: str, values: Any, ids: Any) -> np.ndarray[Any, Any]:
    """The rows that change, after one step from zeros, in float64."""
    distinct, place = np.unique(ids, return_inverse=True)
    g = np.zeros((len(distinct), values.shape[1]))
    np.add.at(g, place.reshape(-1), values)
    if kind == "scatter_add":
        return g
    zeros = [np.zeros(shape) for shape in shapes(kind, *g.shape)]
    new = rule(kind, np.sqrt, lambda x: x.mean(1, keepdims=True), g, *zeros, *corrections(kind, 1))
    found: np.ndarray[Any, Any] = new[0]
    return found


def _check(what: str, got: Any, expected: Any) -> None:
    # where a sum all but vanishes, what eps does to it depends on where eps stands: one in a thousand may be off
    error = float(np.quantile(np.abs(got - expected), 0.999)) / float(np.max(np.abs(expected)))
    if not error <= 1e-3:
        raise RuntimeError(f"{what}: off by {error:.2g} of the largest, expected at most 0.001")
