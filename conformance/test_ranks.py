"""The common cases of all_reduce on one backend, in processes that the framework's own engine connects.

All cases run in one launch, whose ranks say what came of each; a case passes where every rank passed, with the same
bits. They belong to the variant "ranks".
"""

from __future__ import annotations

from typing import Any

import pytest

from islices.conformance.deviations import find_deviation, load_deviations
from islices.conformance.plugin import chosen_modes, chosen_variant
from islices.conformance.ranks import run_ranks
from islices.conformance.ranks.running import Said, chosen, raise_verdict
from islices.conformance.verdicts import judge
from islices.distributed.engines import engine_of
from islices.registry import get_backend

#: Seconds for all cases.
DEADLINE = 240.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    group = chosen_variant(metafunc.config).group
    modes = chosen_modes(metafunc.config) if group == "ranks" else []
    metafunc.parametrize(
        ("case_id", "mode"),
        [
            pytest.param(
                c.id, mode, id=f"{c.id}@{mode}",
                marks=pytest.mark.islices_case(id=c.id, clause=c.clause, group=group, mode=mode, call=""),
            )
            for mode in modes
            for c in chosen(bool(metafunc.config.getoption("islices_full")))
        ],
    )  # fmt: skip


@pytest.fixture(scope="session")
def said(request: pytest.FixtureRequest) -> list[dict[str, Said]]:
    """What each rank says of each case that was collected."""
    name = request.config.getoption("islices_backend")
    size = 4 if request.config.getoption("islices_full") else 2
    markers = (item.get_closest_marker("islices_case") for item in request.session.items)
    ids = [marker.kwargs["id"] for marker in markers if marker is not None]
    return run_ranks(
        engine_of(name), size, "islices.conformance.ranks.running:run_cases",  # pyright: ignore[reportArgumentType, reportCallIssue]
        {"backend": name, "ids": ids}, timeout=60.0, deadline=DEADLINE,
    ).values  # fmt: skip


def test_ranks(
    case_id: str, mode: str, said: list[dict[str, Said]], request: pytest.FixtureRequest, verdict: Any
) -> None:
    backend = get_backend(request.config.getoption("islices_backend"))
    declared = find_deviation(load_deviations(backend), case_id, mode)
    outcome, details = judge(lambda: raise_verdict([one[case_id] for one in said]), declared)
    verdict(outcome, **details)
