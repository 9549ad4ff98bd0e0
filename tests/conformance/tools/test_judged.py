"""Test that `make judged` runs a library's entries in a separate process. Test the findings and the page."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices.conformance.tools.judged.__main__ import main
from islices.conformance.tools.judged.page import finding, scores, with_run
from islices.conformance.tools.judged.processes import run_finding, run_library

DOCS = Path(islices.__file__).resolve().parents[1] / "docs"
FINDINGS = sorted((DOCS / "judged").glob("*.py"))


# ---------------------------------------------------------------------- processes
@pytest.mark.outside
@pytest.mark.parametrize(
    ("library", "formula", "grades"),
    [
        ("optax", "optax.adam", {"eager": 2, "jax.jit": 2}),
        ("fbgemm", "fbgemm.EXACT_ROWWISE_ADAGRAD", {"": None, "without weight_decay": 1, "two features": 1}),
    ],
)  # fmt: skip
def test_a_library_is_judged_in_a_process(library: str, formula: str, grades: dict[str, int | None]) -> None:
    found = run_library(library, [sys.executable], {"KERAS_BACKEND": "tensorflow"}, [formula])
    if "missing" in found:
        pytest.skip(found["missing"])
    assert found["module"] == library
    assert re.match(r"\d+\.\d", found["version"])
    assert {x["variant"]: x["grade"] for x in found["entries"]} == grades
    for entry in found["entries"]:
        assert entry["formula"] == formula
        assert entry["cause"] == (None if entry["grade"] else "decay missing")
        assert not entry["unsupported"].keys() - {"decay"}


KERNELS = '''
"""Kernels of NumPy, some of which are broken."""
import os
import numpy as np
from islices.conformance.tools.judged.entry import Judged
LIBRARY = "numpy"
def right(w, g, state, t, *, lr):
    print("a library that talks")
    return w - np.float32(lr) * g
def aborts(w, g, state, t, *, lr):
    os.abort()
def raises(w, g, state, t, *, lr):
    raise ValueError("no | such\\nkernel")
def entries():
    for step in (right, aborts, raises, right):
        yield Judged(step.__name__, "optax.sgd", step)
'''


def own_library(folder: Path, source: str) -> dict[str, str]:
    """Write a library for a test. Return environment variables that add the library to the libraries of a process."""
    own = folder / "more"
    own.mkdir()
    (own / "kernels.py").write_text(source, "utf-8")
    begins = f"from islices.conformance.tools.judged import libraries\nlibraries.__path__.append({str(own)!r})\n"
    (folder / "sitecustomize.py").write_text(begins, "utf-8")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{DOCS.parent}"}


@pytest.mark.outside
def test_an_entry_that_ends_the_process_is_told_and_the_others_are_judged(tmp_path: Path) -> None:
    found = run_library("kernels", [sys.executable], own_library(tmp_path, KERNELS))
    assert [(x["call"], x.get("grade"), x.get("raised")) for x in found["entries"]] == [
        ("right", 1, None),
        ("aborts", None, "the process ended by SIGABRT"),
        ("raises", None, "ValueError: no | such"),
        ("right", 1, None),
    ]


# ---------------------------------------------------------------------- findings
def needs(script: Path) -> list[str]:
    """Return the modules that a script imports and this environment lacks."""
    names = [
        x.module if isinstance(x, ast.ImportFrom) else x.names[0].name
        for x in ast.walk(ast.parse(script.read_text("utf-8")))
        if isinstance(x, ast.Import | ast.ImportFrom)
    ]
    return [name for name in names if name and importlib.util.find_spec(name.partition(".")[0]) is None]


def marked(script: Path) -> Any:
    return pytest.param(script, id=script.name, marks=[pytest.mark.soak] if "compile" in script.name else [])


def close(one: str, other: str) -> bool:
    """Return True if two texts are equal or differ only in the last digits of numbers."""
    number = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    same = number.sub("#", one) == number.sub("#", other)
    return same and np.allclose(
        [float(x) for x in number.findall(one)], [float(x) for x in number.findall(other)], rtol=1e-5
    )


@pytest.mark.outside
@pytest.mark.parametrize("script", [marked(x) for x in FINDINGS if not needs(x)])
def test_a_finding_prints_what_the_page_has(script: Path) -> None:
    found = run_finding(script, [sys.executable])["output"]
    shown = json.loads((DOCS / "judged.json").read_text("utf-8"))["findings"][script.name]["output"]
    assert close(found, shown), found


@pytest.mark.parametrize("script", FINDINGS, ids=lambda x: x.name)
def test_a_finding_is_short_and_its_page_is_up_to_date(script: Path) -> None:
    lines = script.read_text("utf-8").splitlines()[1:]
    assert len([x for x in lines if x.strip() and not re.match(r"import |from ", x)]) <= 10
    assert finding(script) in (DOCS / "judged.md").read_text("utf-8")


# ---------------------------------------------------------------------- the page
PAGE = "# T\n\n<!-- summary -->\n\nold\n\n<!-- end -->\n\ntext\n\n<!-- findings -->\nold\n<!-- end -->\n"


@pytest.mark.outside
def test_the_page_is_written_from_a_run(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "judged.md").write_text(PAGE, "utf-8")
    (tmp_path / "judged").mkdir()
    (tmp_path / "judged" / "upstream_sum.py").write_text('"""A sum."""\n\nprint(1 + 1)\n', "utf-8")
    arguments = ["--docs", str(tmp_path), "-l", "upstream"]
    assert main(arguments) == 0
    page = (tmp_path / "judged.md").read_text("utf-8")
    assert "| bugs that others reported | 3 | 0 | 3 |" in page
    assert "- A sum. ([script](judged/upstream_sum.py))\n" in page
    assert "old" not in page
    written = json.loads((tmp_path / "judged.json").read_text("utf-8"))
    (table,) = scores(written)
    assert table.startswith("## bugs that others reported\n\n| call | formula | with the bug | as meant |\n")
    assert re.search(r"bitsandbytes#2010, AdamW .* decay applied after the update \| 0\.\d+ \|", table)
    assert re.search(r"FlagGems#4988, Adam .* decay decoupled, not joined to the gradient \| 0\.\d+ \|", table)
    assert re.search(
        r"FBGEMM#5908.* decay applied twice, joined to the gradient and to the weights \| 0\.\d+ \|", table
    )
    assert "no known mistake" not in table
    assert with_run(page, written, [tmp_path / "judged" / "upstream_sum.py"]) == page
    assert main(arguments) == 0  # a second run replaces the library's part
    assert len(json.loads((tmp_path / "judged.json").read_text("utf-8"))["libraries"]) == 1
