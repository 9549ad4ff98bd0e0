"""Test `islices bench` in small real runs. Test the errors, the order of the measurements, and the check that
implementations agree."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from islices.conformance.tools.bench import embedding, report, rounds, small, step, updates
from islices.conformance.tools.bench.benchmarks import AXES, Benchmark
from islices.conformance.tools.bench.step import Model, Training
from islices.conformance.tools.bench.variants import Way

TINY = ("--slices", "64", "--slices", "128", "--dim", "4", "--repeat", "2", "--seconds", "0")


def bench(*arguments: str, code: int = 0, path: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "islices", "bench", *arguments]
    environment = os.environ | ({"PYTHONPATH": os.pathsep.join([path, *sys.path])} if path else {})
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=300, env=environment)
    assert done.returncode == code, f"exit {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


# ---------------------------------------------------------------------- real runs
@pytest.mark.outside
def test_a_run_as_json_and_as_tables(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = bench("--part", "operations", "--part", "small", "-b", "numpy", *TINY, "--json", str(path))
    run = json.loads(path.read_text())
    assert run.keys() == {"form", "date", "islices", "machine", "threads", "versions", "seconds", "failures", "records"}
    assert (run["versions"].keys(), run["failures"]) == ({"numpy"}, [])
    measured = [r for r in run["records"] if r["part"] == "operations"]
    assert [(r["title"].split(",")[0], r["operation"]) for r in measured] == [
        (operation, f"{n} x 4 zipf") for operation in AXES["operation"] for n in (64, 128)
    ]
    for record in measured:
        assert record["milliseconds"].keys() == record["times_as_fast"].keys() == record["quartiles"].keys()
        assert record["times_as_fast"][record["own"][0]] == 1
        assert not record["remarks"], record
    lines = done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    for operation in AXES["operation"]:
        start = lines.index(f"{operation}, milliseconds") + 2
        assert lines[start].startswith("| backend"), done.stdout
        assert len(set(map(len, lines[start : start + 6]))) == 1, "columns are aligned"
    assert bench("--read", str(path)).stdout == done.stdout, "an earlier run shows as it did"


@pytest.mark.outside
def test_a_process_that_fails_is_a_harness_error(tmp_path: Path) -> None:
    """Check that `islices bench` measures one framework if the other cannot be imported, and then exits with 3."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise ImportError('jaxlib is missing')\n")
    names = ("-b", "jax", "-b", "numpy", "--part", "operations", "--operation", "norm")
    done = bench(*names, *TINY, code=3, path=str(tmp_path))
    assert "could not measure jax operations" in done.stderr
    assert "jaxlib is missing" in done.stderr
    assert "| numpy" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-b", "abacus"], "'abacus', which is not installed"),
        (["--read", os.devnull], "Expecting value"),
    ],
)
def test_usage_errors(arguments: list[str], words: str) -> None:
    assert words in bench(*arguments, code=2).stderr


# ---------------------------------------------------------------------- every part on every backend, with small sizes
SIZES = [
    (updates, {"ROWS": 2_000, "DIM": 4, "IDS": 256}),
    (embedding, {"TABLE_ROWS": (1_000, 10_000), "IDS": 256}),
    (small, {"INNER": 1, "ROUNDS": 2}),
]
SMALL = Model((1_000,), 8, 64, 4)
#: part -> further fields of its job
JOBS: dict[str, dict[str, Any]] = {
    "operations": {"cases": [Benchmark(x, 64, 4) for x in AXES["operation"]]},
    "small": {},
    "updates": {"optimizers": ["sgd", "adam"]},
    "embedding": {},
    "step": {"case": Training(SMALL, "adam", True)},
}
RECORDS = {"operations": 4, "small": 3, "updates": 2, "embedding": 2, "step": 1}
RUNS = [
    pytest.param(
        name,
        part,
        JOBS[part],
        marks=[] if (name, part) in (("torch", "updates"), ("torch", "embedding")) else [pytest.mark.soak],
    )
    for name in ("numpy", "torch", "tensorflow", "jax")
    for part in JOBS
    if name != "numpy" or part not in ("embedding", "step")
]


@pytest.mark.parametrize(("name", "part", "job"), RUNS, ids=lambda x: x if isinstance(x, str) else "")
def test_every_part_runs(name: str, part: str, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name)
    for module, sizes in SIZES:
        for constant, size in sizes.items():
            monkeypatch.setattr(module, constant, size)
    run = importlib.import_module(f"islices.conformance.tools.bench.{part}").run
    records: list[dict[str, Any]] = []
    given = json.loads(json.dumps(job | {"backend": name, "threads": 1, "repeat": 2, "seconds": 0}))
    run(given, lambda **found: records.append(json.loads(json.dumps(found))))
    assert len(records) == RECORDS[part]
    for record in records:
        assert not any(key in record for key in ("error", "skipped")), record
        assert any(label.startswith(("islices", "outside")) for label in record["milliseconds"])
        assert record["own"] or part == "small", "a way of the framework's own"
        table = next(report.measured({"records": [record | {"backend": name, "version": "1"}]}))
        assert {row[2] for row in table.rows} >= record["milliseconds"].keys()


# ---------------------------------------------------------------------- arithmetic


def test_rounds_interleave() -> None:
    calls: list[str] = []
    times = rounds.measure({"ours": lambda: calls.append("o"), "own": lambda: calls.append("w")}, 4)
    assert {name: len(t) for name, t in times.items()} == {"ours": 4, "own": 4}
    assert "".join(calls[-8:]) == "owwoowwo", "each round starts with the next"
    times = {"a": [2.0, 4.0], "b (rows unsorted)": [1.0, 1.0], "islices": [1.0, 4.0]}
    found = rounds.summary(times, ["a", "b (rows unsorted)"])
    assert found["own"] == ["a", "b (rows unsorted)"]
    assert found["times_as_fast"] == {"a": 1, "b (rows unsorted)": 3, "islices": 1.5}


# ---------------------------------------------------------------------- whole steps


LOSSES = [4.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("other", "losses", "table", "words"),
    [
        ("by hand", LOSSES, 1.0, ""),
        ("by hand", [4.0, 3.0, 2.0, 1.01], 0.0, "by hand: losses"),
        ("Adam (all rows move)", [4.0, 9.0, 9.0, 9.0], 0.0, ""),
        ("islices, compiled", LOSSES, 1.0, "tables of islices and islices, compiled differ after 4 steps"),
    ],
)
def test_ways_that_disagree_are_not_timed(other: str, losses: list[float], table: float, words: str) -> None:
    def variant(losses: list[float], table: float) -> Way:
        left = iter(losses)
        return Way(lambda: np.float32(next(left)), lambda: [np.full((2, 2), table, np.float32)])

    variants = {"islices": variant(LOSSES, 0.0), other: variant(losses, table)}
    if not words:
        step.compare("torch adam", variants, lambda x: None)
        return
    with pytest.raises(RuntimeError, match=words):
        step.compare("torch adam", variants, lambda x: None)
