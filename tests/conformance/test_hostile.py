"""Hostile calls keep every call's promises on every backend, and a broken promise is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.properties import hostile, hostile_worker
from islices.conformance.properties.hostile_calls import ENTRIES, Call, Entry
from islices.conformance.properties.hostile_frameworks import oddities
from islices.conformance.properties.hostile_input import Watched
from islices.conformance.properties.hostile_junk import HostileError

BACKENDS = islices.list_backends()
COUNT = 250


@pytest.mark.repeats_where(lambda name: name != "numpy")
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.one_in(2)
def test_hostile_calls_keep_their_promises(name: str) -> None:
    outcome = hostile.attack(name, COUNT, seed=0)
    assert not outcome.error, outcome.error
    assert outcome.inputs == COUNT
    assert sum(outcome.counts.values()) == COUNT, outcome.counts
    assert outcome.counts["returned"] > COUNT // 10, "hardly a call got through: the good arguments are bad"
    assert outcome.counts["TypeError"] > COUNT // 10, "hardly a call was refused: nothing is hostile"
    report = "\n".join(f"input {number}: {key}\n{text}" for key, (number, text, _) in outcome.findings.items())
    assert not outcome.findings, report


@pytest.mark.parametrize("name", BACKENDS)
def test_odd_objects_can_be_made(name: str) -> None:
    islices.get_backend(name)
    assert len(oddities(name)) > 15
    for label, make in oddities(name).items():
        assert make() is not None, label


def test_public_functions_are_attacked() -> None:
    functions = {n for n in islices.__all__ if callable(getattr(islices, n)) and n[0].islower()}
    left_out = {"get_num_threads", "list_backends", "not_implemented"}
    assert functions - left_out <= set(ENTRIES)


# ---------------------------------------------------------------------- what is noticed
def writes(table: Any) -> None:
    table[0] = 7


def half_written(table: Any) -> None:
    writes(table)
    raise ValueError("table: got it, accepted is another")


def raising(error: BaseException) -> Callable[..., Any]:
    def call(table: Any) -> None:
        raise error

    return call


# fmt: off
VERDICTS = [
    (lambda table: table, (), "returned", ""),
    (raising(TypeError("table: got it; accepted is another")), (), "TypeError", ""),
    (raising(TypeError("the values must be equal")), (), "TypeError", ""),
    (raising(TypeError("operands could not be broadcast")), (), "TypeError", "TypeError names no argument at"),
    (raising(IndexError("")), (), "IndexError", "IndexError names no argument at"),
    (raising(MemoryError("x: too much")), (), "MemoryError", ""),
    (raising(MemoryError()), (), "MemoryError", "MemoryError without a message at"),
    (raising(OverflowError("table")), (), "OverflowError", "OverflowError at"),
    (raising(HostileError("__eq__ was used")), (), "HostileError", "HostileError at"),
    (raising(SystemExit(1)), (), "SystemExit", "SystemExit at"),
    (half_written, ("table",), "ValueError", "call raises ValueError and has changed table"),
    (writes, (), "returned", "call changes table"),
    (writes, ("table",), "returned", ""),
]
# fmt: on


@pytest.mark.parametrize(("run", "targets", "came", "key"), VERDICTS)
def test_verdicts(run: Callable[..., Any], targets: tuple[str, ...], came: str, key: str) -> None:
    table, backend = np.zeros((3, 2), np.float32), islices.get_backend("numpy")
    watched = [Watched("table", table, backend, table.copy())]
    entry = Entry(run, lambda draw: {}, targets=targets)
    verdict = hostile_worker.judge(Call("call", entry, {"table": table}, (), watched, False, "host"))
    assert verdict.came == came
    assert verdict.key.startswith(key), verdict.key
    assert bool(verdict.key) == bool(key)


def test_an_array_that_is_gone_counts_as_changed() -> None:
    jax = pytest.importorskip("jax")

    def deletes(table: Any) -> None:
        table.delete()
        raise ValueError("table: got it")

    table, backend = jax.numpy.zeros(3), islices.get_backend("jax")
    watched = [Watched("table", table, backend, np.zeros(3, np.float32))]
    verdict = hostile_worker.judge(
        Call("call", Entry(deletes, lambda draw: {}), {"table": table}, (), watched, False, "host")
    )
    assert verdict.key == "call raises ValueError and has changed table (lost: ValueError)"


# ---------------------------------------------------------------------- a process that dies or hangs
PLUGIN = """
import os, time
import numpy as np
from islices.backends.numpy import NumpyBackend

class Deadly(NumpyBackend):
    name = module = "deadly"
    calls = 0

    def is_array(self, x):
        return isinstance(x, Array)

    def asarray(self, array, like=None):
        Deadly.calls += 1
        if Deadly.calls == {at}:
            {does}
        return super().asarray(array).view(Array)

class Array(np.ndarray):
    pass

backend = Deadly()
"""


def deadly_plugin(folder: Path, at: int, does: str) -> None:
    (folder / "deadly.py").write_text(PLUGIN.format(at=at, does=does), "utf-8")
    info = folder / "deadly-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deadly\nVersion: 1\n", "utf-8")
    (info / "entry_points.txt").write_text("[islices.backends]\ndeadly = deadly:backend\n", "utf-8")


@pytest.mark.outside
@pytest.mark.parametrize(
    ("does", "kind", "says"),
    [("os.abort()", "crash", "ends the process (exit -6)"), ("time.sleep(60)", "hang", "hangs")],
)
def test_a_process_that_dies_is_reported_and_the_next_goes_on(
    does: str, kind: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly_plugin(tmp_path, at=60, does=does)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(hostile, "PATIENCE", (120.0, 8.0))  # of seconds: other processes may have the cores
    outcome = hostile.attack("deadly", 30, seed=0)
    assert not outcome.error, outcome.error
    assert outcome.inputs == 30
    assert outcome.counts[kind] == 1, outcome.counts
    (finding,) = [(number, text) for key, (number, text, _) in outcome.findings.items() if key.startswith(says)]
    assert 0 < finding[0] < 30


# ---------------------------------------------------------------------- the command
def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "islices.conformance.properties.hostile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"})


@pytest.mark.outside
def test_one_input_again() -> None:
    first, second = (run("-b", "numpy", "--seed", "0", "--only", "5").stdout for _ in range(2))
    assert first.startswith("input 5: ")
    assert "\ncame: " in first
    # addresses of objects aside
    assert [line.split(" at 0x")[0] for line in first.splitlines()] == [
        line.split(" at 0x")[0] for line in second.splitlines()
    ]


@pytest.mark.parametrize("arguments", [("-b", "nowhere"), ("--count", "-1"), ("--count", "x")])
def test_a_wrong_call_of_the_command(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert arguments[-1] in result.stderr
    assert "Traceback" not in result.stderr
