"""Test that the quick profile or a test catches each planted fault. A fault is one edit of islices in a copy of the
checkout.

The author of the faults did not know the cases of the quick profile. A run of the profile takes up to a minute, so only
`make soak` tests whether the faults are caught.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path

import pytest
from mutants import MUTANTS, OF_TESTS, Mutant
from suite_runs import ROOT

import islices

NAME = attrgetter("name")
CONFORM = [sys.executable, "-m", "islices", "conform", "--variant", "standard", "-b"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout, in which the suite passes. Tests of later faults reuse the kernels that are
    compiled in the copy."""
    folder = tmp_path_factory.mktemp("copy") / "islices"
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*", "build"))
    assert not run(folder, [*CONFORM, "numpy"], folder).returncode
    return folder


@contextmanager
def broken(copy: Path, mutant: Mutant) -> Iterator[None]:
    file = copy / mutant.file
    sound = file.read_text("utf-8")
    assert sound.count(mutant.old) == 1, f"{mutant.name}: the code has changed"
    file.write_text(sound.replace(mutant.old, mutant.new), "utf-8")
    try:
        yield
    finally:
        file.write_text(sound, "utf-8")


def run(copy: Path, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mutant", MUTANTS + OF_TESTS, ids=NAME)
def test_every_fault_is_of_this_code(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text("utf-8")
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")


@pytest.mark.soak
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.shown_by in islices.list_backends()], ids=NAME)
def test_the_quick_profile_catches_a_fault(mutant: Mutant, copy: Path, tmp_path: Path) -> None:
    with broken(copy, mutant):
        done = run(copy, [*CONFORM, mutant.shown_by], tmp_path)
    assert done.returncode in (1, 3), done.stdout[-2000:]


@pytest.mark.soak
@pytest.mark.parametrize("mutant", OF_TESTS, ids=NAME)
def test_a_test_catches_what_the_suite_does_not_reach(mutant: Mutant, copy: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not soak", "-p", "no:cacheprovider", mutant.shown_by]
    with broken(copy, mutant):
        done = run(copy, command, copy)
    assert done.returncode == 1, done.stdout[-2000:]
