"""Run the selected golden cases on one backend, in each of the selected modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.data import Case, Entry
from islices.conformance.execute import ChangedInputError, HarnessError, difference, forget_compiled, run_case
from islices.conformance.plugin import parametrize
from islices.conformance.selection import Selection
from islices.conformance.variants import Variant
from islices.conformance.verdicts import MismatchError
from islices.core.registry import get_backend

CASES_RUN = pytest.StashKey[int]()
#: The number of cases between two checks of the process's memory mappings.
LOOK = 50
#: The number of memory mappings above which programs are released. By default, Linux allows a process 65,530.
MAPPED = 40_000


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, Selection.golden, lambda variant: not variant.group)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Any:
    return get_backend(request.config.getoption("islices_backend"))


@pytest.fixture(autouse=True)
def few_programs(backend: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    """Release compiled programs before the process reaches the limit of memory mappings, at which XLA crashes. Later
    cases compile a released program again."""
    yield
    done = request.session.stash.get(CASES_RUN, 0) + 1
    request.session.stash[CASES_RUN] = done
    if done % LOOK == 0 and _mapped() > MAPPED:
        forget_compiled(backend)


def _mapped() -> int:
    """Return the number of memory mappings of this process, or 0 if the system does not report it."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def test_case(subject: Entry, mode: str, variant: Variant, backend: Any, islices_verdict: Any) -> None:
    case = subject.case
    islices_verdict(lambda: _attempt(backend, case, mode, variant), call=case.call)


def _attempt(backend: Any, case: Case, mode: str, variant: Variant) -> None:
    expected = repr(case.expect)
    try:
        with variant.around():
            got = run_case(backend, case, mode, variant)
    except (ChangedInputError, HarnessError, UnsupportedError):
        raise
    except Exception as error:
        problem = _judge_error(case, error)
        if problem:
            raised = type(error).__name__
            raise MismatchError(problem, raised=raised, got=f"{raised}: {error}"[:2000], expected=expected) from error
        return
    if case.group == "errors":
        problem = f"got no exception, expected {case.expect['raises']}"
    else:
        problem = difference(got, case.expect)
    if problem:
        raise MismatchError(problem, got=repr(got), expected=expected)


def _judge_error(case: Case, error: Exception) -> str:
    if case.group != "errors":
        return f"raised {type(error).__name__}: {error}"
    expected = case.expect["raises"]
    if type(error).__name__ != expected:
        return f"raised {type(error).__name__}: {error}; expected {expected}"
    missing = [word for word in case.expect["message"] if word not in str(error)]
    return f"the message lacks {missing}: {error}" if missing else ""
