"""Bars on the error output while a command works, where that is a terminal and rich is there; nothing elsewhere."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["bar", "bars", "shown"]


@contextlib.contextmanager
def shown() -> Iterator[Any]:
    """A `rich.progress.Progress`, gone from the terminal afterwards."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


@contextlib.contextmanager
def bar(what: str, total: int, done: int = 0) -> Iterator[Callable[[str], None]]:
    """step(what): one more is done, and what is going on now."""
    if importlib.util.find_spec("rich") is None:
        yield lambda what: None
        return
    with shown() as progress:
        task = progress.add_task(what, total=total, completed=done)
        yield lambda what: progress.update(task, advance=1, description=what)


@contextlib.contextmanager
def bars(names: Sequence[str], total: int) -> Iterator[Callable[[str, int], None]]:
    """advance(name, done), for several long runs."""
    if importlib.util.find_spec("rich") is None:
        yield lambda name, done: None
        return
    with shown() as progress:
        tasks = {name: progress.add_task(name, total=total) for name in names}
        yield lambda name, done: progress.update(tasks[name], completed=done)
