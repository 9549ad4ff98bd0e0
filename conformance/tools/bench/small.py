"""Run the part "small": calls on 64 x 16 values. Most of the time of these calls is overhead.

The label "outside" means that the IndexedSlices was built before the timing, and "inside" that each call also builds
the IndexedSlices. "native" means that the call gets the framework's sparse object. If the framework has a call for the
same operation, that call is measured as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import islices
from islices import IndexedSlices, get_backend, optim
from islices.conformance.tools.bench.benchmarks import draw_ids
from islices.conformance.tools.bench.rates import RATE
from islices.conformance.tools.bench.rounds import Call, blocking, measure, summary
from islices.conformance.tools.bench.variants import block_of, framework_of, index_dtype

SLICES, DIM, ROWS = 64, 16, 1_000
OPERATIONS = ("coalesce", "clip_by_global_norm", "sgd step")
#: The number of calls that are timed together, and the smallest number of rounds. Times of short calls vary most.
INNER, ROUNDS = 20, 30
MAX_NORM = 1.0


def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    name = job["backend"]
    B, framework = get_backend(name), framework_of(name)
    values = np.random.default_rng(1).standard_normal((SLICES, DIM), np.float32)
    ids = draw_ids("zipf", SLICES, ROWS).astype(index_dtype(name))
    owns = framework.small(values, ids, ROWS, MAX_NORM)
    for operation in OPERATIONS:
        own = owns.get(operation, {})
        variants = _ours(B, framework, operation, values, ids) | own
        if name == "jax":  # the results of other frameworks are complete when the call returns
            variants = blocking(variants, block_of(name))
        times = measure(variants, max(ROUNDS, job["repeat"]), seconds=job["seconds"], inner=INNER)
        title = f"small calls, {SLICES} x {DIM} float32, milliseconds; inside: builds the IndexedSlices"
        emit(title=title, operation=operation, **summary(times, list(own)))


def _ours(B: Any, framework: Any, operation: str, values: Any, ids: Any) -> dict[str, Call]:
    v, i, shape = B.asarray(values), B.asarray(ids), (ROWS, DIM)
    slices = IndexedSlices(v, i, shape)
    gradients: dict[str, Call] = {"inside": lambda: IndexedSlices(v, i, shape), "outside": lambda: slices}
    if B.native_name and not B.native_needs_coalesced:
        native = islices.to_native(slices)
        gradients["native"] = lambda: native
    return {label: _call(framework, operation, gradient) for label, gradient in gradients.items()}


def _call(framework: Any, operation: str, gradient: Call) -> Call:
    if operation == "coalesce":
        return lambda: islices.coalesce(gradient())
    if operation == "clip_by_global_norm":
        return lambda: islices.clip_by_global_norm([gradient()], MAX_NORM)
    optimizer, table = optim.sgd(RATE), framework.zeros((ROWS, DIM))
    held = [table, optimizer.init(table)]

    def step() -> Any:
        held[:] = optimizer.step(held[0], gradient(), held[1], donate=True)
        return held[0]

    return step
