"""The argument ``--command`` of the command line.

May import: `islices.cli`.
"""

from __future__ import annotations

import os
import shlex

from islices.cli import UsageError


def split_command(text: str) -> tuple[str, ...]:
    """Return a command's words, split as a shell would split them; no shell runs."""
    try:
        words = tuple(shlex.split(text, posix=os.name == "posix"))
    except ValueError as error:
        raise UsageError(f"--command: got {text!r}: {error}") from None
    if not words:
        raise UsageError(f"--command: got {text!r}; accepted is a program and its arguments")
    return words


def seconds(limit: float) -> float:
    """Return a valid time limit."""
    if not 0 < limit < float("inf"):
        raise UsageError(f"--time-limit: got {limit:g}; accepted are seconds above 0")
    return limit
