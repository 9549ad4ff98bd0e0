"""The part "step" of `islices bench`: every way on each framework in small, bytes by hand, ways that disagree."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.tools.bench import report
from islices.conformance.tools.bench.steps import measure
from islices.conformance.tools.bench.steps.model import (
    BAGS,
    BATCHES,
    TABLES,
    Case,
    Model,
    Problem,
    Way,
    bytes_of_case,
    cases_of,
)
from islices.conformance.tools.bench.steps.report import tables

SMALL, TWO = Model((1_000,), 8, 64, 4), Model((100, 1_000), 8, 64, 1)
FRAMEWORKS = ("torch", "tensorflow", "jax", "mxnet")


def worker(backend: str, case: Case) -> dict[str, Any]:
    """What the bench's own process finds."""
    job = {"part": "step", "backend": backend, "case": case, "threads": 2, "repeat": 2, "seconds": 0}
    command = [sys.executable, "-m", "islices.conformance.tools.bench.worker", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"backend"')]
    return json.loads(line)  # type: ignore[no-any-return]


def needed(backend: str) -> None:
    if backend not in islices.list_backends():
        pytest.skip(f"{backend} is not installed")


# ---------------------------------------------------------------------- real runs
@pytest.mark.outside
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("backend", FRAMEWORKS)
@pytest.mark.one_in(3)
def test_every_way_is_compared_and_timed(backend: str, clip: bool) -> None:
    needed(backend)
    found = worker(backend, Case(SMALL, "adam", clip))
    assert found["rounds"] == 2
    ways = found["milliseconds"].keys()
    assert {way for way in ways if way.startswith("islices")} >= {"islices"}
    assert len(found["ratios"]) >= 2, "several ways of the framework's own"
    assert found["own"][0] in found["ratios"]
    assert found["times_as_fast"].keys() == found["over_limit"].keys() == ways
    assert found["times_as_fast"][found["own"][0]] == 1
    assert found["limit"]["bytes"] == sum(found["bytes"].values())
    if backend != "mxnet":  # which has no compiler
        assert found["same_bits"] == ["islices", "islices, compiled"]


@pytest.mark.outside
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_many_tables_on_torch(kind: str) -> None:
    needed("torch")
    found = worker("torch", Case(TWO, kind, False))
    ways = set(found["milliseconds"])
    assert any(way.startswith("islices") for way in ways)
    assert any(way.startswith("torch.optim") for way in ways) == (kind != "rowwise_adagrad")
    assert "FBGEMM, fused step" in ways or "FBGEMM" in found["remarks"] or kind == "adam"


# ---------------------------------------------------------------------- what is measured
def test_cases() -> None:
    for backend in FRAMEWORKS:
        assert [case for case in cases_of(backend) if case.clip] == [Case(BAGS, "adam", True)]
    assert {case.optimizer for case in cases_of("torch") if case.model == TABLES} == {"sgd", "adagrad", "adam"}
    assert (len(TABLES.rows), TABLES.rows[0], TABLES.rows[-1]) == (26, 1_000, 1_000_000)


@pytest.mark.parametrize(
    ("kind", "state"),
    [("sgd", 0), ("adagrad", 2 * 5 * 8 * 4), ("rowwise_adagrad", 2 * 5 * 4), ("adam", 2 * 2 * 5 * 8 * 4)],
)
def test_bytes_of_a_step(kind: str, state: int) -> None:
    """64 bags of 4 ids of 8 bytes, 5 distinct rows of 8 floats."""
    found = bytes_of_case(Case(SMALL, kind, True), 5, 8)
    bags = 64 * 8 * 4
    assert found == {
        "ids": 64 * 4 * 8,
        "rows of tables": 2 * 5 * 8 * 4,
        "rows of state": state,
        "bags": bags,
        "targets": bags,
        "upstream gradient": bags,
    }


def test_a_problem_is_the_same_each_time() -> None:
    one, two = (Problem(Case(TWO, "sgd", False), np.int32) for _ in range(2))
    assert [x.shape for x in one.start()] == [(100, 8), (1_000, 8)]
    for a, b in zip(one.start(), two.start(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(one.batches) == BATCHES
    for a, b in zip(one.batches, two.batches, strict=True):
        assert [(x.shape, x.dtype, x.max() < rows) for x, rows in zip(a.ids, TWO.rows, strict=True)] == [
            ((64,), np.int32, True)
        ] * 2
        np.testing.assert_array_equal(a.ids[1], b.ids[1])
        np.testing.assert_array_equal(a.target, b.target)
    distinct = sum(len(np.unique(x)) for batch in one.batches for x in batch.ids) / BATCHES
    assert one.nbytes() == bytes_of_case(one.case, distinct, 4)


# ---------------------------------------------------------------------- ways that disagree
def way(losses: list[float], table: float = 0.0) -> Way:
    left = iter(losses)
    return Way(lambda: np.float32(next(left)), lambda: [np.full((2, 2), table, np.float32)])


LOSSES = [4.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("other", "losses", "table", "words"),
    [
        ("by hand", LOSSES, 1.0, ""),
        ("by hand", [4.0, 3.0, 2.0, 1.01], 0.0, "by hand: losses"),
        ("Adam (all rows move)", [4.0, 9.0, 9.0, 9.0], 0.0, ""),
        ("Adam (all rows move)", [4.1, 3.0, 2.0, 1.0], 0.0, r"Adam \(all rows move\): losses"),
        ("islices, compiled", LOSSES, 0.0, ""),
        ("islices, compiled", [4.0, 3.0, 2.0, 1.0005], 0.0, "islices, compiled: losses"),
        ("islices, compiled", LOSSES, 1.0, "tables of islices, compiled and islices differ after 4 steps"),
    ],
)
def test_ways_that_disagree_are_not_timed(other: str, losses: list[float], table: float, words: str) -> None:
    ways = {"islices": way(LOSSES), other: way(losses, table)}
    if not words:
        measure._compare("torch adam", ways, ["islices"], lambda x: None)
        return
    with pytest.raises(RuntimeError, match=words):
        measure._compare("torch adam", ways, ["islices"], lambda x: None)


# ---------------------------------------------------------------------- the table
def test_the_table() -> None:
    record = {
        "backend": "torch", "version": "2.13.0+cpu", "part": "step", "others": 0.0, "operation": "adam, clipped",
        "case_of": {"model": SMALL._asdict(), "optimizer": "adam", "clip": True},
        "milliseconds": {"by hand": 6.0, "islices": 2.0}, "times_as_fast": {"by hand": 1.0, "islices": 3.0},
        "over_limit": {"by hand": 6.0, "islices": 2.0}, "limit": {"bytes": 2_000_000, "milliseconds": 1.0},
        "remarks": {"FBGEMM": "left out"},
    }  # fmt: skip
    found, remarks = tables({"records": [record]})
    assert found.rows == [
        ["torch 2.13.0", "adam, clipped", "islices", "2", "2.0", "3.00"],
        ["", "", "by hand", "6", "6.0", "1.00"],
        ["", "", "a copy of 2.0 MB", "1", "1.0", ""],
    ]
    assert remarks.title == "torch adam, clipped, FBGEMM: left out"
    assert report.markdown(found)[2].split("|")[3].strip() == "way"
