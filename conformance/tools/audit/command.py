"""Define `islices audit`, which compares each framework's functions with the clauses of the specification."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from islices.cli import Command, UsageError
from islices.conformance.outputs import print_text
from islices.conformance.progress import bar
from islices.conformance.tools.audit.findings import framework_of, modules, report, run_module, summary

EPILOG = """\
examples
  islices audit                      every framework that is installed
  islices audit -b torch -k clip     one framework, the probes that mention clip
  islices audit --json | jq 'select(.outcome == "corrupts")'

outcomes
  agrees     the function gives the specification's answer
  differs    it gives another answer
  raises     it raises on input that has a result in the specification
  corrupts   it wrote to memory of others, ended its process, or hung

A probe is one call of a function and the result that the specification demands; its claim is the sentence about this
result in the report, and its clause a number in the specification.

exit codes: 0 done, whatever was found; 2 usage error; 3 a probe failed by itself
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("-b", "--backend", action="append", metavar="NAME", help="only this framework or module (may be repeated)")
    add(
        "-k",
        metavar="WORDS",
        default="",
        help="only probes whose function, claim or 'clause N' has these words",
    )
    add("--json", action="store_true", help="print a line of JSON for each finding, in place of Markdown")


def audit(options: argparse.Namespace) -> int:
    """Run the selected probes and print the findings. Return 3 if an outcome is "broken", else 0."""
    found = modules()
    for name in options.backend or ():
        if not any(name in (m, framework_of(m)) for m in found):
            raise UsageError(f"--backend: got {name!r}; accepted are {', '.join(found)}")
    names = [m for m in found if {m, framework_of(m)} & set(options.backend or (m,))]
    findings: list[dict[str, Any]] = []
    with bar("running the frameworks' functions", len(names)) as done:
        for name in names:
            findings += run_module(name, options.k)
            done(name)
    if not findings:
        raise UsageError(f"-k: no probe matches {options.k!r}")
    if options.json:
        print("\n".join(json.dumps(f, ensure_ascii=False) for f in findings))
    else:
        print_text(report(findings))
    print(f"{len(findings)} probes: {summary(findings)}", file=sys.stderr)
    return 3 if any(f["outcome"] == "broken" for f in findings) else 0


COMMAND = Command(
    "find functions of your frameworks that give wrong answers, and what to use instead", arguments, audit
)
