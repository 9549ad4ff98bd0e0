"""Judge the entries of a library in this process: ``python -m islices.conformance.tools.judged.judging LIBRARY``.

The program prints JSON lines. If the library does not load, the only line contains the reason. Otherwise, the output
consists of a line with the version, two lines per entry, and a last line. The program prints an entry's first line
before the judging, so that the output shows the entry if the process crashes.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from islices.conformance.formulas.judge import judge
from islices.conformance.formulas.judgement import Judgement
from islices.conformance.tools.audit.probe import first_line
from islices.conformance.tools.judged import libraries
from islices.conformance.tools.judged.entry import Judged
from islices.conformance.workers import version_of


def described(found: Judgement) -> dict[str, Any]:
    """Return a judgement as JSON: the grade, the highest score of each grade, the cause, the worst place, and the
    unjudged trajectories and arrays."""
    one, two = (max((s.by_grade[k] for s in found.scores), default=0.0) for k in (0, 1))
    worst = found.worst
    return {
        "grade": found.grade, "scores": [repr(one), repr(two)], "cause": found.cause,
        "worst": worst and f"{worst.array}, {worst.trajectory}, step {worst.furthest.at[0]}",
        "unsupported": dict(found.unsupported), "unjudged": list(found.unjudged),
    }  # fmt: skip


def judged(entry: Judged) -> dict[str, Any]:
    """Judge an entry and return the result. If the library raises an exception, the result describes the exception."""
    try:
        return described(judge(entry.step, entry.formula))
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {first_line(error)}", "notes": getattr(error, "__notes__", [])}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="judge a library's entries; JSON lines")
    add = parser.add_argument
    add("library", help="a module of islices.conformance.tools.judged.libraries")
    add("--skip", type=int, default=0, metavar="N", help="leave out the first N entries")
    add("--formula", action="append", metavar="NAME", help="only the entries of this one")
    options = parser.parse_args(arguments)
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")  # text that libraries print goes to the error output
    os.dup2(2, 1)

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=channel, flush=True)

    warnings.simplefilter("ignore")
    try:
        library: Any = importlib.import_module(f"{libraries.__name__}.{options.library}")
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("islices"):
            raise
        say({"missing": f"{missing.name} is not installed"})
        return 0
    # a shared library is missing, or conflicts with installed versions
    except (ImportError, OSError, RuntimeError) as error:
        say({"missing": f"it does not load: {type(error).__name__}: {first_line(error)}"})
        return 0
    say({"library": library.LIBRARY, "version": getattr(library, "VERSION", None) or version_of(library.LIBRARY)})
    wanted = (x for x in library.entries() if options.formula is None or x.formula in options.formula)
    for entry in itertools.islice(wanted, options.skip, None):
        about = {"call": entry.call, "formula": entry.formula, "variant": entry.variant}
        say({"started": about})
        say({**about, **judged(entry)})
    say({"done": True})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
