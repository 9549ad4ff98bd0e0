"""Make the cases of gradients through norms and clips. All input numbers are whole, and they are chosen so that every
operation is exact in any order.

`TABLE` contains the sums of duplicate rows. The 2-norms are powers of two or 0, and all positive limits are powers of
two. For clips by a norm, the dot product of an upstream gradient with the values is a multiple of 16. So results have
at most 8 bits.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

from islices.conformance.data import Array, Case, Slices
from islices.conformance.makers import FLOATS, INDEX_TYPES, case

ROWS, WIDTH = 7, 4
#: The stored rows of the dense array; row 2 contains only zeros. The squares sum to 16, so the norm is 4.
TABLE = {3: (2, -2, 2, 0), 0: (1, 1, -1, 0), 5: (0, 0, 0, -1), 2: (0, 0, 0, 0)}
#: Rows with the norms 8, 4, 2 and 1.
ROW_TABLE = {6: (8, 0, 0, 0), 1: (2, 2, -2, 2), 4: (-1, 1, 1, 1), 2: (0, 0, 1, 0)}
#: name -> limit. The norm is 4; a gradient whose norm equals the limit is not clipped.
LIMITS = {"clipped": 1.0, "edge": 4.0, "below": 8.0, "nothing-left": 0.0}
KINDS = ("unique", "sorted", "duplicates", "cancelling", "zero", "empty")
Rows = list[tuple[int, ...]]


def stored(table: Mapping[int, tuple[int, ...]], kind: str, rng: random.Random) -> tuple[list[int], Rows]:
    """Return indices and rows of slices whose dense array is the table, or zeros for the kinds "zero" and "empty".

    Only 0, 4 and 8 slots occur, because compilers compile a new program for each number of slots.
    """
    if kind == "empty":
        return [], []
    ids, rows = list(table), list(table.values())
    if kind == "duplicates":
        parts = [tuple(rng.randint(-2, 2) for _ in row) for row in rows]
        rows = [tuple(v - p for v, p in zip(row, part, strict=True)) for row, part in zip(rows, parts, strict=True)]
        ids, rows = [*ids, *ids], [*rows, *parts]
    if kind in ("cancelling", "zero"):
        loud = [(3, -1, 0, 2), (1, 0, -3, 1)]
        ids, rows = ([], []) if kind == "zero" else (ids, rows)
        ids = [*ids, 1, 6, 6, 1] if table is TABLE else [*ids, 3, 5, 5, 3]
        rows = [*rows, *loud, *(tuple(-v for v in row) for row in reversed(loud))]
    order = sorted(range(len(ids)), key=lambda k: ids[k]) if kind == "sorted" else rng.sample(range(len(ids)), len(ids))
    return [ids[k] for k in order], [rows[k] for k in order]


def upstream_for(ids: list[int], rows: Rows, rng: random.Random, *, by_row: bool = False) -> Rows:
    """Return an upstream gradient of small whole numbers whose dot product with the values is a multiple of 16. With
    `by_row`, the dot product within each row of the dense array is also a multiple of 16."""
    given: Rows = [()] * len(rows)
    for unit in dict.fromkeys(ids) if by_row else [None]:
        own = [k for k, i in enumerate(ids) if unit is None or i == unit]
        while True:
            for k in own:
                given[k] = tuple(rng.randint(-3, 3) for _ in rows[k])
            total = sum(g * v for k in own for g, v in zip(given[k], rows[k], strict=True))
            if total % 16 == 0 and abs(total) <= 32:
                break
    return given


def array(dtype: str, rows: Rows) -> Array:
    return Array(dtype, (len(rows), WIDTH), [float(v) for row in rows for v in row])


def slices(dtype: str, index_type: str, ids: list[int], rows: Rows) -> Slices:
    return Slices(array(dtype, rows), Array(index_type, (len(ids),), list(ids)), (ROWS, WIDTH))


def gradient_cases() -> Iterator[Case]:
    for n, (kind, dtype) in enumerate(itertools.product(KINDS, FLOATS)):
        rng, index_type = random.Random(f"gradients/{kind}"), INDEX_TYPES[n % 2]
        name, one = f"{kind}/{dtype}", Array("float64" if dtype == "float64" else "float32", (1,), [3.0])

        def make(id: str, *args: Any, name: str = name, **options: Any) -> Case:
            return case(f"gradients/{id}/{name}", "gradient", *args, **options)

        ids, rows = stored(TABLE, kind, rng)
        x, g = slices(dtype, index_type, ids, rows), array(dtype, upstream_for(ids, rows, rng))
        for ord in (2, 1, "inf"):
            yield make(f"norm{ord}", "norm", [x], [one], ord=ord)
        for label, limit in LIMITS.items():
            yield make(f"by_norm-{label}", "clip_by_norm", [x], [g], limit)
        table = array(dtype, [tuple(rng.randint(-2, 2) for _ in range(WIDTH)) for _ in range(ROWS)])
        yield make("by_value", "clip_by_value", [x], [table], lo=-1.0, hi=1.0)

        row_ids, row_values = stored(ROW_TABLE, kind, rng)
        by_row = array(dtype, upstream_for(row_ids, row_values, rng, by_row=True))
        given_rows = slices(dtype, index_type, row_ids, row_values)
        yield make("by_row_norm", "clip_by_row_norm", [given_rows], [by_row], 2.0)

        if kind not in ("zero", "empty"):  # without x, the global norm would not be rational
            # the squares of the dense leaf sum to 48; with the 16 of x, the global norm is 8
            wide: Rows = [(3, -3, 3, 3), (2, -2, 2, 0)]
            both = [x, array(dtype, wide)]
            given = upstream_for([*ids, 0, 0], [*rows, *wide], rng)
            parts = [array(dtype, given[: len(ids)]), array(dtype, given[len(ids) :])]
            yield make("global_norm", "global_norm", both, [one])
            yield make("by_global_norm", "clip_by_global_norm", both, parts, 2.0)
    dense = array("float32", list(TABLE.values()))
    upstream = array("float32", upstream_for([0] * 4, list(TABLE.values()), random.Random("gradients/dense")))
    yield case("gradients/by_norm-clipped/dense", "gradient", "clip_by_norm", [dense], [upstream], 1.0)
