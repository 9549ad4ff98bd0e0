"""Run the checks in `islices.conformance.checks.CHECKS` on one backend, each in its modes."""

from __future__ import annotations

from typing import Any

import pytest

from islices.conformance.checks import Check
from islices.conformance.execute import setting
from islices.conformance.plugin import parametrize
from islices.conformance.selection import Selection
from islices.conformance.variants import Variant
from islices.core.registry import get_backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, Selection.checks, lambda variant: not variant.golden_only and not variant.group)


def test_check(
    subject: Check, mode: str, variant: Variant, request: pytest.FixtureRequest, islices_verdict: Any
) -> None:
    backend = get_backend(request.config.getoption("islices_backend"))

    def attempt() -> None:
        with variant.around(), setting(backend, mode, subject.wide):
            subject.run(backend)

    islices_verdict(attempt)
