"""Parse the option ``--command`` and its time limit.

May import: `islices.cli`.
"""

from __future__ import annotations

import os
import shlex

from islices.cli import UsageError


def split_command(text: str) -> tuple[str, ...]:
    """Return the words of a command, split as a shell would split them, without running a shell. Raise UsageError for
    an empty or malformed command."""
    try:
        words = tuple(shlex.split(text, posix=os.name == "posix"))
    except ValueError as error:
        raise UsageError(f"--command: got {text!r}: {error}") from None
    if not words:
        raise UsageError(f"--command: got {text!r}; accepted is a program and its arguments")
    return words


def seconds(limit: float) -> float:
    """Check that a time limit in seconds is positive and finite, and return the limit. Raise UsageError otherwise."""
    if not 0 < limit < float("inf"):
        raise UsageError(f"--time-limit: got {limit:g}; accepted are seconds above 0")
    return limit
