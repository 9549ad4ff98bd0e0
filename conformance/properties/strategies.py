"""Draw the arguments of laws with Hypothesis, as plain data.

Indices are int32 or int64, sorted or unsorted, and unique or repeated. Repeated rows may cancel, and slices may have no
slots. Rows have 0 to 3 dimensions. *Exact* values are small integers, whose sums are exact in every type. *Wild* values
also include fractions, huge, tiny and infinite numbers, and NaN.

All finite values and their sums are multiples of a step above the smallest normal number. So no sum is subnormal;
TensorFlow and XLA would flush a subnormal sum to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from islices.conformance.data import EPS, Array, Shape, Slices
from islices.conformance.oracle import round_to
from islices.conformance.oracle_optim import OPTIMIZERS

Draw = Any  # the function `draw` that @st.composite passes
Arguments = dict[str, Any]
ROWS = 7
#: The numbers of slots and the shapes of rows. There are only a few, because compilers compile again for each shape.
COUNTS = (1, 0, 2, 5, 20)
ROW_SHAPES: tuple[Shape, ...] = ((), (3,), (2, 2), (2, 1, 2))
DTYPES = ("float32", "float64", "float16", "bfloat16")
FACTORS = (2.0, 0.5, -1.0, 0.3, -1 / 3, 7.0)
LIMITS = (1.0, 0.5, 1.7, 3.0, 11.0, 1e6)

EXACT = [0.0, *(float(s * k) for k in range(1, 9) for s in (1, -1))]
#: Numbers with a full mantissa. The product of two of them is within the normal range.
FRACTIONS = [1 / 3, -0.7, 1.1, -2.3, 5.7, 0.9]
FRACTIONS16 = [0.75, -1.375, 3.140625, -0.953125, 5.6875, 1.203125]
NONFINITE = [math.inf, -math.inf, math.nan]
EXTREME: dict[str, list[float]] = {
    "float16": [2.0**-9, -(2.0**-9), 60000.0, -60000.0],
    "bfloat16": [2.0**-100, -(2.0**-100), 3e38, -3e38],
    "float32": [2.0**-100, -(2.0**-100), 3e38, -3e38],
    "float64": [2.0**-900, -(2.0**-900), 1.7e308, -1.7e308],
}


class Kind(NamedTuple):
    """The properties that slices of one law share: dtype, index type, shape of a row, and number of slots."""

    dtype: str
    index_type: str
    row_shape: Shape
    n: int

    @property
    def shape(self) -> Shape:
        return (ROWS, *self.row_shape)


class Optimizer(NamedTuple):
    name: str
    hyper: dict[str, Any]


def kinds(*dtypes: str) -> st.SearchStrategy[Kind]:
    return st.builds(
        Kind,
        st.sampled_from(dtypes or DTYPES),
        st.sampled_from(("int64", "int32")),
        st.sampled_from(ROW_SHAPES),
        st.sampled_from(COUNTS),
    )


# ---------------------------------------------------------------------- numbers
def exact(dtype: str) -> list[float]:
    """Return integers so small that sums of them are exact in every dtype."""
    return EXACT


def moderate(dtype: str) -> list[float]:
    """Return finite numbers whose sums, squares and products are in the normal range."""
    fractions = FRACTIONS16 if dtype == "float16" else FRACTIONS
    return EXACT[:5] + [round_to(x, dtype) for x in fractions]


def wild(dtype: str) -> list[float]:
    """Return numbers of all sizes, infinities and NaN."""
    return [*moderate(dtype), *(round_to(x, dtype) for x in EXTREME[dtype]), *NONFINITE]


def unmeasured(dtype: str) -> list[float]:
    """Return numbers whose norm is NaN, infinite, or of moderate size."""
    return [*moderate(dtype), *NONFINITE]


def number_list(draw: Draw, pool: list[float], size: int) -> list[float]:
    return draw(st.lists(st.sampled_from(pool), min_size=size, max_size=size))  # type: ignore[no-any-return]


def array(draw: Draw, kind: Kind, numbers: Any, shape: Shape | None = None) -> Array:
    """Draw a dense array. By default, the array has the shape of the table."""
    shape = kind.shape if shape is None else shape
    return Array(kind.dtype, shape, number_list(draw, numbers(kind.dtype), math.prod(shape)))


# ---------------------------------------------------------------------- slices
def slices(draw: Draw, kind: Kind, numbers: Any, *, coalesced: bool = False) -> Slices:
    n = min(kind.n, ROWS) if coalesced else kind.n
    spread = draw(st.sampled_from((ROWS, 1, 3)))
    layout = draw(st.sampled_from(("any", "sorted", "unique", "cancelling")))
    if coalesced or (layout == "unique" and n <= ROWS):
        ids = draw(st.lists(st.integers(0, ROWS - 1), min_size=n, max_size=n, unique=True))
    else:
        ids = draw(st.lists(st.integers(0, spread - 1), min_size=n, max_size=n))
    if coalesced or layout == "sorted":
        ids = sorted(ids)
    width = math.prod(kind.row_shape)
    data = number_list(draw, numbers(kind.dtype), n * width)
    if layout == "cancelling" and n > 1 and not coalesced:
        data[width : 2 * width] = [-v for v in data[:width]]
        ids[1] = ids[0]
    return Slices(
        Array(kind.dtype, (n, *kind.row_shape), data), Array(kind.index_type, (n,), ids), kind.shape, coalesced
    )


def permuted(draw: Draw, s: Slices, *, keep_order: bool = False) -> Slices:
    """Draw the slices in a random order. If `keep_order` is True, the duplicates of a row stay in their order."""
    order = draw(st.permutations(range(len(s.indices.data))))
    if keep_order:
        places: dict[int, list[int]] = {}
        for k, i in enumerate(s.indices.data):
            places.setdefault(i, []).append(k)
        turns = {i: iter(ks) for i, ks in places.items()}
        order = [next(turns[s.indices.data[k]]) for k in order]
    return s.at(order)


def row_numbers(draw: Draw) -> Array:
    """Draw row numbers in any order, possibly with duplicates."""
    ids = draw(st.lists(st.integers(0, ROWS - 1), max_size=4))
    return Array("int64", (len(ids),), ids)


def optimizers() -> st.SearchStrategy[Optimizer]:
    return st.sampled_from([Optimizer(*entry) for entry in OPTIMIZERS.values()])


def given(make: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return the strategy for a function `make(draw)`, which draws the arguments of a law by name."""
    return st.composite(make)()


# ---------------------------------------------------------------------- arguments of laws
def one(numbers: Any) -> Callable[[Draw], Arguments]:
    return some(1, numbers)


def some(count: int, numbers: Any) -> Callable[[Draw], Arguments]:
    """Return a function that draws `count` slices of one kind, named x, y and z."""

    def make(draw: Draw) -> Arguments:
        kind = draw(kinds())
        return {name: slices(draw, kind, numbers) for name in "xyz"[:count]}

    return make


def with_option(make: Callable[[Draw], Arguments], **options: Any) -> Callable[[Draw], Arguments]:
    """Return a function that draws what `make` draws, and also one of the listed values of each option."""
    return lambda draw: {**make(draw), **{name: draw(st.sampled_from(pool)) for name, pool in options.items()}}


def with_rows(make: Callable[[Draw], Arguments]) -> Callable[[Draw], Arguments]:
    return lambda draw: {**make(draw), "rows": row_numbers(draw)}


def table_and_slices(numbers: Any) -> Callable[[Draw], Arguments]:
    def make(draw: Draw) -> Arguments:
        kind = draw(kinds())
        return {"table": array(draw, kind, numbers), "x": slices(draw, kind, numbers)}

    return make


def in_another_order(numbers: Any, *, keep_order: bool = False) -> Callable[[Draw], Arguments]:
    def make(draw: Draw) -> Arguments:
        x = slices(draw, draw(kinds()), numbers)
        return {"x": x, "y": permuted(draw, x, keep_order=keep_order)}

    return make


def rounding(draw: Draw) -> Arguments:
    """Draw slices x, the same slices y in another order, slices with the absolute values, and the factor of the bound
    in clause 20."""
    drawn = in_another_order(moderate)(draw)
    x = drawn["x"]
    dtype, n = x.values.dtype, len(x.indices.data)
    sizes = Slices(Array(dtype, x.values.shape, [abs(v) for v in x.values.data]), x.indices, x.dense_shape)
    narrow = dtype in ("float16", "bfloat16")  # in both orders, sums are computed in float32 and rounded once more
    factor = n * EPS["float32" if narrow else dtype] + (2 * EPS[dtype] if narrow else 0)
    return {**drawn, "sizes": sizes, "factor": factor}


def clipped(draw: Draw) -> Arguments:
    """Draw coalesced slices, a limit, the factor 1 + 2 eps, and the number of ulps by which a second clip may change a
    value.

    With u = eps / 2, a clipped norm is at most (1 + u)^2 max_norm. In float64, the norm is also rounded, so the clipped
    norm is at most (1 + u)^3 max_norm. The factor of the second clip is then at least 1 - 2 u, or 1 - 4 u in float64.
    This factor lowers a value by at most 2 ulps (4 in float64). In 16-bit types, only the product is rounded, by at
    most 1 ulp.
    """
    x = slices(draw, draw(kinds()), moderate, coalesced=True)
    ulps = {"float64": 4, "float32": 2}.get(x.values.dtype, 1)
    return {"x": x, "max_norm": draw(st.sampled_from(LIMITS)), "slack": 1 + 2 * EPS[x.values.dtype], "ulps": ulps}


def shards(draw: Draw) -> Arguments:
    return shards_of(draw, slices(draw, draw(kinds()), wild))


def shards_of(draw: Draw, x: Slices) -> Arguments:
    """Draw consecutive parts of the slices x, and return x and the parts."""
    n = len(x.indices.data)
    cuts = sorted(draw(st.lists(st.integers(0, n), max_size=3)))
    bounds = zip([0, *cuts], [*cuts, n], strict=True)
    return {"x": x, "parts": [x.at(range(start, stop)) for start, stop in bounds]}


def looked_up(draw: Draw) -> Arguments:
    """Draw the arguments of embedding_grad: two ids per sample, the gradient of the looked-up rows, and `num_rows`."""
    kind = draw(kinds())
    ids = draw(st.lists(st.integers(0, ROWS - 1), min_size=2 * kind.n, max_size=2 * kind.n))
    shape = (kind.n, 2)
    return {
        "upstream": array(draw, kind, exact, (*shape, *kind.row_shape)),
        "ids": Array(kind.index_type, shape, ids), "num_rows": ROWS,
    }  # fmt: skip


def stepped(draw: Draw) -> Arguments:
    return {**table_and_slices(moderate)(draw), "optimizer": draw(optimizers())}


def some_rows_frozen(draw: Draw) -> Arguments:
    return {**stepped(draw), "rows": row_numbers(draw)}


def table_and_shards(draw: Draw) -> Arguments:
    """Draw a table, slices, and consecutive parts of the slices. All of them are float32 or all are float64, because
    sums in these dtypes need no wider type."""
    kind = draw(kinds("float32", "float64"))
    return {"table": array(draw, kind, wild), **shards_of(draw, slices(draw, kind, wild))}
