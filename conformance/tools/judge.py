"""`islices judge`: hold an optimizer's step function against the formula that a framework documents."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from islices.cli import Command, UsageError
from islices.conformance.formulas.judge import formula_of, judge
from islices.conformance.formulas.judgement import Judgement, json_of, text
from islices.conformance.formulas.records import FORMULAS

__all__ = ["COMMAND"]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n"
        "  islices judge --formula torch.AdamW kernel.py:step\n"
        "  islices judge --formula fbgemm.EXACT_ROWWISE_ADAGRAD package/adagrad.py:step --json\n"
        "  islices judge --list\n\n"
        "The function: step(weights, grad, state, t, **options) over NumPy arrays; it returns the new weights, or\n"
        "(weights, state), or None if it has changed them in place (docs/judge.md).\n"
        "exit codes: 0 within the bound, 1 outside, 2 usage, 3 the function raised or gave what is no weights"
    )
    parser.add_argument("step", nargs="?", metavar="FILE:FUNCTION", help="a Python file and a function in it")
    parser.add_argument("--formula", metavar="NAME", help="the formula, such as torch.AdamW")
    parser.add_argument("--grade", type=int, choices=(1, 2), default=2, help="the worst grade that passes (2)")
    parser.add_argument("--list", action="store_true", help="the formulas, with their equations")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of the report")


def run(options: argparse.Namespace) -> int:
    """Judge, show; 0 where every score is at most 1."""
    if options.list:
        return _list(options.json)
    if options.step is None or options.formula is None:
        raise UsageError("got no step or no --formula; accepted are FILE:FUNCTION with --formula NAME, or --list")
    try:
        formula_of(options.formula)
    except ValueError as error:
        raise UsageError(str(error)) from None
    step = _function(options.step)
    try:
        found = judge(step, options.formula)
    except Exception:
        print(f"islices judge: {options.step} cannot be judged:", file=sys.stderr)
        traceback.print_exc()
        return 3
    print(json.dumps(json_of(found), indent=1) if options.json else _coloured(found))
    return 0 if found.grade is not None and found.grade <= options.grade else 1


def _coloured(found: Judgement) -> str:
    """The report; its first line green or red on a terminal."""
    report = text(found)
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain:
        return report
    head, _, rest = report.partition("\n")
    return f"\x1b[1;{32 if found.passed else 31}m{head}\x1b[0m\n{rest}"


def _list(as_json: bool) -> int:
    if as_json:
        print(
            json.dumps({name: {"equation": x.equation, "source": x.source} for name, x in FORMULAS.items()}, indent=1)
        )
    else:
        for name, formula in FORMULAS.items():
            print(f"{name}\n  {formula.equation}\n  {formula.source}; options: {', '.join(formula.options)}")
    return 0


def _function(given: str) -> Callable[..., Any]:
    """The function of FILE:FUNCTION."""
    path, colon, name = given.rpartition(":")
    if not colon or not name.isidentifier() or not path:
        raise UsageError(f"got {given!r}; accepted is FILE:FUNCTION, such as kernel.py:step")
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"judged_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: got a {Path(path).suffix or 'nameless'} file; accepted is Python source")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE` does, for what lies beside it
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from error
    found: Any = getattr(module, name, None)
    if not callable(found):
        known = ", ".join(n for n, x in vars(module).items() if callable(x) and not n.startswith("_"))
        raise UsageError(f"{path}: got {name!r}; accepted is a function of it: {known or 'it has none'}")
    step: Callable[..., Any] = found
    return step


COMMAND = Command("hold an optimizer's step against the formula that a framework documents", arguments, run)
