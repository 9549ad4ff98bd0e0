"""Run the Python blocks of documents, each in a process in which no other block has run.

As a script, this file is a server. The server imports the frameworks once, which takes seconds, and forks for every
request. A request is the JSON line {"code", "folder"}; the answer is the JSON line {"returncode", "stdout", "stderr"}.
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
#: package that blocks may need -> module to import if the package is installed
BESIDES = {"keras": "keras", "optax": "optax", "numba": "islices.kernels.operations"}
TIMEOUT = 200  # seconds that a block may take


def frameworks_of(code: str) -> list[str]:
    """Return the frameworks that `code` imports. Keras counts as TensorFlow, and optax as JAX."""
    names = {"keras": "tensorflow", "optax": "jax"} | {name: name for name in FRAMEWORKS}
    lines = re.findall(r"^\s*(?:import|from) .*", code, re.MULTILINE)
    return sorted({names[word] for line in lines for word in re.findall(r"\w+", line) if word in names})


def patched(program: str, change: str) -> str | None:
    """Apply the hunks of a diff block to a program, and return the result. Return None unless each hunk occurs exactly
    once.

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
    """Return (Python code, expected output) for a text block that begins with "$ islices ...", and None for any other
    block."""
    first, _, printed = text.partition("\n")
    if not first.startswith("$ islices "):
        return None
    return f"import sys; from islices.cli import main; sys.exit(main({shlex.split(first)[2:]!r}))", printed


#: Text that depends on rounding, and so on the machine: a row of `islices parity` within the bound, and numbers below
#: 1e-5.
ROUNDING = re.compile(r"^( +[a-z]+) +(?:same|\S+ +\S+ %  +\d+)$|\d(?:\.\d+)?e-(?:0[6-9]|1\d)\b", re.MULTILINE)


def prints(expected: str, printed: str) -> bool:
    """Return True if the printed text matches the expected text. "..." matches any text, and numbers that depend on
    rounding match each other."""
    wanted, came = (
        ROUNDING.sub(
            lambda m: f"{m[1]} within" if m[1] else "tiny", re.sub(r"[ \t]+$", "", x.strip(), flags=re.MULTILINE)
        )
        for x in (expected, printed)
    )
    return re.fullmatch(".*?".join(map(re.escape, wanted.split("..."))), came, re.DOTALL) is not None


class Blocks:
    """A runner of code blocks. The first block that needs a framework starts the server."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, code: str, folder: Path) -> dict[str, Any]:
        """Run the code in a folder, as ``python -c`` does, and return the exit code and the output."""
        if not frameworks_of(code) or not hasattr(
            os, "fork"
        ):  # without frameworks, a new process is as fast as the server
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
        if self._server is not None:
            self._server.communicate(timeout=TIMEOUT)


# ---------------------------------------------------------------------- the server
def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks print to stderr, not into the answers
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
    """Run the code in a forked process, and return the exit code. The exit code is negative if a signal ended the
    process."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks, but has computed nothing in this process
        child = os.fork()
    if child == 0:
        _execute(code, folder, files)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _execute(code: str, folder: str, files: list[Path]) -> NoReturn:
    """Run the code as a new ``__main__``, and end the process without returning to the server."""
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
    except BaseException:  # as an interpreter does: print the error, and exit with 1
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
