"""Write a run of the judged libraries as tables of scores, or for docs/judged.md as a summary and a list of
findings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from islices.conformance.formulas.judgement import number

Line = dict[str, Any]


def with_run(page: str, run: Line, scripts: Sequence[Path]) -> str:
    """Return the page with new text in its two generated blocks. Raise ValueError unless the page has each block
    once."""
    blocks = {"summary": "\n\n".join(summary(run)), "findings": "\n".join(map(finding, scripts))}
    for name, text in blocks.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = block.subn(lambda found, text=text: f"{found[1]}\n{text}\n\n{found[2]}", page)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"the page has {count} places for {name}")
    return page


# ---------------------------------------------------------------------- scores
def summary(run: Line) -> Iterable[str]:
    """Yield a line with the date, the machine and the versions, then a table of the number of entries by library and
    grade."""
    machine = run["machine"]
    yield (
        f"{run['date']}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GB "
        f"({machine['processor']}), Python {machine['python']}, islices {run['islices']}; repeat with `make judged`."
    )
    lines = ["| library | grade 1 | grade 2 | outside |", "|---|---:|---:|---:|"]
    for found in _merged(run):
        grades = Counter(e.get("grade") for e in found["entries"])
        lines.append(f"| {_title(found)} | {grades[1]} | {grades[2]} | {grades[None]} |")
    yield "\n".join(lines)


def scores(run: Line) -> Iterable[str]:
    """Yield a line for each library that was not judged, with the reason, then a table for each judged library."""
    yield from (f"{x['module']}: not judged, {x['missing']}" for x in run["libraries"] if "missing" in x)
    yield from map(_table, _merged(run))


def _merged(run: Line) -> Iterable[Line]:
    """Return each judged library once. If several processes judged a library, combine the entries of all these
    processes."""
    merged: dict[str, Line] = {}
    for found in run["libraries"]:
        if "missing" not in found:
            merged.setdefault(found["module"], {**found, "entries": []})["entries"].extend(found["entries"])
    return merged.values()


def _title(found: Line) -> str:
    return "bugs that others reported" if found["module"] == "upstream" else f"{found['library']} {found['version']}"


def _table(found: Line) -> str:
    """Return the table of a library. The table has a row for each pair of a call and a formula, and a column for each
    variant."""
    variants = list(dict.fromkeys(e["variant"] for e in found["entries"]))
    rows: dict[tuple[str, str], dict[str, Line]] = {}
    for entry in found["entries"]:
        rows.setdefault((entry["call"], entry["formula"]), {})[entry["variant"]] = entry
    heads = ["call", "formula", *(v or "all options" if len(variants) > 1 else "score" for v in variants)]
    lines = [f"## {_title(found)}", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for (call, formula), by_variant in rows.items():
        cells = [_cell(by_variant[v]) if v in by_variant else "" for v in variants]
        lines.append(f"| {call} | {formula} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(entry: Line) -> str:
    """Return the text of a cell. The text is the library's exception, the score of grade 1, or, for a step of grade 2,
    the scores of both grades. If the step is outside of both grades, the text contains the score of grade 1 and the
    likely mistake. If no known mistake fits, the text contains the worst place instead. Without a score, the text is
    "not judged"."""
    if "raised" in entry:
        return entry["raised"].replace("|", "/")  # type: ignore[no-any-return]
    one, two = (number(float(x)) for x in entry["scores"])
    if entry["grade"] == 1:
        return one
    if entry["grade"] == 2:
        return f"grade 2: {two} ({one})"
    if not entry["worst"]:
        return "not judged"
    cause = entry["cause"] or f"no known mistake ({entry['worst']})"
    return f"**outside**: {one}, {cause}"


# ---------------------------------------------------------------------- findings
def finding(script: Path) -> str:
    """Return a list item: the docstring of a finding's script, and a link to the script. Docstrings of scripts must be
    one sentence."""
    text = ast.get_docstring(ast.parse(script.read_text("utf-8")))
    assert text is not None, f"{script.name} has no docstring"
    return f"- {text} ([script](judged/{script.name}))"
