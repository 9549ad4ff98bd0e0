"""The findings of an audit as Markdown, which terminals show as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from islices.conformance.report import CLAUSES
from islices.conformance.tools.audit.choose import framework_of

__all__ = ["report", "summary"]

Finding = dict[str, Any]
#: From bad to good.
OUTCOMES = ("broken", "corrupts", "raises", "differs", "agrees", "not run")
REMARKS = {"gone": "not in this version; in another: ", "changed": "not as once measured: "}


def summary(findings: Sequence[Finding]) -> str:
    """Return one line of counts."""
    outcomes, states = Counter(f["outcome"] for f in findings), Counter(f["status"] for f in findings)
    words = {"gone": "not in this version", "changed": "not as once measured"}
    parts = [f"{outcomes[o]} {o}" for o in OUTCOMES if outcomes[o]]
    return ", ".join(parts + [f"{states[s]} {word}" for s, word in words.items() if states[s]])


def report(findings: Sequence[Finding]) -> str:
    """Return a section per framework and a paragraph per finding, from worst to best."""
    lines = ["# What the frameworks' own functions do", ""]
    for framework in dict.fromkeys(framework_of(f["module"]) for f in findings):
        own = [f for f in findings if framework_of(f["module"]) == framework]
        lines += [f"## {framework} {own[0].get('version', '')}", "", f"{summary(own)}.", ""]
        for f in sorted(own, key=lambda f: OUTCOMES.index(f["outcome"])):
            lines += paragraph(f)
    return "\n".join(lines)


def paragraph(f: Finding) -> list[str]:
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
