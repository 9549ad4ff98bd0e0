"""What commands are given, and the files that they write: what stands in the way is said before minutes of work."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from islices.cli import UsageError
from islices.registry import BUILTIN

__all__ = ["check_backends", "check_picture", "check_writable", "need_rich", "write"]


def check_backends(wanted: Sequence[str] | None, installed: Sequence[str]) -> None:
    """UsageError for a --backend that is not among those installed."""
    for name in wanted or ():
        if name not in installed:
            hint = f"install it: {BUILTIN[name]}" if name in BUILTIN else f"installed are {', '.join(installed)}"
            raise UsageError(f"--backend: got {name!r}, which is not installed; {hint}")


def need_rich() -> None:
    """UsageError where rich is missing, by which commands show what they found."""
    if importlib.util.find_spec("rich") is None:
        raise UsageError('needs rich: pip install "islices[conformance]"')


def write(option: str, path: str, text: str, mode: str = "w") -> None:
    """The text to a file, or for "-" to standard output; what the system says against it names the option."""
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        with Path(path).open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror}") from None


def check_writable(option: str, path: str) -> None:
    """Whether `write` could; a file that is there stays as it is, and none is left."""
    if path == "-":
        return
    new = not Path(path).exists()
    write(option, path, "", mode="a")
    if new:
        Path(path).unlink()


def check_picture(option: str, path: str) -> None:
    """Whether matplotlib could draw one there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f'{option}: needs matplotlib: pip install "islices[plot]"')
    if not path.endswith(".png"):
        raise UsageError(f"{option}: got {path!r}; accepted is a file that ends in .png")
    check_writable(option, path)
