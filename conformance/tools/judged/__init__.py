"""Optimizers that people use, judged by the documented formulas. docs/judged.md has the scores.

entry.py     what is judged: a call, its formula, its step      libraries/   the entries, a module a library
worker.py    judges a library's entries, in a separate process      run.py   the processes, by environment
page.py      the tables, and what each finding's script prints        __main__.py   the run, and the rewritten page

    python -m islices.conformance.tools.judged --python .venv-judged/bin/python --node .venv-judged
"""
