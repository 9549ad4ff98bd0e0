"""Read the output of a watched process so far."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path, position: int) -> bytes:
    """Return the complete lines of a growing file from a position on, or none while it does not exist."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(position)
        news = file.read()
    return news[: news.rfind(b"\n") + 1]


def last_lines(path: Path, count: int) -> str:
    """Return the last lines of a log with any bytes."""
    return "\n".join(path.read_text("utf-8", "replace").splitlines()[-count:])
