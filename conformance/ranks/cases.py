"""Define the cases of all_reduce that every engine runs. A case makes a tree of gradients for each rank.

The trees are plain data that depend only on (rank, size). So every rank can compute the data of all ranks and the
expected result.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from islices.conformance.data import Array, Shape, Slices
from islices.conformance.ranks.plain import WIDE, narrow
from islices.distributed.reduce import Op
from islices.distributed.strategy import Strategy

STRATEGIES: tuple[Strategy, ...] = ("auto", "gather", "ranges")
FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int32", "int64")
ROWS = 40


class Collective(NamedTuple):
    """A case: one call of all_reduce that all ranks make.

    Attributes
    ----------
    id : str
    make : callable (rank, size) -> tree of plain data
    op, strategy : str
    default : bool
        True if the call gets None as its group.
    native : bool
        True if sparse leaves have the framework's type.
    exact : bool
        True if sums are exact in any order.
    wide : bool
        True if the case needs the framework's 64-bit types.
    full : bool
        True if the case belongs only to the full profile.
    """

    id: str
    make: Callable[[int, int], Any]
    op: Op = "sum"
    strategy: Strategy = "auto"
    default: bool = False
    native: bool = False
    exact: bool = False
    wide: bool = False
    full: bool = False
    clause: str = "25"


CASES: list[Collective] = []


class Pair(NamedTuple):
    table: Any
    bias: Any


def case(id: str, make: Callable[..., Any], **fields: Any) -> None:
    """Add a case for each strategy. If ``once`` is True, add a case only for the first strategy."""
    strategies = STRATEGIES[:1] if fields.pop("once", False) else STRATEGIES
    start = f"ranks/{id}/{fields.get('op', 'sum')}"
    CASES.extend(Collective(f"{start}/{name}", make, strategy=name, **fields) for name in strategies)


# ---------------------------------------------------------------------- numbers and indices
def numbers(rng: random.Random, count: int, dtype: str, exact: bool = False) -> list[Any]:
    if dtype in INTEGERS:
        return [rng.randrange(-9, 10) for _ in range(count)]
    if exact:  # eighths: sums of a few dozen of them are exact even in bfloat16
        return [rng.randrange(-4, 5) / 8 for _ in range(count)]
    return [narrow(WIDE[dtype](rng.gauss(0, 1)), dtype) for _ in range(count)]


def array(rng: random.Random, shape: Shape, dtype: str = "float32", exact: bool = False) -> Array:
    return Array(dtype, shape, numbers(rng, math.prod(shape), dtype, exact))


def sparse(
    rng: random.Random, indices: list[int], row: Shape = (3,), dtype: str = "float32",
    index_type: str = "int32", rows: int | None = ROWS, exact: bool = False,
) -> Slices:  # fmt: skip
    values = array(rng, (len(indices), *row), dtype, exact)
    return Slices(values, Array(index_type, (len(indices),), indices), (rows, *row))


def some(rng: random.Random, rows: int = ROWS) -> list[int]:
    return rng.sample(range(rows), min(rows, rng.randrange(5, 12)))


#: layout -> a function of (random generator of the rank, rank) that returns the indices that the rank stores
LAYOUTS: dict[str, Callable[[random.Random, int], list[int]]] = {
    "sorted": lambda rng, rank: sorted(some(rng)),
    "unsorted": lambda rng, rank: some(rng),
    "duplicates": lambda rng, rank: [rng.randrange(12) for _ in range(20 + 3 * rank)],
    "identical": lambda rng, rank: list(range(0, ROWS, 3)),
    "disjoint": lambda rng, rank: [k for k in range(39, -1, -1) if k % 8 == rank],
    "one row": lambda rng, rank: [17],
    "first and last": lambda rng, rank: [ROWS - 1, 0],
    "many": lambda rng, rank: [rng.randrange(ROWS) for _ in range(300)],
    "empty": lambda rng, rank: [],
    "empty on odd ranks": lambda rng, rank: [] if rank % 2 else some(rng),
    "only on the last range": lambda rng, rank: [ROWS - 1 - k for k in range(5)],
}


def seeded(name: str, rank: int) -> random.Random:
    return random.Random(f"{name}, rank {rank}")


def drawn(name: str, layout: str = "duplicates", **options: Any) -> Callable[[int, int], Slices]:
    def make(rank: int, size: int) -> Slices:
        rng = seeded(name, rank)
        return sparse(rng, LAYOUTS[layout](rng, rank), **options)

    return make


for _layout in LAYOUTS:
    case(f"layout/{_layout}", drawn(_layout, _layout))
for _dtype in (*FLOATS, *INTEGERS):
    _wide = "64" in _dtype
    case(f"dtype/{_dtype}", drawn(_dtype, dtype=_dtype), wide=_wide, full=_dtype == "float32")
    if _dtype in FLOATS:
        case(f"dtype/{_dtype}", drawn(_dtype, dtype=_dtype), op="mean", wide=_wide)
case("index/int64", drawn("int64", index_type="int64"), wide=True)
for _row in ((), (2, 3), (0,), (1,)):
    case(f"row/{_row}", drawn(f"row {_row}", row=_row))
case("rows/unknown", drawn("unknown", rows=None))
case("rows/unknown and empty", drawn("unknown", "empty", rows=None))
case("rows/one", lambda rank, size: sparse(seeded("one", rank), [0] * (rank + 1), rows=1))
case("rows/none at all", lambda rank, size: sparse(seeded("none", rank), [], rows=0))
case("rows/fewer than ranks", lambda rank, size: sparse(seeded("fewer", rank), [2, 0, 1, 2], rows=3))


def padded(rank: int, size: int) -> Slices:
    """Return slices with padding slots. On even ranks, the padding slots are the last slots. On odd ranks, padding
    slots are at the beginning and in the middle."""
    ids = [4, 2, 4, ROWS, ROWS] if rank % 2 == 0 else [ROWS, 7, ROWS, 4, 0]
    return replace(sparse(seeded("padded", rank), ids), padded=True)


def coalesced(rank: int, size: int) -> Slices:
    return replace(sparse(seeded("coalesced", rank), list(range(rank, 9 + rank))), coalesced=True)


case("rows/padded", padded)
case("rows/coalesced", coalesced)


def huge(rank: int, size: int) -> Slices:
    rng = seeded("huge", rank)
    ids = [2**40 - 1, 0, *(rng.randrange(2**40) for _ in range(4)), *(rng.choice((5, 2**31, 2**33)) for _ in range(5))]
    return sparse(rng, ids, index_type="int64", rows=2**40)


case("rows/2**40", huge, wide=True)
case("rows/2**31, int32", lambda rank, size: sparse(seeded("edge", rank), [2**31 - 1, rank, 2**31 - 2], rows=2**31),
     wide=True)  # fmt: skip


# ---------------------------------------------------------------------- numbers that cancel, overflow, are none
def column(data: list[float], ids: list[int], dtype: str = "float32") -> Slices:
    """Return slices whose rows have one number each."""
    return Slices(Array(dtype, (len(ids), 1), data), Array("int32", (len(ids),), ids), (ROWS, 1))


def cancelling(rank: int, size: int) -> Slices:
    """Return slices in which row 0 sums to 0 on each rank, and row 1 sums to 0 over any two consecutive ranks. The
    result must contain both rows, even if they are zeros."""
    sign = -1.0 if rank % 2 else 1.0
    return column([1.5, -1.5, sign * 3.25, 0.125], [0, 0, 1, 2 + rank])


def order_shows(rank: int, size: int) -> Slices:
    """Return slices whose float32 sum over three or more ranks depends on the order of the ranks."""
    v = (1e8, 1.0, -1e8, 1.0)[rank % 4]
    return column([v, -v], [3, 1])


def special(dtype: str) -> Callable[[int, int], Slices]:
    inf, nan = float("inf"), float("nan")
    largest = {"float32": 3.0e38, "float16": 65504.0, "bfloat16": 3.0039355e38, "float64": 1.7e308}[dtype]
    largest = narrow(WIDE[dtype](largest), dtype)

    def make(rank: int, size: int) -> Slices:
        first = [inf, -inf, nan, 0.0, -0.0, -0.0, largest, -0.0]
        later = [inf, inf, 1.0, -0.0, -0.0, 0.0, largest, 2.0]
        data = first if rank == 0 else later
        # each rank has a row of -0 that no other rank has, and rank 0 has a second such row
        mine = [10 + rank, 30] if rank == 0 else [10 + rank]
        return column([*data, *[-0.0] * len(mine)], [*range(8), *mine], dtype)

    return make


case("numbers/cancelling", cancelling)
case("numbers/order of ranks", order_shows)
case("numbers/order of ranks", order_shows, op="mean")
for _dtype in FLOATS:
    case(f"numbers/special {_dtype}", special(_dtype), wide="64" in _dtype)


# ---------------------------------------------------------------------- dense arrays
def dense(name: str, shape: Shape, dtype: str = "float32") -> Callable[[int, int], Array]:
    return lambda rank, size: array(seeded(name, rank), shape, dtype)


for _shape in ((), (5,), (1,), (4, 3), (2, 1, 3), (0, 3), (1000,)):
    case(f"dense/{_shape}", dense(f"dense {_shape}", _shape))
    case(f"dense/{_shape}", dense(f"dense {_shape}", _shape), op="mean", once=True)
for _dtype in ("float64", "float16", "bfloat16", *INTEGERS):
    case(f"dense/{_dtype}", dense(_dtype, (7,), _dtype), wide="64" in _dtype)


# ---------------------------------------------------------------------- None, trees
def on_some(make: Callable[[int, int], Any], missing: Callable[[int, int], bool]) -> Callable[[int, int], Any]:
    return lambda rank, size: None if missing(rank, size) else make(rank, size)


_wide_rows = drawn("wide rows", index_type="int64")
MISSING: dict[str, Callable[[int, int], bool]] = {
    "on odd ranks": lambda rank, size: rank % 2 == 1,
    "on rank 0": lambda rank, size: rank == 0,
    "on all but the last": lambda rank, size: rank < size - 1,
}
for _which, _missing in MISSING.items():
    case(f"none/sparse {_which}", on_some(_wide_rows, _missing), wide=True, native=True)
    case(f"none/dense {_which}", on_some(dense("none", (3, 2)), _missing))
    _less = on_some(_wide_rows, _missing)
    case(f"none/by default {_which}", _less, op="mean", default=True, wide=True, native=True, once=True)
    case(f"none/by default in a tree, {_which}", lambda rank, size, less=_less: {"a": None, "b": [less(rank, size)]},
         default=True, wide=True, native=True, once=True)  # fmt: skip
case("none/on all", lambda rank, size: {"a": None, "b": [None]}, once=True)
case("none/by default on all", lambda rank, size: {"a": None, "b": [None]}, default=True, once=True)
case("none/by default and alone on all", lambda rank, size: None, default=True, once=True)
case("none/nothing", lambda rank, size: [], once=True)


def network(rank: int, size: int) -> Any:
    """Return a tree with more leaves than fit in the first message that ranks exchange. Some leaves are None. On odd
    ranks, the keys of the dict are in reverse order."""
    rng = seeded("network", rank)
    layers: list[Any] = []
    for k in range(12):
        table = None if (k + rank) % 5 == 0 else sparse(rng, LAYOUTS["duplicates"](rng, rank), index_type="int64")
        layers.append(Pair(table, array(rng, (k % 4, 2))))
    parts = {
        "layers": layers,
        "scale": array(rng, ()),
        "more": (array(rng, (2, 2), "float16"), None, {"deep": [_wide_rows(rank, size)]}),
    }
    names = list(parts)
    return {name: parts[name] for name in (reversed(names) if rank % 2 else names)}


def mixed(rank: int, size: int) -> Any:
    rng = seeded("mixed", rank)
    leaves = [sparse(rng, some(rng), row, dtype, rows=rows) for row, dtype, rows in itertools.product(
        ((3,), ()), ("float32", "float16"), (ROWS, 5000))]  # fmt: skip
    return [*leaves, array(rng, (3,)), array(rng, (2, 2), "int32")]


case("tree/28 leaves", network, wide=True)
case("tree/28 leaves", network, wide=True, op="mean", once=True)
case("tree/of several dtypes", mixed)
case("native/duplicates", _wide_rows, native=True, wide=True)
case("native/empty on odd ranks", drawn("native", "empty on odd ranks", index_type="int64"), native=True, wide=True)
case("native/mean", _wide_rows, native=True, wide=True, op="mean", once=True)


# ---------------------------------------------------------------------- one batch over any number of ranks
def one_batch(dtype: str = "float32") -> Slices:
    """Return the slices of a whole batch. All sums of the slices' numbers are exact."""
    rng = random.Random("one batch")
    ids = [int(ROWS * rng.random() ** 2) for _ in range(60)]
    return sparse(rng, ids, dtype=dtype, exact=True)


def piece(dtype: str) -> Callable[[int, int], Slices]:
    """Return a function of (rank, size) that makes a rank's part of the batch. The parts have different lengths, and
    the last of four parts is empty."""

    def make(rank: int, size: int) -> Slices:
        whole = one_batch(dtype)
        bounds = [*([0, 7, 25] + [60] * size)[:size], 60]
        return whole.at(range(bounds[rank], bounds[rank + 1]))

    return make


for _dtype in ("float32", "float16", "bfloat16"):
    case(f"one batch/{_dtype}", piece(_dtype), exact=True)
