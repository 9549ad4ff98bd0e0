"""Every part of `islices bench` on every backend, with small sizes, as `make test` runs it.

The part "step" is tested in test_bench_steps.py, "keras" in test_bench_keras.py, "operations" in test_bench.py.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

import islices
from islices.conformance.tools.bench import embedding, memory, small, updates
from islices.conformance.tools.bench.worker import PARTS

SIZES = [
    (updates, {"ROWS": 2_000, "DIM": 4, "IDS": 256}),
    (updates, {"GROWTH_ROWS": (1_000, 10_000), "GROWTH_IDS": 256}),
    (embedding, {"SMALLEST": 1_000, "IDS": 256, "BATCH": 4, "PER_SAMPLE_IDS": 5, "SAMPLES_ROWS": 200}),
    (memory, {"ROWS": 2_000, "IDS": 256, "SLICES": 512, "TRIES": 1}),
    (small, {"INNER": 1, "ROUNDS": 2}),
]
#: One with a state and one without; each costs JAX several compilations.
OPTIMIZERS = ("sgd", "adam")
#: part -> the least number of records of a run
RECORDS = {"small": 3, "updates": len(OPTIMIZERS), "memory": 3, "growth": 3, "gradient": 1, "samples": 1}
RUNS = [
    (name, part)
    for name in islices.list_backends()
    for part in RECORDS
    if part not in ("gradient", "samples") or name in embedding.STEPS  # NumPy records no gradients
]


@pytest.mark.parametrize(("name", "part"), RUNS)
def test_every_part_runs(name: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, sizes in SIZES:
        for constant, size in sizes.items():
            monkeypatch.setattr(module, constant, size)
    job = {"part": part, "backend": name, "threads": 1, "repeat": 1, "seconds": 0, "rows": 1_000}
    module_name, _, function = PARTS[part].partition(":")
    run = getattr(importlib.import_module(f"islices.conformance.tools.bench.{module_name}"), function)
    records: list[dict[str, Any]] = []
    run(job | {"optimizers": OPTIMIZERS}, lambda **found: records.append(json.loads(json.dumps(found))))
    assert len(records) >= RECORDS[part]
    for record in records:
        assert not any(key in record for key in ("error", "skipped")), record
