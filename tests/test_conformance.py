"""All installed backends conform: the command users run, whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import islices


def test_every_backend_conforms(tmp_path: Path) -> None:
    target = tmp_path / "report.jsonl"
    command = [sys.executable, "-m", "islices", "conform", "--json", str(target)]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    headers = [line for line in lines if line["type"] == "header"]
    assert [h["backend"] for h in headers if not h["variant"]] == islices.list_backends()
    assert {h["variant"] for h in headers} == {"", "kernels off", "read-only", "cuda", "ranks"}
    assert all(h["skipped"] for h in headers if h["variant"] == "cuda" and h["devices"] == ["cpu"])
    over_ranks = [line for line in lines if line["type"] == "case" and line["group"] == "ranks"]
    assert {line["clause"] for line in over_ranks} == {"25"}
    assert all(h["skipped"] or h["total"] > 250 for h in headers if h["variant"] == "ranks")
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
