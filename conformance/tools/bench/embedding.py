"""Run the part "embedding": the loss sum(rows * upstream) and its gradient, on a small and on a very large table.

Before the timing, all implementations run on the same data, and their results are compared. An implementation returns
(loss, values, indices).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from islices.backend import Host
from islices.conformance.tools.bench.benchmarks import zipf_ids
from islices.conformance.tools.bench.rounds import Call, Record, blocking, timed
from islices.conformance.tools.bench.variants import block_of, framework_of, index_dtype

TABLE_ROWS = (10**5, 10**8)
IDS, DIM = 16_384, 4


def run(job: Record, emit: Callable[..., None]) -> None:
    name = job["backend"]
    framework, block, rng = framework_of(name), block_of(name), np.random.default_rng(1)
    upstream = rng.standard_normal((IDS, DIM), np.float32)
    drawn = zipf_ids(IDS, TABLE_ROWS[0])
    for rows in TABLE_ROWS:
        # the same frequencies of ids, distributed over the large table
        ids = (drawn * (rows // TABLE_ROWS[0])).astype(index_dtype(name))
        variants = framework.gradient(framework.ones((rows, DIM)), ids, upstream)
        title = f"value_and_grad of sum(lookup(table, ids) * upstream): {IDS:,} Zipf(1.1) ids, rows x {DIM} float32"
        emit(title=title, operation=f"{rows:,} rows", **_measured(f"{name}, {rows} rows", variants, block, job))
        del variants


def _measured(subject: str, given: dict[str, Call], block: Callable[[Any], None], job: Record) -> Record:
    """Check that all implementations have the same results up to rounding, or raise RuntimeError. Then time them."""
    variants = blocking(given, block)
    expected: list[Any] | None = None
    for label, variant in variants.items():
        loss, values, indices = map(_numpy, variant())
        found = [loss, *_summed(values, indices)]
        expected = expected or found
        for got, wanted in zip(found, expected, strict=True):
            scale = max(1.0, float(np.max(np.abs(wanted))))
            if got.shape != wanted.shape or not float(np.max(np.abs(got - wanted))) <= 1e-3 * scale:
                raise RuntimeError(f"{subject}: {label} differs from {next(iter(variants))}")
    own = [label for label in variants if not label.startswith("islices")]
    return timed(job, variants, own)


def _summed(values: Any, indices: Any) -> tuple[Any, Any]:
    """Return (the distinct row numbers of a gradient, the sum of each row's slices). Omit slices of zeros, because
    compiled code fills unused slots with zeros."""
    named = np.any(values != 0, axis=1)
    distinct, place = np.unique(indices[named], return_inverse=True)
    sums = np.zeros((len(distinct), values.shape[1]))
    np.add.at(sums, place.reshape(-1), values[named])
    return distinct, sums


def _numpy(x: Any) -> Host:
    if hasattr(x, "asnumpy"):
        x = x.asnumpy()
    found: Host = np.asarray(x.detach() if hasattr(x, "detach") else x)
    return found
