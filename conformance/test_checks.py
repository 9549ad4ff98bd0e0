"""The checks of `islices.conformance.checks`, on one backend, in the modes host and framework, or traced."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import islices
import islices.conformance.checks_kernels
import islices.conformance.checks_optim
import islices.conformance.checks_plugins
from islices.conformance.checks import CHECKS, Check
from islices.conformance.deviations import find_deviation, load_deviations
from islices.conformance.plugin import chosen_modes, chosen_variant
from islices.conformance.verdicts import judge
from islices.registry import get_backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    variant = chosen_variant(metafunc.config)
    modes = [] if variant.golden_only or variant.group else chosen_modes(metafunc.config)
    metafunc.parametrize(
        ("check", "mode"),
        [
            pytest.param(
                check, mode, id=f"{check.id}@{mode}",
                marks=pytest.mark.islices_case(id=check.id, clause=check.clause, group=check.group, mode=mode, call=""),
            )
            for mode in modes
            for check in CHECKS
            if check.traced == (mode == "traced") and (metafunc.config.getoption("islices_full") or not check.full)
        ],
    )  # fmt: skip


def test_check(check: Check, mode: str, request: pytest.FixtureRequest, verdict: Any) -> None:
    backend = get_backend(request.config.getoption("islices_backend"))

    def attempt() -> None:
        with contextlib.ExitStack() as stack:
            if check.wide:
                stack.enter_context(backend.wide_types())
            if mode != "traced":
                stack.enter_context(islices.execution(mode))
            check.run(backend)

    outcome, details = judge(attempt, find_deviation(load_deviations(backend), check.id, mode))
    verdict(outcome, **details)
