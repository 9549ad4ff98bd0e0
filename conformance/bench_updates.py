"""The bench's tables of row updates: `scatter_add` and a step of optimizers beside each framework's own, and the same
step while the table grows.

The gradient comes in as a lookup leaves it, with duplicates. Every way has a table and a state of its own, takes its
first step from the same start, is compared with the formula in float64, and only then timed. For each framework a
function says what its users write without islices. Each framework runs in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from islices import IndexedSlices, execution, get_backend, optim, scatter_add
from islices.conformance.bench_rounds import blocking, emit, figures, markdown, measure, ratio, zipf_ids
from islices.conformance.bench_update_ways import (
    BETA1,
    BETA2,
    FRAMEWORKS,
    RATE,
    Call,
    Framework,
    corrections,
    rule,
    shapes,
)
from islices.conformance.memory import peak_growth

__all__ = ["FRAMEWORKS", "growth_table", "steps_table"]

#: (rows, elements of a row, ids): work, and a small step, which is overhead
SIZES = ((1_000_000, 64, 65_536), (1_000, 16, 64))
GROWTH_ROWS, GROWTH_DIM, GROWTH_IDS = (10**5, 10**8), 4, 65_536
GROWING = ("sgd", "adagrad", "adam")

OPTIMIZERS: dict[str, Any] = {
    "sgd": optim.sgd(RATE),
    "adagrad": optim.adagrad(RATE, eps=1e-10),
    "adam": optim.adam(RATE, beta1=BETA1, beta2=BETA2, eps=1e-8),
    "rowwise_adagrad": optim.rowwise_adagrad(RATE, eps=1e-8),
}
OPERATIONS = ("scatter_add", *OPTIMIZERS)
#: Arrays of the table's shape that a step reads and writes, and columns of one number a row.
MOVED = {"scatter_add": (1, 0), "sgd": (1, 0), "adagrad": (2, 0), "adam": (3, 0), "rowwise_adagrad": (1, 1)}


# ---------------------------------------------------------------------- islices
def _step(kind: str, rows: int, dim: int) -> Callable[..., Any]:
    def step(table: Any, state: Any, v: Any, i: Any) -> Any:
        gradient = IndexedSlices(v, i, (rows, dim))
        if kind == "scatter_add":
            return scatter_add(table, gradient, donate=True), state
        return OPTIMIZERS[kind].step(table, gradient, state, donate=True)

    return step


def _ours(
    framework: Framework, kind: str, shape: tuple[int, int], v: Any, i: Any, mode: str, block: Callable[[Any], None]
) -> Call:
    """A call that takes islices' step on a table of its own and returns it; mode "compiled" stands for the
    framework's compiler."""
    table = framework.zeros(shape)
    state = {} if kind == "scatter_add" else OPTIMIZERS[kind].init(table)
    if get_backend(table).name in ("numpy", "torch"):  # whose zeros are not given memory before they are written
        for x in state.values():
            x[...] = 0
    block([table, *state.values()])
    step = _step(kind, *shape)
    if mode == "compiled":
        assert framework.compiled is not None
        step = framework.compiled(step, table, state)
    held = [table, state]

    def call() -> Any:
        with execution("native" if mode == "native" else "host"):
            held[:] = step(*held, v, i)
        return held[0]

    return call


# ---------------------------------------------------------------------- measuring
def steps(name: str, repeat: int) -> None:
    """Measure every operation at every size and write a JSON line for each."""
    framework, block = FRAMEWORKS[name](), importlib.import_module(f"islices.conformance.native.{name}").block
    B = get_backend(name)
    modes = ["host", *([] if B.host_only else ["native"]), *([] if framework.compiled is None else ["compiled"])]
    for rows, dim, count in SIZES:
        values = np.random.default_rng(1).standard_normal((count, dim), np.float32)
        ids = zipf_ids(count, rows).astype(np.int32 if name == "jax" else np.int64)
        v, i = B.asarray(values), B.asarray(ids)
        for kind in OPERATIONS:
            expected = _expected(kind, values, ids)
            ways = {mode: _ours(framework, kind, (rows, dim), v, i, mode, block) for mode in modes}
            own = {label: ready() for label, ready in framework.own(kind, values, ids, rows).items()}
            ways = blocking(ways | own, block)
            for label, way in ways.items():
                found = B.to_numpy(B.read_rows(way(), B.asarray(np.unique(ids))))
                if not _does_less(label):
                    _check(f"{name} {kind}, {label}", found, expected)
            ways["floor"] = _floor(kind, len(np.unique(ids)), dim, count)
            # short calls vary most, and cost little
            times = measure(ways, repeat if count > 1000 else 20 * repeat)
            labels = sorted(own, key=lambda label: median(times[label]))
            same = [label for label in labels if not _does_less(label)]
            ratios = {label: {mode: ratio(times[mode], times[label]) for mode in modes} for label in labels}
            # the fastest, and if that is another step (its label says so), the fastest that is the same
            fastest, size = list(dict.fromkeys(labels[:1] + same[:1])), (rows, dim, count, len(np.unique(ids)))
            emit(name, times, table="steps", operation=kind, size=size, own=fastest, ratios=ratios)
            del ways, own


def growth(name: str, repeat: int) -> None:
    """Measure the steps on a small and a very large table, round by round, and write a JSON line for each."""
    framework, block = FRAMEWORKS[name](), importlib.import_module(f"islices.conformance.native.{name}").block
    B, (small, large) = get_backend(name), GROWTH_ROWS
    values = np.random.default_rng(1).standard_normal((GROWTH_IDS, GROWTH_DIM), np.float32)
    drawn = zipf_ids(GROWTH_IDS, small).astype(np.int32 if name == "jax" else np.int64)
    v = B.asarray(values)
    for kind in GROWING:
        expected = _expected(kind, values, drawn)
        for mode in ("host", *([] if framework.compiled is None else ["compiled"])):
            ways: dict[str, Call] = {}
            peaks: dict[int, float] = {}
            for rows in GROWTH_ROWS:  # the small one first: it loads the code, so that the peak is the step's own
                ids = drawn * (rows // small)  # the same rows' frequencies, spread over the table
                way = _ours(framework, kind, (rows, GROWTH_DIM), v, B.asarray(ids), mode, block)
                ways |= blocking({str(rows): way}, block)
                table, grown = peak_growth(ways[str(rows)])
                peaks[rows] = max(grown, 0) / 2**20  # the kernel counts roughly
                found = B.to_numpy(B.read_rows(table, B.asarray(np.unique(ids))))
                _check(f"{name} {kind}, {rows} rows, {mode}", found, expected)
                del table, way
            times = measure(ways, repeat)
            ratios = {str(large): ratio(times[str(large)], times[str(small)])}
            emit(name, times, table="growth", operation=kind, mode=mode, peaks=peaks, ratios=ratios)
            del ways
        if B.host_only:  # what of this is the memory's: the same rows read and written, and nothing computed
            bare = {str(rows): _rows_alone(kind, rows, drawn * (rows // small)) for rows in GROWTH_ROWS}
            times = measure(bare, repeat)
            ratios = {str(large): ratio(times[str(large)], times[str(small)])}
            emit(name, times, table="growth", operation=kind, mode="x[ids] = x[ids] alone", ratios=ratios)
            del bare


def _rows_alone(kind: str, rows: int, ids: np.ndarray[Any, Any]) -> Call:
    arrays = [np.full((rows, GROWTH_DIM), 0.0, np.float32) for _ in range(MOVED[kind][0])]
    distinct = np.unique(ids)

    def call() -> None:
        for x in arrays:
            x[distinct] = x[distinct]

    return call


def _does_less(label: str) -> bool:
    return " (" in label


def _expected(kind: str, values: Any, ids: Any) -> np.ndarray[Any, Any]:
    """The rows that change, after one step from zeros, in float64."""
    distinct, place = np.unique(ids, return_inverse=True)
    g = np.zeros((len(distinct), values.shape[1]))
    np.add.at(g, place.reshape(-1), values)
    if kind == "scatter_add":
        return g
    state = [np.zeros(shape) for shape in shapes(kind, *g.shape)]
    new = rule(kind, np.sqrt, lambda x: x.mean(1, keepdims=True), g, np.zeros_like(g), *state, *corrections(kind, 1))
    found: np.ndarray[Any, Any] = new[0]
    return found


def _check(what: str, got: Any, expected: Any) -> None:
    # where a sum all but vanishes, what eps does to it depends on where eps stands: one in a thousand may be off
    error = float(np.quantile(np.abs(got - expected), 0.999)) / float(np.max(np.abs(expected)))
    if not error <= 1e-3:
        raise RuntimeError(f"{what}: off by {error:.2g} of the largest, expected at most 0.001")


def _floor(kind: str, distinct: int, dim: int, count: int) -> Call:
    """A copy that moves as many bytes as a step must: the gradient read, the rows of table and state read and
    written."""
    wide, narrow = MOVED[kind]
    source = np.ones(distinct * (wide * dim + narrow) + count * dim // 2, np.float32)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source)


# ---------------------------------------------------------------------- the tables
def steps_table(records: list[dict[str, Any]]) -> list[str]:
    """Every operation beside each framework's own, as Markdown: a table for each size."""
    heads = ("backend", "operation", "host ms", "native ms", "compiled ms", "floor ms", "fastest own call", "own ms",
             "host / own", "native / own", "compiled / own")  # fmt: skip
    modes, lines = ("host", "native", "compiled"), []
    records = [r for r in records if r["table"] == "steps"]
    for size in dict.fromkeys(tuple(r["size"]) for r in records):
        cells = []
        for record in (r for r in records if tuple(r["size"]) == size):
            times = record["milliseconds"]
            head = [f"{record['backend']} {record['version']}", record["operation"]]
            head += [figures(times.get(label)) for label in (*modes, "floor")]
            for own in record["own"]:
                ratios = record["ratios"][own]
                ends = [f"{ratios[mode]:.2f}" if mode in ratios else "-" for mode in modes]
                cells.append([*head, own, figures(times[own]), *ends])
                head = [""] * len(head)  # a second line for the same measurement
        rows, dim, count, distinct = size
        title = f"updates: {rows:,} x {dim} float32, {count:,} Zipf(1.1) ids ({distinct:,} distinct), not coalesced"
        lines += ["", title, "", *markdown(heads, cells, {2, 3, 4, 5, 7, 8, 9, 10})]
    return lines


def growth_table(records: list[dict[str, Any]]) -> list[str]:
    """The step on a small and a large table, as Markdown."""
    small, large = map(str, GROWTH_ROWS)
    heads = ["backend", "optimizer", "way"]
    heads += [f"{rows:,} rows {unit}" for rows in GROWTH_ROWS for unit in ("ms", "peak MiB")] + ["large / small"]
    cells, distinct = [], len(np.unique(zipf_ids(GROWTH_IDS, GROWTH_ROWS[0])))
    for record in (r for r in records if r["table"] == "growth"):
        times, peaks = record["milliseconds"], record.get("peaks", {})
        numbers = [figures(x) for rows in (small, large) for x in (times[rows], peaks.get(rows))]
        head = [f"{record['backend']} {record['version']}", record["operation"], record["mode"]]
        cells.append([*head, *numbers, f"{record['ratios'][large]:.2f}"])
    title = (
        f"updates while the table grows: {GROWTH_IDS:,} Zipf(1.1) ids ({distinct:,} distinct), rows x {GROWTH_DIM} "
        "float32; peak: growth of resident memory in the first call on that table"
    )
    return ["", title, "", *markdown(heads, cells, {3, 4, 5, 6, 7})] if cells else []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One process of the bench; see islices.conformance.bench.")
    parser.add_argument("--worker", choices=FRAMEWORKS, required=True)
    parser.add_argument("--growth", action="store_true", help="a small and a large table; else beside own calls")
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args()
    (growth if given.growth else steps)(given.worker, given.repeat)
    os._exit(0)  # not by way of the interpreter's end, where MXNet's threads sometimes abort the process
