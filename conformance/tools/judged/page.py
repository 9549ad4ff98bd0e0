"""docs/judged.md from a run: the tables of scores, and each finding's script with what it prints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from islices.conformance.formulas.judgement import number

Line = dict[str, Any]


def with_run(page: str, run: Line, scripts: Sequence[Path]) -> str:
    """The page with its two blocks written anew."""
    blocks = {"scores": "\n\n".join(scores(run)), "findings": "\n\n".join(findings(run, scripts))}
    for name, text in blocks.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = block.subn(lambda found, text=text: f"{found[1]}\n{text}\n\n{found[2]}", page)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"the page has {count} places for {name}")
    return page


# ---------------------------------------------------------------------- scores
def scores(run: Line) -> Iterable[str]:
    """A paragraph that says when and where, then a table a library."""
    machine = run["machine"]
    yield (
        f"{run['date']}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GB "
        f"({machine['processor']}), Python {machine['python']}, islices {run['islices']}; `make judged` runs it anew."
    )
    merged: dict[str, Line] = {}
    for found in run["libraries"]:
        if "missing" in found:
            yield f"{found['module']}: not judged, {found['missing']}"
        else:
            same = merged.setdefault(found["module"], {**found, "entries": []})
            same["entries"].extend(found["entries"])
    for found in merged.values():
        yield _table(found)


def _table(found: Line) -> str:
    """Return the table of a library: one line per call, one column per variant, then omissions with reasons."""
    variants = list(dict.fromkeys(e["variant"] for e in found["entries"]))
    rows: dict[tuple[str, str], dict[str, Line]] = {}
    for entry in found["entries"]:
        rows.setdefault((entry["call"], entry["formula"]), {})[entry["variant"]] = entry
    title = "Bugs that others reported" if found["module"] == "upstream" else f"{found['library']} {found['version']}"
    heads = ["call", "formula", *(v or "all options" if len(variants) > 1 else "score" for v in variants)]
    lines = [f"## {title}", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for (call, formula), by_variant in rows.items():
        cells = [_cell(by_variant[v]) if v in by_variant else "" for v in variants]
        lines.append(f"| {call} | {formula} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(entry: Line) -> str:
    """The score of grade 1; where that is above 1, of grade 2; where that is, the likely mistake."""
    if "raised" in entry:
        return entry["raised"].replace("|", "/")  # type: ignore[no-any-return]
    one, two = (number(float(x)) for x in entry["scores"])
    if entry["grade"] == 1:
        return one
    if entry["grade"] == 2:
        return f"grade 2: {two} ({one})"
    if not entry["worst"]:
        return "not judged"
    return f"**outside**: {one}{_said(entry)}"


def _said(entry: Line) -> str:
    return f", {entry['cause']}" if entry["cause"] else f", no known mistake ({entry['worst']})"


# ---------------------------------------------------------------------- findings
def findings(run: Line, scripts: Sequence[Path]) -> Iterable[str]:
    """Each script: what it shows, itself, what it printed."""
    for script in scripts:
        said, code = parts(script)
        found = run["findings"].get(script.name, {"missing": "not run"})
        printed = f"not run: {found['missing']}" if "missing" in found else found["output"]
        yield f"### {said}\n\n```python\n{code}\n```\n\n```text\n{printed}\n```"


def parts(script: Path) -> tuple[str, str]:
    """(what it shows, its code): its docstring says it."""
    text = script.read_text("utf-8")
    said = ast.get_docstring(ast.parse(text))
    assert said is not None, f"{script.name} has no docstring"
    return said.rstrip("."), text.partition('"""')[2].partition('"""')[2].strip()
