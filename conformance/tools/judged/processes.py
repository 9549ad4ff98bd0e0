"""Judge every library in a separate process, in the first environment that has it.

If a process ends during an entry, this is the entry's result, and a new process goes on with the next.
"""

from __future__ import annotations

import itertools
import os
import pkgutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import islices
from islices.conformance.tools.judged import libraries
from islices.conformance.workers import ended, run_worker

Line = dict[str, Any]
#: Seconds for a library.
LIMIT = 1500
#: Seconds for a finding's script.
SCRIPT_LIMIT = 120
#: The backends of Keras are chosen when it is imported: a process for each.
BACKENDS = {"keras": ("tensorflow", "torch", "jax")}
#: (library, variables of its process)
JOBS: tuple[tuple[str, dict[str, str]], ...] = tuple(
    (name, variables)
    for name in sorted(m.name for m in pkgutil.iter_modules(libraries.__path__))
    for variables in [{"KERAS_BACKEND": b} for b in BACKENDS.get(name, ())] or [{}]
)


def environment(python: str) -> dict[str, str]:
    """Return the environment of a process: this islices, and the other environment's programs."""
    bin = str(Path(python).parent)  # not resolved: a virtual environment's Python is a link
    found = {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ.get('PATH', '')}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    found["PYTHONPATH"] = str(Path(islices.__file__).parents[1])
    return found


# ---------------------------------------------------------------------- a library
def run_library(name: str, pythons: Sequence[str], variables: dict[str, str], formulas: Sequence[str] = ()) -> Line:
    """Return {module, library, version, entries}, or {module, missing} if no environment has it. No formulas means
    all."""
    found = _first(pythons, lambda python: _judged(name, python, {**environment(python), **variables}, formulas))
    return {"module": name, **found}


def _first(pythons: Sequence[str], run: Callable[[str], Line]) -> Line:
    """Return the result of the first environment that lacks nothing, else of the last one."""
    found: Line = {}
    for python in pythons:
        found = run(python)
        if "missing" not in found:
            break
    return found


def _judged(name: str, python: str, variables: dict[str, str], formulas: Sequence[str]) -> Line:
    found: Line = {"entries": []}
    done = False
    while not done:
        given = ["--skip", str(len(found["entries"])), *(x for formula in formulas for x in ("--formula", formula))]
        command = [_program(python), "-m", "islices.conformance.tools.judged.judging", name, *given]
        lines, end = run_worker(command, variables, LIMIT)
        done = True
        for line in lines:
            if "missing" in line:
                return line
            if "version" in line:
                found.update(line)
            elif "formula" in line:
                found["entries"].append(line)
        if lines and "started" in lines[-1]:  # the process ended in it
            found["entries"].append({**lines[-1]["started"], "raised": end or "the process ended"})
            done = False
        elif not lines or "done" not in lines[-1]:
            raise RuntimeError(f"{name}: {end}")
    return found


def _program(python: str) -> str:
    """Return a program's absolute path, with links kept."""
    return os.path.abspath(python) if os.sep in python else python


# ---------------------------------------------------------------------- a finding
def run_finding(script: Path, pythons: Sequence[str]) -> Line:
    """Return {output} of a script in the first environment that has its imports, or {missing}."""
    script = script.absolute()
    return _first(pythons, lambda python: _printed([_program(python), str(script)], environment(python)))


def _printed(command: Sequence[str], variables: dict[str, str]) -> Line:
    variables = {k: v for k, v in variables.items() if k != "PYTHONPATH"}  # a finding is shown without islices
    with tempfile.TemporaryDirectory(prefix="islices-judged-") as folder:
        try:
            process = subprocess.run(
                command, capture_output=True, encoding="utf-8", cwd=folder, env=variables, timeout=SCRIPT_LIMIT
            )
        except subprocess.TimeoutExpired:
            return {"output": f"the process was ended after {SCRIPT_LIMIT} s"}
    last = (process.stderr.strip().splitlines() or [""])[-1]
    if "ModuleNotFoundError" in last:
        return {"missing": last}
    statement = process.stdout.strip().splitlines()
    if process.returncode:  # a trace of addresses, which differ from run to run, begins with a line of dashes
        statement = [*itertools.takewhile(lambda line: not line.startswith("---"), statement)]
        statement.append(ended(process.returncode) if process.returncode < 0 else last)
    return {"output": "\n".join(statement)}
