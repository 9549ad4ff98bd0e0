"""Test `islices conform --command`. The JavaScript and C++ examples pass, and the bounds distinguish rounding errors
from mistakes. If a command cannot start, islices prints the reason and exits with 3."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import read_lines

from islices.cli import main
from islices.conformance.adapters.bounds import EPS
from islices.conformance.adapters.grade import grade
from islices.conformance.data import Array, Case, Slices, entries
from islices.conformance.protocol import Ok, Refused, Unsupported

FOLDER = Path(__file__).parents[2] / "examples" / "adapters"


# ---------------------------------------------------------------------- grades
def case_of(id: str) -> Case:
    return next(entry.case for entry in entries() if fnmatch(entry.id, id))


def moved(x: Any, by: float) -> Any:
    """Return a copy of a result in which each float has changed by `by` times eps, relative to its size."""
    if isinstance(x, Array):
        if x.dtype not in EPS:
            return x
        wide = np.array(x.data, np.float64)
        kept = np.float64 if x.dtype == "float64" else np.float32
        if by == 1.0:  # exactly one unit in the last place, which a product with (1 + eps) may exceed
            farther = np.nextafter(wide.astype(kept), np.copysign(kept(np.inf), wide.astype(kept)))
            return replace(x, data=np.where(wide == 0, wide, farther).tolist())
        return replace(x, data=(wide * (1 + by * EPS[x.dtype])).astype(kept).tolist())
    if isinstance(x, Slices):
        return replace(x, values=moved(x.values, by))
    if isinstance(x, dict):
        return {key: moved(item, by) for key, item in x.items()}
    return type(x)(moved(item, by) for item in x) if isinstance(x, (list, tuple)) else x


CASES = {
    "coalesce/sorted-duplicates/float32/int32/rank1": 1.0,
    "densify/to_dense/unsorted-duplicates/float64/*": 1.0,
    "norms/norm2/unsorted-duplicates/float32/*": 4.0,
    "clipping/by_norm/unsorted-duplicates/float32/*": 4.0,
    "optimizers/step/adam/touched/float32/int32": 2.0,
    "optimizers/step/sgd/all/float32/int64": 2.0,
}


@pytest.mark.parametrize("id", CASES)
def test_rounding_is_bound_and_more_is_not(id: str) -> None:
    case = case_of(id)
    assert grade(case, Ok(case.expect)) == ("pass", {})
    outcome, reported = grade(case, Ok(moved(case.expect, CASES[id])))
    assert outcome == "bound", reported
    assert ("-ffp-contract=off" in reported["reason"]) == case.op.startswith(("clip", "norm", "optimizer"))
    outcome, reported = grade(case, Ok(moved(case.expect, 1e5)))
    assert outcome == "fail", reported


def test_a_bound_excuses_floats_alone() -> None:
    case = case_of("coalesce/sorted-duplicates/float32/int32/rank1")
    near = moved(case.expect, 1.0)
    assert grade(case, Ok(near))[0] == "bound"
    others = [
        replace(near, indices=replace(near.indices, data=[*near.indices.data[:-1], near.indices.data[-1] + 1])),
        replace(near, dense_shape=(11, 3)),
        replace(near, coalesced=False),
        replace(near, values=replace(near.values, dtype="float64")),
        replace(near, values=replace(near.values, data=[float("nan"), *near.values.data[1:]])),
        None, [near], {"a": near},
    ]  # fmt: skip
    for got in others:
        assert grade(case, Ok(got))[0] == "fail", got


def test_errors_are_compared_by_kind() -> None:
    case = case_of("errors/index-negative")
    assert grade(case, Refused("IndexError", "indices"))[0] == "pass"
    assert grade(case, Refused("IndexError", ""))[0] == "fail"
    assert grade(case, Refused("ValueError", "indices"))[0] == "fail"
    assert grade(case, Ok(None))[0] == "fail"
    assert grade(case, Unsupported("")) == ("unsupported", {"reason": "it says so"})
    other = case_of("coalesce/one/float32/int32/rank1")
    assert grade(other, Refused("ValueError", "no"))[0] == "fail"


# ---------------------------------------------------------------------- the command
def conform(tmp_path: Path, *options: str, capsys: Any) -> tuple[int, list[dict[str, Any]], str]:
    report = tmp_path / "run.jsonl"
    status = main(["conform", *options, "--json", str(report)])
    reported = capsys.readouterr()
    return status, read_lines(report), " ".join((reported.out + reported.err).split())  # the terminal breaks long lines


def counts(lines: list[dict[str, Any]]) -> Counter[str]:
    return Counter(line["outcome"] for line in lines if line["type"] == "case")


@pytest.mark.outside
def test_the_javascript_adapter_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("node") is None:
        pytest.skip("needs node")
    line = f'node "{FOLDER / "adapter.js"}"'
    status, lines, reported = conform(tmp_path, "--command", line, "--profile", "full", capsys=capsys)
    got = counts(lines)
    assert status == 0, reported
    assert got["pass"] >= 200
    assert got.keys() == {"pass", "unsupported"}


@pytest.mark.outside
@pytest.mark.parametrize(
    ("flags", "grades"), [(["-O2", "-ffp-contract=off"], {"pass"}), (["-O3", "-march=native"], {"pass", "bound"})]
)
def test_the_cpp_adapter_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], grades: set[str]
) -> None:
    """Check that the results of the C++ adapter have the bits of the golden vectors. If the compiler may fuse
    operations, the results must be within the bound."""
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    program = tmp_path / "adapter"
    source = FOLDER / "adapter.cpp"
    subprocess.run([compiler, "-std=c++17", *flags, str(source), "-o", str(program)], check=True, timeout=120)
    status, lines, reported = conform(tmp_path, "--command", str(program), "--profile", "full", capsys=capsys)
    got = counts(lines)
    assert status == 0, reported
    assert got["pass"] + got["bound"] >= 230
    assert got.keys() - {"unsupported"} <= grades, got


@pytest.mark.outside
def test_a_bad_command_is_a_harness_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, reported = conform(tmp_path, "--command", "/no/such/program", "-k", "coalesce", capsys=capsys)
    assert status == 3
    assert counts(lines) == Counter()
    assert "cannot start /no/such/program: No such file" in reported
    assert "Traceback" not in reported


@pytest.mark.outside
def test_breaking_strays_and_giving_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the suite on an adapter that prints a greeting and exits in every third call. After ten exits, the suite
    skips the remaining cases."""
    program = tmp_path / "odd.py"
    program.write_text(
        "import json, os, sys\nprint('welcome')\n"
        "for n, line in enumerate(map(json.loads, sys.stdin)):\n"
        "    if n == 3: sys.exit('error: out of luck')\n"
        "    odd = {'hello': 'odd', 'version': '2', 'protocol': 1}\n"
        "    print(json.dumps(odd if 'hello' in line else {'call': line['call'], 'unsupported': 'x'}), flush=True)\n"
    )
    few = ("--command", f'"{sys.executable}" "{program}"', "-k", "conversion or algebra/add/", "--profile", "full")
    status, lines, reported = conform(tmp_path, *few, capsys=capsys)
    assert status == 3
    assert counts(lines)["harness error"] >= 3
    assert "ended with exit code 1 in this call: error: out of luck" in reported
    assert "that are none of the protocol's, the first: 'welcome'" in reported
    assert "started anew" in reported
    status, lines, reported = conform(tmp_path, *few[:2], "-k", "coalesce", "--profile", "full", capsys=capsys)
    assert status == 3
    assert counts(lines)["harness error"] == 10
    assert "given up after 10 calls in which it broke" in reported


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--command", "a 'b"], '--command: got "a \'b": No closing quotation'),
        (["--command", " "], "--command: got ' '; accepted is a program and its arguments"),
        (["--command", "x", "-k", "nothing-like-this"], "no case matches"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], options: list[str], says: str) -> None:
    assert main(["conform", *options]) == 2
    assert says in capsys.readouterr().err
