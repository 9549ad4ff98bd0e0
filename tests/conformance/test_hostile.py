"""Test that the NumPy backend keeps its promises under hostile calls. If a backend breaks a promise, the suite must
notice this, and shrink the calls to a small example."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import python, write_distribution

import islices
from islices.conformance.properties.hostile import attack, judge
from islices.conformance.properties.hostile_calls import ENTRIES, Attacked, HostileCall
from islices.conformance.properties.hostile_input import WatchedArray


def run(*arguments: str, path: Path | str = "") -> subprocess.CompletedProcess[str]:
    return python("-m", "islices.conformance.properties", *arguments, path=path)


def test_hostile_calls_keep_their_promises() -> None:  # make soak: all backends
    result = run("hostile", "-b", "numpy", "--examples", "100", "--seed", "0")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("numpy: 100 hostile calls in ")
    counts = {word: int(n) for n, word in (part.split() for part in result.stdout.strip().split(": ")[-1].split(", "))}
    assert counts["returned"] > 8, "hardly a call got through: the good arguments are bad"
    assert counts["TypeError"] > 8, "hardly a call was refused: nothing is hostile"


# ---------------------------------------------------------------------- broken promises that are noticed
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
    (raising(TypeError("operands could not be broadcast")), (), "TypeError", "TypeError names no argument"),
    (raising(IndexError("")), (), "IndexError", "IndexError without a message"),
    (raising(SystemExit(1)), (), "SystemExit", "call raises SystemExit"),
    (half_written, ("table",), "ValueError", "call raises ValueError and has changed table"),
    (writes, (), "returned", "call changes table"),
]
# fmt: on


@pytest.mark.parametrize(("run", "targets", "came", "problem"), VERDICTS)
def test_verdicts(run: Callable[..., Any], targets: tuple[str, ...], came: str, problem: str) -> None:
    table, backend = np.zeros((3, 2), np.float32), islices.get_backend("numpy")
    watched = [WatchedArray("table", table, backend, table.tobytes())]
    got = judge(HostileCall("call", Attacked(run, targets=targets), {"table": table}, (), watched, False, backend))
    assert got[0] == came
    assert got[1].startswith(problem), got[1]
    assert bool(got[1]) == bool(problem)


# ---------------------------------------------------------------------- calls that are shrunk
def scales_in_place(x: Any, c: Any) -> Any:
    if isinstance(x, np.ndarray) and x.size and type(c) is not float:
        x *= 0.25
        raise TypeError("c: got it; accepted is a float")
    return None


def forgets_a_type(x: Any, c: Any) -> Any:
    return x.no_such_attribute if isinstance(x, list) else x


@pytest.mark.parametrize(
    ("fault", "problem", "shrunk"),
    [
        (scales_in_place, "scale raises TypeError and has changed ", "spoilt: \n  x = ndarray float16 (6, 3)"),
        (forgets_a_type, "scale raises AttributeError", " (0, 3) []"),
    ],
)
def test_a_planted_fault_is_found_and_shrunk(
    fault: Callable[..., Any], problem: str, shrunk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in ENTRIES if name != "scale"]:
        monkeypatch.delitem(ENTRIES, name)
    monkeypatch.setitem(ENTRIES, "scale", Attacked(fault))
    _, text = attack(islices.get_backend("numpy"), 300, seed=0)
    assert text.startswith(problem)
    assert shrunk in text, text


# ---------------------------------------------------------------------- a process that dies
PLUGIN = """
import os
import numpy as np
from islices.backends.numpy import NumpyBackend

class Deadly(NumpyBackend):
    name = module = "deadly"
    calls = 0

    def is_array(self, x):
        return isinstance(x, Array)

    def asarray(self, array, like=None):
        return super().asarray(array).view(Array)

    def to_numpy(self, x):
        Deadly.calls += 1
        if Deadly.calls == 200:
            os.abort()
        return super().to_numpy(x)

class Array(np.ndarray):
    pass

backend = Deadly()
"""


@pytest.mark.outside
def test_a_process_that_dies_is_reported_with_its_call(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(PLUGIN, "utf-8")
    write_distribution(tmp_path, "deadly", "islices.backends", deadly="deadly:backend")
    result = run("hostile", "-b", "deadly", "--examples", "100", path=tmp_path)
    assert result.returncode == 3, result.stdout + result.stderr
    assert "hostile: the process ended (exit -6) at " in result.stdout
    assert " on deadly, host" in result.stdout
