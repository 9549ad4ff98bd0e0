"""Test the output of long commands on a terminal and in a log."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections import Counter
from typing import NamedTuple

import pytest
from suite_runs import python

from islices.conformance.progress import board

CONFORM = ("-m", "islices", "conform", "-b", "numpy", "--variant", "standard", "-k", "clip_by_value or densify")
#: Seconds without output after which a user doubts that a command is working.
SILENCE = 2.0


class Screen(NamedTuple):
    """The output of a program on a terminal: each piece of text with its time, the exit code, and the delay of this
    process.

    The delay is the number of seconds by which a busy machine woke this process late. A measured silence may be too
    long by this delay.
    """

    written: list[tuple[float, str]]
    code: int
    late: float

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "".join(text for _, text in self.written))

    @property
    def longest_silence(self) -> float:
        times = [when for when, _ in self.written]
        return max(after - before for before, after in itertools.pairwise(times))


def on_a_terminal(*arguments: str) -> Screen:
    """Run a fresh interpreter on a pseudo-terminal of 80 columns, and return its output."""
    terminal, its_side = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm", "NO_COLOR": "1"}
    command = [sys.executable, *arguments]
    written: list[tuple[float, bytes]] = []
    began, late = time.monotonic(), 0.0
    with subprocess.Popen(command, stdin=its_side, stdout=its_side, stderr=its_side, env=env) as process:
        os.close(its_side)
        try:
            while time.monotonic() - began < 300:
                asleep = time.monotonic()
                if not select.select([terminal], [], [], 0.05)[0]:
                    late = max(late, time.monotonic() - asleep - 0.05)
                    continue
                data = os.read(terminal, 65536)
                if not data:
                    break
                written.append((time.monotonic(), data))
            else:
                process.kill()
        except OSError:  # Linux reports in this way that the program has closed the terminal
            pass
        finally:
            os.close(terminal)
    return Screen([(when, data.decode("utf-8", "replace")) for when, data in written], process.returncode, late)


def test_a_terminal_never_stands_still() -> None:
    screen = on_a_terminal(*CONFORM)
    assert screen.code == 0, screen.text
    for words in ("numpy  starting Python", "(host)"):
        assert words in screen.text
    assert re.search(r" \d+/\d+ ", screen.text), "how far it is"
    assert screen.longest_silence < SILENCE + 3 * screen.late
    assert screen.written[-1][1].endswith("\n")
    assert "".join(text for _, text in screen.written).count("\x1b[?25h") == 1, "the cursor is back"
    matrix = screen.text.splitlines()[-12:]
    assert any(re.match(r"densify +\d+ +✓", line) for line in matrix), matrix


@pytest.mark.outside
def test_a_log_has_a_line_for_each_run_and_no_control_characters() -> None:
    done = python(*CONFORM, "--json", "-")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = Counter(line["type"] for line in lines)
    assert kinds.keys() == {"header", "start", "case", "footer"}, "phases are no part of a report"
    first, *matrix = done.stderr.splitlines()
    assert re.fullmatch(rf"numpy: {kinds['case']} pass, 0 fail, \d+ s", first)
    assert "numpy:" not in "".join(matrix)
    assert not [c for c in done.stderr if not c.isprintable() and c != "\n"]


def test_a_long_run_is_heard_of_in_a_log(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("islices.conformance.progress.HEARTBEAT", 0.5)
    with board(["jax", "torch"]) as reported:
        reported[0].begin()
        reported[0].now("importing jax")
        statement = ""
        for _ in range(100):
            statement += capfd.readouterr().err
            if statement:
                break
            time.sleep(0.1)
    assert re.match(r"running: jax 0/\?: importing jax\n", statement)
