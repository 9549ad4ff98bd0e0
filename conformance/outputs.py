"""Check the arguments and the output files of a command before its long run begins, and write the output."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from islices.cli import UsageError
from islices.core.plugins import entry_points
from islices.core.registry import BUILTIN, GROUP


def check_backends(wanted: Sequence[str] | None, installed: Sequence[str]) -> None:
    """Raise UsageError if a backend in --backend is not installed."""
    for name in wanted or ():
        if name in installed:
            continue
        if name not in BUILTIN and name in entry_points(GROUP):
            raise UsageError(f"--backend: got {name!r}, whose adapter is installed, but no module {name} is found")
        hint = f"install it: {BUILTIN[name]}" if name in BUILTIN else f"installed are {', '.join(installed)}"
        raise UsageError(f"--backend: got {name!r}, which is not installed; {hint}")


def need_rich() -> None:
    """Raise UsageError if rich, which prints results, is not installed."""
    if importlib.util.find_spec("rich") is None:
        raise UsageError('needs rich: pip install "islices[conformance]"')


def wrapped(line: str, width: int) -> list[str]:
    """Wrap a line to a width, and return the lines. Further lines have the indentation of the first line, or four
    spaces if the first line is not indented."""
    indent = line[: len(line) - len(line.lstrip())] or "    "
    pieces = textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return pieces or [""]


def print_text(text: str) -> None:
    """Print a report. On a terminal, wrap lines that are wider than the terminal."""
    if not sys.stdout.isatty():
        print(text)
        return
    width = shutil.get_terminal_size().columns
    for line in text.splitlines():
        print(line if len(line) <= width else "\n".join(wrapped(line, width)))


def write(option: str, path: str, text: str, mode: str = "w") -> None:
    """Write the text as UTF-8 to a file, or to standard output if `path` is "-". If the file cannot be written, raise a
    UsageError that names the option."""
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8"))
        sys.stdout.buffer.flush()
        return
    try:
        with Path(path).open(mode, encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise UsageError(f"{option}: cannot write {path}: {getattr(error, 'strerror', None) or error}") from None


def check_writable(option: str, path: str) -> None:
    """Raise UsageError if `write` cannot write to a path. The check changes no existing file and leaves no new file."""
    if path == "-":
        return
    new = not Path(path).exists()
    write(option, path, "", mode="a")
    if new:
        Path(path).unlink()


def check_picture(option: str, path: str) -> None:
    """Raise UsageError unless matplotlib is installed and the path is that of a writable .png file."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f'{option}: needs matplotlib: pip install "islices[plot]"')
    if not path.endswith(".png"):
        raise UsageError(f"{option}: got {path!r}; accepted is a file that ends in .png")
    check_writable(option, path)
