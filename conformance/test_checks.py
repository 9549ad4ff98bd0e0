"""The checks of `islices.conformance.checks`, on one backend, in the modes host and native."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import islices
from islices.conformance.checks import CHECKS, Check
from islices.conformance.deviations import find_deviation, load_deviations
from islices.conformance.execute import HarnessError, UnsupportedError
from islices.registry import get_backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.config.getoption("islices_backend")
    if name is None:
        metafunc.parametrize(("check", "mode"), [], ids=[])
        return
    wanted = metafunc.config.getoption("islices_modes")
    modes = [m for m in get_backend(name).modes() if m != "traced" and (wanted is None or m in wanted.split(","))]
    metafunc.parametrize(
        ("check", "mode"),
        [
            pytest.param(
                check, mode, id=f"{check.id}@{mode}",
                marks=pytest.mark.islices_case(id=check.id, clause=check.clause, group=check.group, mode=mode, call=""),
            )
            for mode in modes
            for check in CHECKS
            if metafunc.config.getoption("islices_full") or not check.full
        ],
    )  # fmt: skip


def test_check(check: Check, mode: str, request: pytest.FixtureRequest, verdict: Any) -> None:
    backend = get_backend(request.config.getoption("islices_backend"))
    declared = find_deviation(load_deviations(backend), check.id, mode)
    problem = raised = ""
    try:
        with contextlib.ExitStack() as stack:
            if check.wide:
                stack.enter_context(backend.wide_types())
            stack.enter_context(islices.execution(mode))
            check.run(backend)
    except UnsupportedError as reason:
        verdict("unsupported", reason=str(reason))
    except HarnessError as error:
        verdict("harness error", reason=str(error))
    except AssertionError as error:
        problem, raised = str(error), "AssertionError"
    except Exception as error:
        problem, raised = f"raised {type(error).__name__}: {error}", type(error).__name__
    if declared is not None:
        if not problem:
            verdict("fail", reason=f"declared a deviation ({declared.reason}), but it passes: remove the declaration")
        elif raised == declared.raises or (declared.result and raised == "AssertionError"):
            verdict("deviation", reason=declared.reason, kind=declared.kind, issue=declared.issue)
    verdict("fail" if problem else "pass", **({"reason": problem} if problem else {}))
