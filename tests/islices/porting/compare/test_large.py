"""Test large tensors. `diff` tries causes on some rows and confirms them on all rows; a reported cause must hold for
all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import islices
from islices import IndexedSlices
from islices.porting.compare import comparison, rows
from islices.porting.compare.stored import read

f4 = np.float32
ROWS, WIDTH = 400, 4


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes `diff` treat every tensor as large. `diff` then reads a sixth of the rows first, and
    all rows in blocks of 16."""

    def make() -> None:
        for name, value in {"LARGE": 64, "SAMPLE": 256, "BLOCK": 64}.items():
            monkeypatch.setattr(comparison, name, value)
        monkeypatch.setattr(rows, "LEAST", 16)

    return make


def slices(values: Any, ids: Any, rows: int = ROWS) -> IndexedSlices:
    return IndexedSlices(np.asarray(values), np.asarray(ids), (rows, *np.shape(values)[1:]))


def made() -> dict[str, Any]:
    """Return a dict from the names of causes to (a, b, options). The causes explain the difference between a and b;
    "nothing" and "rounding" are no causes."""
    r = np.random.default_rng(0)
    v = r.standard_normal((ROWS, WIDTH)).astype(f4)
    ids = r.integers(0, ROWS, ROWS)
    g, c = slices(v, ids), islices.coalesce(slices(v, ids))
    k, held = np.asarray(c.values), np.asarray(c.indices)
    w = r.standard_normal((ROWS, WIDTH)).astype(f4)
    last = np.zeros_like(k)
    last[np.searchsorted(held, ids)] = v
    clipped, unsummed = (
        islices.clip_by_global_norm([g], 1.0, semantics=s)[0][0] for s in ("islices", "tensorflow")
    )  # fmt: skip
    return {
        "mean": (g, slices(v / f4(96), ids), {"batch_size": 96}),
        "regularizer": (c, islices.to_dense(c) + f4(1e-2) * w, {"tables": w}),
        "last_duplicate": (g, c.replace(values=last), {}),
        "padding, mean": (c, slices(k[1:] / f4(8), held[1:]), {"batch_size": 8}),
        "duplicates": (clipped, unsummed, {}),
        "off_by_one": (c, slices(k, held + 1, ROWS + 1), {}),
        "nothing": (g, slices(r.standard_normal(v.shape).astype(f4), ids), {"batch_size": 4}),
        "rounding": (g, slices(np.nextafter(v, f4(9)), ids), {}),
    }  # fmt: skip


@pytest.mark.parametrize("name", made())
def test_what_is_named_by_some_rows_and_all_is_what_all_at_once_say(name: str, in_parts: Callable[[], None]) -> None:
    a, b, options = made()[name]
    expected = islices.diff(a, b, **options)
    in_parts()
    got = islices.diff(a, b, **options)
    reported = [[(e.names, e.exact) for e in x.causes] for x in (got, expected)]
    assert reported[0] == reported[1], f"{got}\n{expected}"
    assert [set(e.names) for e in got.causes] == ([] if name in ("nothing", "rounding") else [set(name.split(", "))])
    assert (got.rounding, got.equal) == (expected.rounding, expected.equal)


def test_one_row_that_is_not_looked_at_first_is_enough_to_name_nothing(in_parts: Callable[[], None]) -> None:
    """Check that one row rules out division by eight as a cause, although the division holds for all other rows."""
    r = np.random.default_rng(1)
    v = r.standard_normal((ROWS, WIDTH)).astype(f4)
    in_parts()
    a, b = (read(x, "", "x") for x in (v, v / f4(8)))
    seen = rows.sample_rows(a, b, comparison.SAMPLE)
    assert len(seen) < ROWS // 2
    row = int(np.setdiff1d(np.arange(ROWS), seen)[3])
    other = v / f4(8)
    other[row, 1] *= f4(1.01)
    assert [e.names for e in islices.diff(v, v / f4(8), batch_size=8).causes] == [("mean",)]
    assert row not in rows.sample_rows(a, read(other, "", "x"), comparison.SAMPLE)
    assert islices.diff(v, other, batch_size=8).causes == ()
