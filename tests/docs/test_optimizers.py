"""docs/optimizers.md: its table of what exists is what the library accepts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from islices import optim
from islices.optim.presets import PRESETS

TEXT = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text("utf-8")
#: column of the table -> (function, options)
COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("sgd", {}),
    "sgd, momentum": ("sgd", {"momentum": 0.9}),
    "sgd, weight_decay": ("sgd", {"weight_decay": 0.01}),
    "adagrad": ("adagrad", {}),
    "rowwise_adagrad": ("rowwise_adagrad", {}),
    "rmsprop": ("rmsprop", {}),
    "adam": ("adam", {}),
    "adamw": ("adamw", {}),
    "ftrl": ("ftrl", {}),
}


def exists(name: str, options: dict[str, Any], semantics: str) -> str:
    found = []
    for rows in ("touched", "all"):
        for duplicates in ("sum", "raw"):
            kinds = {} if duplicates == "sum" else {"duplicates": duplicates}
            try:
                getattr(optim, name)(0.1, rows=rows, semantics=semantics, **kinds, **options)
            except (ValueError, TypeError):
                continue
            found.append(rows if duplicates == "sum" else f"{rows} raw")
    return ", ".join(found) or "-"


def table() -> list[list[str]]:
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    start = next(k for k, line in enumerate(lines) if line.startswith("| semantics "))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    return [row for row in cells[: 2 + len(SEMANTICS)] if not set(row[0]) <= {"-", ":"}]


SEMANTICS = sorted({semantics for presets in PRESETS.values() for semantics in presets})


def test_the_table_is_what_the_library_accepts() -> None:
    head, *rows = table()
    assert head == ["semantics", *COLUMNS]
    assert sorted(row[0] for row in rows) == SEMANTICS
    for semantics, *cells in rows:
        for (column, (name, options)), cell in zip(COLUMNS.items(), cells, strict=True):
            assert cell == exists(name, options, semantics), f"{semantics}, {column}"


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_every_semantics_has_a_section(semantics: str) -> None:
    assert re.search(rf'^## .*semantics="{semantics}"', TEXT, re.MULTILINE)


@pytest.mark.parametrize("name", PRESETS)
def test_the_docstring_lists_the_semantics(name: str) -> None:
    listed = re.search(r"semantics : \{(.*)\}", str(getattr(optim, name).__doc__))
    assert listed is not None
    assert sorted(word.strip('" ') for word in listed.group(1).split(",")) == sorted(PRESETS[name])


def render() -> str:
    """The table, for the page: ``python tests/docs/test_optimizers.py``."""
    rows = [["semantics", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    order = ["islices", *(s for s in SEMANTICS if s != "islices")]
    rows += [[s, *(exists(name, options, s) for name, options in COLUMNS.values())] for s in order]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(render())
