"""Run the docstring examples of the packages in `PACKAGES`, and of modules directly in these packages. The examples
need only NumPy."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from typing import Any

import pytest

#: packages whose examples need only NumPy; other tests run examples that need a framework
PACKAGES = (
    "islices",
    "islices.backend",
    "islices.porting",
    "islices.distributed",
    "islices.files",
    "islices.optim",
)
MODULES = sorted(
    m.name
    for package in PACKAGES
    for m in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    if not m.ispkg and m.name != "islices.__main__"
)


class Finder(doctest.DocTestFinder):
    """A finder of doctests that includes decorated functions. doctest's finder assigns a decorated function to the
    decorator's module, and so omits the function."""

    def _from_module(self, module: Any, object: Any) -> bool:
        return super()._from_module(module, inspect.unwrap(object))  # type: ignore[misc]


@pytest.mark.parametrize("name", [*PACKAGES, *MODULES])
def test_examples_of_a_module(name: str) -> None:
    runner = doctest.DocTestRunner()
    for example in Finder().find(importlib.import_module(name), name):
        runner.run(example)
    assert runner.failures == 0, f"{runner.failures} of {runner.tries} examples of {name} fail"


def test_examples_of_decorated_functions_are_run() -> None:
    found = {example.name for example in Finder().find(importlib.import_module("islices.core.modes"), "modes")}
    assert "modes.execution" in found
