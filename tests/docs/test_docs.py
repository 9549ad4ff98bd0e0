"""Test the documentation: the build gives no warning, pages load nothing from other sites, docstrings are complete, and
the API reference has every public name."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import textwrap
import tomllib
import typing
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from numpydoc.validate import validate

import islices
from islices import cli

ROOT = Path(__file__).parents[2]
#: module of public names -> the package that it needs, and the names in its ``__all__`` that are not for users
PUBLIC: dict[str, tuple[str, set[str]]] = {
    "islices": ("numpy", set()),
    "islices.config": ("numpy", set()),
    "islices.norms": ("numpy", set()),
    "islices.testing": ("numpy", set()),
    "islices.optim": ("numpy", set()),
    "islices.distributed": ("numpy", set()),
    "islices.files": ("numpy", set()),
    "islices.porting": ("numpy", set()),
    "islices.vocabulary": ("numpy", set()),
    "islices.backends.torch": ("torch", {"TorchBackend", "backend", "optim"}),
    "islices.backends.torch.optim": ("torch", set()),
    "islices.backends.keras": ("tensorflow", set()),
    "islices.backends.jax.optax": ("optax", set()),
    "islices.backends.mxnet.gluon": ("mxnet", set()),
}
#: public names to which no clause of the specification applies
NO_CLAUSE = {"get_backend", "list_backends", "get_num_threads", "not_implemented"}
#: classes that users do not call, because functions return instances; so the parameters need no docstring
MADE = {"Capture", "Optimizer", "PerSample"}
#: numpydoc's codes for: no docstring; no summary; parameters missing, unknown or in another order; no section Returns
CODES = {"GL08", "SS01", "PR01", "PR02", "PR03", "RT01"}
SUMMARY = {"GL08", "SS01"}


def public_module(name: str) -> ModuleType:
    """Return the public module, or skip the test if its framework is missing."""
    needed = PUBLIC[name][0]
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    if needed == "mxnet":
        islices.get_backend("mxnet")  # the adapter imports MXNet in the right way
    return importlib.import_module(name)


def public_objects(module: ModuleType) -> dict[str, Any]:
    """Return a dict from the module's public names to their objects. Names that are not for users are left out, and so
    are modules, Literals and objects of frameworks."""
    return {
        name: getattr(module, name)
        for name in module.__all__
        if name not in PUBLIC[module.__name__][1]
        and (getattr(getattr(module, name), "__module__", None) or "islices").startswith("islices")  # not a framework's
        and not inspect.ismodule(getattr(module, name))
        and typing.get_origin(getattr(module, name)) is not typing.Literal  # a Literal of names has no docstring
    }


# ---------------------------------------------------------------------- docstrings
def raises(function: Any) -> bool:
    """Return True if the function's code has a raise statement, or calls a function whose name begins with check_."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    checks = any(isinstance(f, ast.Name) and f.id.startswith("check_") for f in called)
    return checks or any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def codes(path: str, x: Any) -> set[str]:
    """Return the codes of numpydoc's checks that apply to the docstring of `x`.

    In modules for frameworks, a class without an ``__init__`` inherits the framework's parameters, and a function may
    pass parameters on. The docstring may then name the source of these parameters instead.
    """
    name, front = path.rpartition(".")[2], path.startswith("islices.backends.")
    if is_record(x) or (front and inspect.isclass(x) and "__init__" not in vars(x)):
        return SUMMARY
    requested = set(CODES)
    if name in MADE or (front and re.search(r"as `?\w+[\w.]+`? has (them|it)|\*\*kwargs", inspect.getdoc(x) or "")):
        requested -= {"PR01", "PR02", "PR03"}
    if inspect.isfunction(x) and (
        inspect.isgeneratorfunction(inspect.unwrap(x)) or not inspect.signature(x).parameters
    ):
        requested -= {"RT01"}
    return requested


def is_record(x: Any) -> bool:
    """Return True if x is a dataclass or a named tuple, whose docstring needs only a summary."""
    return inspect.isclass(x) and (dataclasses.is_dataclass(x) or hasattr(x, "_fields"))


def faults(path: str, x: Any) -> list[str]:
    name, text = path.rpartition(".")[2], inspect.getdoc(x) or ""
    requested = codes(path, x)
    found = [f"{code}: {message}" for code, message in validate(path)["errors"] if code in requested]
    if requested == SUMMARY:
        return found
    if ">>>" not in text:
        found.append("no example")
    if name not in NO_CLAUSE and not path.startswith("islices.backends.") and not re.search(r"\bclauses? \d", text):
        found.append("no clause of the specification")
    if inspect.isfunction(x) and raises(x) and not re.search(r"^Raises\n-+$", text, re.MULTILINE):
        found.append("raises, and has no section Raises")
    return found


def method_faults(path: str, x: Any) -> list[str]:
    """Return the faults in the docstring of a public method. The docstring may lack an example and a clause, because
    the docstring of the class has both."""
    silent = not inspect.signature(x).parameters.keys() - {"self"}
    return [
        f"{code}: {message}"
        for code, message in validate(path)["errors"]
        if code in CODES - ({"RT01"} if silent else set())
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings(name: str) -> None:
    """Check that the docstrings of public names have a summary, parameters, results, errors and an example. Records
    need only a summary. Outside of modules for frameworks, names that are not in NO_CLAUSE also need a clause.
    Docstrings of methods need a summary, parameters and results."""
    module = public_module(name)
    found: dict[str, list[str]] = {}
    for short, x in public_objects(module).items():
        path = f"{name}.{short}"
        if callable(x):
            found[path] = faults(path, x)
        if inspect.isclass(x) and x is not islices.backend.Backend:  # its methods have prose for adapters
            methods = {k: f for k, f in vars(x).items() if inspect.isfunction(f) and not k.startswith("_")}
            inherited = {k for base in x.__mro__[1:] for k in vars(base)}
            for k in methods.keys() - inherited:  # the framework documents inherited methods
                found[f"{path}.{k}"] = method_faults(f"{path}.{k}", methods[k])
    assert found, "nothing public"
    assert {path: lacks for path, lacks in found.items() if lacks} == {}


# ---------------------------------------------------------------------- the pages
def make_docs(out: Path) -> list[str]:
    """Return the command of the Makefile's target docs, but with this interpreter, and with `out` as the output
    folder."""
    recipe = re.search(r"^docs:.*\n\t(.*-m sphinx .*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert recipe, "the target docs does not begin with Sphinx"
    line = recipe[1].replace("$(BIN)/python", sys.executable).replace("$(ARGS)", "")
    return [str(out / word.removeprefix("build/")) if word.startswith("build/") else word for word in line.split()]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the documentation, with warnings as errors, and return the folder of its pages."""
    out = tmp_path_factory.mktemp("build")
    line = make_docs(out)
    assert "-W" in line
    built = subprocess.run(line, cwd=ROOT, text=True, capture_output=True, check=False, timeout=300)
    assert built.returncode == 0, built.stderr[-5000:]
    return out / "docs"


@pytest.mark.outside
def test_every_command_has_its_help(pages: Path) -> None:
    text = read_text(pages / "docs/api/command.html").text
    names = cli.command_names()
    assert len(names) >= 9
    for name in names:
        assert f"usage: islices {name}" in text
        assert " ".join(cli.load_command(name).help.split()) in " ".join(text.split())


class Page(HTMLParser):
    """A parser that collects a page's text, ids and links, and the files that a browser loads for the page."""

    LOADS: ClassVar = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {value for value in (given.get("id"), given.get("name")) if value}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if given.get(self.LOADS.get(tag, "")):
            self.loads.append(given[self.LOADS[tag]] or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def read_text(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text("utf-8"))
    return page


@pytest.mark.outside
def test_no_page_loads_anything_from_elsewhere(pages: Path) -> None:
    html = {path: read_text(path) for path in pages.rglob("*.html")}
    assert len(html) > 30
    outside = {p.name: u for p, page in html.items() for u in page.loads if re.match(r"(\w+:)?//", u)}
    assert outside == {}


@pytest.mark.outside
def test_links_within_the_pages_lead_somewhere(pages: Path) -> None:
    html = {path.resolve(): read_text(path) for path in pages.rglob("*.html")}
    broken = []
    for path, page in html.items():
        for link in page.links:
            if re.match(r"\w+:", link) or not link.strip("#"):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            if not target.exists() or (anchor and target in html and anchor not in html[target].ids):
                broken.append(f"{path.name}: {link}")
    assert broken == []


# ---------------------------------------------------------------------- statements about the project
@pytest.mark.outside
@pytest.mark.parametrize("name", PUBLIC)
def test_the_api_reference_has_every_public_name(pages: Path, name: str) -> None:
    text = "".join(page.read_text("utf-8") for page in (pages / "docs/api").rglob("*.html"))
    for found in public_objects(public_module(name)):
        assert f'id="{name}.{found}"' in text or f'id="islices.{found}"' in text


def test_stability_names_the_supported_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = (ROOT / "docs/stability.md").read_text("utf-8")
    needed = {"numpy": project["dependencies"], **project["optional-dependencies"]}
    shown = {"numpy": "NumPy", "torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX", "mxnet": "MXNet"}
    for name, title in shown.items():
        (lowest,) = re.findall(r">=([\d.]+)", needed[name][0])
        assert re.search(rf"\| {title} \| {re.escape(lowest)}\b", text)
    for minor in re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])):
        assert minor in text
    assert f"protocol {islices.backend.PROTOCOL}" in text.replace("\n", " ")
