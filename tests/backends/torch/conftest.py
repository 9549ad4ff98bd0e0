"""Turn kernels off except in the listed modules. Results have the same bits without kernels, which take seconds to
compile."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

import islices

WITH_KERNELS = {"test_clipped_steps", "test_threads"}
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    with islices.config.use_kernels(request.path.stem in WITH_KERNELS):
        yield
