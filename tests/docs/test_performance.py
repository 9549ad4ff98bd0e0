"""Check that docs/performance.md shows the run in docs/performance.json.

``python tests/docs/test_performance.py`` writes the page's table and docs/performance.svg from the run. To make a run,
call ``islices bench --part step --repeat 9 --json docs/performance.json``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from islices.conformance.tools.bench.results import read_run

DOCS = Path(__file__).parents[2] / "docs"
PAGE, CHART = DOCS / "performance.md", DOCS / "performance.svg"
BLOCK = re.compile(r"(<!-- performance.json -->\n).*?(<!-- end -->\n)", re.DOTALL)
HEAD = "| step | framework | islices, ms | fastest other code | ms | times as fast |\n|---|---|---:|---|---:|---:|"
STEPS = {
    "adam, clipped": "lazy Adam, clipped",
    "adam": "lazy Adam",
    "rowwise_adagrad": "row-wise Adagrad",
    "sgd": "SGD",
    "adagrad": "Adagrad",
}


def read() -> dict[str, Any]:
    run: dict[str, Any] = read_run(str(DOCS / "performance.json"))
    return run


def measured(run: dict[str, Any]) -> list[tuple[str, str, float, str, float, float]]:
    """Return one row per step of the run. A row has the step's name, the framework, the milliseconds of islices, the
    fastest other code, that code's milliseconds, and the ratio of the speeds."""
    found = []
    for record in run["records"]:
        times = record["milliseconds"]
        ours = min((name for name in times if name.startswith("islices")), key=times.__getitem__)
        other = min(record["own"], key=times.__getitem__)
        step = STEPS[record["operation"]] + (", 26 tables" if "26 tables" in record["title"] else "")
        framework = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}[record["backend"]]
        found.append((step, framework, times[ours], other, times[other], record["times_as_fast"][ours]))
    return found


def table(run: dict[str, Any]) -> str:
    machine = run["machine"]
    rows = [
        f"| {step} | {framework} | {ours:.1f} | {name} | {other:.1f} | {ratio:.1f} |"
        for step, framework, ours, name, other, ratio in measured(run)
    ]
    source = (
        f"`islices bench --part step --repeat 9`, {run['date'][:10]}, {machine['cores']} cores, "
        f"{machine['memory'] / 2**30:.0f} GB, Python {machine['python']}, NumPy {machine['numpy']}."
    )
    return "\n".join([HEAD, *rows, "", source])


def chart(run: dict[str, Any]) -> str:
    """Return an SVG with two bars per step: the times of islices and of the fastest other code."""
    steps = measured(run)
    scale, height = 420 / max(max(row[2], row[4]) for row in steps), 38 * len(steps) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" width="720" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        "<title>Milliseconds of a training step: islices and the fastest other code</title>",
        f'<rect width="720" height="{height}" fill="#fff"/>',
        '<rect x="220" y="10" width="12" height="12" fill="#3178b5"/><text x="238" y="20">islices</text>',
        '<rect x="300" y="10" width="12" height="12" fill="#c9ced4"/>'
        '<text x="318" y="20">fastest other code; ms per step</text>',
    ]
    for k, (step, framework, ours, _, other, _) in enumerate(steps):
        y = 34 + 38 * k
        lines.append(f'<text x="210" y="{y + 20}" text-anchor="end">{framework}: {step}</text>')
        for at, time, colour in ((y, ours, "#3178b5"), (y + 15, other, "#c9ced4")):
            lines.append(f'<rect x="220" y="{at}" width="{time * scale:.1f}" height="13" fill="{colour}"/>')
            lines.append(f'<text x="{226 + time * scale:.1f}" y="{at + 11}">{time:.1f}</text>')
    return "\n".join([*lines, "</svg>", ""])


def with_run(page: str) -> str:
    page, count = BLOCK.subn(lambda found: f"{found[1]}\n{table(read())}\n\n{found[2]}", page)
    assert count == 1
    return page


def test_the_page_shows_the_run() -> None:
    assert PAGE.read_text("utf-8") == with_run(PAGE.read_text("utf-8")), (
        "python tests/docs/test_performance.py writes it"
    )
    assert CHART.read_text("utf-8") == chart(read()), "python tests/docs/test_performance.py writes it"


if __name__ == "__main__":
    PAGE.write_text(with_run(PAGE.read_text("utf-8")), "utf-8")
    CHART.write_text(chart(read()), "utf-8")
