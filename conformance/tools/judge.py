"""Define `islices judge`, which compares an optimizer's step, a clip or a lookup with the formula that a framework
documents.

The step, clip or lookup is a Python function, or a program in any language that answers in JSON lines
(docs/protocol.md).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from islices.cli import Command, UsageError
from islices.conformance.adapters.command_line import seconds, split_command
from islices.conformance.adapters.formulas import AdapterStep
from islices.conformance.data import SPEC_VERSION
from islices.conformance.formulas.judge import formula_of, judge, options_of
from islices.conformance.formulas.judgement import Judgement, json_of, text, wrapped
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.outputs import print_text
from islices.conformance.protocol import AdapterError, Client


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n"
        "  islices judge --formula torch.AdamW kernel.py:step\n"
        "  islices judge --formula fbgemm.EXACT_ROWWISE_ADAGRAD package/adagrad.py:step --json\n"
        "  islices judge --formula torch.Adam --command ./adapter\n"
        '  islices judge --command "node adapter.js"  every formula that the program has\n'
        "  islices judge --list\n\n"
        "FUNCTION is step(weights, grad, state, t, **options) over NumPy arrays. It returns the new weights, or "
        "(weights, state), or None if it has changed them in place (docs/judge.md). COMMAND is a program that answers "
        "formula_step in JSON lines (docs/protocol.md).\n\n"
        "exit codes: 0 within the bound, 1 outside, 2 usage error, 3 the function raised, its result is not weights, "
        "or the program failed"
    )
    add = parser.add_argument
    add("step", nargs="?", metavar="FILE:FUNCTION", help="a Python file and a function in it")
    add("--command", dest="command_line", metavar="COMMAND", help="a program in any language, in place of a function")
    add("--formula", metavar="NAME", help="the formula, such as torch.AdamW")
    add("--grade", type=int, choices=(1, 2), default=2, help="the worst grade that passes (2)")
    add("--time-limit", type=float, default=10.0, metavar="SECONDS", help="a command's for a step (default 10)")
    add("--list", action="store_true", help="the formulas, or that of --formula: equation, options, state")
    add("--json", action="store_true", help="one JSON object on stdout instead of the report")


def run(options: argparse.Namespace) -> int:
    """Judge a step and show the result, or list the formulas.

    Return 0 for a list, or if every grade is at most --grade. Return 3 if the function raises an error other than
    NotImplementedError, the program fails, or a result is invalid. Otherwise, return 1.
    """
    if options.list:
        return _list(options.formula, as_json=options.json)
    if options.step and options.command_line is None and options.formula is None:
        raise UsageError(f"got {options.step} without --formula NAME; `islices judge --list` shows the names")
    if (options.step is None) == (options.command_line is None):
        got = "both a function and a command" if options.command_line else "neither a function nor a command"
        raise UsageError(
            f"got {got}; accepted are FILE:FUNCTION with --formula NAME, --command COMMAND with --formula NAME or "
            "for every formula that it has, or --list"
        )
    try:
        formula = options.formula and formula_of(options.formula).name
    except ValueError as error:
        raise UsageError(str(error)) from None
    if options.command_line is not None:
        return _run_command(options, formula)
    with contextlib.redirect_stdout(sys.stderr):  # text that the function prints is not part of the report
        step = _function(options.step)
        try:
            options_of(step, FORMULAS[formula])
        except TypeError as error:
            raise UsageError(f"{options.step}: {error}") from None
        try:
            found = judge(step, formula)
        except (Exception, SystemExit) as error:
            _tell(options.step, error)
            return 3
    _show([found], options)
    return _code([found], options.grade)


def _tell(step: str, error: BaseException) -> None:
    """Print why a function cannot be judged. If the function raised an error, print the traceback from the function's
    frame on."""
    print(f"islices judge: {step} cannot be judged:", file=sys.stderr)
    frames, own = error.__traceback__, Path(__file__).parents[1]
    while frames is not None and own in Path(frames.tb_frame.f_code.co_filename).parents:
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames, chain=frames is not None)
    print("".join(lines), end="", file=sys.stderr)


# ---------------------------------------------------------------------- a command
def _run_command(options: argparse.Namespace, formula: str | None) -> int:
    """Compare a program with one formula, or with all formulas that the program supports. Return the exit code."""
    words, limit = split_command(options.command_line), seconds(options.time_limit)
    try:
        with Client(words, spec=SPEC_VERSION, limit=limit) as client:
            found = list(_judged(client, formula))
            strays = client.strays, client.stray
    except (AdapterError, ValueError) as error:  # ValueError: the answer is not an array of weights
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        print(f"islices judge: {options.command_line}: {error}{where}", file=sys.stderr)
        return 3
    if not found:
        print(f"islices judge: {options.command_line}: it has none of the {len(FORMULAS)} formulas", file=sys.stderr)
        return 1
    _show(found, options, of_all=formula is None)
    if count := strays[0]:
        lines = f"{count} lines that are" if count > 1 else "1 line that is"
        print(f"islices judge: it printed {lines} none of the protocol's, the first: {strays[1][0]!r}", file=sys.stderr)
    return _code(found, options.grade)


def _judged(client: Client, formula: str | None) -> Iterator[Judgement]:
    for name in [formula] if formula else FORMULAS:
        found = judge(AdapterStep(client, FORMULAS[name]), name)
        if formula or found.scores:
            yield found


# ---------------------------------------------------------------------- reports
def _code(found: list[Judgement], grade: int) -> int:
    return 0 if all(x.grade is not None and x.grade <= grade for x in found) else 1


def _show(found: list[Judgement], options: argparse.Namespace, *, of_all: bool = False) -> None:
    """Print the reports, or their JSON. The JSON is one object, or with `of_all` a list with one object per formula."""
    if options.json:
        reported = [json_of(x) for x in found]
        print(json.dumps(reported if of_all else reported[0], indent=1))
        return
    print_text("\n\n".join(_coloured(x, options.grade) for x in found))
    if of_all:
        passed = sum(_code([x], options.grade) == 0 for x in found)
        rest = len(FORMULAS) - len(found)
        print(f"\n{passed} of {len(found)} formulas within the bound; unsupported are the other {rest}.")


def _coloured(found: Judgement, grade: int) -> str:
    """Return the report as text. On a terminal, the first line of the text is green or red, unless NO_COLOR is set or
    TERM is "dumb"."""
    report = text(found)
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain:
        return report
    head, _, rest = report.partition("\n")
    return f"\x1b[1;{31 if _code([found], grade) else 32}m{head}\x1b[0m\n{rest}"


# ---------------------------------------------------------------------- arguments
def _list(wanted: str | None, *, as_json: bool) -> int:
    try:
        formulas = [formula_of(wanted)] if wanted else list(FORMULAS.values())
    except ValueError as error:
        raise UsageError(str(error)) from None
    if as_json:
        reported = {
            x.name: {
                "equation": x.equation, "source": x.source, "options": list(x.options), "states": list(x.states),
                "state_by_row": bool(x.form.get("per_row")),
            } for x in formulas
        }  # fmt: skip
        print(json.dumps(reported, indent=1))
        return 0
    for x in formulas:
        shape = " of shape (rows, 1)" if x.form.get("per_row") else ""
        about = [x.equation, x.source, f"options: {', '.join(x.options)}"]
        about += [f"state: {', '.join(x.states)}{shape}"] if x.states else []
        print("\n".join([x.name, *map(wrapped, about)]))
    return 0


def _function(given: str) -> Callable[..., Any]:
    """Run FILE and return its FUNCTION, for the argument FILE:FUNCTION. Raise UsageError if the argument has another
    form, FILE does not run, or FILE has no callable with this name."""
    path, colon, name = given.rpartition(":")
    if not colon or not name.isidentifier() or not path:
        raise UsageError(f"got {given!r}; accepted is FILE:FUNCTION, such as kernel.py:step")
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"judged_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: got a {Path(path).suffix or 'nameless'} file; accepted is Python source")
    module = importlib.util.module_from_spec(spec)
    # as `python FILE` does, for imports of modules in the same folder
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit:
        raise UsageError(
            f"{path}: it calls sys.exit as it is imported; accepted is a file that calls it behind "
            'if __name__ == "__main__"'
        ) from None
    except Exception as error:
        raise UsageError(f"{path}: {type(error).__name__}: {error}") from error
    found: Any = getattr(module, name, None)
    if not callable(found):
        known = ", ".join(n for n, x in vars(module).items() if callable(x) and not n.startswith("_"))
        raise UsageError(f"{path}: got {name!r}; accepted is a function of it: {known or 'it has none'}")
    step: Callable[..., Any] = found
    return step


COMMAND = Command("check an optimizer's step against the formula that a framework documents", arguments, run)
