"""A bar for each of several long runs, on a terminal; nothing elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

__all__ = ["bars"]


@contextlib.contextmanager
def bars(names: Sequence[str], total: int) -> Iterator[Callable[[str, int], None]]:
    """advance(name, done)"""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:  # an extra; it is no reason not to run
        yield lambda name, done: None
        return
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks = {name: progress.add_task(name, total=total) for name in names}
        yield lambda name, done: progress.update(tasks[name], completed=done)
