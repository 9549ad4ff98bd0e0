"""Reports of the suite. JSON lines become a matrix on a terminal, Markdown or an HTML page, and can be merged and
compared.

    runs.py         runs, columns, and what they are called
    reading.py      JSON lines to runs; they may come from anywhere
    grid.py         clauses by columns, counted
    compact.py      groups of clauses by backends, as marks
    terminal.py, markdown.py, html.py (with page.html, page.css, page.js)     the renderers
    merging.py      several reports as one
    differences.py  what changed between two
    command.py      islices report

Only terminal.py needs rich, and nothing here imports a framework or pytest.
"""

from __future__ import annotations

from islices.conformance.report.grid import remarks, summary
from islices.conformance.report.reading import read, read_runs
from islices.conformance.report.runs import CLAUSES, OUTCOMES, Column, Run
from islices.conformance.report.terminal import matrix

__all__ = ["CLAUSES", "OUTCOMES", "Column", "Run", "matrix", "read", "read_runs", "remarks", "summary"]
