"""Define the `islices` command: its parser, its list of subcommands, and the subcommand `backends`.

The dicts `OWN` and `SUITE` contain the built-in subcommands. Other packages add subcommands as entry points of the
group ``islices.commands``. Each subcommand is a `Command`. Another module's `Command` is loaded when the command is
called or when the parser needs its help text.

The exit code is 0 for success, 1 for failures or differences, and 2 for a wrong command line. Exit code 3 stands for an
internal error or a backend that fails to load, 130 for an interrupt, and 143 for SIGTERM.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import json
import os
import re
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from islices import __version__
from islices.core.locks import load_module
from islices.core.plugins import claimants, entry_points, load
from islices.core.registry import BUILTIN, get_backend, list_backends

__all__ = ["Command", "UsageError", "command_names", "load_command", "main", "stderr_aside"]

GROUP = "islices.commands"
#: The name of a command of the suite -> the module in islices.conformance that defines the `COMMAND`.
SUITE = {
    "audit": "tools.audit.command",
    "bench": "tools.bench.command",
    "conform": "command",
    "diff": "tools.diff",
    "judge": "tools.judge",
    "new-backend": "new_backend",
    "parity": "tools.parity",
    "report": "report.command",
}


class Command(NamedTuple):
    """A subcommand of `islices`. A package adds a subcommand with an entry point that refers to an instance of this
    class.

    Attributes
    ----------
    help : str
        A one-line description, which `islices --help` shows next to the name.
    arguments : callable of argparse.ArgumentParser
        A function that adds the subcommand's arguments to the parser. The function may also set the parser's epilog.
    run : callable of argparse.Namespace -> int
        A function that runs the subcommand and returns the exit code, or raises `UsageError` for wrong arguments.

    Examples
    --------
    >>> def arguments(parser):
    ...     parser.add_argument("name")
    >>> def run(options):
    ...     print("hello", options.name)
    ...     return 0
    >>> COMMAND = Command("says hello", arguments, run)
    """

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class UsageError(Exception):
    """An error in the user's arguments. The command prints the error's message without a traceback, and exits with code
    2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The command-line arguments. The default is the arguments of the process.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else TensorFlow prints a greeting on stderr
    os.environ["PYTHONIOENCODING"] = "utf-8"  # commands read the output of child processes as UTF-8
    _print_any_text()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parser = _parser(arguments[0] if arguments else None)
    except (ImportError, TypeError, ValueError) as error:
        print(f"islices: {error}", file=sys.stderr)
        return 3
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed the error, the help or the version
        return int(stop.code or 0)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        with _sigterm_raises():
            return int(load_command(options.command).run(options))
    except UsageError as error:
        print(f"islices {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has closed the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich has handled the closed pipe, and redirected stdout
            return 0
        raise
    except Exception:
        traceback.print_exc()
        return 3


#: a mark -> the text of the same width that replaces the mark in outputs whose encoding lacks the mark
PLAIN = {"✓": "+", "≈": "=", "✗": "x", "·": ".", "…": "~", "–": "-", "─": "-"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement for the characters that an output's encoding lacks, and the position after them.

    `PLAIN` contains the replacements of marks; other characters become backslash escapes.
    """
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(PLAIN.get(c, c.encode("ascii", "backslashreplace").decode()) for c in lacking), error.end


def _print_any_text() -> None:
    """Make stdout and stderr accept any text in any encoding, such as the legacy encoding of a pipe on Windows."""
    codecs.register_error("islices", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="islices")


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Make SIGTERM raise SystemExit inside the context, so that a command's child processes end too.

    Change nothing in threads other than the main thread, or if SIGTERM does not have the default handler.
    """
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminated(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A formatter that wraps each line of a description or epilog to the width of the terminal.

    In an indented line, text after two or more spaces forms a second column. If this column begins in the left half of
    the width, the continuation lines begin there. In any other indented line, the continuation lines begin four spaces
    to the right of the line's start. An indented line is joined to the line above if it begins where the continuation
    lines of the line above begin.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        items: list[tuple[str, int]] = []  # a line, and the column where its continuation lines begin
        for line in text.splitlines():
            start = len(line) - len(line.lstrip())
            if start and items and start == items[-1][1]:
                items[-1] = f"{items[-1][0]} {line.strip()}", start
                continue
            second = re.match(r" +\S+(?: \S+)* {2,}", line)
            column = second.end() if second else width
            items.append((line, column if column <= width // 2 else start + 4 if start else 0))
        return "\n".join(
            textwrap.fill(line, width, subsequent_indent=" " * column, break_long_words=False, break_on_hyphens=False)
            for line, column in items
        )


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="islices",
        formatter_class=_HelpFormatter,
        description="Work with the row-sparse gradients of NumPy, TensorFlow, PyTorch, JAX and MXNet through one API.",
        epilog="exit codes: 0 success, 1 failures or differences found, 2 usage error, 3 internal error\n"
        "For more: islices COMMAND --help",
    )
    parser.add_argument("--version", action="version", version=f"islices {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    names = command_names()
    for name in names:
        if name == command:
            found = load_command(name)
            found.arguments(commands.add_parser(name, description=found.help, formatter_class=_HelpFormatter))
        else:  # without a command, the help shows one line per command
            line = "" if command in {*names, "--version"} else _help(name)
            commands.add_parser(name, help=line.replace("%", "%%"))
    return parser


# ---------------------------------------------------------------------- commands
def command_names() -> list[str]:
    """Return the names of the subcommands in alphabetical order, without importing a subcommand."""
    return sorted({*OWN, *SUITE, *entry_points(GROUP)})


def load_command(name: str) -> Command:
    """Return the subcommand with the given name, which is one of `command_names`.

    Raises
    ------
    ImportError
        The subcommand's module or `Command` cannot be loaded.
    TypeError
        The entry point refers to an object that is not a `Command`.
    ValueError
        Several distributions claim the name, or another distribution claims the name of a built-in subcommand.
    """
    points = entry_points(GROUP).get(name, [])
    if name in OWN or name in SUITE:
        if points:
            raise ValueError(f"command {name!r} is built in, and also claimed by {claimants(points)}: uninstall them")
        return OWN[name] if name in OWN else load_module(f"islices.conformance.{SUITE[name]}").COMMAND
    found = load("command", name, points)
    if not isinstance(found, Command):
        raise TypeError(f"command {name!r} ({points[0].value}) must be an islices.cli.Command, got {found!r:.200}")
    return found


def _help(name: str) -> str:
    try:
        return load_command(name).help
    except (ImportError, TypeError, ValueError) as error:  # the help still lists the other subcommands
        return str(error)


# ---------------------------------------------------------------------- islices backends
def backends_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example:\n  islices backends --json | python -m json.tool"
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")


def backends(options: argparse.Namespace) -> int:
    """List all installed backends and the missing built-in ones, and return the exit code. If a backend fails to load,
    mark it in the list, report its error, and return 3."""
    installed = list_backends()
    if sys.stderr.isatty():
        print(f"importing {', '.join(installed)}: some seconds", file=sys.stderr, flush=True)
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
        print("modes: host, NumPy computes; framework, the framework computes; traced, compiled code")
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
    except Exception as error:  # a framework's import may raise any error; the other backends are still listed
        return {
            "name": name,
            "version": "broken",
            "devices": [],
            "modes": [],
            "error": f"{type(error).__name__}: {error}",
        }


#: the commands that this module defines
OWN = {
    "backends": Command(
        "list the installed frameworks: versions, devices, execution modes", backends_arguments, backends
    ),
}


@contextlib.contextmanager
def stderr_aside() -> Iterator[None]:
    """Send stderr to the null device inside the context, because C++ libraries write to stderr while they load."""
    try:
        saved = os.dup(2)
    except OSError:  # no stderr at all
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
