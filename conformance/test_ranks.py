"""Run the cases of the group "ranks" on one backend, in several processes that the framework's engine connects.

The processes start once for all cases, and each rank reports one outcome per case. A case passes if it passes on every
rank, and if the results of all ranks have the same bits. The cases belong to the variant "ranks".
"""

from __future__ import annotations

from typing import Any

import pytest

from islices.conformance.plugin import chosen as selection
from islices.conformance.plugin import parametrize
from islices.conformance.ranks import run_ranks
from islices.conformance.ranks.cases import Collective
from islices.conformance.ranks.mistakes import Mistake
from islices.conformance.ranks.running import Said, raise_verdict
from islices.conformance.selection import Selection
from islices.conformance.variants import Variant
from islices.distributed.engines import engine_of

#: The seconds that all cases together may take.
DEADLINE = 240.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, Selection.ranks, lambda variant: variant.group == "ranks")


@pytest.fixture(scope="session")
def statement(request: pytest.FixtureRequest) -> list[dict[str, Said]]:
    """Run the collected cases of the group "ranks" on several ranks, and return one dict {id: outcome} per rank."""
    name = request.config.getoption("islices_backend")
    size = 4 if selection(request.config).profile == "full" else 2
    markers = (item.get_closest_marker("islices_case") for item in request.session.items)
    ids = [marker.kwargs["id"] for marker in markers if marker is not None and marker.kwargs["group"] == "ranks"]
    return run_ranks(
        engine_of(name), size, "islices.conformance.ranks.running:run_cases",  # pyright: ignore[reportArgumentType, reportCallIssue]
        {"backend": name, "ids": ids}, timeout=60.0, deadline=DEADLINE,
    ).values  # fmt: skip


def test_ranks(
    subject: Collective | Mistake, mode: str, variant: Variant, statement: list[dict[str, Said]], islices_verdict: Any
) -> None:
    islices_verdict(lambda: raise_verdict([one[subject.id] for one in statement]))
