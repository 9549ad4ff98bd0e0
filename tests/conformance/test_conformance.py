"""Test that backends conform in other variants, over ranks and in the full profile. `make conform` runs the quick
profile instead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from suite_runs import read_lines

import islices


def conform(tmp_path: Path, *options: str, limit: float) -> list[dict[str, Any]]:
    """Run `islices conform`, which must succeed, and return the lines of the report."""
    target = tmp_path / "report.jsonl"
    command = [sys.executable, "-m", "islices", "conform", "--json", str(target), *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}  # no shared program cache
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False, timeout=limit)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return read_lines(target)


def check(lines: list[dict[str, Any]], backends: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Check that all backends ran the same vectors, that no case failed, and that a case of the group "captured"
    passed. Return the headers."""
    headers = [line for line in lines if line["type"] == "header"]
    assert {h["backend"] for h in headers if not h["variant"]} == set(backends or islices.list_backends())
    assert len({(h["vectors"], h["spec"]) for h in headers}) == 1
    outcomes = {line["outcome"] for line in lines if line["type"] == "case"}
    assert outcomes <= {"pass", "deviation", "unsupported"}
    assert [c for c in lines if c["type"] == "case" and c["outcome"] == "pass" and c["group"] == "captured"]
    return headers


@pytest.mark.outside
@pytest.mark.parametrize("names", [("numpy",), pytest.param((), marks=pytest.mark.soak)], ids=["numpy", "all"])
def test_backends_conform_in_other_variants(names: tuple[str, ...], tmp_path: Path) -> None:
    # the test below and tests/islices/distributed/test_ranks.py run the variant "ranks"
    backends = [name for name in names if name in islices.list_backends()]
    variants = [word for name in ("standard", "kernels off", "read-only", "cuda") for word in ("--variant", name)]
    chosen = [word for name in backends for word in ("-b", name)]
    headers = check(conform(tmp_path, *chosen, *variants, limit=1800), backends)
    expected = {"", "kernels off", "read-only"} if backends else {"", "kernels off", "read-only", "cuda"}
    assert {h["variant"] for h in headers} == expected
    assert all(h["skipped"] for h in headers if h["variant"] == "cuda" and h["devices"] == ["cpu"])


@pytest.mark.soak
@pytest.mark.parametrize("backend", [name for name in islices.list_backends() if name not in ("jax", "numpy")])
def test_every_case_passes_by_the_frameworks_own_operations(backend: str, tmp_path: Path) -> None:
    """Run the cases of the full profile in mode framework, which uses the frameworks' operations."""
    lines = conform(tmp_path, "--profile", "full", "-b", backend, "-k", "framework", limit=1800)
    check(lines, [backend])
    cases = [line for line in lines if line["type"] == "case" and line["mode"] == "framework"]
    assert len(cases) > 5000


@pytest.mark.outside
def test_backends_conform_over_ranks(tmp_path: Path) -> None:
    header, *lines = conform(tmp_path, "--variant", "ranks", "-b", "numpy", limit=300)
    cases = [line for line in lines if line["type"] == "case"]
    assert {(line["group"], line["outcome"]) for line in cases} <= {("ranks", "pass")}
    assert {line["clause"] for line in cases} <= {"25", "26"}
    assert header["skipped"] or len(cases) == header["total"] > 240


@pytest.mark.outside
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are looked up in /proc")
def test_the_command_ends_its_processes_with_it(tmp_path: Path) -> None:
    """Check that a command that gets SIGTERM, as schedulers and make send it, also ends its processes."""
    command = [sys.executable, "-m", "islices", "conform", "-b", "numpy", "--profile", "full"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        found, limit = list[Path](), time.monotonic() + 120
        while not found and time.monotonic() < limit:
            time.sleep(0.1)
            tasks = Path(f"/proc/{running.pid}/task").glob("*/children")
            of_all = [Path("/proc") / pid for task in tasks for pid in task.read_text().split()]
            found = [x for x in of_all if b"islices_pytest" in (x / "cmdline").read_bytes()]
        assert found, "no process of the suite"
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 128 + signal.SIGTERM
    assert not [x for x in found if x.exists()]
