"""Programs in other languages are judged: the examples are built and run, mistakes named, breaks told in a line."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from islices.cli import main
from islices.conformance.adapters.formulas import AdapterStep
from islices.conformance.formulas.evaluate import initial_state
from islices.conformance.formulas.inputs import inputs
from islices.conformance.formulas.judge import run
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.formulas.trajectories import trajectories
from islices.conformance.protocol import Client

FOLDER = Path(__file__).parents[3] / "examples" / "adapters"
PYTHON = f'"{sys.executable}" "{FOLDER / "adapter.py"}"'


def judged(capsys: Any, command: str, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the judgement of each formula that the program has."""
    code = main(["judge", "--command", command, "--json", *options])
    told = capsys.readouterr()
    assert told.err == ""
    found = json.loads(told.out)
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


@pytest.mark.outside
def test_the_javascript_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("node") is None:
        pytest.skip("needs node")
    code, (found,) = judged(capsys, f'node "{FOLDER / "adapter.js"}"')
    assert code == 0
    agrees(found, "torch.SGD", {"nesterov", "dampening", "decay", "decay and momentum"}, {"weights", "momentum"})


@pytest.mark.outside
@pytest.mark.parametrize("flags", [["-O2", "-ffp-contract=off"], ["-O3", "-march=native"]], ids=["exact", "fused"])
def test_the_cpp_adapter(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    """The bound holds whether the compiler fuses or not."""
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path / "adapter"
    source = FOLDER / "adapter.cpp"
    subprocess.run([compiler, "-std=c++17", *flags, str(source), "-o", str(program)], check=True, timeout=120)
    code, (found,) = judged(capsys, str(program), "--formula", "torch.Adam")
    assert code == 0
    agrees(found, "torch.Adam", {"amsgrad"}, {"weights", "m", "v"})


# ---------------------------------------------------------------------- what is said, and what comes
def edited(tmp_path: Path, old: str, new: str) -> str:
    """The Python example with another line: its command."""
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


ECHO = """
import json, sys
for line in map(json.loads, sys.stdin):
    if "hello" in line:
        answer = {"hello": "echo", "version": "1", "protocol": 1}
    elif line["args"][0] not in ("sparsecore.adam", "torch.AdamW"):
        answer = {"call": line["call"], "unsupported": "no " + line["args"][0]}
    else:
        with open(sys.argv[1], "a") as file:
            print(json.dumps(line["args"]), file=file)
        answer = {"call": line["call"], "ok": {"dict": {"weights": line["args"][3], **line["args"][5]["dict"]}}}
    print(json.dumps(answer), flush=True)
"""


def number(x: dict[str, str]) -> Any:
    return struct.unpack("<d" if "float" in x else "<q", bytes.fromhex(x.get("float") or x["int"]))[0]


@pytest.mark.outside
@pytest.mark.parametrize("name", ["sparsecore.adam", "torch.AdamW"])
def test_a_program_is_told_the_bits(tmp_path: Path, name: str) -> None:
    """Options as float64, arrays as they are, the state as it was answered; rows and duplicates as they come."""
    (tmp_path / "echo.py").write_text(ECHO, "utf-8")
    trajectory = next(iter(trajectories(FORMULAS[name])))
    with Client([sys.executable, str(tmp_path / "echo.py"), str(tmp_path / "said")]) as client:
        got = run(AdapterStep(client, FORMULAS[name]), trajectory)
    made = inputs(trajectory.inputs)
    h = FORMULAS[name].hyper(trajectory.options(1))
    start, given = (initial_state(FORMULAS[name], h, made.weights.shape, unused=x) for x in (False, True))
    lines = [json.loads(line) for line in (tmp_path / "said").read_text("utf-8").splitlines()]
    assert [number(t) for _, t, *_ in lines] == list(range(1, len(made.gradients) + 1))
    for (formula, t, options, weights, gradient, state), g in zip(lines, made.gradients, strict=True):
        told = {k: x if isinstance(x, bool) else number(x) for k, x in options["dict"].items()}
        assert formula == name
        assert told == trajectory.options(number(t))
        assert weights == {"array": "float32", "shape": list(made.weights.shape), "bits": made.weights.tobytes().hex()}
        assert state["dict"].keys() == given.keys()
        if isinstance(g, np.ndarray):
            assert gradient["bits"] == g.tobytes().hex()
        else:
            assert gradient["slices"]["bits"] == g.values.tobytes().hex()
            assert gradient["indices"]["bits"] == g.indices.tobytes().hex()
            assert gradient["dense_shape"] == list(made.weights.shape)
    for arrays in got.values():
        assert arrays.keys() == {"weights", *start}
        assert arrays["weights"].tobytes() == made.weights.tobytes()


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
    told = capsys.readouterr()
    assert says in told.err
    assert told.err.count("\n") == 1
    if code == 3:
        assert "(fbgemm.EXACT_ROWWISE_ADAGRAD, trajectory 'sizes', step 1)" in told.err or "weights: got" in told.err


@pytest.mark.outside
def test_the_report_of_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All formulas, counted; one that it lacks is not judged; stray output is told beside the report."""
    assert main(["judge", "--command", edited(tmp_path, "import json\n", "import json\nprint('welcome')\n")]) == 0
    told = capsys.readouterr()
    assert f"1 of 1 formulas within the bound; unsupported are the other {len(FORMULAS) - 1}." in told.out
    assert "it printed 1 line that is none of the protocol's, the first: 'welcome'" in told.err
    assert main(["judge", "--command", PYTHON, "--formula", "torch.Adam"]) == 1
    assert "torch.Adam: not judged: every trajectory is unsupported" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--command", "x", "f.py:step", "--formula", "torch.SGD"], 2, "got both a function and a command"),
        (["--command", "a 'b"], 2, '--command: got "a \'b": No closing quotation'),
        (["--command", "x", "--time-limit", "0"], 2, "--time-limit: got 0; accepted are seconds above 0"),
        (["--command", "x", "--formula", "zzz"], 2, "got 'zzz'"),
        (["--command", "/no/such/program"], 3, "cannot start /no/such/program: No such file"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str) -> None:
    assert main(["judge", *arguments]) == code
    assert says in capsys.readouterr().err
