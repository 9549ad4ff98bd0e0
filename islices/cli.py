"""The `islices` command. Each subcommand lives elsewhere and is loaded when called; this module parses and reports.

Exit codes: 0 done or conform, 1 fails were found, 2 the call was wrong, 3 the harness itself failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from islices import __version__
from islices.registry import BUILTIN, get_backend, list_backends

__all__ = ["UsageError", "main", "stderr_aside"]

#: subcommand -> ("module:function that adds its arguments", "module:function that runs it")
COMMANDS = {
    "backends": ("islices.cli:backends_arguments", "islices.cli:backends"),
    "conform": ("islices.conformance.command:arguments", "islices.conformance.command:conform"),
    "report": ("islices.conformance.report.command:arguments", "islices.conformance.report.command:report"),
    "diff": ("islices.compare.command:arguments", "islices.compare.command:compare"),
    "parity": ("islices.conformance.parity.command:arguments", "islices.conformance.parity.command:parity"),
    "plan": ("islices.conformance.plan.command:arguments", "islices.conformance.plan.command:plan"),
    "audit": ("islices.conformance.audit.command:arguments", "islices.conformance.audit.command:audit"),
    "new-backend": ("islices.conformance.new_backend:arguments", "islices.conformance.new_backend:new_backend"),
    "bench": ("islices.conformance.bench.command:arguments", "islices.conformance.bench.command:bench"),
}
HELP = {
    "backends": "what is installed: versions, devices, execution modes",
    "conform": "run the conformance suite on every installed backend and show the matrix",
    "report": "show, merge or compare the results of conform: terminal, Markdown, JUnit, one HTML page",
    "diff": "compare two saved gradients or tables and say why they differ",
    "parity": "train one embedding model on every backend from one start; curves and the largest gap",
    "plan": "bytes and time of each way to reduce sparse gradients over many ranks; measured, then tabulated",
    "audit": "what each framework's own functions do on the same questions, and what to use instead",
    "new-backend": "write the skeleton of an adapter for another framework",
    "bench": "measure islices against each framework's own operations, as ratios in one run",
}


class UsageError(Exception):
    """The call cannot be carried out as it stands: printed without a traceback, exit code 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow greets on stderr otherwise
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(arguments[0] if arguments else None)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed what is wrong, or the help
        return int(stop.code or 0)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        return int(_load(COMMANDS[options.command][1])(options))
    except UsageError as error:
        print(f"islices {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich has seen it, and turned stdout away
            return 0
        raise


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="islices",
        description="Row-sparse gradients of NumPy, TensorFlow, PyTorch, JAX and MXNet: one meaning, one API.",
        epilog="exit codes: 0 fine, 1 fails found, 2 usage, 3 harness error.  More: islices COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"islices {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (add_arguments, _) in COMMANDS.items():
        sub = commands.add_parser(
            name, help=HELP[name], description=HELP[name], formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == command:  # the others' modules stay unloaded
            _load(add_arguments)(sub)
    return parser


def _load(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- islices backends
def backends_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example:\n  islices backends --json | python -m json.tool"
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")


def backends(options: argparse.Namespace) -> int:
    """Load every installed backend and list it; a broken one is listed with its error, and the exit code is 3."""
    installed = list_backends()
    found = [_describe_backend(name) for name in installed]
    missing = {name: line for name, line in BUILTIN.items() if name not in installed}
    if options.json:
        print(json.dumps({"backends": found, "missing": missing}))
    else:
        rows = [("backend", "version", "devices", "modes")]
        rows += [(b["name"], b["version"], ", ".join(b["devices"]), ", ".join(b["modes"])) for b in found]
        widths = [max(len(row[k]) for row in rows) for k in range(4)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for name, line in missing.items():
            print(f"{name} is not installed: {line}")
    for backend in found:
        if "error" in backend:
            print(f"islices backends: {backend['name']}: {backend['error']}", file=sys.stderr)
    return 3 if any("error" in backend for backend in found) else 0


def _describe_backend(name: str) -> dict[str, Any]:
    try:
        with stderr_aside():
            backend = get_backend(name)
        return {
            "name": name, "version": backend.version(), "devices": list(backend.devices()), "modes": backend.modes(),
        }  # fmt: skip
    except Exception as error:  # whatever a framework's import may raise: the others are still listed
        return {
            "name": name,
            "version": "broken",
            "devices": [],
            "modes": [],
            "error": f"{type(error).__name__}: {error}",
        }


@contextlib.contextmanager
def stderr_aside() -> Iterator[None]:
    """What C++ libraries write to stderr while they load is not for the reader of a table."""
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all
        yield
        return
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
