"""Every golden case, on one backend, in every mode it has."""

from __future__ import annotations

from typing import Any

import pytest

from islices.conformance.data import Case, load_cases
from islices.conformance.deviations import find_deviation, load_deviations
from islices.conformance.execute import HarnessError, UnsupportedError, difference, run_case
from islices.registry import get_backend


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = metafunc.config.getoption("islices_backend")
    if name is None:
        metafunc.parametrize(("case", "mode"), [], ids=[])
        return
    backend = get_backend(name)
    wanted = metafunc.config.getoption("islices_modes")
    modes = [m for m in backend.modes() if wanted is None or m in wanted.split(",")]
    full = metafunc.config.getoption("islices_full")
    params = [
        pytest.param(
            case, mode, id=f"{case.id}@{mode}",
            marks=pytest.mark.islices_case(id=case.id, clause=case.clause, group=case.group, mode=mode, call=case.call),
        )
        for mode in modes
        for case in load_cases()
        if (full or "full" not in case.flags) and not (mode == "traced" and "eager" in case.flags)
    ]  # fmt: skip
    metafunc.parametrize(("case", "mode"), params)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Any:
    return get_backend(request.config.getoption("islices_backend"))


@pytest.fixture(scope="session")
def deviations(backend: Any) -> Any:
    return load_deviations(backend)


def test_case(case: Case, mode: str, backend: Any, deviations: Any, verdict: Any) -> None:
    declared = find_deviation(deviations, case.id, mode)
    try:
        got = run_case(backend, case, mode)
    except UnsupportedError as reason:
        verdict("unsupported", reason=str(reason))
        return
    except HarnessError as error:
        verdict("harness error", reason=str(error))
        return
    except Exception as error:
        problem, raised, shown = _judge_error(case, error), type(error).__name__, f"{type(error).__name__}: {error}"
    else:
        raised, shown = "", repr(got)
        problem = (
            f"got no exception, expected {case.expect['raises']}"
            if case.group == "errors"
            else difference(got, case.expect)
        )
    if declared is not None:
        if not problem:
            verdict(
                "fail", reason=f"declared as a deviation ({declared.reason}), but it passes: remove the declaration"
            )
        elif raised == declared.raises:
            verdict("deviation", reason=declared.reason, kind=declared.kind, issue=declared.issue)
    verdict(
        "fail" if problem else "pass",
        **({"reason": problem, "got": shown[:2000], **_expected(case)} if problem else {}),
    )


def _judge_error(case: Case, error: Exception) -> str:
    if case.group != "errors":
        return f"raised {type(error).__name__}: {error}"
    expected = case.expect["raises"]
    if type(error).__name__ != expected:
        return f"raised {type(error).__name__}: {error}; expected {expected}"
    missing = [word for word in case.expect["message"] if word not in str(error)]
    return f"the message lacks {missing}: {error}" if missing else ""


def _expected(case: Case) -> dict[str, str]:
    return {"expected": repr(case.expect)[:2000]}
