"""Test `islices judge --command`. The Python example passes, and the judge reports mistakes and crashes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from islices.cli import main

FOLDER = Path(__file__).parents[3] / "examples" / "adapters"
PYTHON = f'"{sys.executable}" "{FOLDER / "adapter.py"}"'


def judged(capsys: Any, command: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code of `islices judge`, and the judgement of each formula that the program computes."""
    code = main(["judge", "--command", command, "--json", *options])
    reported = capsys.readouterr()
    assert reported.err == ""
    found = json.loads(reported.out)
    return code, found if isinstance(found, list) else [found]


def agrees(found: dict[str, Any], formula: str, unsupported: set[str], arrays: set[str]) -> None:
    assert found["formula"] == formula
    assert found["grade"] == 1, found
    assert set(found["unsupported"]) == unsupported
    assert {score["array"] for score in found["scores"]} == arrays


# ---------------------------------------------------------------------- the examples
@pytest.mark.outside
def test_the_python_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    code, (found,) = judged(capsys, PYTHON)
    assert code == 0
    agrees(found, "fbgemm.EXACT_ROWWISE_ADAGRAD", set(), {"weights", "accumulator"})


# ---------------------------------------------------------------------- messages and results
def edited(tmp_path: Path, old: str, new: str) -> str:
    """Copy the Python example, replace the only occurrence of `old` with `new`, and return the command that runs the
    copy."""
    text = (FOLDER / "adapter.py").read_text("utf-8")
    assert text.count(old) == 1
    program = tmp_path / "edited.py"
    program.write_text(text.replace(old, new), "utf-8")
    return f'"{sys.executable}" "{program}"'


@pytest.mark.outside
@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("np.mean(g * g)", "np.sum(g * g)", "squares of a row summed, not averaged"),
        (" + eps) * g", ") * g", "epsilon ignored"),
        ("np.mean(g * g)", "np.max(g * g)", None),
        ("g = g + decay * w[index]", "pass", "decay missing"),
    ],
)
def test_mistakes_of_a_program_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, cause: str | None
) -> None:
    code, (found,) = judged(capsys, edited(tmp_path, old, new))
    assert code == 1
    assert found["grade"] is None
    assert found["cause"] == cause


BAD = {
    "raise SystemExit('error: out of luck')": (3, "ended with exit code 1 in this call: error: out of luck"),
    "raise ValueError('mine')": (3, "it refused the step: ValueError: mine"),
    "raise UnsupportedError('later')": (1, "it has none of the"),
    "return {'dict': {'accumulator': weights}}": (3, 'a dict of accumulator; accepted is a dict of arrays with "w'),
    "return {'dict': {'weights': wire(array(weights)[1:])}}": (3, "weights: got float32[4, 8]; accepted is "),
    "return weights": (3, "its answer: got Array; accepted is a dict"),
    "return {'dict': {'weights': 3}}": (3, "its answer is no value"),
}  # fmt: skip


@pytest.mark.outside
@pytest.mark.parametrize("line", BAD)
def test_what_cannot_be_judged_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    code, says = BAD[line]
    before = "    lr, eps, decay = (np.float32"
    command = edited(tmp_path, before, f"    {line}\n{before}")
    assert main(["judge", "--command", command]) == code
    reported = capsys.readouterr()
    assert says in reported.err
    assert reported.err.count("\n") == 1
    if code == 3:
        assert (
            "(fbgemm.EXACT_ROWWISE_ADAGRAD, trajectory 'sizes', step 1)" in reported.err
            or "weights: got" in reported.err
        )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--command", "x", "f.py:step", "--formula", "torch.SGD"], 2, "got both a function and a command"),
        (["--command", "x", "--formula", "zzz"], 2, "got 'zzz'"),
        (["--command", "/no/such/program"], 3, "cannot start /no/such/program: No such file"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str) -> None:
    assert main(["judge", *arguments]) == code
    assert says in capsys.readouterr().err
