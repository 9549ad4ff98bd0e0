"""Inspect the Python interpreters of other environments, so that the suite can test the frameworks there.

Each interpreter imports the same islices as this process, so results of old and new frameworks are comparable. To make
this possible, a folder that contains only islices and its pytest plug-in is added to the interpreter's import path.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import islices
from islices.cli import UsageError
from islices.conformance.progress import bar

#: A program that describes its interpreter in the last line of its output, as JSON: missing packages, backends, and the
#: folder of the environment. Imported packages may print other lines first.
QUESTION = """
import importlib.util, json, sys
missing = [name for name in ("numpy", "pytest") if importlib.util.find_spec(name) is None]
if sys.version_info < (3, 11):
    missing = ["Python 3.11 or newer, this is " + sys.version.split()[0]]
found = []
if not missing:
    import islices
    found = islices.list_backends()
print(json.dumps({"missing": missing, "backends": found, "prefix": sys.prefix}))
"""


class Interpreter(NamedTuple):
    """A Python interpreter that runs the suite.

    `alone` is the folder with islices that is added to the import path, or "" for the interpreter of this process.
    `prefix` is the folder of the environment to which the interpreter belongs.
    """

    path: str
    backends: tuple[str, ...]
    alone: str = ""
    prefix: str = sys.prefix

    def environment(self) -> dict[str, str]:
        entries = [self.alone, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        path = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)  # jobs run in another folder
        return {**os.environ, "PYTHONPATH": path} if path else dict(os.environ)


def here() -> Interpreter:
    return Interpreter(sys.executable, tuple(islices.list_backends()))


def look_at(path: str, folder: Path) -> Interpreter:
    """Return the interpreter at a path; raise UsageError if it cannot run the suite. The function makes a subfolder of
    `folder` that contains links to islices and its pytest plug-in."""
    if not Path(path).is_file() or not os.access(path, os.X_OK):
        raise UsageError(f"--python: got {path}; accepted is the path of an environment's Python interpreter")
    # the process has another working folder; links are not resolved, because Python finds its environment through them
    path = os.path.abspath(path)
    alone = folder / "alone"  # the folder of an installed islices also contains other packages of this environment
    alone.mkdir(exist_ok=True)
    package = Path(islices.__path__[0]).resolve()
    for part in (package, package.parent / "islices_pytest.py"):
        if not (alone / part.name).exists():
            (alone / part.name).symlink_to(part)
    candidate = Interpreter(path, (), str(alone))
    try:
        with bar(f"asking {path} which frameworks it has", 1):
            done = subprocess.run(
                [path, "-c", QUESTION], env=candidate.environment(), capture_output=True, encoding="utf-8", timeout=120,
                cwd=folder,
            )  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise UsageError(f"--python: {path} does not answer as a Python interpreter") from error
    if answer["missing"]:
        raise UsageError(f"--python: {path} lacks {', '.join(answer['missing'])}: {path} -m pip install numpy pytest")
    return candidate._replace(backends=tuple(answer["backends"]), prefix=answer["prefix"])
