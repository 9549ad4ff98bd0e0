"""Run each module of probes in a separate process, and write the findings as Markdown.

If a process crashes or hangs during a probe, the finding reports this, and another process runs the remaining probes.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from islices.conformance.report import CLAUSES
from islices.conformance.tools.audit import probes
from islices.conformance.workers import run_worker

#: The seconds after which a process counts as hung. Importing a framework takes less time, even on a busy machine.
PATIENCE = 300
#: The outcomes of probes, in the order of the report.
OUTCOMES = ("broken", "corrupts", "raises", "differs", "agrees", "not run")
REMARKS = {"gone": "not in this version; in another: ", "changed": "not as once measured: "}

Finding = dict[str, Any]


def modules() -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(probes.__path__))


def framework_of(module: str) -> str:
    """Return the framework of a module of probes, such as torch for torch_compile."""
    return module.partition("_")[0]


def run_module(module: str, words: str, patience: float = PATIENCE) -> Iterator[Finding]:
    """Yield the findings of the module's probes whose number, call, claim or clause contains the text `words`.

    Upper and lower case do not matter. If a process fails before its first probe, yield a "broken" finding without a
    probe. If the framework is missing or cannot run, yield a "not run" finding without a probe. `patience` is the
    number of seconds after which a process counts as hung.
    """
    first: int | None = 1
    while first is not None:
        command = [sys.executable, "-m", "islices.conformance.tools.audit.prober", module, words, str(first)]
        lines, end = run_worker(command, {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}, patience)
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
    """Return "as measured" if the outcome is still the probe's `trap`, and "gone" if the answer is now correct. Return
    "changed" for any other answer. Return "" for the outcomes "broken" and "not run"."""
    outcome = finding["outcome"]
    if outcome in ("broken", "not run"):
        return ""
    return "as measured" if outcome == finding["trap"] else "gone" if outcome == "agrees" else "changed"


# ---------------------------------------------------------------------- Markdown
def summary(findings: Sequence[Finding]) -> str:
    """Return the number of findings per outcome, as one line."""
    outcomes = Counter(f["outcome"] for f in findings)
    return ", ".join(f"{outcomes[o]} {o}" for o in OUTCOMES if outcomes[o])


def report(findings: Sequence[Finding]) -> str:
    """Return the findings as Markdown: one section per framework, with one subsection per finding. The subsections of a
    section have the order of `OUTCOMES`."""
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
