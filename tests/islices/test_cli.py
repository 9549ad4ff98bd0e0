"""Test the exit codes of the command `islices`, its output for people and for programs, and its errors, which have no
tracebacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from suite_runs import python, write_distribution

import islices
from islices.cli import main


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "conform" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert islices.__version__ in capsys.readouterr().out
    assert main(["conform", "--help"]) == 0
    assert "examples:" in capsys.readouterr().out
    assert main([]) == 2


#: Code that prints every command's help, usage errors, and marks and a file name that many encodings lack, with print
#: and with rich.
PRINTS = """
import sys
from rich.console import Console
from islices.cli import PLAIN, command_names, main
for name in command_names():
    assert main([name, "--help"]) == 0, name
assert main(["--help"]) == 0
assert main(["explode \\u2717 \\udce9"]) == main(["conform", "-b", "abacus \\u2717"]) == 2
for stream in (sys.stdout, sys.stderr):
    print(*PLAIN, "caf\\xe9 \\udce9", file=stream)
    Console(file=stream).print(*PLAIN)
"""


@pytest.mark.parametrize("encoding", ["ascii:surrogateescape", "cp1252", "utf-16"])
def test_every_encoding_of_the_output_takes_what_commands_print(encoding: str) -> None:
    env = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", PRINTS], env=env, capture_output=True, check=False, timeout=100)
    statement = done.stderr.decode(encoding.partition(":")[0])
    assert done.returncode == 0, statement
    assert "Traceback" not in statement
    marks = "+ = x . ~ - - caf\\xe9 \\udce9" if encoding.startswith("ascii") else "\\udce9"
    for text in (statement, done.stdout.decode(encoding.partition(":")[0])):
        assert marks in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["conform", "-b", "abacus"], "'abacus'"),
        (["explode"], "explode"),
        (["conform", "-b", "numpy", "-k", "algebra/scale/dense", "--json", "/no/such/folder/x"], "cannot write"),
    ],
)
def test_usage_errors(arguments: list[str], words: str) -> None:
    done = python("-m", "islices", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


PLUGIN = """
import os
import numpy
from islices.core.host import HostBackend

class Broken(HostBackend):
    name = module = "crashes"
    host_only = False
    def host_view(self, x): return None
    def concat(self, arrays): os._exit(7)

class Own(numpy.ndarray):  # a separate array type, so that the registry finds this backend for the array
    pass

def _own(x):
    return x.view(Own) if isinstance(x, numpy.ndarray) else x

Broken.is_array = lambda self, x: isinstance(x, Own)
Broken.asarray = lambda self, array, like=None: _own(numpy.array(array))
Broken.from_host = lambda self, array, like: _own(array)
Broken.to_numpy = lambda self, x: numpy.asarray(x)
"""


@pytest.mark.outside
def test_a_crash_is_a_harness_error(tmp_path: Path) -> None:
    (tmp_path / "crashes.py").write_text(PLUGIN)
    write_distribution(tmp_path, "crashes", "islices.backends", crashes="crashes:Broken")
    some = ("-b", "numpy", "--variant", "standard", "-k", "coalesce or algebra")
    done = python("-m", "islices", "conform", "-b", "crashes", *some, path=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the process ended in" in done.stdout, "the case that ended it is named"
    assert "exit 7" in done.stdout
    assert "numpy" in done.stdout.split("harness error")[0], "the others still report"


# ---------------------------------------------------------------------- commands of other distributions
HELLO = """
from islices.cli import Command, UsageError

def arguments(parser):
    parser.add_argument("--run", type=int, default=0)

def run(options):
    if options.run < 0:
        raise UsageError("--run: got a negative number")
    print("hello")
    return options.run

COMMAND = Command("says hello, 100 % of the time", arguments, run)
"""
#: name -> (code of the command's module, texts of the error)
OTHERS = {
    "hello": (HELLO, ""),
    "breaking": ("1 / 0", "ZeroDivisionError"),
    "leaving": ("raise SystemExit(0)", "SystemExit"),
    "different": ("COMMAND = 'hello'", "must be an islices.cli.Command, got 'hello'"),
    "nameless": ("", "no attribute 'COMMAND'"),
    "backends": (HELLO, "built in, and also claimed by others_backends:COMMAND"),
    "conform": (HELLO, "built in, and also claimed by others_conform:COMMAND"),
}


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Install several commands of another distribution; only one of them is valid. Also install metadata of an older
    islices."""
    for name, (text, _) in OTHERS.items():
        (tmp_path / f"others_{name}.py").write_text(text)
    older = {"audit": "islices.conformance.audit.command:COMMAND", "gone": "islices.gone:COMMAND"}
    points = {name: f"others_{name}:COMMAND" for name in OTHERS}
    for distribution, given in (("others", points), ("islices", older)):
        write_distribution(tmp_path, distribution, "islices.commands", **given)
    return tmp_path


def test_a_command_of_another_distribution(others: Path) -> None:
    for arguments, code, statement in (
        (["--run", "5"], 5, "hello\n"),
        (["--run", "-1"], 2, ""),
        (["--help"], 0, "100 %"),
    ):
        done = python("-m", "islices", "hello", *arguments, path=others)
        assert done.returncode == code, done.stderr
        assert statement in done.stdout
        assert ("islices hello: --run: got a negative number" in done.stderr) == (code == 2)


@pytest.mark.outside
def test_broken_commands_of_others_disturb_nobody(others: Path) -> None:
    listed = python("-m", "islices", "--help", path=others, COLUMNS="300")
    assert listed.returncode == 0, listed.stderr
    lines = {line.split()[0]: line for line in listed.stdout.splitlines() if line.startswith("    ")}
    assert "says hello, 100 % of the time" in lines["hello"]
    for name, (_, words) in OTHERS.items():
        assert words in lines[name], name
    assert "claimed by" not in lines["audit"]
    assert "gone" not in lines, "another checkout's"
    assert python("-m", "islices", "diff", "--help", path=others).returncode == 0
    for name in ("leaving", "conform"):
        done = python("-m", "islices", name, path=others)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith(f"islices: command {name!r}")
        assert OTHERS[name][1] in done.stderr
        assert "Traceback" not in done.stderr
