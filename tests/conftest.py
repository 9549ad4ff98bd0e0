"""Check that tests do not import islices from another checkout, and run the slowest files first."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("ISLICES_KERNELS", "1")  # kernels from the first small call, in all processes

import islices

ROOT, FOUND = (Path(file).resolve().parents[1] for file in (__file__, islices.__file__))
if FOUND != ROOT and (FOUND / "pyproject.toml").exists():
    raise pytest.UsageError(
        f"the tests are {ROOT}'s and islices is {FOUND}'s: run them by python -m pytest in {ROOT}, or make its own "
        "environment (make test)"
    )

#: The slowest files, which run first so that two workers end at about the same time. A folder stands for the files in
#: it.
LONGEST = [
    "docs/test_code_blocks.py", "backends/keras/test_each_backend.py", "docs/test_examples.py",
    "backends/keras/test_stepped.py", "conformance/test_hostile.py", "conformance/test_oracles.py", "test_packaging.py",
    "docs", "conformance/test_suite_catches.py", "backends/jax", "backends/keras", "islices/kernels/test_installs.py",
    "conformance", "islices/distributed", "backends", "islices/core", "islices/kernels",
]  # fmt: skip


def place(item: pytest.Item) -> int:
    path = item.path.as_posix().removeprefix(f"{Path(__file__).parent.as_posix()}/")
    return next((k for k, start in enumerate(LONGEST) if path.startswith(start)), len(LONGEST))


def pytest_configure(config: pytest.Config) -> None:
    """Let all workers, and the processes that tests start, share one cache of JAX's compiled programs."""
    if hasattr(config, "cache"):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("jax")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place)
