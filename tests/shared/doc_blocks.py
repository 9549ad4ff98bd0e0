"""Run the Python blocks of documents, each in a process that has run no other block.

As a script it is a server. It imports the frameworks once, which takes seconds, and forks for every request. A
request is one JSON line {"code", "folder"}, an answer one of {"returncode", "stdout", "stderr"}.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from pathlib import Path
from typing import Any, NoReturn

FRAMEWORKS = ("torch", "tensorflow", "jax", "mxnet")
#: what blocks need besides, if it is there, and what imports it
BESIDES = {"keras": "keras", "optax": "optax", "numba": "islices.kernels.operations"}
TIMEOUT = 200  # seconds a block may take


def frameworks_of(code: str) -> list[str]:
    """Return the frameworks that the code imports, with TensorFlow for Keras and JAX for optax."""
    names = {"keras": "tensorflow", "optax": "jax"} | {name: name for name in FRAMEWORKS}
    lines = re.findall(r"^\s*(?:import|from) .*", code, re.MULTILINE)
    return sorted({names[word] for line in lines for word in re.findall(r"\w+", line) if word in names})


def patched(program: str, change: str) -> str | None:
    """Return a program with the hunks of a diff block applied, or None if a hunk does not occur in it exactly once.

    Lines begin with " ", "-" or "+", and "@@" separates hunks.
    """
    for hunk in re.split(r"^@@.*\n", change, flags=re.MULTILINE):
        lines = [line if line else " " for line in hunk.splitlines()]
        old, new = ("".join(f"{x[1:]}\n" for x in lines if x[0] != without) for without in "+-")
        if len(re.findall(f"(?=\n{re.escape(old)})", f"\n{program}")) != 1:
            return None
        program = f"\n{program}".replace(f"\n{old}", f"\n{new}")[1:]
    return program


def command_of(text: str) -> tuple[str, str] | None:
    """Return (Python code, expected output) of a text block that begins with "$ islices ...", else None."""
    first, _, printed = text.partition("\n")
    if not first.startswith("$ islices "):
        return None
    return f"import sys; from islices.cli import main; sys.exit(main({shlex.split(first)[2:]!r}))", printed


#: What rounding decides, by machine: a row of `islices parity` within what is allowed, numbers below 1e-5.
ROUNDING = re.compile(r"^( +[a-z]+) +(?:same|\S+ +\S+ %  +\d+)$|\d(?:\.\d+)?e-(?:0[6-9]|1\d)\b", re.MULTILINE)


def prints(expected: str, printed: str) -> bool:
    """Return True if the output matches. "..." matches anything, and numbers that rounding decides match each other."""
    wanted, came = (
        ROUNDING.sub(
            lambda m: f"{m[1]} within" if m[1] else "tiny", re.sub(r"[ \t]+$", "", x.strip(), flags=re.MULTILINE)
        )
        for x in (expected, printed)
    )
    return re.fullmatch(".*?".join(map(re.escape, wanted.split("..."))), came, re.DOTALL) is not None


class Blocks:
    """A runner of code blocks, which starts the server for the first block that needs a framework."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, code: str, folder: Path) -> dict[str, Any]:
        """Return the exit code and output of the code, run in a folder as by ``python -c``."""
        if not frameworks_of(code) or not hasattr(os, "fork"):  # as cheap, and nothing is imported beforehand
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=folder, text=True, capture_output=True, check=False, timeout=TIMEOUT
            )
            return {"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, __file__], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert self._server.stdin, "a pipe"
        assert self._server.stdout, "a pipe"
        print(json.dumps({"code": code, "folder": str(folder)}), file=self._server.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.communicate(timeout=TIMEOUT)


# ---------------------------------------------------------------------- the server
def serve() -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a framework prints is no answer
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import islices

    for name in FRAMEWORKS:
        if importlib.util.find_spec(name) is not None:
            islices.get_backend(name)
    for name, module in BESIDES.items():
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryDirectory() as output:
            files = [Path(output, name) for name in ("stdout", "stderr")]
            code = _in_child(request["code"], request["folder"], files)
            shown = [file.read_text("utf-8", "replace") for file in files]
        print(json.dumps({"returncode": code, "stdout": shown[0], "stderr": shown[1]}), file=answers, flush=True)


def _in_child(code: str, folder: str, files: list[Path]) -> int:
    """Return the exit code of a forked process that runs the code; negative if a signal ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's about forks: it has computed nothing here
        child = os.fork()
    if child == 0:
        _execute(code, folder, files)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _execute(code: str, folder: str, files: list[Path]) -> NoReturn:
    """Run the code as a fresh ``__main__``, and end the process without the server's code."""
    status = 1
    try:
        signal.alarm(TIMEOUT)
        for fd, file in zip((1, 2), files, strict=True):
            os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY), fd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # as an interpreter does: printed, and shown by the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
