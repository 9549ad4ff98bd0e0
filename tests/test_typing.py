"""Test that type checkers accept the right calls in tests/typing_consumer.py, and reject the wrong ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.outside

CONSUMER = Path(__file__).with_name("typing_consumer.py")
ROOT = CONSUMER.parent.parent


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def test_mypy_agrees_with_a_consumer(tmp_path):
    pytest.importorskip("mypy")
    settings = tmp_path / "mypy.ini"  # settings of a user, not of this repository
    settings.write_text("[mypy]\n")
    # `make lint` checks islices itself
    options = ("--strict", "--follow-imports=silent", "--config-file", str(settings), "--cache-dir", str(tmp_path))
    run("mypy", *options, str(CONSUMER))


def test_pyright_agrees_with_a_consumer(tmp_path):
    pytest.importorskip("pyright")
    paths = [str(ROOT), *filter(None, sys.path)]  # includes folders that an import line of a .pth file adds
    settings = {"extraPaths": paths, "reportUnnecessaryTypeIgnoreComment": "error"}
    path = tmp_path / "pyrightconfig.json"
    path.write_text(json.dumps(settings))
    run(
        "pyright", "--pythonpath", sys.executable, "--project", str(path), str(CONSUMER)
    )  # pyright ignores absolute paths in "include"
