"""`islices audit`: what each framework's own functions do where islices' clauses apply."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from islices import __version__
from islices.cli import Command, UsageError
from islices.conformance.outputs import check_writable, need_rich, write
from islices.conformance.progress import shown
from islices.conformance.tools.audit.choose import chosen, framework_of, modules
from islices.conformance.tools.audit.run import run_all
from islices.conformance.tools.audit.show import blocks, markdown, provenance, summary

__all__ = ["COMMAND"]

EPILOG = """\
examples
  islices audit                      every framework that is installed
  islices audit -b torch -k clip     one framework, the questions that speak of clip
  islices audit -k "clause 10 and not clip_grad_norm_"
  islices audit -b torch_compile -b keras_jax -b fbgemm
  islices audit --json | jq 'select(.outcome == "corrupts")'

outcomes
  agrees     the function gives the specification's answer to every input
  differs    another answer; the worst is shown
  raises     it refuses what the specification gives a meaning to, or breaks
  corrupts   it wrote to memory that it was not given, ended its process, or hung
Which functions are asked is part of islices; what they answer is found out now, with the versions that are installed.

exit codes: 0 done, whatever was found; 2 usage; 3 a question itself is broken
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    words = "only questions whose number, function, claim or 'clause N' has these words (and, or, not, parentheses)"
    add = parser.add_argument
    add("-b", "--backend", action="append", metavar="NAME", help="only this framework or module (may be repeated)")
    add("-k", metavar="EXPR", default="", help=words)
    add(
        "--json", metavar="PATH", nargs="?", const="-", help="write JSON lines to PATH (stdout, which then has no text)"
    )
    add("--markdown", metavar="PATH", help="write a Markdown document to PATH")
    add("--all", action="store_true", help="show what agrees in full, too")


def audit(options: argparse.Namespace) -> int:
    """Ask everything, show what came of it."""
    need_rich()
    from rich.console import Console

    names = _chosen_modules(options.backend)
    _check(options)
    started = time.monotonic()
    with _progress() as tell:
        findings = run_all(names, options.k, tell)
    if not findings:
        raise UsageError(f"-k: no question matches {options.k!r}")
    header = _header(findings)
    if options.json:
        write("--json", options.json, _json_lines(header, findings, time.monotonic() - started))
    if options.markdown:
        write("--markdown", options.markdown, markdown(findings, header, options.all) + "\n")
    console = Console(stderr=options.json == "-")
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = 100  # a pipe has no edge; a block reads well at this
    say = console.print
    if options.json != "-":
        say(provenance(header), style="dim", highlight=False, markup=False)
        for line in blocks(findings, options.all, console.width):
            say(line, soft_wrap=True)
    seconds = time.monotonic() - started
    say(f"{len(findings)} questions in {seconds:.0f} s: {summary(findings)}", highlight=False, markup=False)
    return 3 if any(f["outcome"] == "broken" for f in findings) else 0


COMMAND = Command(
    "what each framework's own functions do on the same questions, and what to use instead", arguments, audit
)


def _chosen_modules(wanted: Sequence[str] | None) -> list[str]:
    found = modules()
    names = found if wanted is None else [m for m in found if m in wanted or framework_of(m) in wanted]
    for name in wanted or ():
        if not any(name in (m, framework_of(m)) for m in found):
            accepted = ", ".join(dict.fromkeys([*map(framework_of, found), *found]))
            raise UsageError(f"--backend: got {name!r}; accepted are {accepted}")
    return names


def _check(options: argparse.Namespace) -> None:
    """What is wrong with the call is said before a minute of work, not after."""
    try:
        chosen({"number": "", "call": "", "claim": "", "clause": ""}, options.k)
    except ValueError as error:
        raise UsageError(f"-k: got {options.k!r}: {error}") from None
    for option, path in (("--json", options.json), ("--markdown", options.markdown)):
        if path:
            check_writable(option, path)  # an earlier audit stays until this one is done


def _header(findings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    versions = {f["library"]: f["version"] for f in findings if f.get("version", "?") != "?"}
    return {
        "islices": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": dict(sorted(versions.items())),
    }


def _json_lines(header: dict[str, Any], findings: Sequence[dict[str, Any]], seconds: float) -> str:
    footer = {
        "type": "footer",
        "outcomes": Counter(f["outcome"] for f in findings),
        "statuses": Counter(f["status"] for f in findings if f["status"]),
        "seconds": round(seconds, 1),
    }
    lines = [{"type": "header", "form": 1, **header}, *({"type": "finding", **f} for f in findings), footer]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """tell(planned, found): a bar on a terminal, nothing elsewhere."""
    with shown() as progress:
        task, lock, total = progress.add_task("importing the frameworks", total=None), threading.Lock(), 0

        def tell(planned: int, found: int) -> None:
            nonlocal total
            with lock:
                total += planned
                progress.update(task, total=total or None, advance=found, description="asking the frameworks")

        yield tell
