"""Turn kernels off except in the listed tests, because kernels have the same bits and take seconds to compile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import islices

WITH_KERNELS = {"test_in_place_where_the_framework_is"}


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    with islices.config.use_kernels(request.node.originalname in WITH_KERNELS):
        yield
