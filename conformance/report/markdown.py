"""Write a report as Markdown, for a README or a comment on a pull request.

Texts that Markdown could change are written as code, so that no renderer finds markup, links or mentions there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from islices.conformance.report.grid import (
    NOTHING,
    Grid,
    cell_parts,
    folded,
    grid,
    problems,
    provenance,
    remarks,
    summary,
)
from islices.conformance.report.runs import PROBLEMS, Run, details, named

#: The largest number of problems shown for each run, because the length of a comment is limited. The report has all
#: problems.
SHOWN = 20
LEGEND = (
    "a cell counts the cases that pass; ≈ within a bound, ✗ fails, ! harness errors, d declared deviations, "
    "u unsupported"
)


def markdown(runs: Sequence[Run]) -> str:
    """Return the Markdown text: counts, the matrix with a legend, runs without a column, remarks, the first problems of
    each run, and the origin."""
    noted = [
        _noted(head, owner, why) for reported, why in folded(runs) for head, _, owner in [reported.partition(": ")]
    ]
    noted += [_noted(count, owner, why) for owner, count, why in remarks(runs)]
    parts = [f"**{summary(runs)}**", "\n".join(_table(grid(runs))), LEGEND + ".", "\n".join(noted)]
    parts += [_problems(run, name) for name, run in named(runs)]
    parts.append(word(provenance(runs)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(whole: Grid) -> list[str]:
    heads = ["group", "clause", *("<br>".join(word(line.lstrip("@")) for line in label) for label in whole.labels)]
    lines = [_line(heads), _line(["---", "---", *["---:"] * len(whole.labels)])]
    last = None
    for row in whole.rows:
        cells = [_cell(cell_parts(whole.cell(row, k))) for k in range(len(whole.columns))]
        lines.append(_line(["" if row.group == last else word(row.group), word(row.title), *cells]))
        last = row.group
    return lines


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cell(parts: list[tuple[str, str]]) -> str:
    return " ".join(f"**{part}**" if outcome in PROBLEMS else part for outcome, part in parts) or NOTHING


def _noted(subject: str, owner: str, why: str) -> str:
    """Return a line about cases with one reason, such as "- unsupported, 6 cases: `torch@2.13.0`: `why`"."""
    return f"- {subject}: {word(owner)}{f': {code(why)}' if why else ''}"


def _problems(run: Run, name: str) -> str:
    found = problems(run)
    parts = [f"**harness error** in {word(name)}:\n\n{block(run.error)}"] if run.error else []
    for case in found[:SHOWN]:
        head = f"**{case['outcome']}** in {word(name)}, {word(case['mode'])}: {code(case['id'])}"
        parts.append(f"{head}\n\n{block(chr(10).join(details(case)) or 'no details')}")
    if len(found) > SHOWN:
        parts.append(f"… and {len(found) - SHOWN} more in {word(name)}.")
    return "\n\n".join(parts)


# ---------------------------------------------------------------------- text that came from outside
def word(text: str) -> str:
    """Return the text itself if Markdown shows the text unchanged. Otherwise return the text as code."""
    plain = re.fullmatch(r"[\w .,+()\-]*", text, re.ASCII) and not re.search(r"\b_|_\b|__|www", text)
    return text if plain else code(text)


def code(text: str) -> str:
    """Return a text as code on one line. The fence is longer than any sequence of backticks in the text."""
    text = " ".join(text.split())
    fence = "`" * (_backticks(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def block(text: str) -> str:
    fence = "`" * max(3, _backticks(text) + 1)
    return f"{fence}text\n{text}\n{fence}"


def _backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
