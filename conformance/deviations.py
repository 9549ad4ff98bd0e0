"""Read the deviations that a backend declares. If a declared case passes, the suite reports a failure.

The file ``deviations.toml`` in the adapter's folder contains tables of this form:

    [[deviation]]
    cases = "norms/norm2/*"      # a glob over case ids
    modes = ["framework"]        # without this line: every mode
    kind = "notyet"              # notimpl: islices can fix it; notyet: upstream must fix it; never: nobody can
    raises = "NotImplementedError"   # or: result = "differs"
    reason = "why, in a sentence"
    issue = "where it is tracked, if anywhere"
"""

from __future__ import annotations

import fnmatch
import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from islices.backend import Backend

KINDS = ("notimpl", "notyet", "never")


@dataclass(frozen=True)
class Deviation:
    cases: str
    kind: str
    reason: str
    modes: tuple[str, ...] = ()
    raises: str = ""
    result: str = ""
    issue: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: got {self.kind!r}; accepted are {', '.join(KINDS)}")
        if bool(self.raises) == bool(self.result) or self.result not in ("", "differs"):
            raise ValueError(f'deviation {self.cases!r}: accepted is either raises = "..." or result = "differs"')
        if not self.reason:
            raise ValueError(f"deviation {self.cases!r}: reason is missing")


@functools.cache
def load_deviations(backend: Backend) -> list[Deviation]:
    """Return the deviations that the package of the backend's class declares. Return [] if the package has no
    deviations.toml."""
    package = type(backend).__module__
    text = _read(package)
    if text is None:
        return []
    tables = tomllib.loads(text).get("deviation", [])
    return [Deviation(**{**table, "modes": tuple(table.get("modes", ()))}) for table in tables]


def _read(module: str) -> str | None:
    for package in (module, module.rpartition(".")[0]):
        try:
            file = resources.files(package) / "deviations.toml"
        except (TypeError, ModuleNotFoundError, ValueError):  # the class is in a plain module, or in a script
            continue
        if file.is_file() and isinstance(file, Path):
            return file.read_text("utf-8")
    return None


def find_deviation(backend: Backend, case_id: str, mode: str) -> Deviation | None:
    declared = load_deviations(backend)
    return next(
        (d for d in declared if fnmatch.fnmatchcase(case_id, d.cases) and (not d.modes or mode in d.modes)), None
    )
