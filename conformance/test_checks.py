"""Run the checks of `islices.conformance.checks` on one backend, in the modes host and framework, or traced."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import islices
from islices.conformance.checks import Check
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
        with contextlib.ExitStack() as stack:
            stack.enter_context(variant.around())
            if subject.wide:
                stack.enter_context(backend.wide_types())
            if mode != "traced":
                stack.enter_context(islices.config.execution(mode))
            subject.run(backend)

    islices_verdict(attempt)
