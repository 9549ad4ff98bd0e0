"""Run programs, the suite and the command `islices` in fresh interpreters. A test may add distributions that it has
written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SHARED = Path(__file__).parent
LOOPBACK = SHARED / "loopback_backend"


class Run(NamedTuple):
    lines: list[dict[str, Any]]
    status: int
    output: str

    @property
    def cases(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == "case"]

    @property
    def counts(self) -> Counter[str]:
        return Counter(line["outcome"] for line in self.cases)

    def ids(self, outcome: str) -> set[str]:
        return {line["id"] for line in self.cases if line["outcome"] == outcome}

    def clauses(self, outcome: str) -> set[str]:
        return {line["clause"] for line in self.cases if line["outcome"] == outcome}

    def reasons(self, outcome: str) -> set[str]:
        return {line["reason"] for line in self.cases if line["outcome"] == outcome}


def python(
    *arguments: object, path: Path | str = "", cwd: Path | None = None, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter with a folder of modules and distributions on its path, and return the finished
    process."""
    paths = os.pathsep.join(filter(None, [str(path), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200", **environment}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=timeout)


def run_code(code: str, *arguments: object, **options: Any) -> str:
    """Run a program with the options of `python`, and return its stdout. The program must succeed."""
    done = python("-c", textwrap.dedent(code), *arguments, **options)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_distribution(folder: Path, name: str, group: str, **points: str) -> None:
    """Write metadata for a distribution, including its entry points, into a folder of modules."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *map(" = ".join, points.items())]))


def run_suite(folder: Path, backend: str, *options: str, path: Path) -> Run:
    """Run the suite with pytest on a backend. Distributions come from `path`, and the report goes into `folder`."""
    report = folder / "report.jsonl"
    done = python(
        "-m", "pytest", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider", "--import-mode=importlib",
        "--pyargs", "islices.conformance", "--islices-backend", backend, "--islices-report", report, *options,
        path=path, cwd=folder,
    )  # fmt: skip
    return Run(read_lines(report), done.returncode, done.stdout + done.stderr)


def conform(folder: Path, *options: str, path: Path) -> Run:
    """Run `islices conform` in its standard variant, with the distributions in `path`, and write the report into
    `folder`."""
    report = folder / "report.jsonl"
    arguments = ("conform", "--variant", "standard", "--json", str(report), *options)
    done = python("-m", "islices", *arguments, path=path, cwd=folder)
    return Run(read_lines(report), done.returncode, done.stdout + done.stderr)


def read_lines(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text("utf-8").splitlines()] if report.exists() else []


def install(source: Path, target: Path, scratch: Path) -> Path:
    """Install a copy of the distribution in folder `source` into the folder `target` with pip. The installation writes
    nothing into the checkout, and uses no package index."""
    copy = shutil.copytree(
        source, scratch / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    )
    done = python(
        "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile",
        "--disable-pip-version-check", "--target", target, copy,
        path=scratch,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def replaced(text: str, edits: list[tuple[str, str]]) -> str:
    """Return the text after replacing each pair (old, new) of `edits`. Each old text must occur once."""
    for old, new in edits:
        assert text.count(old) == 1, f"{text.count(old)} times: {old}"
        text = text.replace(old, new)
    return text
