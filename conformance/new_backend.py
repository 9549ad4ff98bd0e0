"""Define `islices new-backend`, which writes the skeleton of an adapter. The skeleton contains the methods of stage 1
of `islices.backend.Backend`. Each method has a likely implementation.

The implementations assume that the library follows the array API. When stage 1 is correct, mode host passes the suite,
because NumPy replaces every other primitive. For mode framework, `islices conform` counts the cases that need each
missing primitive (see `to_do`).
"""

from __future__ import annotations

import argparse
import keyword
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from islices.backend import PROTOCOL, TO_DO, Backend
from islices.cli import Command, UsageError
from islices.core.plugins import entry_points
from islices.core.registry import BUILTIN, GROUP

__all__ = ["COMMAND", "to_do", "unwritten"]

#: The pattern of a valid NAME, and of each name between the dots of MODULE.
PART = re.compile(r"_*[A-Za-z](\w*[A-Za-z0-9])?", re.ASCII)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n"
        "  islices new-backend cupy                              writes islices-cupy/\n"
        "  islices new-backend mlx --module mlx.core --into adapters/mlx\n\n"
        "then: pip install -e islices-cupy && islices conform -b cupy\n"
        "exit codes: 0 written, 2 usage error (a bad name, or files that exist: nothing is overwritten)"
    )
    add = parser.add_argument
    add("name", metavar="NAME", help="the framework's name; the adapter's package is islices_NAME")
    add("--module", metavar="MODULE", help="the module whose import means that the framework is in use (default: NAME)")
    add("--into", metavar="FOLDER", help="where to write (default: islices-NAME)")


def new_backend(options: argparse.Namespace) -> int:
    name, module = options.name, options.module or options.name
    _check_names(name, module)
    folder = Path(options.into or f"islices-{name}")
    files = skeleton(name, module)
    _write(folder, files)
    for path in files:
        print(folder / path)
    print(f"next: pip install -e {folder} && islices conform -b {module}")
    return 0


COMMAND = Command("write the skeleton of an adapter for another framework", arguments, new_backend)


def to_do(cases: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the missing primitives that unsupported cases need, as pairs (primitive, number of cases that need it).
    The pair with the largest number comes first.

    Parameters
    ----------
    cases : iterable of dict
        The lines of a report that describe cases. A case counts only for the first missing primitive that it needs.

    Examples
    --------
    >>> waiting = {"outcome": "unsupported", "reason": "toyfw: take: to be written"}
    >>> to_do([waiting, {"outcome": "pass"}, waiting])
    [('take', 2)]
    """
    reasons = (case.get("reason", "") for case in cases if case["outcome"] == "unsupported")
    waiting = (reason.removesuffix(f": {TO_DO}") for reason in reasons if reason.endswith(f": {TO_DO}"))
    return Counter(place.rpartition(": ")[2] for place in waiting).most_common()


def unwritten(backend: Backend) -> list[str]:
    """Return the primitives of mode framework that an adapter neither defines nor declares as `not_implemented`. The
    list includes primitives that no case of the suite needs. Return [] for a backend without mode framework.

    Examples
    --------
    >>> from islices.backend import not_implemented
    >>> class Toy(Backend):
    ...     name = "toy"
    ...     take = not_implemented("toy has no gather")
    >>> "where" in unwritten(Toy()), "take" in unwritten(Toy())
    (True, False)
    """
    if "framework" not in backend.modes():
        return []
    wanted = [name for name in dir(Backend) if hasattr(getattr(Backend, name), "primitive")]
    return [name for name in wanted if getattr(type(backend), name) is getattr(Backend, name)]


# ---------------------------------------------------------------------- the call
def _check_names(name: str, module: str) -> None:
    for argument, given in (("NAME", name), ("--module", module)):
        for part in [given] if argument == "NAME" else given.split("."):
            if not PART.fullmatch(part) or keyword.iskeyword(part):
                accepted = "a module's name: ASCII letters, digits and _ between them, no keyword"
                raise UsageError(f"{argument}: got {given!r}; accepted is {accepted}")
        if given in BUILTIN:
            raise UsageError(f"{argument}: got {given!r}, which is built in; see islices backends")
    if module in entry_points(GROUP):
        raise UsageError(f"--module: got {module!r}, for which an adapter is installed; see islices backends")


def _write(folder: Path, files: dict[str, str]) -> None:
    for path in files:
        if (folder / path).exists():
            raise UsageError(f"--into: {folder / path} is there already, and nothing is overwritten")
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"--into: cannot write {error.filename}: {error.strerror}") from None


# ---------------------------------------------------------------------- the files
def skeleton(name: str, module: str) -> dict[str, str]:
    """Return {path: text} for the files of the distribution islices-NAME."""
    package = f"islices_{name}"
    values = {
        "NAME": name, "MODULE": module, "PACKAGE": package, "CLASS": f"{name.title().replace('_', '')}Backend",
        "PROTOCOL": str(PROTOCOL), "ROOT": module.partition(".")[0], "TO_DO": TO_DO,
    }  # fmt: skip
    texts = {
        "pyproject.toml": PYPROJECT, f"{package}/__init__.py": ADAPTER, f"{package}/deviations.toml": DEVIATIONS,
        "README.md": README,
    }  # fmt: skip
    return {path: re.sub(r"@(\w+)@", lambda found: values[found[1]], text) for path, text in texts.items()}


PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "islices-@NAME@"
version = "0.1"
description = "Row-sparse gradients of @NAME@ in islices."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["islices"]

# The name is the module whose import means that the framework is in use; until then the adapter is not imported.
[project.entry-points."islices.backends"]
"@MODULE@" = "@PACKAGE@:backend"

[tool.setuptools]
packages = ["@PACKAGE@"]

[tool.setuptools.package-data]
@PACKAGE@ = ["deviations.toml"]
"""

ADAPTER = '''\
"""An islices adapter for @NAME@, stage 1. Each method is a guess: check it.

`islices conform -b @MODULE@` lists what to write next.
"""

from __future__ import annotations

import importlib

import numpy as np

from islices.backend import Backend


class @CLASS@(Backend):
    name = module = "@MODULE@"
    protocol = @PROTOCOL@  # the value of islices.backend.PROTOCOL when this file was written
    float_dtypes = ("float16", "float32", "float64")  # add "bfloat16" if the framework has it

    def is_array(self, x):
        # islices calls this method with any object; better: isinstance with the framework's array type
        return type(x).__module__.partition(".")[0] == "@ROOT@"

    def dtype(self, x):
        return str(x.dtype).rpartition(".")[2]  # NumPy's name of the dtype

    def to_numpy(self, x):
        return np.asarray(x)  # from any device

    def host_view(self, x):
        return np.asarray(x)  # shared, not copied; None where the memory is not the CPU's

    def from_host(self, array, like):
        # must keep the dtype, except that uint16 stands for bfloat16; shares the memory if the framework can
        return importlib.import_module(self.module).asarray(array)


backend = @CLASS@()
'''

DEVIATIONS = """\
# The cases of the conformance suite that are known to fail. The suite fails if a declared case passes.
#
# [[deviation]]
# cases = "norms/norm2/*"            # a pattern for ids of cases
# modes = ["framework"]              # the default is every mode
# kind = "notyet"                    # notimpl: you can implement it; notyet: the framework must change; never
# result = "differs"                 # or: raises = "NameOfTheException"
# reason = "why, in a sentence"
"""

README = """\
# islices-@NAME@

An adapter with which islices supports row-sparse gradients of @NAME@. It is not complete:

    pip install -e .
    islices conform -b @MODULE@

1. `@PACKAGE@/__init__.py` has stage 1: arrays, and their conversion from and to NumPy. Correct the guesses until mode
   *host* conforms. Then `def modes(self): return ["host"]` makes the adapter complete.
2. Mode *framework* needs the primitives that conform lists; the primitive that most cases need comes first. Declare a
   primitive that the framework cannot supply: `take = not_implemented("why")`. Users will read the reason.
3. Other stages are optional: in_place and set_rows (tables that change in place), native_name, is_native, from_native
   and to_native (a sparse type), differentiate and custom_gradient (gradients), trace (a compiler), own_calls (real
   gradients).
4. Declare a result that the framework cannot produce in `@PACKAGE@/deviations.toml`.

`python -c "import islices; help(islices.backend.Backend)"` describes each method. The clauses of SPEC.md in the package
`islices.conformance` define the results.
"""
