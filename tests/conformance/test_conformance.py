"""All installed backends conform: the command users run, whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import islices


def test_every_backend_conforms(tmp_path: Path) -> None:
    target = tmp_path / "report.jsonl"
    # in processes of several ranks: tests/islices/distributed/test_ranks.py, and below
    variants = [word for name in ("standard", "kernels off", "read-only", "cuda") for word in ("--variant", name)]
    command = [sys.executable, "-m", "islices", "conform", "--json", str(target), *variants]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    headers = [line for line in lines if line["type"] == "header"]
    assert [h["backend"] for h in headers if not h["variant"]] == islices.list_backends()
    assert {h["variant"] for h in headers} == {"", "kernels off", "read-only", "cuda"}
    assert all(h["skipped"] for h in headers if h["variant"] == "cuda" and h["devices"] == ["cpu"])
    assert len({(h["vectors"], h["spec"]) for h in headers}) == 1
    outcomes = {line["outcome"] for line in lines if line["type"] == "case"}
    assert outcomes <= {"pass", "deviation", "unsupported"}
    for header in headers:
        passed = {
            (c["mode"], c["group"])
            for c in lines
            if c["type"] == "case" and c["outcome"] == "pass" and c["id"].startswith("captured")
        }
        assert ("host", "captured") in passed, header["backend"]


def test_backends_conform_over_ranks(tmp_path: Path) -> None:
    target = tmp_path / "report.jsonl"
    command = [sys.executable, "-m", "islices", "conform", "--variant", "ranks", "-b", "numpy", "--json", str(target)]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    header, *lines = [json.loads(line) for line in target.read_text().splitlines()]
    cases = [line for line in lines if line["type"] == "case"]
    assert {(line["group"], line["outcome"]) for line in cases} <= {("ranks", "pass")}
    assert {line["clause"] for line in cases} <= {"25", "26"}
    assert header["skipped"] or len(cases) == header["total"] > 250
