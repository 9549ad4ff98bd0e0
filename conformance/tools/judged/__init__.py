"""Compare the optimizers and clips of many libraries with documented formulas. docs/judged.md has a summary and the
findings.

entry.py      `Judged`: a library's call, its formula and its step
libraries/    the entries, one module per library
judging.py    judges the entries of a library, in a separate process
processes.py  starts the process of each library, in the first environment that has the library
page.py       writes the tables, and the list of findings
__main__.py   judges the libraries, and with --docs rewrites the page

    python -m islices.conformance.tools.judged --python .venv-judged/bin/python
"""
