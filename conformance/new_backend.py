"""`islices new-backend`: the skeleton of an adapter, written from what `islices.backend.Backend` itself says.

Every primitive stands in it as a `not_implemented` declaration under its contract, read from the parts of `Backend` as
they are installed here, and optional ones are marked. `islices conform` then counts the cases that still wait for each:
see `to_do`.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import keyword
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from islices.backend import PARTS, PROTOCOL, Backend, OwnCalls
from islices.cli import Command, UsageError
from islices.core.plugins import entry_points
from islices.core.registry import BUILTIN, GROUP

__all__ = ["COMMAND", "is_optional", "to_do", "unwritten"]

#: The reason a skeleton gives for every primitive.
TO_DO = "to be written"
#: What must not stand in a skeleton: with it there would be traced cases.
NOT_DECLARED = "trace"
WIDTH = 116
#: A part of a module's name that a distribution's name may end with.
PART = re.compile(r"_*[A-Za-z](\w*[A-Za-z0-9])?", re.ASCII)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n"
        "  islices new-backend cupy                              writes islices-cupy/\n"
        "  islices new-backend mlx --module mlx.core --into adapters/mlx\n\n"
        "then: pip install -e islices-cupy && islices conform -b cupy\n"
        "exit codes: 0 written, 2 usage (a bad name, or files that are there already: nothing is overwritten)"
    )
    parser.add_argument("name", metavar="NAME", help="of the framework; the adapter's package is islices_NAME")
    parser.add_argument(
        "--module", metavar="MODULE", help="the module whose import means that the framework is in use (default: NAME)"
    )
    parser.add_argument("--into", metavar="FOLDER", help="where to write (default: islices-NAME)")


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
    """(primitive, number of cases that end in it) of what a skeleton still declares, most cases first.

    Parameters
    ----------
    cases : iterable of dict
        The case lines of a report. A case counts for the first missing primitive it meets.

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
    """The primitives that a backend still declares as to be written, whether or not a case of the suite meets them.

    Examples
    --------
    >>> from islices.backend import not_implemented
    >>> class Toy(Backend):
    ...     name = "toy"
    ...     capture = not_implemented(TO_DO)
    ...     take = not_implemented("toy has no gather")
    >>> unwritten(Toy())
    ['capture']
    """
    found = {name: inspect.getattr_static(backend, name) for name in dir(type(backend))}
    return [name for name, member in found.items() if getattr(member, "reason", None) == TO_DO]


def is_optional(primitive: str) -> bool:
    """Whether an adapter may leave something out that a skeleton declares.

    Examples
    --------
    >>> is_optional("take"), is_optional("capture"), is_optional("own_calls")
    (False, True, True)
    """
    return primitive == "own_calls" or hasattr(getattr(Backend, primitive, None), "optional")


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
    """path -> text of the distribution islices-NAME."""
    package = f"islices_{name}"
    values = {
        "NAME": name, "MODULE": module, "PACKAGE": package, "CLASS": f"{name.title().replace('_', '')}Backend",
        "PROTOCOL": str(PROTOCOL), "ROOT": module.partition(".")[0], "PRIMITIVES": "\n".join(_primitives()),
        "OWN_CALLS": "\n".join(_own_calls()).rstrip(), "TO_DO": TO_DO,
    }  # fmt: skip
    texts = {
        "pyproject.toml": PYPROJECT, f"{package}/__init__.py": ADAPTER, f"{package}/own_calls.py": OWN_CALLS,
        f"{package}/deviations.toml": DEVIATIONS, "README.md": README,
    }  # fmt: skip
    return {path: re.sub(r"@(\w+)@", lambda found: values[found[1]], text) for path, text in texts.items()}


def _methods(part: type) -> Iterator[tuple[ast.FunctionDef, str]]:
    """(definition, what holds without it) of each public method of a part, in order; "" for one that is needed."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
    for node in tree.body:  # type: ignore[attr-defined]
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node, getattr(getattr(part, node.name), "optional", "")


def _is_declared(node: ast.FunctionDef, without: str) -> bool:
    """Whether a method stands in the skeleton: one that is needed, or an optional one that does nothing but refuse."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    refuses = len(body) == 1 and isinstance(body[0], ast.Raise) and "self.lacks" in ast.unparse(body[0])
    return (refuses or not without) and node.name != NOT_DECLARED


def _primitives() -> Iterator[str]:
    """The lines of the declarations, and what else a part may have."""
    for part in PARTS:
        summary = (inspect.getdoc(part) or "").partition("\n")[0]
        title = summary.partition(":")[0].lower()
        yield f"    # ------------------------------------------------------------------ {title}"
        yield from _comment(summary, indent="    ")
        yield ""
        defaults = []
        for node, without in _methods(part):
            if _is_declared(node, without):
                yield from _contract(node, without, indent="    ")
                yield f'    {node.name} = not_implemented("{TO_DO}")'
                yield ""
            else:
                defaults += _comment(f"{node.name}: {without}", indent="    ", inner="    ")
        yield "    # Optional, and what holds without them:"
        yield from defaults
        yield ""


def _own_calls() -> Iterator[str]:
    """The lines of the contracts of a plug-in's own calls."""
    for node, without in _methods(OwnCalls):
        del node.args.args[0]  # they are a module's functions
        yield from _contract(node, without)
        yield ""


def _contract(node: ast.FunctionDef, without: str, indent: str = "") -> Iterator[str]:
    """A comment of a method's signature, the first paragraph of its docstring, and whether it is optional."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    yield from _comment(f"def {node.name}({ast.unparse(node.args)}){returns}", indent=indent)
    contract = (ast.get_docstring(node) or "").partition("\n\n")[0]
    yield from _comment(" ".join(contract.split()), indent=indent, inner="    ")
    if without:
        yield from _comment(f"Optional. Without it: {without}.", indent=indent, inner="    ")


def _comment(text: str, *, indent: str, inner: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{indent}# {inner}", subsequent_indent=f"{indent}# {inner or '    '}",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


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
"""The islices adapter of @NAME@.

Put a method that keeps the contract in the place of each declaration below. What the framework cannot do stays
declared, with the reason its users will read; an optional declaration may be deleted as well.
`islices conform -b @MODULE@` says what to write next.
"""

from __future__ import annotations

import importlib

from islices.backend import Backend, not_implemented


class @CLASS@(Backend):
    name = module = "@MODULE@"
    pip = "pip install @ROOT@"  # to be corrected if the framework's distribution has another name than its module
    protocol = @PROTOCOL@  # what islices.backend.PROTOCOL was when this was written
    float_dtypes = ("float16", "bfloat16", "float32", "float64")  # those the framework can hold
    native_name = ""  # of its row-sparse gradient, if it has one: then is_native, from_native and to_native are needed

    def version(self) -> str:
        return str(getattr(importlib.import_module(self.module), "__version__", "unknown"))

    def is_array(self, x: object) -> bool:
        # A first guess, to be replaced by isinstance with the framework's array type. It is asked about any object.
        return type(x).__module__.partition(".")[0] == "@ROOT@"

@PRIMITIVES@
    # The module of the framework's own calls, with which the suite makes real gradients. What is to be written stands
    # in own_calls.py; then: own_calls = "@PACKAGE@.own_calls"
    #     Optional. Without it: cases that need the framework's own layers are unsupported.
    own_calls = not_implemented("@TO_DO@")


backend = @CLASS@()
'''

OWN_CALLS = '''\
"""@NAME@'s own calls, for the conformance suite: what its users write without islices, which nothing here imports.

Write these functions, then name this module in the adapter: own_calls = "@PACKAGE@.own_calls"
"""

@OWN_CALLS@
'''

DEVIATIONS = """\
# Cases of the conformance suite that fail, and are known to. Strict: a declared case that passes is a failure.
#
# [[deviation]]
# cases = "norms/norm2/*"            # a pattern over the cases' ids
# modes = ["framework"]              # left out: every mode
# kind = "notyet"                    # notimpl: yours to do; notyet: the framework's; never: by its nature
# result = "differs"                 # or: raises = "NameOfTheException"
# reason = "why, in a sentence"
"""

README = """\
# islices-@NAME@

Row-sparse gradients of @NAME@ in islices. An adapter in the making:

    pip install -e .
    islices conform -b @MODULE@

1. `@PACKAGE@/__init__.py` declares every primitive as `not_implemented("@TO_DO@")`, under its contract. The suite
   counts a case that ends in one as unsupported, and ends with the list of those that block most cases: write them
   one by one. Mode *host* (NumPy on the framework's memory) needs few of them, mode *framework* all.
2. Say the array type in `is_array`, and the dtypes there are in `float_dtypes`.
3. A primitive the framework cannot supply stays declared: put its reason in the place of "@TO_DO@". Delete what is
   marked as optional and not wanted.
4. A case that fails by the framework's nature is declared in `@PACKAGE@/deviations.toml`.

5. `@PACKAGE@/own_calls.py` says what the suite asks of the framework itself, to hold real gradients against.

What each primitive must do: `python -c "import islices; help(islices.backend.Backend)"`. What results must be: the
clauses of SPEC.md in the package `islices.conformance`.
"""
