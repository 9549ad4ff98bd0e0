"""Show the progress of commands on standard error.

On a terminal with rich, progress lines show the current work. A bar prints nothing if rich is not installed or the
output is not a terminal. A board needs rich. Without a terminal, a board prints a line when a process ends, and a line
per minute about the running processes. So a CI log contains no control characters, and never stays silent for long.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

#: Without progress lines, the board prints a line about the running processes every so many seconds.
HEARTBEAT = 60.0


# ---------------------------------------------------------------------- bars
@contextlib.contextmanager
def error_console() -> Iterator[Any]:
    """Open a rich console that writes to the current standard error, even if `islices.cli.stderr_aside` redirects
    standard error later."""
    from rich.console import Console

    try:
        own = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors)
    except (OSError, ValueError, AttributeError):  # there is no error output, or it is not a file
        yield Console(stderr=True)
        return
    with own:
        yield Console(file=own)


@contextlib.contextmanager
def shown() -> Iterator[Any]:
    """Show a `rich.progress.Progress`, which disappears from the terminal when the context ends."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    with error_console() as console:
        spinner = "dots" if console.encoding.lower().startswith("utf") else "line"
        subject = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
        columns = SpinnerColumn(spinner), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), subject
        with Progress(
            *columns,
            console=console,
            disable=not console.is_terminal or console.is_dumb_terminal,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        ) as progress:
            yield progress


class Bar:
    """A progress bar of one task. Calling the bar counts a finished part and shows the name of the next part. `tell`
    changes only the shown name."""

    def __init__(self, update: Callable[..., None] = lambda **fields: None) -> None:
        self._update = update

    def __call__(self, subject: str) -> None:
        self._update(advance=1, description=subject)

    def tell(self, subject: str) -> None:
        self._update(description=subject)


@contextlib.contextmanager
def bar(subject: str, total: int) -> Iterator[Bar]:
    """Show a bar with `total` parts. `subject` is the name of the first part."""
    if importlib.util.find_spec("rich") is None:
        yield Bar()
        return
    with shown() as progress:
        yield Bar(partial(progress.update, progress.add_task(subject, total=total)))


@contextlib.contextmanager
def bars(names: Sequence[str], total: int) -> Iterator[Callable[[str, int], None]]:
    """Show the progress of several long runs; the context gives a function advance(name, done)."""
    if importlib.util.find_spec("rich") is None:
        yield lambda name, done: None
        return
    with shown() as progress:
        tasks = {name: progress.add_task(name, total=total) for name in names}
        yield lambda name, done: progress.update(tasks[name], completed=done)


# ---------------------------------------------------------------------- processes that report
class Watched:
    """The progress of one process of the suite, read from the lines of its report."""

    def __init__(self, name: str, changed: Callable[[Watched], None]) -> None:
        self.name, self._changed = name, changed
        self.says, self.running = "waiting for a core", False
        self.counts: Counter[str] = Counter()
        self.total: int | None = None
        self.begun = time.monotonic()

    def begin(self) -> None:
        self.running, self.begun = True, time.monotonic()
        self.now("starting Python")

    def now(self, says: str) -> None:
        self.says = says
        self._changed(self)

    def take(self, news: bytes) -> None:
        """Update the progress with new lines of the report."""
        for line in map(json.loads, news.splitlines()):
            if line["type"] == "case":
                self.counts[line["outcome"]] += 1
            elif line["type"] == "header":
                self.total = line.get("planned", line.get("total"))
            elif line["type"] == "start":
                self.says = f"{line['id']} ({line['mode']})"
            else:
                self.says = line.get("says", "leaving Python")
        self._changed(self)

    def end(self, outcome: str = "") -> None:
        """Show that the process has ended, and show `outcome`. If `outcome` is empty, show the counts of cases
        instead."""
        reported = [f"{self.counts[word]} {word}" for word in ("pass", "fail")] if self.counts else ["no case"]
        reported += [f"{self.counts[w]} {w}" for w in ("deviation", "unsupported", "harness error") if self.counts[w]]
        self.running = False
        self.now(outcome or ", ".join(reported))


@contextlib.contextmanager
def board(names: Sequence[str]) -> Iterator[list[Watched]]:
    """Show the progress of several processes; the context gives a list with one `Watched` per process.

    A terminal shows one changing line per process. On other outputs, the board prints a line when a process ends, and a
    line per minute about the running processes.
    """
    with shown() as progress:
        tasks = {name: progress.add_task(name, total=None, visible=False, start=False) for name in names}

        def changed(job: Watched) -> None:
            if not progress.disable:
                subject = f"{job.name}  {job.says}"
                progress.update(
                    tasks[job.name],
                    description=subject,
                    total=job.total,
                    completed=job.counts.total(),
                    visible=job.running,
                )
                progress.start_task(tasks[job.name])
            elif not job.running:
                _tell(f"{job.name}: {job.says}, {time.monotonic() - job.begun:.0f} s")

        jobs, over = [Watched(name, changed) for name in names], threading.Event()

        def beat() -> None:
            while not over.wait(HEARTBEAT):
                _tell(f"running: {'; '.join(_doing(job) for job in jobs if job.running)}")

        if progress.disable:
            threading.Thread(target=beat, daemon=True).start()
        try:
            yield jobs
        finally:
            over.set()


def _doing(job: Watched) -> str:
    return f"{job.name} {job.counts.total()}/{job.total or '?'}: {job.says}"


def _tell(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the reader of the output has gone; the run goes on
        print(line, file=sys.stderr, flush=True)
