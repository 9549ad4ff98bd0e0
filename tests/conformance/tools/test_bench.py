"""`islices bench`: small runs of the real thing, the limit's arithmetic by hand, clear errors."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.tools.bench import embedding, limit, operations, report, rounds, small, step, updates
from islices.conformance.tools.bench.cases import AXES, Benchmark, cross, default_cases, draw_ids
from islices.conformance.tools.bench.formulas import OPTIMIZERS, bytes_of_rows
from islices.conformance.tools.bench.step import BATCHES, Case, Model, Problem
from islices.conformance.tools.bench.ways import Way

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


def test_json_on_stdout_stands_alone() -> None:
    done = bench("--part", "operations", "-b", "numpy", "--operation", "norm", *TINY, "--json", "-")
    assert len(json.loads(done.stdout)["records"]) == 2
    assert "norm, milliseconds" in done.stderr


@pytest.mark.outside
def test_a_process_that_fails_is_a_harness_error(tmp_path: Path) -> None:
    """A framework that breaks when it is imported: the other one is measured, and the exit code says so."""
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
        (["--part", "explode"], "explode"),
        (["--slices", "many"], "accepted is a number of at least 1"),
        (["--operation", "to_dense", "--slices", "1048576", "--distribution", "unique"], "no case is left"),
        (["--json", "/no/such/folder/x"], "cannot write"),
        (["--read", "/no/such/run.json"], "/no/such/run.json"),
        (["--read", os.devnull], "Expecting value"),
    ],
)
def test_usage_errors(arguments: list[str], words: str) -> None:
    assert words in bench(*arguments, code=2).stderr


def test_another_form_of_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"form": 1}')
    assert "got form 1; accepted is" in bench("--read", str(tmp_path / "x.json"), code=2).stderr


# ---------------------------------------------------------------------- every part on every backend, in small
SIZES = [
    (updates, {"ROWS": 2_000, "DIM": 4, "IDS": 256}),
    (embedding, {"TABLE_ROWS": (1_000, 10_000), "IDS": 256, "BATCH": 4, "SAMPLE_IDS": 5, "SAMPLES_ROWS": 200}),
    (small, {"INNER": 1, "ROUNDS": 2}),
]
SMALL, TWO = Model((1_000,), 8, 64, 4), Model((100, 1_000), 8, 64, 1)
#: part -> what else its job says
JOBS: dict[str, dict[str, Any]] = {
    "operations": {"cases": [Benchmark(x, 64, 4) for x in AXES["operation"]]},
    "small": {},
    "updates": {"optimizers": ["sgd", "adam"]},
    "embedding": {},
    "step": {"case": Case(SMALL, "adam", True)},
}
RECORDS = {"operations": 4, "small": 3, "updates": 2, "embedding": 3, "step": 1}
RUNS = [(name, part, job) for name in islices.list_backends() for part, job in JOBS.items()]
RUNS = [run for run in RUNS if run[0] != "numpy" or run[1] not in ("embedding", "step")]
RUNS += [("torch", "step", {"case": Case(TWO, kind, False)}) for kind in OPTIMIZERS]
RUNS += [("torch", "updates", {"optimizers": ["adagrad", "rowwise_adagrad"]})]


@pytest.mark.repeats_where(lambda name, part: name not in ("numpy", "torch") and part not in ("operations", "small"))
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
ROWS_READ = 10 * 16 + 10 * 8  # 10 rows of 4 float32 and 10 int64


@pytest.mark.parametrize(
    ("operation", "written"),
    [("coalesce", 3 * 16 + 3 * 8), ("clip_by_global_norm", 10 * 16), ("norm", 0), ("to_dense", 65_536 * 16)],
)
def test_bytes_of_operations(operation: str, written: int) -> None:
    assert operations.bytes_of_operation(Benchmark(operation, 10, 4), distinct=3, index=8) == ROWS_READ + written


@pytest.mark.parametrize(
    ("kind", "state"),
    [("sgd", 0), ("adagrad", 2 * 5 * 8 * 4), ("rowwise_adagrad", 2 * 5 * 4), ("adam", 2 * 2 * 5 * 8 * 4)],
)
def test_bytes_of_steps(kind: str, state: int) -> None:
    """5 distinct rows of 8 floats."""
    assert bytes_of_rows(kind, 5, 8) == {"rows of tables": 2 * 5 * 8 * 4, "rows of state": state}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_whole_array_is_copied_whatever_the_threads(threads: int) -> None:
    copying = limit.Copying(threads, nbytes=1_000)
    copying._source[:] = np.arange(1_000) % 251
    result, found = copying.limit(12_000, lambda: "measured")
    assert np.array_equal(copying._target, copying._source)
    assert (result, found["bytes"]) == ("measured", 12_000)
    assert found["milliseconds"] == pytest.approx(12_000 / found["bandwidth"] * 1e3)


def test_rounds_interleave_and_hopeless_rivals_leave() -> None:
    calls: list[str] = []
    ways = {"ours": lambda: calls.append("o"), "good": lambda: calls.append("g"), "bad": lambda: time.sleep(0.02)}
    times = rounds.measure(ways, 4, rivals=frozenset({"good", "bad"}))
    assert {name: len(t) for name, t in times.items()} == {"ours": 4, "good": 4}
    assert "".join(calls[-8:]) == "oggooggo", "each round starts with the next"
    less = {"good": ways["bad"], "less (rows unsorted)": ways["ours"]}
    assert rounds.measure(less, 1, rivals=frozenset(less)).keys() == less.keys(), "what does less sets no measure"
    times = {"a": [2.0, 4.0], "b (rows unsorted)": [1.0, 1.0], "islices": [1.0, 4.0]}
    found = rounds.summary(times, ["a", "b (rows unsorted)"])
    assert found["own"] == ["a", "b (rows unsorted)"]
    assert found["times_as_fast"] == {"a": 1, "b (rows unsorted)": 3, "islices": 1.5}


def test_cases() -> None:
    cases = default_cases()
    assert len(cases) == len(set(cases)), "nothing is measured twice"
    assert {case.operation for case in cases} == set(AXES["operation"])
    assert all(case.sensible for case in cases)
    assert cross({"operation": ["coalesce"], "slices": [64]}) == [Benchmark("coalesce", 64)]
    assert cross({"slices": [2**20], "distribution": ["unique"], "operation": ["to_dense"]}) == []


@pytest.mark.parametrize("distribution", ["unique", "uniform", "zipf"])
def test_ids(distribution: str) -> None:
    ids = draw_ids(distribution, 2_000, 10_000)
    assert (ids.shape, ids.min() >= 0, ids.max() < 10_000) == ((2_000,), True, True)
    counts = np.unique(ids, return_counts=True)[1]
    assert (counts.max() == 1) == (distribution == "unique")
    assert (counts.max() > 50) == (distribution == "zipf")


# ---------------------------------------------------------------------- whole steps
def test_a_problem_is_the_same_each_time() -> None:
    one, two = (Problem(Case(TWO, "sgd", False), np.int32) for _ in range(2))
    assert [x.shape for x in one.start()] == [(100, 8), (1_000, 8)]
    np.testing.assert_array_equal(one.start()[1], two.start()[1])
    assert len(one.batches) == BATCHES
    for (ids, target), (same, wanted) in zip(one.batches, two.batches, strict=True):
        assert [(x.shape, x.dtype, x.max() < n) for x, n in zip(ids, TWO.rows, strict=True)] == [
            ((64,), np.int32, True)
        ] * 2
        np.testing.assert_array_equal(ids[1], same[1])
        np.testing.assert_array_equal(target, wanted)
    distinct = sum(len(np.unique(x)) for ids, _ in one.batches for x in ids) / BATCHES
    bags = dict.fromkeys(("bags", "targets", "upstream gradient"), 64 * 8 * 4)
    assert one.nbytes() == {"ids": 2 * 64 * 4, **bytes_of_rows("sgd", distinct, 8), **bags}


LOSSES = [4.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("other", "losses", "table", "words"),
    [
        ("by hand", LOSSES, 1.0, ""),
        ("by hand", [4.0, 3.0, 2.0, 1.01], 0.0, "by hand: losses"),
        ("Adam (all rows move)", [4.0, 9.0, 9.0, 9.0], 0.0, ""),
        ("Adam (all rows move)", [4.1, 3.0, 2.0, 1.0], 0.0, r"Adam \(all rows move\): losses"),
        ("islices, compiled", [4.0, 3.0, 2.0, 1.0005], 0.0, "islices, compiled: losses"),
        ("islices, compiled", LOSSES, 1.0, "tables of islices and islices, compiled differ after 4 steps"),
    ],
)
def test_ways_that_disagree_are_not_timed(other: str, losses: list[float], table: float, words: str) -> None:
    def way(losses: list[float], table: float) -> Way:
        left = iter(losses)
        return Way(lambda: np.float32(next(left)), lambda: [np.full((2, 2), table, np.float32)])

    ways = {"islices": way(LOSSES, 0.0), other: way(losses, table)}
    if not words:
        step.compare("torch adam", ways, lambda x: None)
        return
    with pytest.raises(RuntimeError, match=words):
        step.compare("torch adam", ways, lambda x: None)


def test_the_table() -> None:
    record = {
        "backend": "torch", "version": "2.13.0+cpu", "others": 0.0, "title": "steps", "operation": "adam",
        "milliseconds": {"by hand": 6.0, "islices": 2.0}, "times_as_fast": {"by hand": 1.0, "islices": 3.0},
        "limit": {"bytes": 2_000_000, "milliseconds": 1.0}, "remarks": {"FBGEMM": "left out"},
    }  # fmt: skip
    found, remarks = report.measured({"records": [record]})
    assert found.rows == [
        ["torch 2.13.0", "adam", "islices", "2", "2.0", "3.00"],
        ["", "", "by hand", "6", "6.0", "1.00"],
        ["", "", "a copy of 2.0 MB", "1", "1.0", ""],
    ]
    assert remarks.title == "torch adam, FBGEMM: left out"
    assert report.markdown(found)[2].split("|")[3].strip() == "way"
