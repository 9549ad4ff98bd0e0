"""Test that NumPy conforms in three variants and over ranks.

`make conform` runs the quick profile on every backend. `make soak` runs all variants and the full profile as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from suite_runs import read_lines


def conform(tmp_path: Path, *options: str, limit: float) -> list[dict[str, Any]]:
    target = tmp_path / "report.jsonl"
    command = [sys.executable, "-m", "islices", "conform", "--json", str(target), *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}  # no shared program cache
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False, timeout=limit)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return read_lines(target)


@pytest.mark.outside
def test_numpy_conforms_in_other_variants(tmp_path: Path) -> None:
    # the test below and tests/islices/distributed/test_ranks.py run the variant "ranks"
    variants = [word for name in ("standard", "kernels off", "read-only") for word in ("--variant", name)]
    lines = conform(tmp_path, "-b", "numpy", *variants, limit=600)
    headers = [line for line in lines if line["type"] == "header"]
    assert {h["variant"] for h in headers} == {"", "kernels off", "read-only"}
    assert len({(h["vectors"], h["spec"]) for h in headers}) == 1
    cases = [line for line in lines if line["type"] == "case"]
    assert {c["outcome"] for c in cases} <= {"pass", "deviation", "unsupported"}
    assert [c for c in cases if c["outcome"] == "pass" and c["group"] == "captured"]


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
    """Check that the command ends its processes when it gets SIGTERM, which schedulers and make send."""
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
