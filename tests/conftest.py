"""The tests of a checkout test that checkout, or what has been built of it and installed, but no other checkout."""

from pathlib import Path

import pytest

import islices

ROOT, FOUND = (Path(file).resolve().parents[1] for file in (__file__, islices.__file__))
if FOUND != ROOT and (FOUND / "pyproject.toml").exists():
    raise pytest.UsageError(
        f"the tests are {ROOT}'s and islices is {FOUND}'s: run them by python -m pytest in {ROOT}, or make its own "
        "environment (make test)"
    )

#: Files that take minutes begin first: two workers end together then.
LONGEST = ("test_conformance.py", "test_properties.py", "test_suite_catches.py", "test_oracles.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)
