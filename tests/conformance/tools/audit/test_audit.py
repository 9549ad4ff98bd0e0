"""Test `islices audit`: comparisons, processes that exit or hang, the choice of probes, the report and the findings."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from islices.cli import main
from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.data import Array
from islices.conformance.tools.audit import command, probes
from islices.conformance.tools.audit.findings import framework_of, modules, run_module
from islices.conformance.tools.audit.probe import REFUSED, CorruptionError, Probe, examine

NAN = float("nan")


def raising(error: Exception) -> Any:
    def call() -> None:
        raise error

    return call


#: (call, expected result, outcome, error)
ANSWERS = [
    (lambda: [NAN, -0.0], [NAN, 0.0], "agrees", ""),
    (lambda: np.float32([1, 2]), Array("float32", (2,), [1.0, 2.0]), "agrees", ""),
    (lambda: [1.0, 2.5], [1.0, 2.0], "differs", "0.5"),
    (lambda: [1.0], [1.0, 2.0], "differs", "shape (1,) instead of (2,)"),
    (lambda: 1, True, "differs", "another answer"),
    (lambda: object(), REFUSED, "differs", ""),
    (raising(ValueError("no")), REFUSED, "agrees", ""),
    (raising(ValueError("no")), 1, "raises", ""),
    (raising(CorruptionError("row 5 changed")), 1, "corrupts", ""),
    (raising(UnsupportedError("no /proc")), 1, "not run", ""),
]


@pytest.mark.parametrize(("call", "expected", "outcome", "error"), ANSWERS)
def test_an_answer_is_compared_with_the_expected_one(call: Any, expected: Any, outcome: str, error: str) -> None:
    found = examine(Probe("f", "1", "", "", "it", call, expected))
    assert (found["outcome"], found["error"]) == (outcome, error), found


def test_what_to_use_instead_exists() -> None:
    for path in Path(next(iter(probes.__path__))).glob("*.py"):
        strings = [n.value for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Constant)]
        for name in set(re.findall(r"\bislices((?:\.\w+)+)\(", " ".join(s for s in strings if isinstance(s, str)))):
            if name.startswith(".backends.") and importlib.util.find_spec(name.split(".")[2]) is None:
                continue
            *where, last = f"islices{name}".split(".")
            assert hasattr(importlib.import_module(".".join(where)), last), (path.name, name)


TOYS = """
import os, time
from islices.conformance.tools.audit.probe import Probe

def row(name, call, trap="differs", isolated=False):
    return Probe(name, "1", "c", "i", "it", call, 1, trap, "", isolated)

PROBES = [
    row("agrees", lambda: print("a framework's words") or 1), row("aborts", os.abort, "corrupts"),
    row("goes on", lambda: 1), row("hangs", lambda: time.sleep(600), "corrupts"),
    row("isolated", os.abort, "corrupts", True), row("ends well", lambda: 1, isolated=True),
    row("exits", lambda: os._exit(7), "corrupts"), row("breaks", lambda: object()),
]
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    package = tmp_path / "toys"
    package.mkdir()
    for name, text in (("__init__", ""), ("toy", TOYS), ("lacking", "import no_such_library"), ("broken", "1 / 0")):
        (package / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return "toys"


@pytest.mark.outside
def test_a_process_that_ends_or_hangs_is_a_finding_and_the_rest_goes_on(toys: str) -> None:
    names = [f"{toys}.{name}" for name in ("toy", "lacking", "broken")]
    found = {f.get("call", f["number"]): f for name in names for f in run_module(name, "", patience=15)}
    assert {name: (f["outcome"], f["got"]) for name, f in found.items() if f["outcome"] != "broken"} == {
        "agrees": ("agrees", "1"), "aborts": ("corrupts", "the process ended by SIGABRT"), "goes on": ("agrees", "1"),
        "hangs": ("corrupts", "no answer within 15 s"), "isolated": ("corrupts", "the process ended by SIGABRT"),
        "ends well": ("agrees", "1"), "exits": ("corrupts", "the process ended with exit code 7"),
        "lacking": ("not run", "no_such_library is not installed"),
    }  # fmt: skip
    assert "TypeError" in found["breaks"]["got"]
    assert "ZeroDivisionError" in found[f"{toys}.broken"]["got"]


def test_a_broken_probe_is_exit_code_3(
    toys: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "modules", lambda: [f"{toys}.broken"])
    assert main(["audit"]) == 3
    assert "1 broken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-b", "tensorflaw"], "--backend: got 'tensorflaw'; accepted are "),
        (["-b", "numpy", "-k", "no such words"], "-k: no probe matches 'no such words'"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_audit_as_markdown_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "-b", "numpy", "-k", "clause 3"]) == 0
    document = capsys.readouterr().out
    assert main(["audit", "-b", "numpy", "-k", "clause 3", "--json"]) == 0
    findings = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert [(f["outcome"], f["status"]) for f in findings] == [("differs", "as measured")] * 2
    assert all(f["got"] in document for f in findings)


#: distribution -> the version with which the findings were measured
MEASURED = {
    "torch": "2.13.0", "tensorflow-cpu": "2.21.0", "keras": "3.15.1", "jax": "0.10.2", "optax": "0.2.8",
    "mxnet": "1.9.1",
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("module", modules())
def test_all_is_as_measured(module: str) -> None:
    for name, version in MEASURED.items():
        if name.startswith(framework_of(module)) or (module, name) == ("keras", "tensorflow-cpu"):
            try:
                installed = importlib.metadata.version(name).partition("+")[0]
            except importlib.metadata.PackageNotFoundError:
                installed = "nothing"
            if installed != version:
                pytest.skip(f"measured with {name} {version}, installed is {installed}")
    other = [f for f in run_module(module, "") if f["status"] not in ("as measured", "")]
    assert not [f for f in other if "NaN" not in f["call"]], other  # the bits of NaNs depend on the processor
