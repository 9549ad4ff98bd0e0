"""Test that the suite runs its cases in other variants and interpreters, and that reports say why a column is
missing."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from suite_runs import read_lines

import islices
from islices.cli import main
from islices.conformance.variants import VARIANTS

FRAMEWORKS = [name for name in islices.list_backends() if name != "numpy"]


def conform(tmp_path: Path, *options: str) -> list[dict[str, Any]]:
    target = tmp_path / "report.jsonl"
    assert main(["conform", "--json", str(target), *options]) == 0
    return read_lines(target)


# ---------------------------------------------------------------------- variants that run
@pytest.mark.outside
def test_each_variant_is_a_run_of_its_own_and_one_that_cannot_run_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--profile", "full", "-b", "numpy", "-b", "torch", "-k", "densify/to_dense/one/float32")
    lines = conform(tmp_path, *options)
    headers = [line for line in lines if line["type"] == "header"]
    assert [(h["backend"], h["variant"]) for h in headers] == [
        *(("numpy", variant) for variant in ("", "kernels off", "read-only")),
        *(("torch", variant) for variant in ("", "kernels off", "cuda")),
    ], "and none of ranks, which has no such case"
    modes = [line["mode"] for line in lines if line["type"] == "case"]
    assert set(modes) == {"host", "framework", "traced"}, "torch.compile is torch's traced column"
    cuda = headers[-1]
    if cuda["devices"] == ["cpu"]:
        assert "no CUDA device" in cuda["skipped"]
        footers = [line for line in lines if line["type"] == "footer"]
        assert footers[-1]["counts"] == {}, "a skipped run counts nothing"
        shown = capsys.readouterr().out
        assert "skipped: cuda of torch" in shown
        assert "1 skipped" in shown


def test_a_call_in_which_nothing_can_run_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "-b", "numpy", "--variant", "x64"]) == 2
    assert "nothing ran" in capsys.readouterr().err
    assert main(["conform", "--variant", "fast"]) == 2
    assert "accepted are standard, kernels off, read-only, x64, cuda, ranks, all" in capsys.readouterr().err


@pytest.mark.skipif("jax" not in FRAMEWORKS, reason="JAX is not installed")
def test_a_variant_whose_environment_is_not_that_of_the_process_is_refused() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "islices.conformance"]
    command += ["--islices-backend", "jax", "--islices-variant", "standard,x64"]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4, done.stdout
    assert "needs JAX_ENABLE_X64=1" in done.stderr


def test_kernels_are_off_where_a_column_says_so() -> None:
    for name in ("standard", "kernels off"):
        with islices.config.use_kernels(True), VARIANTS[name].around():
            assert (islices.kernels.active() is None) == (name == "kernels off")


# ---------------------------------------------------------------------- other interpreters
@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment that has NumPy and pytest, but neither islices nor rich nor a
    framework."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for distribution in ("numpy", "pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for name in {file.parts[0] for file in importlib.metadata.files(distribution) or ()} - {"..", "__pycache__"}:
            (site / name).symlink_to(importlib.metadata.distribution(distribution).locate_file(name))
    return folder / "bin" / "python"


@pytest.mark.outside
def test_python_runs_this_very_islices_on_another_environments_frameworks(tmp_path: Path, other_python: Path) -> None:
    alone = subprocess.run([other_python, "-c", "import islices"], capture_output=True, text=True, cwd=tmp_path)
    assert "No module named 'islices'" in alone.stderr
    options = ("-b", "numpy", "--variant", "standard", "-k", "coalesce/one", "--python", str(other_python))
    lines = conform(tmp_path, *options)
    ours, theirs = (line for line in lines if line["type"] == "header")
    assert (ours["vectors"], ours["islices"]) == (theirs["vectors"], theirs["islices"])
    cut = max(k for k, line in enumerate(lines) if line["type"] == "header")
    runs = [[line["id"] for line in part if line["type"] == "case"] for part in (lines[:cut], lines[cut:])]
    assert runs[0] == runs[1] != []


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/no/such/python", "accepted is the path"),
        (os.devnull, "accepted is the path"),
        ("/bin/true", "does not answer as a Python interpreter"),
    ],
)
def test_what_is_no_interpreter_is_refused(path: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--python", path]) == 2
    shown = capsys.readouterr()
    assert path in shown.err
    assert words in shown.err
