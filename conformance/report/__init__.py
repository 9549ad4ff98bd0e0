"""Show the suite's reports, which are JSON lines, as a matrix on a terminal, as Markdown or as an HTML page. Merge and
compare reports.

    runs.py         runs, columns, and their labels
    reading.py      reads and checks JSON lines
    grid.py         the matrix: counts of outcomes by clause and column
    compact.py      a smaller matrix: marks by group and backend
    terminal.py, markdown.py, html.py (with page.html, page.css, page.js)     the renderers
    merging.py      merges several reports into one
    differences.py  the changes between two reports
    command.py      defines `islices report`

Only terminal.py and command.py use rich. No module of this package imports a framework or pytest.
"""

from __future__ import annotations

from islices.conformance.report.grid import remarks, summary
from islices.conformance.report.reading import read, read_runs
from islices.conformance.report.runs import CLAUSES, OUTCOMES, Column, Run
from islices.conformance.report.terminal import matrix

__all__ = ["CLAUSES", "OUTCOMES", "Column", "Run", "matrix", "read", "read_runs", "remarks", "summary"]
