"""The findings of an audit as text: for a terminal or a pipe, and as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from islices.conformance.report import CLAUSES
from islices.conformance.tools.audit.choose import framework_of

__all__ = ["blocks", "markdown", "summary"]

Finding = dict[str, Any]

#: outcome -> (what stands in a sentence about several, style); from bad to good.
WORDS = {
    "corrupts": ("corrupt memory or end the process", "bold white on red"),
    "raises": ("raise", "bold red"),
    "differs": ("differ", "bold yellow"),
    "agrees": ("agree", "bold green"),
    "not run": ("not run", "dim"),
    "broken": ("broken probes", "bold magenta"),
}
#: Width of the labels of a block.
LABEL = 13


def summary(findings: Sequence[Finding]) -> str:
    """One line of counts."""
    outcomes = Counter(f["outcome"] for f in findings)
    parts = [f"{outcomes[o]} {word}" for o, (word, _) in reversed(WORDS.items()) if outcomes[o]]
    states = Counter(f["status"] for f in findings)
    words = {"gone": "not in this version", "changed": "not as once measured"}
    parts += [f"{states[state]} {word}" for state, word in words.items() if states[state]]
    return ", ".join(parts) or "nothing was asked"


def groups(findings: Sequence[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    """(framework, its findings from worst to best)"""
    for framework in dict.fromkeys(framework_of(f["module"]) for f in findings):
        own = [f for f in findings if framework_of(f["module"]) == framework]
        yield framework, sorted(own, key=lambda f: ([*WORDS].index(f["outcome"]), f["status"] == "gone"))


def title(framework: str, findings: Sequence[Finding]) -> str:
    """ "torch 2.13.0", or all libraries that the module asks."""
    versions = {f["library"]: f["version"].partition("+")[0] for f in findings if f.get("version", "?") != "?"}
    return ", ".join(f"{name} {number}" for name, number in versions.items()) or framework


def in_full(finding: Finding, everything: bool) -> bool:
    """Whether a finding has a block of its own: what agrees as it ever did is only named."""
    return everything or finding["outcome"] != "agrees" or finding["status"] != "as measured"


def facts(finding: Finding) -> list[tuple[str, str]]:
    """What a block says below its heading: (label, text)."""
    outcome, status = finding["outcome"], finding["status"]
    out = [("", f"{finding['claim']}")] if status == "as measured" and finding.get("claim") else []
    if status == "gone":
        out += [("", "not in this version: every answer is the specification's"), ("in another", finding["claim"])]
    if status == "changed":
        once = f"{finding['trap']}: {finding['claim']}" if finding["trap"] else f"agreed: {finding['claim']}"
        out += [("", "not as once measured"), ("once", once)]
    if finding.get("given") and outcome != "agrees":
        out.append(("given", finding["given"] + _share(finding)))
    if outcome in ("broken", "not run"):
        out.append(("reason", finding["got"]))
    elif outcome != "agrees":
        out.append(("got", finding["got"]))
        if finding.get("expected"):
            out.append(("spec", finding["expected"]))
    if outcome == "differs" and finding["error"] != "another answer":
        out.append(("error", finding["error"]))
    if finding.get("issue"):
        out.append(("upstream", finding["issue"]))
    if finding.get("instead") and outcome != "not run":
        out.append(("use" if outcome == "agrees" else "use instead", finding["instead"]))
    return out


def _share(finding: Finding) -> str:
    """How many of the questions had such an answer, where there were others."""
    counts = finding.get("counts", {})
    several, such = sum(counts.values()), counts.get(finding["outcome"])
    return f"  ({such} of {several} inputs)" if such and several > 1 else ""


# ---------------------------------------------------------------------- terminal
def blocks(findings: Sequence[Finding], everything: bool, width: int) -> Iterator[Any]:
    """Lines to print (rich): a heading a framework, a block a finding, what agrees by name."""
    from rich.text import Text

    for framework, own in groups(findings):
        name = title(framework, own)
        yield Text.assemble((name, "bold"), (" " + "─" * max(width - len(name) - 1, 3), "dim"))
        yield Text(summary(own), "dim")
        yield Text()
        for finding in own:
            if in_full(finding, everything):
                yield from _block(finding, width)
                yield Text()
        named = [f for f in own if not in_full(f, everything)]
        if named:
            yield Text.assemble(("agrees", WORDS["agrees"][1]), f"  {len(named)} more, as the specification says")
            longest = max(len(f["number"]) for f in named)
            for f in named:
                line = f"  {f['number']:{longest}}  {f['call']}: {f['claim']}"
                yield from map(Text, wrapped(line, width, longest + 4))
            yield Text()


def _block(finding: Finding, width: int) -> Iterator[Any]:
    from rich.text import Text

    outcome = finding["outcome"]
    lines = wrapped(f"{outcome}  {finding.get('call', '')}", width, len(outcome) + 2)
    for k, line in enumerate(lines):
        yield (
            Text.assemble((outcome, WORDS[outcome][1]), (line[len(outcome) :], "bold")) if not k else Text(line, "bold")
        )
    clause = finding.get("clause", "")
    yield Text(f"  {finding['number']}{f', clause {clause}: {CLAUSES[clause]}' if clause in CLAUSES else ''}", "dim")
    for label, text in facts(finding):
        indent = LABEL + 2 if label else 2
        for k, line in enumerate(wrapped(f"{label:{LABEL}}{text}" if label else text, width - 2, indent - 2)):
            shown = Text(f"  {line}")
            if label and not k:
                shown.stylize("dim", 0, LABEL + 2)
            yield shown


def wrapped(text: str, width: int, indent: int) -> list[str]:
    """Lines of at most width, all but the first indented."""
    return textwrap.wrap(text, max(width, indent + 20), subsequent_indent=" " * indent, break_on_hyphens=False)


# ---------------------------------------------------------------------- Markdown
def markdown(findings: Sequence[Finding], header: dict[str, Any], everything: bool) -> str:
    """The same as a Markdown document."""
    lines = ["# What the frameworks' own functions do", "", provenance(header), "", summary(findings) + ".", ""]
    for framework, own in groups(findings):
        lines += [f"## {_escaped(title(framework, own))}", "", summary(own) + ".", ""]
        for finding in own:
            if in_full(finding, everything):
                lines += _section(finding)
        named = [f for f in own if not in_full(f, everything)]
        if named:
            lines += [f"### agrees: {len(named)} more", ""]
            lines += [f"- `{f['call']}` ({f['number']}, clause {f['clause']})" for f in named] + [""]
    return "\n".join(lines)


def _section(finding: Finding) -> list[str]:
    clause = f", clause {finding['clause']}" if finding.get("clause") else ""
    call = f"`{finding['call']}` " if finding.get("call") else ""
    lines = [f"### {finding['outcome']}: {call}({finding['number']}{clause})", ""]
    items = facts(finding)
    lines += [f"{_escaped(text)}." for label, text in items if not label]
    lines += [""] if lines[-1] else []
    lines += [f"- {label}: {_value(label, text)}" for label, text in items if label]
    return [*lines, ""]


def _value(label: str, text: str) -> str:
    if label in ("use", "use instead", "got", "spec", "reason"):
        ticks = "``" if "`" in text else "`"
        flat = " ".join(text.split())
        return f"{ticks} {flat} {ticks}" if "`" in text else f"`{flat}`"
    if label == "upstream":
        return re.sub(r"([\w.-]+/[\w.-]+)#(\d+)", r"[\1#\2](https://github.com/\1/issues/\2)", text)
    return _escaped(text)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


def provenance(header: dict[str, Any]) -> str:
    """Return the versions of islices and Python, and the platform; each framework's title has its own versions."""
    return f"islices {header['islices']}, Python {header['python']}, {header['platform']}"
