"""Write a report as one self-contained HTML page. The page needs no network and no server, and the matrix needs no
JavaScript.

No text of a report can become markup, because this module escapes each text of the report. The page contains the cases
as JSON with escaped ``<``, and page.js inserts text only as text. The page's content security policy allows only one
style and one script, identified by hashes, and nothing from other sites.
"""

from __future__ import annotations

import base64
import hashlib
import json
import string
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from islices.conformance.report.grid import (
    MARKS,
    NOTHING,
    RUN,
    SELDOM,
    Grid,
    cell_parts,
    folded,
    grid,
    problems,
    provenance,
    remarks,
)
from islices.conformance.report.runs import OUTCOMES, PROBLEMS, Run, named, run_labels

#: outcome -> its letter in the data of the page; "." means that the column does not have the case
LETTERS = {"pass": "p", "bound": "b", "deviation": "d", "unsupported": "u", "fail": "f", "harness error": "h"}
WORDS = {**MARKS, "pass": "✓"}
FIELDS = ("reason", "expected", "got", "kind", "issue")
#: The number of characters to which the call of a case is cut if the case passes everywhere. Without this limit, these
#: calls would be most of the page.
CALL_OF_PASS = 1200
#: The largest number of problems in the list at the top; the cells contain all problems.
SHOWN = 100
#: The largest number of lines about runs without a column that are visible at once. If there are more lines, the page
#: collapses all of them.
FOLDED = 4


def html_page(runs: Sequence[Run]) -> str:
    style, script = _file("page.css"), _file("page.js")
    whole = grid(runs)
    return string.Template(_file("page.html")).substitute(
        style=style, script=script, style_hash=_hash(style), script_hash=_hash(script),
        provenance=escape(provenance(runs)), verdict=_verdict(runs), problems=_problems(runs),
        folded=_folded(runs), chips=_chips(runs), matrix=_matrix(whole),
        remarks=_remarks(runs), runs=_runs(runs),
        data=_script_json(_data(whole)),
    )  # fmt: skip


@cache
def _file(name: str) -> str:
    return resources.files("islices.conformance.report").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _script_json(data: Any) -> str:
    """Return JSON for a script element. The JSON cannot end the element or begin a comment."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


# ---------------------------------------------------------------------- contents of the page
def _css(outcome: str) -> str:
    return outcome.replace(" ", "-")


def _counts(runs: Sequence[Run]) -> dict[str, int]:
    return {outcome: sum(run.counts()[outcome] for run in runs) for outcome in OUTCOMES}


def _verdict(runs: Sequence[Run]) -> str:
    counts = _counts(runs)
    bad = [f"{counts[o]:,} {o}{'s' if counts[o] > 1 else ''}" for o in PROBLEMS if counts[o]]
    if bad:
        return f'<p class="verdict fail"><span class="mark">✗</span> Does not conform: {", ".join(bad)}</p>'
    if not counts["pass"] + counts["bound"]:
        return '<p class="verdict"><span class="mark">–</span> Nothing passed and nothing failed</p>'
    return '<p class="verdict pass"><span class="mark">✓</span> Conforms: no case fails, nothing crashed</p>'


def _chips(runs: Sequence[Run]) -> str:
    return "\n".join(
        f'<label class="chip {_css(outcome) if count else "none"}">'
        f'<input type="checkbox" value="{LETTERS[outcome]}" checked>'
        f'<span><span class="mark" aria-hidden="true">{WORDS[outcome]}</span> <b>{count:,}</b> {outcome}</span></label>'
        for outcome, count in _counts(runs).items()
        if count or outcome not in SELDOM
    )


def _begins(first: bool) -> str:
    """Return the class attribute of a cell, or "". The class "first" draws a line to the left of a run's first
    column."""
    return ' class="first"' if first else ""


def _matrix(whole: Grid) -> str:
    heads = []
    for run, label in zip(whole.runs, run_labels(whole.runs), strict=True):
        text = "".join(f"<span>{escape(line)}</span>" for line in label)
        whole_name = f'title="{escape(" ".join(label))}"'
        heads.append(f'<th scope="colgroup" colspan="{len(run.modes)}" class="first" {whole_name}>{text}</th>')
    modes = [
        f'<th scope="col"{_begins(whole.first[k])}>{escape(column.mode)}</th>' for k, column in enumerate(whole.columns)
    ]
    lines = [
        f'<thead><tr><th scope="col" class="corner" rowspan="2">clause of the spec</th>{"".join(heads)}</tr>',
        f"<tr>{''.join(modes)}</tr></thead>",
    ]
    last = None
    for r, row in enumerate(whole.rows):
        if row.group != last:
            lines.append(f"{'</tbody>' if r else ''}<tbody>")
        again = ' class="again"' if row.group == last else ""
        head = f'<th scope="row"><span{again}>{escape(row.group)}</span> {escape(row.title)}</th>'
        cells = "".join(_cell(whole, r, k) for k in range(len(whole.columns)))
        lines.append(f'<tr data-row="{r}">{head}{cells}</tr>')
        last = row.group
    return "\n".join([*lines, "</tbody>" if whole.rows else ""])


def _cell(whole: Grid, r: int, k: int) -> str:
    parts = cell_parts(whole.cell(whole.rows[r], k)) or [("none", NOTHING)]
    text = " ".join(f'<span class="{_css(outcome)}">{part}</span>' for outcome, part in parts)
    return f"<td{_begins(whole.first[k])}>{text}</td>"


def _problems(runs: Sequence[Run]) -> str:
    found = [(name, case) for name, run in named(runs) for case in problems(run)]
    items = [
        f'<details><summary><span class="harness-error">! harness error</span> {escape(name)}</summary>'
        f"<pre>{escape(run.error)}</pre></details>"
        for name, run in named(runs)
        if run.error
    ]
    for name, case in found[:SHOWN]:
        fields = [f for f in ("call", *FIELDS) if case.get(f)]
        body = "".join(f"<dt>{field}</dt><dd><pre>{escape(case[field])}</pre></dd>" for field in fields)
        outcome = case["outcome"]
        items.append(
            f'<details><summary><span class="{_css(outcome)}">{WORDS[outcome]} {outcome}</span> {escape(name)} '
            f"{escape(case['mode'])} <code>{escape(case['id'])}</code></summary><dl>{body}</dl></details>"
        )
    if len(found) > SHOWN:
        items.append(f"<p>… and {len(found) - SHOWN:,} more, in the cells of the matrix.</p>")
    return f"<section><h2>What fails</h2>\n{''.join(items)}</section>" if items else ""


def _folded(runs: Sequence[Run]) -> str:
    """Return HTML with one paragraph per reason why runs have no column. If there are more than `FOLDED` paragraphs,
    the page collapses them."""
    items = [
        f'<p class="legend"><span class="skipped">{escape(owner)}</span>{f": {escape(why)}" if why else ""}</p>'
        for owner, why in folded(runs)
    ]
    if len(items) <= FOLDED:
        return "".join(items)
    return f"<details><summary>{len(items)} kinds of columns without a case</summary>{''.join(items)}</details>"


def _remarks(runs: Sequence[Run]) -> str:
    items = [f"<li><b>{escape(owner)}</b> {count}: {escape(why)}</li>" for owner, count, why in remarks(runs)]
    return f'<section><h2>What is declared</h2><ul class="remarks">{"".join(items)}</ul></section>' if items else ""


def _runs(runs: Sequence[Run]) -> str:
    lines = []
    for name, run in named(runs):
        devices = ", ".join(run.header.get("devices", []))
        facts = [run.fact(fact) for fact in ("python", "numpy", "islices", "platform", "profile")]
        cells = [devices or "?", *facts, f"{len(run.cases):,}", f"{run.seconds:.0f} s"]
        says = f" <small>{escape(run.fact('says'))}</small>" if run.variant and run.header.get("says") else ""
        lines.append(
            f'<tr><th scope="row">{escape(name)}{says}</th>{"".join(f"<td>{escape(c)}</td>" for c in cells)}</tr>'
        )
    return "\n".join(lines)


# ---------------------------------------------------------------------- data for page.js
def _data(whole: Grid) -> dict[str, Any]:
    """Return the cases as data for page.js. The outcome of a case in a column is one letter. The text of each detail,
    such as a reason, is stored once, and cases refer to it by number."""
    rows = {(row.group, row.clause): r for r, row in enumerate(whole.rows)}
    numbers: dict[tuple[int, str], int] = {}
    calls: dict[int, str] = {}
    telling: set[int] = set()
    texts: dict[str, int] = {}
    letters: list[dict[int, str]] = []
    details: list[dict[int, dict[str, int]]] = []
    for column in whole.columns:
        of_column: dict[int, str] = {}
        reported: dict[int, dict[str, int]] = {}
        for case in [*_befell(column.run), *column.cases]:
            key = rows[case["group"], case["clause"]], case["id"]
            n = numbers.setdefault(key, len(numbers))
            calls.setdefault(n, case.get("call", ""))
            of_column[n] = LETTERS[case["outcome"]]
            if case["outcome"] != "pass":
                telling.add(n)
                reported[n] = {f: texts.setdefault(case[f], len(texts)) for f in FIELDS if case.get(f)}
        letters.append(of_column)
        details.append(reported)
    return {
        "outcomes": {letter: [outcome, WORDS[outcome]] for outcome, letter in LETTERS.items()},
        "columns": [{"name": " ".join(label), "first": f} for label, f in zip(whole.labels, whole.first, strict=True)],
        "run": whole.rows.index(RUN) if RUN in whole.rows else -1,
        "rows": [f"{row.group}: {row.title}" for row in whole.rows],
        "cases": [[r, id] for r, id in numbers],
        "calls": [calls[n] if n in telling else _cut(calls[n]) for n in range(len(numbers))],
        "letters": ["".join(of_column.get(n, ".") for n in range(len(numbers))) for of_column in letters],
        "details": details,
        "texts": list(texts),
    }


def _befell(run: Run) -> list[dict[str, Any]]:
    """Return the outcome of a whole run as a list of one case; [] if the run has no outcome."""
    outcome, reason = run.befell
    case = {"group": RUN.group, "clause": RUN.clause, "id": RUN.title, "outcome": outcome, "reason": reason}
    return [case] if outcome else []


def _cut(text: str) -> str:
    return text if len(text) <= CALL_OF_PASS else f"{text[:CALL_OF_PASS]} … ({len(text):,} characters)"
