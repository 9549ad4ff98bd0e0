"""Run the probes, each module in a process, and write the findings as Markdown.

If a process ends or hangs during a probe, this is the probe's finding, and another process runs the rest.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from islices.conformance.logs import last_lines
from islices.conformance.report import CLAUSES
from islices.conformance.tools.audit import probes

#: Seconds after which a process counts as hung. Imports of frameworks on a busy machine are within.
PATIENCE = 300
#: From bad to good.
OUTCOMES = ("broken", "corrupts", "raises", "differs", "agrees", "not run")
REMARKS = {"gone": "not in this version; in another: ", "changed": "not as once measured: "}

Finding = dict[str, Any]


def modules() -> list[str]:
    """Return the names of the modules that hold probes, alphabetically."""
    return sorted(m.name for m in pkgutil.iter_modules(probes.__path__))


def framework_of(module: str) -> str:
    """Return the framework of a module, such as torch for torch_compile."""
    return module.partition("_")[0]


def run_module(module: str, words: str, patience: float = PATIENCE) -> Iterator[Finding]:
    """Yield the findings of the probes that mention the words, by number."""
    first: int | None = 1
    while first is not None:
        lines, end = _work([module, words, str(first)], patience)
        found = {line["number"]: line for line in lines if "outcome" in line}
        first = lines[-1].get("next") if lines else None
        if end and not found:
            found[module] = {"number": module, "module": module, "outcome": "broken", "got": end}
        elif end:
            number = [*found][-1]
            found[number] |= {"outcome": "corrupts", "got": end, "error": ""}
            first = int(number.rpartition("-")[2]) + 1
        for finding in found.values():
            yield finding | {"status": _status(finding)}


def _status(finding: Finding) -> str:
    """Return "as measured", "gone" if the trap no longer exists, "changed" if the answer is wrong in another way, or
    ""."""
    outcome = finding["outcome"]
    if outcome in ("broken", "not run"):
        return ""
    return "as measured" if outcome == finding["trap"] else "gone" if outcome == "agrees" else "changed"


def _work(arguments: Sequence[str], patience: float) -> tuple[list[Finding], str]:
    """Run a prober, and return its output and a description of its end, "" if it ended well."""
    command = [sys.executable, "-m", "islices.conformance.tools.audit.prober", *arguments]
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    with tempfile.TemporaryDirectory(prefix="islices-audit-") as folder:
        out, log = Path(folder) / "out", Path(folder) / "log"
        with out.open("wb") as file, log.open("wb") as errors:
            try:
                code = subprocess.run(
                    command, stdout=file, stderr=errors, cwd=folder, env=environment, timeout=patience
                ).returncode
                end = _ended(code)
            except subprocess.TimeoutExpired:
                end = f"no answer within {patience:.0f} s"
        lines = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
        return lines, end if lines or not end else f"{end}\n{last_lines(log, 5)}"


def _ended(code: int) -> str:
    """Describe how a process ended, or return "" if it ended well."""
    if code >= 0:
        return f"the process ended with exit code {code}" if code else ""
    return f"the process ended by {signal.Signals(-code).name}"


# ---------------------------------------------------------------------- Markdown
def summary(findings: Sequence[Finding]) -> str:
    """Return one line of counts."""
    outcomes = Counter(f["outcome"] for f in findings)
    return ", ".join(f"{outcomes[o]} {o}" for o in OUTCOMES if outcomes[o])


def report(findings: Sequence[Finding]) -> str:
    """Return a section per framework and a paragraph per finding, from worst to best."""
    lines = ["# What the frameworks' own functions do", ""]
    for framework in dict.fromkeys(framework_of(f["module"]) for f in findings):
        own = [f for f in findings if framework_of(f["module"]) == framework]
        lines += [f"## {framework} {own[0].get('version', '')}", "", f"{summary(own)}.", ""]
        for f in sorted(own, key=lambda f: OUTCOMES.index(f["outcome"])):
            lines += _paragraph(f)
    return "\n".join(lines)


def _paragraph(f: Finding) -> list[str]:
    if "call" not in f:
        return [f"### {f['outcome']}: {f['module']}", "", f["got"], ""]
    remark = REMARKS.get(f["status"], "") + (f["claim"] if f["status"] else "")
    items = {
        "given": f["given"], "got": f"`{f['got']}`", "specification": f"`{f['expected']}`", "error": f.get("error"),
        "upstream": f["issue"], "use instead": f"`{f['instead']}`",
    }  # fmt: skip
    clause = f"clause {f['clause']}: {CLAUSES[f['clause']]}"
    head = [f"### {f['outcome']}: `{f['call']}`", "", f"{f['number']}, {clause}. {remark}".strip(), ""]
    return head + [f"- {label}: {value}" for label, value in items.items() if value] + [""]
