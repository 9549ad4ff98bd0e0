"""What the audit finds in MXNet: the findings that islices' adapter is built on, asked again."""

from __future__ import annotations

from typing import Any

import pytest

import islices
from islices.conformance.tools.audit.run import run_all

if "mxnet" not in islices.list_backends():
    pytest.skip("mxnet is not installed", allow_module_level=True)

pytestmark = pytest.mark.repeats  # torch's answers, in test_audit.py, are asked by the same code
MODULES = ("mxnet", "mxnet_arithmetic", "mxnet_layers", "mxnet_optim")


@pytest.fixture(scope="module")
def findings() -> list[dict[str, Any]]:
    return run_all(MODULES, "", lambda planned, done: None)


def test_all_is_as_measured(findings: list[dict[str, Any]]) -> None:
    """MXNet 1.9.1 is the last release: nothing of it changes any more."""
    other = [f for f in findings if f["status"] in ("gone", "changed") or f["outcome"] == "broken"]
    assert not other, [(f["number"], f["outcome"], f["got"]) for f in other]
    assert len(findings) > 60


#: (words, outcome, got)
FOUND = [
    ("it takes rows out of order, twice and out of range", "differs", "no error"),
    ("x.tostype('default'), x.asnumpy()", "differs", "[[0, 0], [-100, 0], [0, 4], [3, 0]]"),
    ("x.tostype('default') with an index far out of range", "corrupts", "the process ended by SIG"),
    ("rows stored twice count twice", "differs", "[141.50972]"),
    ("row_sparse stays row_sparse", "agrees", ""),
    ("the result is dense: ", "differs", "default"),
    ("rows that are not stored come as stored zeros", "differs", "[0, 2]"),
    ("a NaN fills every row", "differs", "[[nan, nan], [nan, nan], [nan, nan], [nan, nan]]"),
    ("a dense array of the table's size", "differs", "True"),
    ("a read-only array is shared", "corrupts", "the read-only array holds 5"),
    ("its threads race", "differs", "other bits"),
    ("they sum in order of occurrence", "agrees", ""),
    ("factors go through text", "differs", ""),
    ("the error comes when the gradient is waited for", "differs", "an error from reading the gradient"),
    ("its backward pass has no 16-bit types", "raises", "MXNetError: This operation only supports 32-bit"),
    ("a row stored twice is stepped twice", "differs", ""),
    ("row 0 is trained", "differs", "[[0.5, 1.5], [3, 4], [5, 6], [7, 8]]"),
    ("it writes to the memory before the table", "corrupts", "the row before the table holds [0.5, 0.5]"),
    ("rows that the gradient does not name become zero", "differs", "[[0, 0], [0, 0]]"),
    ("w - lr g", "agrees", ""),
]  # fmt: skip


@pytest.mark.parametrize(("words", "outcome", "got"), FOUND)
def test_found_again(findings: list[dict[str, Any]], words: str, outcome: str, got: str) -> None:
    found = [f for f in findings if words in f"{f['call']}: {f['claim']}: "]
    assert len(found) == 1, [f["number"] for f in found]
    assert found[0]["outcome"] == outcome, found[0]
    assert outcome == "agrees" or found[0]["got"].startswith(got), found[0]
