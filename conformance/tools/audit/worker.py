"""Runs a module of probes in this process: ``python -m islices.conformance.tools.audit.worker MODULE [NUMBER ...]``.

Prints JSON lines: first the plan, what every chosen probe is; then, for each, that it is started and what was found,
as soon as it is known, so that what a crash leaves behind says how far it came. Without numbers isolated probes are
only planned; each is then run by a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, TextIO

from islices.conformance.operations import UnsupportedError
from islices.conformance.tools.audit import probes
from islices.conformance.tools.audit.choose import chosen
from islices.conformance.tools.audit.probe import PROBES, Probe, examine

__all__ = ["main"]

#: module -> the distribution that has its version, where the names differ
DISTRIBUTIONS = {"tensorflow": "tensorflow-cpu", "fbgemm_gpu": "fbgemm-gpu-cpu"}


def version(library: str) -> str:
    for name in (DISTRIBUTIONS.get(library, library), library):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "?"


def describe(question: Probe) -> dict[str, Any]:
    fields = question._asdict()
    del fields["ask"]
    return {**fields, "version": version(question.library)}


def find(question: Probe) -> dict[str, Any]:
    """What came of a probe, "not run" and "broken" included."""
    if importlib.util.find_spec(question.library) is None:
        return {"outcome": "not run", "got": f"{question.library} is not installed"}
    try:
        return examine(question)
    except Exception:  # what comes through is the probe's own fault: told as such, and the others are still run
        return broken()


def broken() -> dict[str, Any]:
    return {"outcome": "broken", "got": traceback.format_exc().strip()[-1500:]}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="run probes of one module; one JSON line a finding")
    parser.add_argument("module", help="of the package probes; elsewhere with dots, as in an import")
    parser.add_argument("numbers", nargs="*", metavar="NUMBER")
    parser.add_argument("-k", metavar="EXPR", default="")
    options = parser.parse_args(arguments)
    channel = _channel()

    def say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=channel, flush=True)

    _leave_no_core()
    warnings.simplefilter("ignore")
    try:
        importlib.import_module(options.module if "." in options.module else f"{probes.__name__}.{options.module}")
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("islices"):
            raise
        say({"plan": [], "missing": f"{missing.name} is not installed"})
        return 0
    except UnsupportedError as missing:  # installed, and of no use here
        say({"plan": [], "missing": str(missing)})
        return 0
    name = options.module.rpartition(".")[2]
    own = [q for q in PROBES.values() if q.number.rpartition("-")[0] == name]
    if not own:
        raise LookupError(f"{options.module} has no probes")
    wanted = [q for q in own if (q.number in options.numbers if options.numbers else chosen(describe(q), options.k))]
    say({"plan": [describe(question) for question in wanted]})
    for question in wanted:
        if question.isolated and not options.numbers:
            continue
        say({"number": question.number, "outcome": "started"})
        say({"number": question.number} | find(question))
    say({"outcome": "done"})
    if not options.numbers:
        channel.close()
        os._exit(0)  # how a framework takes itself down is no question of the audit; isolated probes end as they may
    return 0


def _leave_no_core() -> None:
    """A crash that is expected need not fill the disk."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _channel() -> TextIO:
    """Our standard output; what the frameworks print goes to the error output."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
