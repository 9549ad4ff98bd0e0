"""Make golden cases and their inputs. Most inputs are small numbers from a seeded generator."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from islices.conformance.data import Array, Case, Shape, Slices
from islices.conformance.oracle import FORMATS, round_to
from islices.conformance.oracles import ORACLES, clause_of

FLOATS = tuple(FORMATS)
INDEX_TYPES = ("int32", "int64")
ROW_SHAPES = ((3,), (), (2, 2))
#: name -> (number of slots, kind of indices, True if sorted)
LAYOUTS = {
    "empty": (0, "unique", True),
    "one": (1, "unique", True),
    "sorted-unique": (8, "unique", True),
    "unsorted-unique": (8, "unique", False),
    "sorted-duplicates": (24, "duplicates", True),
    "unsorted-duplicates": (24, "duplicates", False),
    "sorted-cancelling": (24, "cancelling", True),
    "unsorted-cancelling": (24, "cancelling", False),
}
ROWS = 10
#: The layouts that `some_cross` uses with only one row shape, because compilers compile again for each shape.
ONE_SHAPE = ("empty", "one", "unsorted-unique", "unsorted-duplicates", "unsorted-cancelling")


def number(rng: random.Random, dtype: str) -> float | int:
    """Return a random float with an absolute value from 1/16 to about 16, or a random integer from -1000 to 1000.
    Floats have random last bits, so that operations round."""
    if dtype.startswith("int"):
        return rng.randint(-1000, 1000)
    size = Fraction(rng.getrandbits(60) | 1, 2**60) * 2 ** rng.randint(-2, 4) + Fraction(1, 16)
    return round_to(size if rng.random() < 0.5 else -size, dtype)


def slices(layout: str, dtype: str, index_type: str, row_shape: Shape, seed: str) -> Slices:
    rng = random.Random(f"{layout}/{dtype}/{row_shape}/{seed}")
    n, kind, is_sorted = LAYOUTS[layout]
    ids = rng.sample(range(ROWS), n) if kind == "unique" else [rng.choice((0, 3, 4, 7, 9)) for _ in range(n)]
    width = math.prod(row_shape)
    data = [[number(rng, dtype) for _ in range(width)] for _ in range(n)]
    if kind == "cancelling":  # each row occurs again with the opposite sign, so some sums are zero
        half = n // 2
        ids[half:] = ids[:half]
        data[half:] = [[-v for v in row] for row in data[:half]]
        order = rng.sample(range(n), n)
        ids, data = [ids[k] for k in order], [data[k] for k in order]
    if is_sorted:
        order = sorted(range(n), key=lambda k: ids[k])
        ids, data = [ids[k] for k in order], [data[k] for k in order]
    flat = list(itertools.chain.from_iterable(data))
    return Slices(Array(dtype, (n, *row_shape), flat), Array(index_type, (n,), ids), (ROWS, *row_shape))


def dense(shape: Shape, seed: str, dtype: str = "float32") -> Array:
    rng = random.Random(f"dense/{dtype}/{shape}/{seed}")
    return Array(dtype, shape, [number(rng, dtype) for _ in range(math.prod(shape))])


def case(id: str, op: str, *args: Any, clause: str = "", eager: bool = False, **kwargs: Any) -> Case:
    """Return a case with its expected result. By default, `clause_of` chooses the clause."""
    clause = clause or clause_of(op, args, kwargs)
    return Case(id, clause, op, list(args), kwargs, ORACLES[op](*args, **kwargs), ["eager"] * eager)


def slices_of(rows: list[list[float]], ids: list[int], shape: Shape, dtype: str = "float32", **flags: bool) -> Slices:
    data = [round_to(v, dtype) for row in rows for v in row]
    return Slices(Array(dtype, (len(ids), *shape[1:]), data), Array("int64", (len(ids),), ids), shape, **flags)


def duplicates(seed: str, dtype: str = "float32", index_type: str = "int64") -> Slices:
    """Return 24 unsorted slices with duplicate rows. Each row contains three numbers."""
    return slices("unsorted-duplicates", dtype, index_type, (3,), seed)


# ---------------------------------------------------------------------- inputs crossed
def full_cross(seed: str) -> Iterator[tuple[str, Slices]]:
    for dtype, index_type, row_shape, layout in itertools.product(FLOATS, INDEX_TYPES, ROW_SHAPES, LAYOUTS):
        name = f"{layout}/{dtype}/{index_type}/rank{len(row_shape)}"
        yield name, slices(layout, dtype, index_type, row_shape, seed)


def some_cross(seed: str) -> Iterator[tuple[str, Slices]]:
    """Yield (name, slices) for every combination of layout and dtype. Each combination has only one index type and one
    row shape."""
    for k, (layout, dtype) in enumerate(itertools.product(LAYOUTS, FLOATS)):
        row_shape = ROW_SHAPES[0] if layout in ONE_SHAPE else ROW_SHAPES[k % 3]
        index_type = INDEX_TYPES[(k + k // 4) % 2]
        name = f"{layout}/{dtype}/{index_type}/rank{len(row_shape)}"
        yield name, slices(layout, dtype, index_type, row_shape, seed)
