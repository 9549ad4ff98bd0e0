"""Check that docs/optimizers.md, docs/formulas.md and the signatures of the optimizers agree with `RECORDS`.

``python tests/docs/test_optimizers.py`` writes the table of docs/optimizers.md.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from islices import optim
from islices.backends.torch import optim as torch_optim
from islices.backends.torch.optim.hyperparameters import torch_names
from islices.optim import records
from islices.optim.record import RECORDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "optimizers.md"
TEXT = PAGE.read_text("utf-8")
FORMULAS = (ROOT / "docs" / "formulas.md").read_text("utf-8")
SEMANTICS = ["islices", *sorted({s for record in RECORDS.values() for s in record.presets} - {"islices"})]
#: options that may exclude some values of `rows`. An optimizer with such an option may have a separate row in the
#: table.
OPTIONS: dict[str, dict[str, Any]] = {"momentum": {"momentum": 0.9}, "weight_decay": {"weight_decay": 0.01}}


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


def table() -> str:
    """Return the table of docs/optimizers.md, with a line for each optimizer, and one for each option that excludes
    some values of `rows`."""
    rows = [["optimizer", *SEMANTICS], ["---"] * (1 + len(SEMANTICS))]
    for name, record in RECORDS.items():
        plain = [exists(name, {}, semantics) for semantics in SEMANTICS]
        rows.append([name, *plain])
        for option, given in OPTIONS.items():
            changed = [exists(name, given, semantics) for semantics in SEMANTICS]
            if option in record.arguments and any(x != y and x != "-" for x, y in zip(changed, plain, strict=True)):
                rows.append([f"{name}, {option}", *changed])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


# ---------------------------------------------------------------------- common text of all functions' docstrings
LR = """\
lr : float, array of one, or function of the step
    The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
"""
REST = """\
rows : {{"touched", "all"}}, optional
    With "touched", a step updates only the rows that a sparse gradient contains. With "all", a step updates every
    row, like the dense formula. The default is "touched", or "all" if the semantics supports only "all".
semantics : {{{semantics}}}
    The library whose arithmetic and defaults the optimizer uses; see docs/optimizers.md.
maximize : bool
    If True, maximize the loss instead of minimizing it.
frozen : 1-D integer array or sequence, or boolean mask, optional
    Rows that no step changes. Weight decay does not change them either.
duplicates : {{"sum", "raw"}}
    With "sum", duplicate rows are summed before the update. With "raw", the step applies Keras's update to unsummed
    duplicates; docs/optimizers.md lists where this is supported.

Returns
-------
Optimizer
    ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

Raises
------
TypeError, ValueError, IndexError
    An argument is invalid, or this semantics does not support it.

Notes
"""
END = """
The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

Examples
--------
>>> import numpy as np
>>> from islices import IndexedSlices
>>> table = np.ones((3, 1))
>>> optimizer = {name}(0.5)
>>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
>>> table, state = optimizer.step(table, grad, optimizer.init(table))
>>> table[:2].tolist()
[[1.0], [1.0]]
"""
SHARED = {"rows": None, "semantics": "islices", "maximize": False, "frozen": None, "duplicates": "sum"}


@pytest.mark.parametrize("name", RECORDS)
def test_functions_share_options_and_docstrings(name: str) -> None:
    """Check that each function has the shared options. The docstring must contain the whole common text, so that help()
    and editors show it."""
    function = getattr(optim, name)
    options = {x.name: x.default for x in inspect.signature(function).parameters.values()}
    assert options == dict.fromkeys(RECORDS[name].arguments) | SHARED
    names = ", ".join(f'"{semantics}"' for semantics in RECORDS[name].presets)
    for text in (LR, REST.format(semantics=names), END.format(name=name)):
        assert text.strip("\n") in inspect.getdoc(function), text


def test_the_table_is_what_the_library_accepts() -> None:
    assert table() in TEXT


@pytest.mark.parametrize("name", RECORDS)
def test_torch_classes_have_the_arguments_of_their_record(name: str) -> None:
    cls = getattr(torch_optim, RECORDS[name].title)
    names = [x for x in inspect.signature(cls).parameters if x not in ("params", "options")]
    flag = ["decoupled_weight_decay"] if RECORDS[name].decoupled is not None else []
    assert (cls.rule, names) == (name, [*torch_names(name), *flag])


def test_optim_exports_the_function_of_every_record() -> None:
    for module in pkgutil.iter_modules(records.__path__):
        importlib.import_module(f"{records.__name__}.{module.name}")
    assert sorted(optim.__all__) == sorted([*RECORDS, "Optimizer", "custom"])


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_every_semantics_has_a_section(semantics: str) -> None:
    assert re.search(rf'^## .*semantics="{semantics}"', FORMULAS, re.MULTILINE)


def write() -> None:
    start = TEXT.index("| optimizer | islices |")
    PAGE.write_text(TEXT[:start] + table() + TEXT[TEXT.index("\n\n", start) + 1 :], "utf-8")


if __name__ == "__main__":
    write()
