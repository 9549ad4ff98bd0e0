"""What goes on while a command works, on the error output: moving lines on a terminal where rich is there, and never
longer than a moment without saying what is waited for. Elsewhere bars are silent, and a board says in a plain line each
what ended, so that a log of a CI server has no control characters and no long silence."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

__all__ = ["Bar", "Board", "Watched", "bar", "bars", "board", "shown"]

#: Seconds after which what still runs is told where nothing moves.
HEARTBEAT = 60.0
#: Seconds from which on a case's own time is shown.
LONG = 2.0
OUTCOME = re.compile(rb'^\{"type": "case", "outcome": "([^"]+)"', re.MULTILINE)


# ---------------------------------------------------------------------- bars
@contextlib.contextmanager
def error_console() -> Iterator[Any]:
    """A console on the error output as it is now, wherever `islices.cli.stderr_aside` puts it meanwhile."""
    from rich.console import Console

    try:
        own = os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors)
    except (OSError, ValueError, AttributeError):  # no error output, or one that is no file
        yield Console(stderr=True)
        return
    with own:
        yield Console(file=own)


@contextlib.contextmanager
def shown() -> Iterator[Any]:
    """A `rich.progress.Progress`, gone from the terminal afterwards."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with error_console() as console:
        columns = (
            SpinnerColumn(_spinner(console)), TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(),
            TimeElapsedColumn(),
        )  # fmt: skip
        with Progress(
            *columns, console=console, disable=not _moves(console), transient=True, redirect_stdout=_above()
        ) as progress:
            yield progress


class Bar:
    """One task that moves on: called with what goes on now, one more is done; `tell` only says what goes on."""

    def __init__(self, progress: Any = None, task: Any = None) -> None:
        self._progress, self._task = progress, task

    def __call__(self, what: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, advance=1, description=what)

    def tell(self, what: str) -> None:
        if self._progress is not None:
            self._progress.update(self._task, description=what)


@contextlib.contextmanager
def bar(what: str, total: int, done: int = 0) -> Iterator[Bar]:
    """A bar that begins with what goes on first."""
    if importlib.util.find_spec("rich") is None:
        yield Bar()
        return
    with shown() as progress:
        yield Bar(progress, progress.add_task(what, total=total, completed=done))


@contextlib.contextmanager
def bars(names: Sequence[str], total: int) -> Iterator[Callable[[str, int], None]]:
    """advance(name, done), for several long runs."""
    if importlib.util.find_spec("rich") is None:
        yield lambda name, done: None
        return
    with shown() as progress:
        tasks = {name: progress.add_task(name, total=total) for name in names}
        yield lambda name, done: progress.update(tasks[name], completed=done)


def _moves(console: Any) -> bool:
    return bool(console.is_terminal and not console.is_dumb_terminal)


def _above() -> bool:
    """Whether what is printed meanwhile goes above moving lines: where it goes to a terminal, and only there."""
    return sys.stdout.isatty()


def _spinner(console: Any) -> str:
    return "dots" if console.encoding.lower().startswith("utf") else "line"


# ---------------------------------------------------------------------- processes that report
class Watched:
    """A process of the suite, as far as its report tells."""

    def __init__(self, name: str, ended: Callable[[Watched], None]) -> None:
        self.name, self._ended = name, ended
        self.state = "waiting"
        self.says = "waiting for a core"
        self.counts: Counter[str] = Counter()
        self.total: int | None = None
        self.begun = self.since = time.monotonic()
        self.seconds = 0.0

    def begin(self) -> None:
        """Its process starts."""
        self.state, self.begun = "running", time.monotonic()
        self.now("starting Python")

    def now(self, says: str) -> None:
        """What it does from now on."""
        self.says, self.since = says, time.monotonic()

    def take(self, news: bytes) -> None:
        """Further lines of its report."""
        self.counts.update(outcome.decode() for outcome in OUTCOME.findall(news))
        last = None
        for line in news.splitlines():
            if line.startswith((b'{"type": "start"', b'{"type": "phase"', b'{"type": "footer"')):
                last = line
            elif line.startswith(b'{"type": "header"'):
                header = json.loads(line)
                self.total = header.get("planned", header.get("total"))
        if last is not None:
            self._note(json.loads(last))

    def _note(self, line: dict[str, Any]) -> None:
        if line["type"] == "phase":
            self.now(line["says"])
        elif line["type"] == "footer":
            self.now("leaving Python")
        else:
            self.now(f"{line['id']} ({line['mode']})")

    def end(self, outcome: str = "") -> None:
        """It is over; with what came of it where that is no count of cases."""
        self.state, self.seconds, self.says = "ended", time.monotonic() - self.begun, outcome
        self._ended(self)

    @property
    def done(self) -> int:
        return self.counts.total()

    def doing(self) -> str:
        """What it does, and for how long where that is long."""
        return ", ".join(filter(None, self.parts()))

    def parts(self) -> tuple[str, str]:
        """(what it does, for how long where that is long)"""
        seconds = time.monotonic() - self.since
        if seconds < LONG or self.state != "running":
            return self.says, ""
        compiles = ", compiling" if self.says.endswith(" (traced)") else ""
        return f"{self.says}{compiles}", f"{seconds:.0f} s"

    def verdict(self) -> str:
        """A line of a log: "jax: 3550 pass, 0 fail, 41 s"."""
        told = [f"{self.counts[word]} {word}" for word in ("pass", "fail")] if self.counts else ["no case"]
        told += [f"{self.counts[w]} {w}" for w in ("deviation", "unsupported", "harness error") if self.counts[w]]
        return f"{self.name}: {', '.join([self.says] if self.says else told)}, {self.seconds:.0f} s"


class Board:
    """Several processes at once: what each of them does."""

    def __init__(self, names: Sequence[str]) -> None:
        self.jobs = [Watched(name, self.ended) for name in names]
        self._begun = time.monotonic()

    def ended(self, job: Watched) -> None:
        """A job ended."""

    def _of(self, state: str) -> list[Watched]:
        return [job for job in self.jobs if job.state == state]


class _Moving(Board):
    """Lines that move: one for each job that runs, and one for the others."""

    def __init__(self, names: Sequence[str], console: Any) -> None:
        super().__init__(names)
        from rich.spinner import Spinner

        self._spinner = Spinner(_spinner(console))

    def lines(self) -> Any:
        """What is to be seen now."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1), expand=True)
        for _ in range(4):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(no_wrap=True, justify="right")
        for job in self._of("running"):
            count = f"{job.done}/{job.total}" if job.total else ""
            what, long = map(Text, job.parts())
            table.add_row(self._spinner, job.name, count, _clock(time.monotonic() - job.begun), what, long)
        waiting = ", ".join(job.name for job in self._of("waiting"))
        others = [f"{len(self._of('ended'))} of {len(self.jobs)} runs ended"]
        others += [f"waiting for a core: {waiting}"] if waiting else []
        rest = f"{_clock(time.monotonic() - self._begun)}  {'; '.join(others)}"
        return Group(table, Text(rest, style="dim", no_wrap=True, overflow="ellipsis"))


class _Plain(Board):
    """A line for each job that ended, and now and then one of what runs."""

    def __init__(self, names: Sequence[str], file: TextIO) -> None:
        super().__init__(names)
        self._file, self._lock, self._over = file, threading.Lock(), threading.Event()
        self._told = time.monotonic()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def ended(self, job: Watched) -> None:
        self._print(job.verdict())

    def _beat(self) -> None:
        while not self._over.wait(1.0):
            if time.monotonic() - self._told >= HEARTBEAT:
                running = [f"{job.name} {job.done}/{job.total or '?'}: {job.doing()}" for job in self._of("running")]
                self._print(f"running: {'; '.join(running)}")

    def _print(self, line: str) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):  # nobody reads it: no reason to stop
            print(line, file=self._file, flush=True)
            self._told = time.monotonic()

    def __enter__(self) -> _Plain:
        self._thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self._over.set()
        self._thread.join()


@contextlib.contextmanager
def board(names: Sequence[str]) -> Iterator[Board]:
    """A board of jobs by their names; its lines are gone from a terminal afterwards."""
    from rich.live import Live

    with error_console() as console:
        if not _moves(console):
            with _Plain(names, sys.stderr) as plain:
                yield plain
            return
        moving = _Moving(names, console)
        with Live(
            get_renderable=moving.lines, console=console, refresh_per_second=4, transient=True, redirect_stdout=_above()
        ):
            yield moving


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
