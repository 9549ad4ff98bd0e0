"""Judge every library in a separate process. The process uses the first environment in which the library loads.

If a process crashes or hangs during an entry, the entry's result describes this, and a new process continues with the
next entry.
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
#: The seconds that a process may take. After a crash or after this time, another process judges the remaining entries.
LIMIT = 1500
#: The seconds that the script of a finding may take.
SCRIPT_LIMIT = 120
#: library -> its backends. The backend of Keras is fixed at the import, so each backend has a process.
BACKENDS = {"keras": ("tensorflow", "torch", "jax")}
#: (library, environment variables of its process)
JOBS: tuple[tuple[str, dict[str, str]], ...] = tuple(
    (name, variables)
    for name in sorted(m.name for m in pkgutil.iter_modules(libraries.__path__))
    for variables in [{"KERAS_BACKEND": b} for b in BACKENDS.get(name, ())] or [{}]
)


def environment(python: str) -> dict[str, str]:
    """Return the environment variables of a process. With these variables, the process imports this copy of islices,
    and looks for programs in the folder of `python` first."""
    bin = str(Path(python).parent)  # not resolved, because the Python of a virtual environment is a link
    found = {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ.get('PATH', '')}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    found["PYTHONPATH"] = str(Path(islices.__file__).parents[1])
    return found


# ---------------------------------------------------------------------- a library
def run_library(name: str, pythons: Sequence[str], variables: dict[str, str], formulas: Sequence[str] = ()) -> Line:
    """Judge a library and return {module, library, version, entries}, or {module, missing} if the library loads in no
    environment. Without `formulas`, judge all formulas."""
    found = _first(pythons, lambda python: _judged(name, python, {**environment(python), **variables}, formulas))
    return {"module": name, **found}


def _first(pythons: Sequence[str], run: Callable[[str], Line]) -> Line:
    """Return the result of the first environment in which nothing is missing, else the result of the last
    environment."""
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
        if lines and "started" in lines[-1]:  # the process ended during this entry
            found["entries"].append({**lines[-1]["started"], "raised": end or "the process ended"})
            done = False
        elif not lines or "done" not in lines[-1]:
            raise RuntimeError(f"{name}: {end}")
    return found


def _program(python: str) -> str:
    """Return the absolute path of a program without resolving links. A name without a folder is returned unchanged."""
    return os.path.abspath(python) if os.sep in python else python


# ---------------------------------------------------------------------- a finding
def run_finding(script: Path, pythons: Sequence[str]) -> Line:
    """Run a script in the first environment that has its imports. Return {output}, or {missing} if no environment has
    the imports."""
    script = script.absolute()
    return _first(pythons, lambda python: _printed([_program(python), str(script)], environment(python)))


def _printed(command: Sequence[str], variables: dict[str, str]) -> Line:
    variables = {k: v for k, v in variables.items() if k != "PYTHONPATH"}  # the script must run without islices
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
    if process.returncode:  # a line of dashes starts a trace of addresses, which differ in each run
        statement = [*itertools.takewhile(lambda line: not line.startswith("---"), statement)]
        statement.append(ended(process.returncode) if process.returncode < 0 else last)
    return {"output": "\n".join(statement)}
