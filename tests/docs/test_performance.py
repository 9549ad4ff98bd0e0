"""docs/performance.md shows two runs that lie beside it, as `islices bench --part step` wrote them.

``python tests/docs/test_performance.py`` writes the page's tables from the runs anew. The runs are made by::

    islices bench --part step --repeat 9 --json docs/performance.json
    OMP_WAIT_POLICY=PASSIVE islices bench --part step -b torch --repeat 9 --json docs/performance-passive.json
"""

from __future__ import annotations

import re
from pathlib import Path

from islices.conformance.tools.bench.load import is_disturbed
from islices.conformance.tools.bench.report import markdown, measured
from islices.conformance.tools.bench.results import read_run

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "performance.md"
#: run -> the command that made it
RUNS = {
    "performance.json": "islices bench --part step --repeat 9",
    "performance-passive.json": "OMP_WAIT_POLICY=PASSIVE islices bench --part step -b torch --repeat 9",
}


def written(name: str) -> str:
    """A run as the page shows it."""
    run = read_run(str(DOCS / name))
    machine = run["machine"]
    busy = max((r["others"] for r in run["records"] if is_disturbed(r)), default=0.0)
    disturbed = f"; other processes used up to {busy:.1f} cores meanwhile (*)" if busy else ""
    head = (
        f"`{RUNS[name]}`, {run['date'][:10]}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GB, Python "
        f"{machine['python']}, NumPy {machine['numpy']}, islices {run['islices']}{disturbed}."
    )
    found = ["\n".join(markdown(table)) if table.rows else _listed(table.title) for table in measured(run)]
    return "\n\n".join([head, *found])


def _listed(remarks: str) -> str:
    return "\n".join(f"- {line}" for line in remarks.splitlines())


def with_runs(page: str) -> str:
    for name in RUNS:
        block = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->\n)", re.DOTALL)
        page, count = block.subn(lambda found, name=name: f"{found[1]}\n{written(name)}\n\n{found[2]}", page)  # type: ignore[misc]
        assert count == 1, f"{PAGE.name} has {count} places for {name}"
    return page


def test_the_page_shows_the_runs() -> None:
    page = PAGE.read_text("utf-8")
    assert page == with_runs(page), "python tests/docs/test_performance.py writes it"


if __name__ == "__main__":
    PAGE.write_text(with_runs(PAGE.read_text("utf-8")), "utf-8")
