"""Run the examples in docstrings of islices, backends and conformance."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("islices", "islices/backends", "islices/conformance")
    for path in (ROOT / folder).rglob("*.py")
    if ">>>" in path.read_text("utf-8") and path.name != "ddp.py"  # init_process_group clears Dynamo's rules
)


class Finder(doctest.DocTestFinder):
    """A finder of doctests that includes decorated functions. doctest's finder assigns a decorated function to the
    decorator's module, and so omits the function."""

    def _from_module(self, module: Any, object: Any) -> bool:
        return super()._from_module(module, inspect.unwrap(object))  # type: ignore[misc]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str) -> None:
    if name.startswith("islices.backends.") and not importlib.util.find_spec(name.split(".")[2]):
        pytest.skip(f"{name} needs its framework")
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    for example in Finder().find(importlib.import_module(name), name):
        runner.run(example)
    assert not runner.failures, f"{runner.failures} of {runner.tries} examples of {name} fail"


def test_examples_of_decorated_functions_are_run() -> None:
    assert len(MODULES) > 60
    found = {example.name for example in Finder().find(importlib.import_module("islices.core.modes"), "modes")}
    assert "modes.execution" in found
