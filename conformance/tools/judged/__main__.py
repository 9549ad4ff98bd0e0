"""Judge all libraries: ``python -m islices.conformance.tools.judged`` (`make judged` also writes docs/judged.md).

``--python`` names further environments; a library is judged in the first environment that has it. Without ``--docs``,
the program prints tables of scores and writes no file. The exit code is 0 whatever the scores are, and 2 for wrong
usage.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from islices import __version__
from islices.conformance.formulas.records import FORMULAS
from islices.conformance.tools.bench.results import machine
from islices.conformance.tools.judged.page import scores, with_run
from islices.conformance.tools.judged.processes import JOBS, run_finding, run_library


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m islices.conformance.tools.judged", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--python", action="append", default=[], metavar="PATH", help="a further environment (may be repeated)")
    add("--docs", metavar="FOLDER", type=Path, help="write judged.json and judged.md here; scripts: its folder judged")
    add("-l", "--library", action="append", metavar="NAME", help="only this one; its part of judged.json is replaced")
    add("-f", "--formula", action="append", default=[], metavar="NAME", help="only this one; without --docs")
    options = parser.parse_args(arguments)
    pythons = [sys.executable, *options.python]
    known = {name for name, _ in JOBS}
    if unknown := set(options.library or ()) - known:
        parser.error(f"--library: got {', '.join(unknown)}; accepted are {', '.join(sorted(known))}")
    if unknown := set(options.formula) - FORMULAS.keys():
        parser.error(f"--formula: got {', '.join(unknown)}; `islices judge --list` shows what is accepted")
    if options.formula and options.docs:
        parser.error("got --formula and --docs; accepted is one of them, since the page shows all formulas")
    run = _earlier(options) | {
        "date": datetime.date.today().isoformat(), "machine": machine(), "islices": __version__,
    }  # fmt: skip
    for name, variables in JOBS:
        if options.library is None or name in options.library:
            print(f"judging {name} {' '.join(variables.values())}", file=sys.stderr, flush=True)
            run["libraries"].append(run_library(name, pythons, variables, options.formula))
    run["libraries"].sort(key=lambda found: found["module"])
    if options.docs is None:
        print("\n\n".join(scores(run)))
        return 0
    scripts = sorted(Path(options.docs, "judged").glob("*.py"))
    for script in scripts:
        if options.library is None or script.name.partition("_")[0] in options.library:
            print(f"running {script.name}", file=sys.stderr, flush=True)
            run["findings"][script.name] = run_finding(script, pythons)
    page = options.docs / "judged.md"
    text = with_run(page.read_text("utf-8"), run, scripts)
    (options.docs / "judged.json").write_text(json.dumps(run, indent=1) + "\n", "utf-8")
    page.write_text(text, "utf-8")
    return 0


def _earlier(options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of an earlier run, without the libraries that this run judges. Without --library or --docs,
    or if the folder of --docs has no earlier run, return empty results."""
    path = options.docs and options.docs / "judged.json"
    if not options.library or not path or not path.exists():
        return {"libraries": [], "findings": {}}
    run: dict[str, Any] = json.loads(path.read_text("utf-8"))
    run["libraries"] = [found for found in run["libraries"] if found["module"] not in options.library]
    return run


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
