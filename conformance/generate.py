"""Write the golden vectors: ``python -m islices.conformance.generate [FOLDER]``.

Inputs are small numbers from a seeded generator, chosen so that rounding happens but subnormal numbers do not. The
expected results come only from `islices.conformance.oracle`. Another run writes the same bytes.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from islices.conformance import errors_embedding, errors_optim  # noqa: F401  (they add rows to the table of errors)
from islices.conformance.data import NONFINITE, Array, Case, Slices, case_to_json
from islices.conformance.errors import error_cases
from islices.conformance.generate_embedding import embedding_cases
from islices.conformance.generate_gradients import gradient_cases
from islices.conformance.generate_optim import optimizer_cases
from islices.conformance.generate_unitwise import unitwise_cases
from islices.conformance.oracle import FORMATS, SCATTER, round_to
from islices.conformance.oracles import ORACLES

FLOATS = tuple(FORMATS)
INDEX_TYPES = ("int32", "int64")
ROW_SHAPES = ((3,), (), (2, 2))
#: name -> (n, duplicates, sorted): every list of indices crosses these
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
#: those to which `some_cross` gives rows of one shape alone: compilers compile for each
ONE_SHAPE = ("empty", "one", "unsorted-unique", "unsorted-duplicates", "unsorted-cancelling")


def number(rng: random.Random, dtype: str) -> float | int:
    """Return a number of either sign, with an absolute value from 1/16 to 16, that uses every bit of its type."""
    if dtype.startswith("int"):
        return rng.randint(-1000, 1000)
    size = Fraction(rng.getrandbits(60) | 1, 2**60) * 2 ** rng.randint(-2, 4) + Fraction(1, 16)
    return round_to(size if rng.random() < 0.5 else -size, dtype)


def slices(layout: str, dtype: str, index_type: str, row_shape: tuple[int, ...], seed: str) -> Slices:
    rng = random.Random(f"{layout}/{dtype}/{row_shape}/{seed}")
    n, kind, is_sorted = LAYOUTS[layout]
    ids = rng.sample(range(ROWS), n) if kind == "unique" else [rng.choice((0, 3, 4, 7, 9)) for _ in range(n)]
    width = math.prod(row_shape)
    data = [[number(rng, dtype) for _ in range(width)] for _ in range(n)]
    if kind == "cancelling":  # each row is followed, somewhere, by its negative; some rows vanish altogether
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


def dense(dtype: str, shape: tuple[int, ...], seed: str) -> Array:
    rng = random.Random(f"dense/{dtype}/{shape}/{seed}")
    return Array(dtype, shape, [number(rng, dtype) for _ in range(math.prod(shape))])


def case(id: str, clause: str, op: str, *args: Any, flags: tuple[str, ...] = (), **kwargs: Any) -> Case:
    return Case(id, clause, op, list(args), kwargs, ORACLES[op](*args, **kwargs), list(flags))


# ---------------------------------------------------------------------- inputs crossed
def full_cross(seed: str) -> Iterator[tuple[str, Slices]]:
    for dtype, index_type, row_shape, layout in itertools.product(FLOATS, INDEX_TYPES, ROW_SHAPES, LAYOUTS):
        name = f"{layout}/{dtype}/{index_type}/rank{len(row_shape)}"
        yield name, slices(layout, dtype, index_type, row_shape, seed)


def some_cross(seed: str) -> Iterator[tuple[str, Slices]]:
    """Yield every layout with every dtype. Index types and row shapes alternate."""
    for k, (layout, dtype) in enumerate(itertools.product(LAYOUTS, FLOATS)):
        row_shape = ROW_SHAPES[0] if layout in ONE_SHAPE else ROW_SHAPES[k % 3]
        index_type = INDEX_TYPES[(k + k // 4) % 2]
        name = f"{layout}/{dtype}/{index_type}/rank{len(row_shape)}"
        yield name, slices(layout, dtype, index_type, row_shape, seed)


# ---------------------------------------------------------------------- the groups
def densify() -> Iterator[Case]:
    for name, s in full_cross("densify"):
        yield case(f"densify/to_dense/{name}", "5", "to_dense", s)
    for dtype in ("int32", "int64"):
        s = slices("unsorted-duplicates", dtype, "int64", (3,), "ints")
        yield case(f"densify/to_dense/integers/{dtype}", "5", "to_dense", s)
    named = Slices(
        Array("float32", (5, 4), [float(v) for v in range(1, 21)]), Array("int64", (5,), [6, 1, 1, 4, 8]), (10, 4)
    )
    yield case("densify/to_dense/named-6-1-1-4-8", "5", "to_dense", named)
    capped = Slices(Array("float32", (5, 4), [min(v, 10.0) for v in named.values.data]), named.indices, (10, 4))
    expected = ORACLES["to_dense"](capped)
    yield Case("densify/replace/named-cap-values", "1", "replace_values", [named, capped.values], {}, expected)
    yield case("densify/to_dense/no-rows", "5", "to_dense", slices_of("float32", [], [], (0, 3)))
    yield case("densify/to_dense/dense-as-it-is", "5", "to_dense", dense("float32", (4, 2), "d"))
    yield case("densify/to_dense/empty-row-shape", "5", "to_dense", slices_of("float32", [[], []], [1, 1], (3, 0)))


def slices_of(dtype: str, rows: list[list[float]], ids: list[int], shape: tuple[int, ...], **flags: bool) -> Slices:
    data = [round_to(v, dtype) for row in rows for v in row]
    return Slices(Array(dtype, (len(ids), *shape[1:]), data), Array("int64", (len(ids),), ids), shape, **flags)


def coalesce() -> Iterator[Case]:
    for name, s in full_cross("coalesce"):
        yield case(f"coalesce/{name}", "4", "coalesce", s)
    for dtype in ("int32", "int64"):
        s = slices("unsorted-duplicates", dtype, "int64", (3,), "ints")
        yield case(f"coalesce/integers/{dtype}", "4", "coalesce", s)
    # sums where every other order of addition gives another result (clause 3)
    order = [[1e8], [1.0], [-1e8], [1.0]]  # left to right 1, in pairs 0
    yield case("coalesce/left-fold/float32", "3", "coalesce", slices_of("float32", order, [2] * 4, (4, 1)))
    wide = [[2.0**53], [1.0], [1.0], [-(2.0**53)]]
    yield case("coalesce/left-fold/float64", "3", "coalesce", slices_of("float64", wide, [2] * 4, (4, 1)))
    for dtype, n in (("float16", 4096), ("bfloat16", 600)):  # sums in the type itself stop at 2048 and 256
        ones = slices_of(dtype, [[1.0]] * n, [1] * n, (3, 1))
        yield case(f"coalesce/saturation/{dtype}", "3", "coalesce", ones)
    rng = random.Random("long run")
    long = slices_of("float32", [[number(rng, "float32")] for _ in range(300)], [k % 2 for k in range(300)], (4, 1))
    yield case("coalesce/left-fold/long-run", "3", "coalesce", long)
    scalars = Slices(Array("float32", (300,), list(long.values.data)), long.indices, (4,))
    yield case("coalesce/left-fold/long-run-scalars", "3", "coalesce", scalars)
    special = [[math.inf], [-math.inf], [math.nan], [1.0], [math.inf], [2.0]]
    yield case("coalesce/nonfinite", "3", "coalesce", slices_of("float32", special, [0, 0, 1, 1, 2, 2], (4, 1)))
    sorted_once = slices_of("float32", [[1.0], [2.0]], [1, 3], (4, 1), coalesced=True)
    yield case("coalesce/idempotent", "4", "coalesce", sorted_once)
    holes = slices_of("float32", [[1.0], [5.0], [2.0], [4.0]], [1, 4, 1, 0], (4, 1), padded=True)
    yield case("coalesce/padded", "2", "coalesce", holes)
    for op in ("to_dense", "norm"):
        yield case(f"coalesce/padded-{op}", "2", op, holes)
    far = slices_of("float32", [[1.0], [2.0], [3.0]], [999_999_999, 5, 999_999_999], (1_000_000_000, 1))
    yield case("coalesce/huge-table", "4", "coalesce", far)
    farther = slices_of("float32", [[1.0], [2.0], [3.0]], [2**40, 5, 2**40], (2**41, 1))
    yield case("coalesce/huge-table-int64", "4", "coalesce", farther)


def algebra() -> Iterator[Case]:
    for name, s in some_cross("algebra"):
        dtype, row_shape = s.values.dtype, s.values.shape[1:]
        yield case(f"algebra/scale/{name}", "6", "scale", s, 1 / 3)
        other = slices("unsorted-duplicates", dtype, s.indices.dtype, row_shape, "other")
        yield case(f"algebra/add-sparse/{name}", "6", "add", s, other)
        yield case(f"algebra/add-dense/{name}", "6", "add", s, dense(dtype, (ROWS, *row_shape), "add"))
        yield case(f"algebra/concat/{name}", "6", "concat", [s, other, s])
        yield case(f"algebra/keep_rows/{name}", "13", "keep_rows", s, Array("int64", (3,), [4, 0, 4]))
        mask = Array("bool", (ROWS,), [r % 3 != 0 for r in range(ROWS)])
        yield case(f"algebra/drop_rows/{name}", "13", "drop_rows", s, mask)
    d = dense("float32", (ROWS, 3), "only")
    yield case("algebra/scale/dense", "6", "scale", d, -1)
    yield case("algebra/scale/integers", "6", "scale", slices("unsorted-duplicates", "int32", "int32", (3,), "i"), 3)
    yield case("algebra/keep_rows/dense", "13", "keep_rows", d, Array("int64", (2,), [9, 1]))
    yield case("algebra/drop_rows/dense", "13", "drop_rows", d, Array("int64", (2,), [9, 1]))
    s = slices("unsorted-duplicates", "float32", "int32", (3,), "tree")
    yield case("algebra/add/tree", "6", "add", [s, None, d], [s, None, d])
    yield case("algebra/add/dicts-in-another-order", "6", "add", {"s": s, "d": d}, {"d": d, "s": s})
    zero_d = dense("float32", (), "0-d")
    yield case("algebra/scale/0-d", "6", "scale", zero_d, 3)
    yield case("algebra/add/0-d", "6", "add", zero_d, zero_d)
    yield case("algebra/scale/0-d-bfloat16", "6", "scale", dense("bfloat16", (), "0-d"), 3)
    yield case("algebra/add/none-adds-nothing", "6", "add", [s, None, d], [None, d, d])
    # a frequent fault of readers of decimal text: the neighbour of the float64 that 17 digits name
    yield case("algebra/scale/float64-17-digits", "6", "scale", dense("float64", (4, 2), "digits"), 0.16969931385370499)
    for k, dtype in enumerate(FLOATS):
        x = slices("unsorted-duplicates", dtype, INDEX_TYPES[k % 2], (3,), "divide")
        # by 3 and 49 a product with the rounded reciprocal differs; 0.1 is rounded to the values' type first
        for c in (3.0, 49.0, -0.1):
            yield case(f"algebra/divide/{dtype}/{c}", "6", "divide", x, c)
        divisor = Array("float64" if dtype == "float64" else "float32", (), [3.0])
        yield case(f"algebra/divide/{dtype}/0-d", "6", "divide", x, divisor)
    special = slices_of("float32", [[0.0], [1.0], [-1.0], [math.inf], [math.nan]], [0, 1, 2, 2, 0], (3, 1))
    for c in (0.0, 1e300):  # the second is infinite in float32
        yield case(f"algebra/divide/special/{c}".replace("+", ""), "6", "divide", special, c)
    wide = slices("unsorted-duplicates", "float32", "int64", (3,), "wide")
    for label, pair in (("wide-last", (s, wide)), ("wide-first", (wide, s))):
        yield case(f"algebra/concat/index-types-{label}", "6", "concat", list(pair))
        yield case(f"algebra/add/index-types-{label}", "6", "add", *pair)


def norms() -> Iterator[Case]:
    for name, s in some_cross("norms"):
        yield case(f"norms/norm2/{name}", "7", "norm", s)
        yield case(f"norms/norm1/{name}", "7", "norm", s, ord=1)
        yield case(f"norms/norminf/{name}", "7", "norm", s, ord="inf")
        d = dense(s.values.dtype, (4, 3), "norms")
        yield case(f"norms/rows/{name}", "7", "row_norms", s)
        yield case(f"norms/top_k/{name}", "13", "top_k_rows", s, 2)
        yield case(f"norms/global/{name}", "8", "global_norm", {"a": s, "b": [d, None, (s,)]})
    clause = "7"
    pair = slices_of("float32", [[3.0, 0.0], [0.0, 4.0], [3.0, 0.0]], [1, 2, 1], (4, 2))
    yield case("norms/norm2/duplicates-by-hand", clause, "norm", pair)
    yield case("norms/norm2/float32-1e20", clause, "norm", slices_of("float32", [[1e20] * 4], [0], (2, 4)))
    yield case("norms/norm2/float64-1e200", clause, "norm", slices_of("float64", [[1e200] * 4], [0], (2, 4)))
    yield case("norms/norm2/float64-1e-200", clause, "norm", slices_of("float64", [[3e-200, 4e-200]], [0], (2, 2)))
    yield case("norms/norm1/float64-large", clause, "norm", slices_of("float64", [[1e307, 3e306]], [0], (2, 2)), ord=1)
    # a half-way case of the float64 sum: any sum that rounds earlier than the last step loses it
    tie = [[2.0**27, 1.0, 2.0**-27]] * 3
    yield case("norms/norm2/float64-tie", clause, "norm", slices_of("float64", tie, [0, 1, 2], (4, 3)))
    one_ulp = [[1.0] + [2.0**-27] * 3]
    yield case("norms/norm2/float64-one-ulp", clause, "norm", slices_of("float64", one_ulp, [0], (2, 4)))
    # in float32 the small squares vanish one by one; together they count
    small = slices_of("float32", [[4096.0]] + [[1.0]] * 299, list(range(300)), (300, 1))
    yield case("norms/norm2/float32-many-small", clause, "norm", small)
    for label, bad in (("nan", [math.nan, 1.0]), ("inf", [math.inf, 1.0]), ("both", [-math.inf, math.nan])):
        yield case(f"norms/norm2/nonfinite-{label}", clause, "norm", slices_of("float32", [bad], [0], (2, 2)))
    for ord in (1, "inf"):
        yield case(f"norms/rows/ord-{ord}", clause, "row_norms", pair, ord=ord)
    yield case("norms/rows/dense", clause, "row_norms", dense("bfloat16", (4, 3), "rows"))
    ties = slices_of("float32", [[3.0], [-3.0], [math.nan], [math.inf], [0.0]], [5, 1, 4, 2, 0], (6, 1))
    for k in (0, 1, 3, 9):
        yield case(f"norms/top_k/ties-{k}", "13", "top_k_rows", ties, k)
    zeros = slices_of("float32", [[0.0], [0.0]], [0, 1], (3, 1))
    yield case("norms/norm2/zeros", clause, "norm", zeros)
    yield case("norms/norm2/no-rows", clause, "norm", slices_of("float32", [], [], (0, 2)))
    mixed = [slices_of("float16", [[3.0]], [0], (2, 1)), slices_of("float64", [[4.0]], [0], (2, 1))]
    yield case("norms/global/mixed-dtypes", "8", "global_norm", mixed)
    yield case("norms/global/mixed-dtypes-wide-first", "8", "global_norm", mixed[::-1])
    for label, size in EXTREMES.items():
        yield case(f"norms/global/mixed-dtypes-{label}", "8", "global_norm", extreme(size))


def midpoints() -> Iterator[Case]:
    """Return sums on the midpoint of two float64 numbers, or so near to it that a bit hundreds of places below
    decides."""
    far = 2.0**-200
    equal = slices_of("float64", [[0.9999999999999998] * 7], [0], (2, 7))
    yield case("norms/midpoint/equal", "7", "norm", equal)
    yield case("norms/midpoint/clipped", "10", "clip_by_norm", equal, 2.64575131106459)
    on, above = ([[3.0, 2.0**-25, x]] for x in (0.0, far))
    for label, rows in (("on", on), ("above", above)):
        yield case(f"norms/midpoint/{label}", "7", "norm", slices_of("float64", rows, [0], (2, 3)))
        sizes = slices_of("float64", [[1.0, 2.0**-53, rows[0][2]]], [1], (2, 3))
        yield case(f"norms/midpoint/sizes-{label}", "7", "norm", sizes, ord=1)
    narrow = slices_of("float32", [[2.0**-25, 2.0**-100]], [0], (2, 2))
    spread = {"a": slices_of("float64", [[3.0]], [0], (2, 1)), "b": narrow}
    yield case("norms/midpoint/global", "8", "global_norm", spread)
    yield case("norms/midpoint/rows", "10", "clip_by_row_norm", slices_of("float64", on + above, [1, 0], (2, 3)), 3.0)


#: Far from what the squares of float64 can hold.
EXTREMES = {"huge": 1e150, "tiny": 1e-150, "large": 1e121}


def extreme(size: float) -> list[Any]:
    """Return a float64 gradient of that size and an ordinary float32 gradient."""
    return [Array("float32", (2,), [1.5, 0.25]), slices_of("float64", [[size], [size]], [1, 1], (3, 1))]


def clipping() -> Iterator[Case]:
    for label, size in EXTREMES.items():
        id = f"clipping/by_global_norm/mixed-dtypes-{label}"
        yield case(id, "10", "clip_by_global_norm", extreme(size), 0.5)
    for name, s in some_cross("clipping"):
        d = dense(s.values.dtype, (4, 3), "clipping")
        yield case(f"clipping/by_value/{name}", "9", "clip_by_value", s, -1.3, 2.1)
        yield case(f"clipping/by_norm/{name}", "10", "clip_by_norm", s, 1.7)
        yield case(f"clipping/by_row_norm/{name}", "10", "clip_by_row_norm", s, 3.1)
        yield case(f"clipping/by_global_norm/{name}", "10", "clip_by_global_norm", [s, None, {"d": d}], 5.0)
        yield case(f"clipping/unchanged/{name}", "10", "clip_by_norm", s, 1e4)
    s = slices("unsorted-duplicates", "float32", "int64", (3,), "limits")
    d = dense("float32", (ROWS, 3), "limits")
    for limit in (0.0, math.inf):
        yield case(f"clipping/by_norm/max-{limit}", "10", "clip_by_norm", s, limit)
        yield case(f"clipping/by_global_norm/max-{limit}", "10", "clip_by_global_norm", [s, d], limit)
        yield case(f"clipping/by_row_norm/max-{limit}", "10", "clip_by_row_norm", s, limit)
    high, low = Array("float32", (), [2.0]), Array("float32", (), [-0.25])  # traced where the rest is
    yield case("clipping/by_norm/limit-array", "10", "clip_by_norm", s, high)
    yield case("clipping/by_row_norm/limit-array", "10", "clip_by_row_norm", s, high)
    yield case("clipping/by_global_norm/limit-array", "10", "clip_by_global_norm", [s, d], high)
    yield case("clipping/by_value/bound-arrays", "9", "clip_by_value", s, low, high)
    exact = slices_of("float32", [[3.0, 4.0]], [1], (3, 2))
    yield case("clipping/by_norm/equal-is-unchanged", "10", "clip_by_norm", exact, 5.0)
    just_above = math.nextafter(5.0, 0.0)  # in float64 the norm 5 exceeds it; in float32 they are equal
    yield case("clipping/by_norm/decided-in-float64", "7", "clip_by_norm", exact, just_above)
    cancel = slices_of("float32", [[30.0], [-30.0], [1.0]], [1, 1, 0], (3, 1))
    yield case("clipping/by_norm/cancelling-is-unchanged", "10", "clip_by_norm", cancel, 2.0)
    nan_value = slices_of("float32", [[math.nan, 9.0, -9.0]], [1], (3, 3))
    yield case("clipping/by_value/nan-stays", "9", "clip_by_value", nan_value, -1.0, 1.0)
    yield case("clipping/by_value/dense-any-bounds", "9", "clip_by_value", d, 0.5, 2.0)
    for label, bad in (("nan", math.nan), ("inf", math.inf)):
        x = slices_of("float32", [[bad, 1.0], [2.0, 3.0], [0.0, 5.0]], [1, 0, 1], (3, 2))
        for named, mode in NONFINITE:
            for limit in (1.0, 0.0, math.inf):
                id = f"clipping/nonfinite/{label}-{named}-max-{limit}"
                yield case(id, "10", "clip_by_norm", x, limit, nonfinite=mode)
            id = f"clipping/nonfinite-global/{label}-{named}"
            yield case(id, "10", "clip_by_global_norm", [x, d], 1.0, nonfinite=mode)
            id = f"clipping/nonfinite-rows/{label}-{named}"
            yield case(id, "10", "clip_by_row_norm", x, 1.0, nonfinite=mode)
    yield case("clipping/by_norm/leaves-by-their-own", "10", "clip_by_norm", [s, None, d], 2.0)
    yield case("clipping/by_norm/0-d", "10", "clip_by_norm", dense("float32", (), "0-d"), 0.01)
    yield case("clipping/by_value/0-d", "9", "clip_by_value", dense("float32", (), "0-d"), -0.01, 0.01)
    yield case("clipping/by_row_norm/dense", "10", "clip_by_row_norm", d, 4.0)


def padding() -> Iterator[Case]:
    def embedding_grad(id: str, upstream: Array, ids: Array, **options: Any) -> Case:
        return case(f"padding/embedding_grad/{id}", "12", "embedding_grad", upstream, ids, 7, **options)

    pair = Array("int64", (2, 5), [1, 1, 2, 6, 0, 1, 5, 5, 0, 0])
    real = Array("bool", (2, 5), [i != 0 for i in pair.data])
    for dtype in FLOATS:
        up = dense(dtype, (2, 5, 3), "pair")
        for label, options in (
            ("plain", {}), ("padding_idx", {"padding_idx": 0}), ("negative", {"padding_idx": -7}), ("mask", {"mask": real}),
            ("frequency", {"scale_by_freq": True}), ("padding-frequency", {"padding_idx": 0, "scale_by_freq": True}),
            ("mask-frequency", {"mask": real, "scale_by_freq": True}), ("last", {"padding_idx": -1}),
        ):  # fmt: skip
            yield embedding_grad(f"pair-{label}/{dtype}", up, pair, **options)
    nan_up = Array("float32", (2, 5, 1), [math.nan if i == 0 else float(k) for k, i in enumerate(pair.data)])
    yield embedding_grad("mask-hides-nan", nan_up, pair, mask=real)
    yield embedding_grad("no-ids", Array("float32", (0, 3), []), Array("int32", (0,), []), padding_idx=0)
    yield embedding_grad("0-d-ids", dense("float32", (2,), "s"), Array("int32", (), [3]))
    yield embedding_grad("scalar-rows", dense("float32", (4,), "r"), Array("int32", (4,), [3, 1, 3, 0]), padding_idx=3)
    yield embedding_grad("all-padding", dense("float32", (2, 3), "a"), Array("int32", (2,), [0, 0]), padding_idx=0)
    for name, s in some_cross("padding"):
        yield case(f"padding/drop_padding/{name}", "12", "drop_padding", s, -1)
        yield case(f"padding/scale_by_frequency/{name}", "12", "scale_by_frequency", s)
    yield case("padding/drop_padding/dense", "12", "drop_padding", dense("float32", (4, 2), "p"), 2)


def updates() -> Iterator[Case]:
    for name, s in some_cross("updates"):
        dtype = s.values.dtype
        table = dense(dtype, tuple(s.dense_shape), "updates")
        for op in SCATTER:
            x = factors(s) if op in ("mul", "div") else s
            yield case(f"updates/{op}/{name}", "15", f"scatter_{op}", table, x)
    for dtype, op in itertools.product(("int32", "int64"), SCATTER[:-1]):
        s = slices("unsorted-duplicates", dtype, "int64", (3,), "integers")
        s = factors(s) if op == "mul" else s
        table = dense(dtype, (ROWS, 3), "integers")
        yield case(f"updates/{op}/integers/{dtype}", "15", f"scatter_{op}", table, s)
    special = slices_of("float32", [[math.nan], [1.0], [math.inf], [-math.inf]], [0, 0, 1, 1], (3, 1))
    table = Array("float32", (3, 1), [2.0, math.nan, math.inf])
    for op in ("add", "min", "max", "update"):
        yield case(f"updates/{op}/nonfinite", "15", f"scatter_{op}", table, special)
    ones = slices_of("bfloat16", [[1.0]] * 600, [1] * 600, (3, 1))
    zeros = Array("bfloat16", (3, 1), [0.0] * 3)
    yield case("updates/add/saturation", "15", "scatter_add", zeros, ones)


def factors(s: Slices) -> Slices:
    """Return the same slices with values near 1, so that products of many values stay in range."""
    kind = s.values.dtype
    near = [-1 if v < 0 else 2 for v in s.values.data] if kind.startswith("int") else [
        round_to(Fraction(1) + Fraction(v) / 64, kind) for v in s.values.data
    ]  # fmt: skip
    return Slices(Array(kind, s.values.shape, near), s.indices, s.dense_shape)


def conversion() -> Iterator[Case]:
    for dtype in FLOATS:
        x = dense(dtype, (5, 2), "from_dense")
        x.data[2:4] = [0.0, -0.0]
        yield case(f"conversion/from_dense/{dtype}", "1", "from_dense", x, flags=("eager",))
    x = Array("float32", (3, 1), [math.nan, 0.0, 1.0])
    yield case("conversion/from_dense/nan-is-stored", "1", "from_dense", x, flags=("eager",))


def write(folder: Path) -> None:
    makers = {
        "densify": densify, "coalesce": coalesce, "algebra": algebra, "norms": lambda: itertools.chain(norms(), midpoints()),
        "clipping": lambda: itertools.chain(clipping(), unitwise_cases(case, some_cross, dense, slices)),
        "gradients": lambda: gradient_cases(case, FLOATS, INDEX_TYPES), "padding": padding, "embedding": lambda: embedding_cases(case, dense), "updates": updates,
        "optimizers": lambda: optimizer_cases(case, dense, slices), "conversion": conversion,
        "errors": error_cases,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for group in makers:
        cases = [case_to_json(c) for c in makers[group]()]
        ids = [c["id"] for c in cases]
        if len(set(ids)) != len(ids):
            raise ValueError(f"{group}: ids that occur twice: {sorted({i for i in ids if ids.count(i) > 1})}")
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        (folder / f"{group}.json").write_text(f'{{"format":1,"group":"{group}","cases":[\n{lines}\n]}}\n', "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "vectors")
