"""Test that imports go one way and make no cycle. The test reads the source without running it.

An import counts anywhere: at the head of a module, within a function, or as ``load_module("...")`` of a named module.
Imports under ``if TYPE_CHECKING:`` are for type checkers and do not count. ``from islices.optim import factory`` is an
import of the module `islices.optim.factory`, and of the package `islices.optim` if the name is not a module. Python
runs a package's ``__init__`` before the package's modules, but this does not count. If it counted, a package that
exports names of its modules would be a cycle. Modules found by name at run time (backends, engines, commands, probes)
do not count either.

A module's docstring may have a line that this test checks::

    May import: `numpy`, `islices.core.arguments`, the core below `islices.norms.clip`, this folder.

The items are separated by commas. A module or package in backticks also allows the modules in it. "the core" means
islices without its backends and its suite. "the core below `M`" means the part of the core that does not need M. "this
folder" means the other modules in the module's folder. Python's standard library is always allowed; other imports are
not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import islices

ROOT = Path(__file__).resolve().parents[1]
#: package -> folder; two packages are links in islices/ to folders of the checkout
PACKAGES = {
    "islices": ROOT / "islices",
    "islices.backends": ROOT / "backends",
    "islices.conformance": ROOT / "conformance",
}
#: commands and their parts, which no other package imports
TOOLS = "islices.conformance.tools"
#: imports of the core besides NumPy: extras, which are imported when needed
EXTRAS = {"llvmlite", "matplotlib", "ml_dtypes", "numba", "safetensors"}
#: folder of backends/ -> imports of its modules: the framework, and libraries that people use with the framework
FRAMEWORKS = {
    "jax": {"flax", "jax", "jaxlib", "llvmlite", "ml_dtypes", "numba", "optax"},
    "keras": {"jax", "keras", "tensorflow", "torch"},
    "mpi": {"mpi4py"},
    "mxnet": {"mxnet"},
    "numpy": {"ml_dtypes"},
    "tensorflow": {"keras", "tensorflow"},
    "torch": {"torch"},
}
#: folder of backends/ -> other folders from which it may import
BESIDE = {"keras": ("jax", "tensorflow", "torch")}
#: (module, imported module), for imports in functions that need no framework and no extra -> the reason
LATE = {
    ("islices.norms.global_norms", "islices.distributed.norms"): "importing islices stays fast: few give a group",
    ("islices.kernels.threads", "concurrent.futures"): "importing islices stays fast",
    ("islices.core.plugins", "importlib.metadata"): "importing islices stays fast",
    ("islices.conformance", "islices.conformance.formulas.judge"): "importing the suite stays fast",
    ("islices.conformance.tools.audit.prober", "resource"): "not on Windows",
    ("islices.conformance.properties.files", "resource"): "not on Windows",
    ("islices.conformance.corpus", "pydoc_data.topics"): "half a megabyte, and not in every Python",
}


class Import(NamedTuple):
    target: str
    line: int
    #: name of the function that contains the import, or "" at the head of the module
    function: str


# ---------------------------------------------------------------------- reading the source
def _modules() -> Iterator[tuple[str, Path]]:
    """Yield (name, path) of the modules in the three packages, without the suite's example adapters."""
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            linked = package == "islices" and parts[0] in ("backends", "conformance")
            apart = any(not (up / "__init__.py").exists() for up in path.parents if folder in up.parents)
            if not linked and not apart:
                yield ".".join((package, *(part for part in parts if part != "__init__"))), path


MODULES = dict(_modules())


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text("utf-8"))


def package_of(name: str) -> str:
    return name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]


def constants(name: str) -> dict[str, str]:
    """Return the strings that the module assigns to names, as a dict from names to strings."""
    return {
        target.id: node.value.value
        for node in tree(name).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


@cache
def imports(name: str) -> tuple[Import, ...]:
    found: list[Import] = []

    def look(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                look(other, function)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}:{node.lineno}: imports name their module in full"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append(Import(whole if whole in MODULES else node.module or "", node.lineno, function))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("load_module", "importlib.import_module"):
            found.extend(Import(target, node.lineno, function) for target in named(node.args[0]))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            function = getattr(node, "name", "lambda")
        for child in ast.iter_child_nodes(node):
            look(child, function)

    def named(argument: ast.expr) -> Iterator[str]:
        if isinstance(argument, ast.Constant):
            yield str(argument.value)
        elif isinstance(argument, (ast.Name, ast.Attribute)):  # `NAME`, or `module.NAME`
            constant = ast.unparse(argument).rpartition(".")[2]
            beside = [one.target for one in found if one.target in MODULES]
            yield from {known[constant] for m in [name, *beside] if constant in (known := constants(m))}

    look(tree(name), "")
    if name == "islices":
        found.extend(Import(target, 0, "") for target in islices._HOMES)  # the modules of the public names
    return tuple(found)


def is_core(name: str) -> bool:
    return name.partition(".")[0] == "islices" and not within(name, ("islices.backends", "islices.conformance"))


def within(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def top(name: str) -> str:
    return name.partition(".")[0]


def is_outside(name: str) -> bool:
    """Return True if a module belongs neither to Python nor to NumPy or islices."""
    return top(name) not in (sys.stdlib_module_names | {"islices", "numpy"})


def needs(names: Iterable[str], *, heads: bool = False) -> set[str]:
    """Return the given modules and everything that they import, directly or indirectly. With `heads`, ignore imports in
    functions."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            if name in MODULES:
                waiting.extend(i.target for i in imports(name) if not (heads and i.function))
    return seen


def reported(name: str, wrong: Iterable[Import]) -> list[str]:
    return [f"{MODULES[name].relative_to(ROOT)}:{i.line} imports {i.target}" for i in wrong]


# ---------------------------------------------------------------------- one way
def test_modules_are_found() -> None:
    some = {"islices", "islices.optim.factory", "islices.backends.torch.optim", "islices.conformance.oracle"}
    assert some <= set(MODULES)
    assert any(i.function and i.target == "islices.kernels.operations" for i in imports("islices.kernels"))


@pytest.mark.parametrize("name", [name for name in MODULES if is_core(name)])
def test_the_core_imports_no_framework_no_backend_and_no_suite(name: str) -> None:
    def allowed(target: str) -> bool:
        return top(target) in EXTRAS if is_outside(target) else is_core(target) or top(target) != "islices"

    wrong = [i for i in imports(name) if not allowed(i.target)]
    assert reported(name, wrong) == []


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, ["islices.backends"])])
def test_a_backend_imports_the_core_its_framework_and_its_folder(name: str) -> None:
    framework = [*name.split("."), ""][2]

    def allowed(target: str) -> bool:
        if is_outside(target):
            return top(target) in FRAMEWORKS.get(framework, ())
        own = [f"islices.backends.{folder}" for folder in (framework, *BESIDE.get(framework, ()))]
        return top(target) != "islices" or is_core(target) or within(target, own)

    wrong = [i for i in imports(name) if not allowed(i.target)]
    assert reported(name, wrong) == []


@pytest.mark.parametrize("name", [name for name in MODULES if not within(name, [TOOLS])])
def test_nothing_imports_the_tools(name: str) -> None:
    assert reported(name, [i for i in imports(name) if within(i.target, [TOOLS])]) == []


def test_importing_islices_asks_for_numpy_alone() -> None:
    heads = needs(["islices"], heads=True)
    assert {name for name in heads if is_outside(name)} == set()


# ---------------------------------------------------------------------- no cycles
def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, found by Tarjan's algorithm."""
    found: list[list[str]] = []
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(v: str) -> None:
        number[v] = low[v] = len(number)
        stack.append(v)
        for w in sorted(graph[v]):
            if w not in number:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], number[w])
        if low[v] == number[v]:
            at = stack.index(v)
            together = sorted(stack[at:])
            del stack[at:]
            if len(together) > 1 or v in graph[v]:
                found.append(together)

    for v in graph:
        if v not in number:
            visit(v)
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name: {i.target for i in imports(name) if i.target in MODULES} for name in MODULES}
    for together in circles(graph):
        lines = [line for a in together for line in reported(a, [i for i in imports(a) if i.target in together])]
        pytest.fail("a circle:\n" + "\n".join(lines))


# ---------------------------------------------------------------------- imports within functions
def test_what_is_imported_within_functions_needs_a_framework_or_says_why() -> None:
    """Check that an import in a function needs a framework or an extra, directly or indirectly, or is in LATE."""
    late = {
        (name, i.target): f"{name}:{i.line}"
        for name in MODULES
        for i in imports(name)
        if i.function and not any(map(is_outside, needs([i.target], heads=True)))
    }
    assert {pair: at for pair, at in late.items() if pair not in LATE} == {}, "import it at the head, or say why not"
    assert LATE.keys() - late.keys() == set(), "the table has what is not there"


# ---------------------------------------------------------------------- lines in docstrings
SAYS = re.compile(r"May import: ((?:[^.`]|`[\w.]+`)*)\.(?:\s|$)")
ITEM = re.compile(r"the standard library|the core|the core below `(?P<above>[\w.]+)`|this folder|`(?P<module>[\w.]+)`")


def statement(name: str) -> list[str] | None:
    """Return the items of the line "May import" in a module's docstring, or None if the docstring lacks the line."""
    text = " ".join((ast.get_docstring(tree(name)) or "").split())
    lines = SAYS.findall(text)
    assert len(lines) == len(re.findall(r"\b[Mm](?:ay|ust not) import\b", text)) <= 1, f"{name}: not the form: {text}"
    return lines[0].split(", ") if lines else None


def allows(name: str, item: str, target: str) -> bool:
    """Return True if an item of the line "May import" allows an import."""
    form = ITEM.fullmatch(item)
    assert form, f"{name}: got {item!r}; accepted are the forms in tests/test_imports.py"
    if form["module"]:
        return within(target, [form["module"]])
    if form["above"]:
        assert form["above"] in MODULES, f"{name}: {item}: there is no such module"
        return is_core(target) and form["above"] not in needs([target])
    if item == "this folder":
        return package_of(target) == package_of(name) if target in MODULES else False
    return item == "the core" and is_core(target)


@pytest.mark.parametrize("name", [name for name in MODULES if statement(name) is not None])
def test_a_module_imports_what_it_says_it_may(name: str) -> None:
    items = statement(name) or []
    assert items == ["the standard library"] or "the standard library" not in items, "it is always allowed"
    others = [i for i in imports(name) if top(i.target) not in sys.stdlib_module_names]
    assert reported(name, [i for i in others if not any(allows(name, item, i.target) for item in items)]) == []
    idle = [
        item
        for item in items
        if item != "the standard library" and not any(allows(name, item, i.target) for i in others)
    ]
    assert idle == [], "allowed, and not imported"
