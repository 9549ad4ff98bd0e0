"""Define the pytest plugin of islices, which adds the options of the conformance suite and the fixture `islices_judge`.

If islices is installed, each run of pytest imports this module. The module imports only pytest until an option or the
fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from islices.conformance.formulas.judgement import Judgement

__all__ = ["islices_judge", "pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("islices", "islices conformance suite")
    group.addoption("--islices-backend", metavar="NAME", help="backend to run the conformance suite on")
    group.addoption("--islices-modes", metavar="MODES", help="of host,framework,traced; default: all")
    group.addoption(
        "--islices-variant", metavar="NAMES", default="standard",
        help="settings to run under, one after the other; default: standard",
    )  # fmt: skip
    group.addoption(
        "--islices-profile", choices=("quick", "full"), default="quick",
        help="quick: the cases that catch most in little time; full: every case; default: quick",
    )  # fmt: skip
    group.addoption("--islices-select", metavar="EXPR", default="", help="cases whose id or mode matches, as -k")
    group.addoption("--islices-clause", metavar="N", action="append", default=[], help="cases of this clause")
    group.addoption("--islices-group", metavar="NAME", action="append", default=[], help="cases of this group")
    group.addoption("--islices-report", metavar="PATH", help="write one JSON line a case to PATH")
    group.addoption("--islices-phases", action="store_true", help="say in the report, too, what goes on before a case")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "islices_case(id, clause, mode): a case of the conformance suite")
    if config.getoption("islices_backend"):
        from islices.conformance import plugin

        if not config.pluginmanager.is_registered(plugin):
            config.pluginmanager.register(plugin, "islices_suite")


@pytest.fixture
def islices_judge() -> Callable[..., Judgement]:
    """Return a function ``judged(step, formula, *, grade=2)`` that judges a step by a documented formula (SPEC clause
    28).

    The function returns the `Judgement`. If the step is outside the bound of the grade, the test fails with the report.
    """
    from islices.conformance.formulas.judge import judge

    def judged(step: Callable[..., Any], formula: str, *, grade: int = 2) -> Judgement:
        found = judge(step, formula)
        if found.grade is None or found.grade > grade:
            pytest.fail(str(found), pytrace=False)
        return found

    return judged
