"""`islices audit`: what each framework's own functions do where islices' clauses apply."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter

from islices import __version__
from islices.cli import Command, UsageError
from islices.conformance.outputs import check_writable, print_text, write
from islices.conformance.progress import bar
from islices.conformance.tools.audit.choose import chosen, framework_of, modules
from islices.conformance.tools.audit.run import run_all
from islices.conformance.tools.audit.show import report, summary

__all__ = ["COMMAND"]

EPILOG = """\
examples
  islices audit                      every framework that is installed
  islices audit -b torch -k clip     one framework, the probes that mention clip
  islices audit -k "clause 10 and not clip_grad_norm_"
  islices audit --json | jq 'select(.outcome == "corrupts")'

outcomes
  agrees     the function gives the specification's answer
  differs    it gives another answer
  raises     it refuses input that the specification gives a meaning to, or breaks
  corrupts   it wrote to memory that it was not given, ended its process, or hung

exit codes: 0 done, whatever was found; 2 usage; 3 a probe itself is broken
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    words = "only probes whose number, function, claim or 'clause N' has these words (and, or, not, parentheses)"
    add = parser.add_argument
    add("-b", "--backend", action="append", metavar="NAME", help="only this framework or module (may be repeated)")
    add("-k", metavar="EXPR", default="", help=words)
    add("--json", metavar="PATH", nargs="?", const="-", help="write JSON lines to PATH (stdout, then without text)")
    add("--markdown", metavar="PATH", help="write the report to PATH")


def audit(options: argparse.Namespace) -> int:
    """Run the probes and print their report."""
    found = modules()
    for name in options.backend or ():
        if not any(name in (m, framework_of(m)) for m in found):
            accepted = ", ".join(dict.fromkeys([*map(framework_of, found), *found]))
            raise UsageError(f"--backend: got {name!r}; accepted are {accepted}")
    names = [m for m in found if {m, framework_of(m)} & set(options.backend or (m,))]
    try:
        chosen("", options.k)
    except ValueError as error:
        raise UsageError(f"-k: got {options.k!r}; {error}") from None
    for option, path in (("--json", options.json), ("--markdown", options.markdown)):
        if path:
            check_writable(option, path)  # an earlier audit stays until this one is done
    started = time.monotonic()
    with bar("asking the frameworks", len(names)) as done:
        findings = run_all(names, options.k, done)
    if not findings:
        raise UsageError(f"-k: no probe matches {options.k!r}")
    seconds = time.monotonic() - started
    header = {
        "type": "header", "form": 2, "islices": __version__, "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }  # fmt: skip
    footer = {"type": "footer", "outcomes": Counter(f["outcome"] for f in findings), "seconds": round(seconds, 1)}
    if options.json:
        lines = [header, *({"type": "finding", **f} for f in findings), footer]
        write("--json", options.json, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    if options.markdown:
        write("--markdown", options.markdown, report(findings))
    if options.json != "-":
        print_text(report(findings))
    print(f"{len(findings)} probes in {seconds:.0f} s: {summary(findings)}", file=sys.stderr)
    return 3 if any(f["outcome"] == "broken" for f in findings) else 0


COMMAND = Command("which functions of your frameworks give wrong answers, and what to use instead", arguments, audit)
