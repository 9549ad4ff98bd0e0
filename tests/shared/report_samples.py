"""Sample reports for tests: a report of a real run on NumPy, and handmade reports, including a hostile one."""

from __future__ import annotations

import functools
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from suite_runs import run_suite

#: Text that no renderer may interpret: HTML, JSON in HTML, XML, Markdown, terminal codes, and invalid text.
HOSTILE = (
    "</script><img src=x onerror=\"document.title='hacked'\"><!-- & ]]> \x1b[31mred\x1b[0m \u202e | `tick` **b** "
    "[b]rich[/b] @nobody \x00\ufffe \ud800"
)
#: HOSTILE as reports show it.
SHOWN = (
    "</script><img src=x onerror=\"document.title='hacked'\"><!-- & ]]> \\x1b[31mred\\x1b[0m \\u202e | `tick` **b** "
    "[b]rich[/b] @nobody \\x00\\ufffe \\ud800"
)


def header(backend: str, **fields: Any) -> dict[str, Any]:
    usual = {
        "spec": "1.4", "vectors": "a" * 64, "islices": "0.1.0", "version": "1.0", "devices": ["cpu"], "numpy": "1.26.4",
        "python": "3.11.7", "platform": "Linux-6.1-x86_64-with-glibc2.36", "profile": "default", "variant": "",
        "skipped": "",
    }  # fmt: skip
    return {"type": "header", "backend": backend, **usual, **fields}


def case(id: str, outcome: str, mode: str = "host", **fields: Any) -> dict[str, Any]:
    usual = {"clause": "10", "group": "clipping", "call": "clip_by_norm(x, 1.0)", "seconds": 0.25}
    return {"type": "case", "id": id, "outcome": outcome, "mode": mode, **usual, **fields}


def run_of(head: dict[str, Any], *cases: dict[str, Any]) -> list[dict[str, Any]]:
    counts = Counter(c["outcome"] for c in cases)
    failed = counts["fail"] + counts["harness error"] > 0
    return [head, *cases, {"type": "footer", "counts": dict(counts), "exit": 1 if failed else 0 if cases else 5}]


def lines(*entries: dict[str, Any]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


#: A small report of one complete run.
WHOLE = lines(
    *run_of(header("numpy"), case("clipping/a", "pass"), case("clipping/b", "unsupported", reason="no such type"))
)


def hostile_report() -> str:
    """Return a report with a crashed run, a skipped run, runs with two versions of NumPy, and all outcomes except
    bound. Some texts look like markup."""
    reported = {"reason": f"{HOSTILE}\nsecond line", "got": HOSTILE, "expected": HOSTILE, "call": HOSTILE}
    return lines(
        *run_of(
            header("torch"), case("clipping/a", "pass"), case(HOSTILE, "fail", **reported),
            case("clipping/b", "deviation", reason=HOSTILE, kind="notyet", issue="javascript:alert(1)"),
            case("clipping/c", "unsupported", reason="no such type"),
            case("clipping/d", "harness error", "framework", reason="Traceback"),
            case("clipping/a", "pass", "framework"),
        ),
        header("torch", variant="kernels off"), case("clipping/a", "pass"),
        case("sums/a", "pass", clause="3", group="coalesce"),
        {"type": "start", "id": "clipping/b", "mode": "host"},
        *run_of(header("torch", variant="cuda", skipped="no CUDA device")),
        *run_of(
            header(HOSTILE, version=HOSTILE),
            case("x" * 300, "fail", HOSTILE, clause=HOSTILE, group=HOSTILE, **reported),
        ),
        *run_of(header("jax"), case("clipping/a", "pass")),
        *run_of(header("jax", numpy="2.3.1"), case("clipping/a", "pass")),
    )  # fmt: skip


#: Number of cases per outcome in hostile_report. The crash and the skipped run add none.
HOSTILE_COUNTS = {"pass": 6, "fail": 2, "deviation": 1, "unsupported": 1, "harness error": 1}


@functools.cache
def real_report() -> str:
    with tempfile.TemporaryDirectory() as folder:
        done = run_suite(Path(folder), "numpy", "-k", "clip_by_value or conversion", path=Path(folder))
        assert done.status == 0, done.output
        return (Path(folder) / "report.jsonl").read_text("utf-8")
