"""The tests of a checkout test that checkout, or what has been built of it and installed, but no other checkout."""

import inspect
import os
from pathlib import Path

import pytest

import islices

ROOT, FOUND = (Path(file).resolve().parents[1] for file in (__file__, islices.__file__))
if FOUND != ROOT and (FOUND / "pyproject.toml").exists():
    raise pytest.UsageError(
        f"the tests are {ROOT}'s and islices is {FOUND}'s: run them by python -m pytest in {ROOT}, or make its own "
        "environment (make test)"
    )

#: Files that take longest begin first: two workers end together then.
LONGEST = ("test_conformance.py", "test_properties.py", "test_suite_catches.py", "test_oracles.py")


def pytest_configure(config: pytest.Config) -> None:
    """XLA's programs are compiled once for all workers and all processes that tests start."""
    if hasattr(config, "cache"):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("repeats_where"):
            given = item.callspec.params if isinstance(item, pytest.Function) else {}
            (condition,) = mark.args
            if condition(*(given[name] for name in inspect.signature(condition).parameters)):
                item.add_marker("repeats")
    items.sort(key=lambda item: item.path.name not in LONGEST)
