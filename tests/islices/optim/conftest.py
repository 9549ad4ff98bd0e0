"""Kernels are off, but in the modules named here: they take seconds to compile, and have the same bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import islices

WITH_KERNELS = {"test_optim", "test_rules_compiled"}


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    with islices.use_kernels(request.path.stem in WITH_KERNELS):
        yield
