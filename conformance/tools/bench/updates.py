"""Run the part "updates": steps of islices' optimizers and of torch's optimizers, and steps written by hand.

The gradient has duplicates, as after a lookup of repeated ids. Every implementation has a separate table and state with
the same initial values. Before the timing, the bench compares the result of the first step with the formula in float64.
Calls whose label says that they do less are not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from islices import IndexedSlices, get_backend
from islices.backend import Host
from islices.conformance.tools.bench.benchmarks import zipf_ids
from islices.conformance.tools.bench.limit import Copying
from islices.conformance.tools.bench.rates import OPTIMIZERS, bytes_of_rows, corrections, rule, shapes
from islices.conformance.tools.bench.rounds import blocking, does_less, timed
from islices.conformance.tools.bench.variants import Way, block_of, framework_of, index_dtype, our_variant

ROWS, DIM, IDS = 1_000_000, 64, 65_536


def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    name = job["backend"]
    framework, block, B, copying = framework_of(name), block_of(name), get_backend(name), Copying(job["threads"])
    values = np.random.default_rng(1).standard_normal((IDS, DIM), np.float32)
    ids = zipf_ids(IDS, ROWS).astype(index_dtype(name))
    v, i, distinct = B.asarray(values), B.asarray(ids), np.unique(ids)
    title = (
        f"a step, uncoalesced gradient in: {IDS:,} Zipf(1.1) ids ({len(distinct):,} distinct) over {ROWS:,} x {DIM} "
        "float32, milliseconds"
    )
    for kind in job["optimizers"]:
        ours = {"islices": _ours(framework, kind, v, i)}
        if name in ("tensorflow", "jax"):
            ours["compiled"] = _ours(framework, kind, v, i, framework.compiled)
        own = {label: ready() for label, ready in framework.updates(kind, values, ids, ROWS).items()}
        expected = _expected(kind, values, ids)
        variants = blocking({k: x.timed for k, x in (ours | own).items()}, block)
        for label, variant in variants.items():
            result = B.to_numpy(B.read_rows(variant()[1][0], B.asarray(distinct)))
            if not does_less(label):
                _check(f"{name} {kind}, {label}", result, expected)
        nbytes = IDS * (4 * DIM + ids.itemsize) + sum(bytes_of_rows(kind, len(distinct), DIM).values())
        # slow calls are measured as well, because people use them
        found = copying.beside(nbytes, partial(timed, job, variants, own))
        emit(title=title, operation=kind, **found)
        del variants, ours, own, found


def _ours(framework: Any, kind: str, v: Any, i: Any, compiled: Any = None) -> Way:
    """Return an implementation of islices' step on a new table."""
    table = framework.zeros((ROWS, DIM))
    state = OPTIMIZERS[kind].init(table)
    if get_backend(table).name in ("numpy", "torch"):  # zeros of these frameworks get memory only when they are written
        for x in state.values():
            x += 0

    def step(table: Any, state: Any, v: Any, i: Any) -> Any:
        return *OPTIMIZERS[kind].step(table, IndexedSlices(v, i, (ROWS, DIM)), state, donate=True), None

    return our_variant(compiled(step, table, state) if compiled else step, table, state, repeat((v, i)))


def _expected(kind: str, values: Any, ids: Any) -> Host:
    """Return the changed rows of a table of zeros after one step, computed in float64."""
    distinct, place = np.unique(ids, return_inverse=True)
    g = np.zeros((len(distinct), DIM))
    np.add.at(g, place.reshape(-1), values)
    state = [np.zeros(shape) for shape in shapes(kind, *g.shape)]
    new = rule(kind, np.sqrt, lambda x: x.mean(1, keepdims=True), g, np.zeros_like(g), *state, *corrections(kind, 1))
    found: Host = new[0]
    return found


def _check(subject: str, got: Any, expected: Any) -> None:
    # if a sum nearly cancels, the effect of eps depends on its place in the formula, so one element in a thousand may
    # differ
    error = float(np.quantile(np.abs(got - expected), 0.999)) / float(np.max(np.abs(expected)))
    if not error <= 1e-3:
        raise RuntimeError(f"{subject}: off by {error:.2g} of the largest, expected at most 0.001")
