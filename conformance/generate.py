"""Write the golden vectors: ``python -m islices.conformance.generate [FOLDER]``.

Most inputs are small numbers from a seeded random generator, and are chosen so that operations round, but no result is
subnormal. The oracles compute the expected results (`islices.conformance.oracles`). For calls with bad input,
`islices.conformance.errors` states the expected errors. Every run writes the same bytes.
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
from islices.conformance.generate_embedding import NAN_UPSTREAM, PAIR, PAIR_OPTIONS, REAL, embedding_cases
from islices.conformance.generate_gradients import gradient_cases
from islices.conformance.generate_optim import optimizer_cases
from islices.conformance.generate_unitwise import unitwise_cases
from islices.conformance.makers import (
    FLOATS,
    INDEX_TYPES,
    ROWS,
    case,
    dense,
    duplicates,
    full_cross,
    number,
    slices,
    slices_of,
    some_cross,
)
from islices.conformance.oracle import SCATTER, round_to
from islices.conformance.oracles import ORACLES


# ---------------------------------------------------------------------- the groups
def densify() -> Iterator[Case]:
    for name, s in full_cross("densify"):
        yield case(f"densify/to_dense/{name}", "to_dense", s)
    for dtype in INDEX_TYPES:
        s = duplicates("ints", dtype)
        yield case(f"densify/to_dense/integers/{dtype}", "to_dense", s)
    named = Slices(
        Array("float32", (5, 4), [float(v) for v in range(1, 21)]), Array("int64", (5,), [6, 1, 1, 4, 8]), (10, 4)
    )
    yield case("densify/to_dense/named-6-1-1-4-8", "to_dense", named)
    capped = Slices(Array("float32", (5, 4), [min(v, 10.0) for v in named.values.data]), named.indices, (10, 4))
    expected = ORACLES["to_dense"](capped)
    yield Case("densify/replace/named-cap-values", "1", "replace_values", [named, capped.values], {}, expected)
    yield case("densify/to_dense/no-rows", "to_dense", slices_of([], [], (0, 3)))
    yield case("densify/to_dense/dense-as-it-is", "to_dense", dense((4, 2), "d"))
    yield case("densify/to_dense/empty-row-shape", "to_dense", slices_of([[], []], [1, 1], (3, 0)))


def coalesce() -> Iterator[Case]:
    for name, s in full_cross("coalesce"):
        yield case(f"coalesce/{name}", "coalesce", s)
    for dtype in INDEX_TYPES:
        s = duplicates("ints", dtype)
        yield case(f"coalesce/integers/{dtype}", "coalesce", s)
    # sums that depend on the order of the additions (clause 3)
    order = [[1e8], [1.0], [-1e8], [1.0]]  # the sum from left to right is 1, in pairs 0
    yield case("coalesce/left-fold/float32", "coalesce", slices_of(order, [2] * 4, (4, 1)), clause="3")
    wide = [[2.0**53], [1.0], [1.0], [-(2.0**53)]]
    yield case("coalesce/left-fold/float64", "coalesce", slices_of(wide, [2] * 4, (4, 1), "float64"), clause="3")
    for dtype, n in (("float16", 4096), ("bfloat16", 600)):  # rounded after each addition, sums stop at 2048 and 256
        ones = slices_of([[1.0]] * n, [1] * n, (3, 1), dtype)
        yield case(f"coalesce/saturation/{dtype}", "coalesce", ones, clause="3")
    rng = random.Random("long run")
    long = slices_of([[number(rng, "float32")] for _ in range(300)], [k % 2 for k in range(300)], (4, 1))
    yield case("coalesce/left-fold/long-run", "coalesce", long, clause="3")
    scalars = Slices(Array("float32", (300,), list(long.values.data)), long.indices, (4,))
    yield case("coalesce/left-fold/long-run-scalars", "coalesce", scalars, clause="3")
    special = [[math.inf], [-math.inf], [math.nan], [1.0], [math.inf], [2.0]]
    yield case("coalesce/nonfinite", "coalesce", slices_of(special, [0, 0, 1, 1, 2, 2], (4, 1)), clause="3")
    sorted_once = slices_of([[1.0], [2.0]], [1, 3], (4, 1), coalesced=True)
    yield case("coalesce/idempotent", "coalesce", sorted_once)
    holes = slices_of([[1.0], [5.0], [2.0], [4.0]], [1, 4, 1, 0], (4, 1), padded=True)
    yield case("coalesce/padded", "coalesce", holes, clause="2")
    for op in ("to_dense", "norm"):
        yield case(f"coalesce/padded-{op}", op, holes, clause="2")
    far = slices_of([[1.0], [2.0], [3.0]], [999_999_999, 5, 999_999_999], (1_000_000_000, 1))
    yield case("coalesce/huge-table", "coalesce", far)
    farther = slices_of([[1.0], [2.0], [3.0]], [2**40, 5, 2**40], (2**41, 1))
    yield case("coalesce/huge-table-int64", "coalesce", farther)


def algebra() -> Iterator[Case]:
    for name, s in some_cross("algebra"):
        dtype, row_shape = s.values.dtype, s.values.shape[1:]
        yield case(f"algebra/scale/{name}", "scale", s, 1 / 3)
        other = slices("unsorted-duplicates", dtype, s.indices.dtype, row_shape, "other")
        yield case(f"algebra/add-sparse/{name}", "add", s, other)
        yield case(f"algebra/add-dense/{name}", "add", s, dense((ROWS, *row_shape), "add", dtype))
        yield case(f"algebra/concat/{name}", "concat", [s, other, s])
        yield case(f"algebra/keep_rows/{name}", "keep_rows", s, Array("int64", (3,), [4, 0, 4]))
        mask = Array("bool", (ROWS,), [r % 3 != 0 for r in range(ROWS)])
        yield case(f"algebra/drop_rows/{name}", "drop_rows", s, mask)
    d = dense((ROWS, 3), "only")
    yield case("algebra/scale/dense", "scale", d, -1)
    yield case("algebra/scale/integers", "scale", duplicates("i", "int32", "int32"), 3)
    yield case("algebra/keep_rows/dense", "keep_rows", d, Array("int64", (2,), [9, 1]))
    yield case("algebra/drop_rows/dense", "drop_rows", d, Array("int64", (2,), [9, 1]))
    s = duplicates("tree", "float32", "int32")
    yield case("algebra/add/tree", "add", [s, None, d], [s, None, d])
    yield case("algebra/add/dicts-in-another-order", "add", {"s": s, "d": d}, {"d": d, "s": s})
    zero_d = dense((), "0-d")
    yield case("algebra/scale/0-d", "scale", zero_d, 3)
    yield case("algebra/add/0-d", "add", zero_d, zero_d)
    yield case("algebra/scale/0-d-bfloat16", "scale", dense((), "0-d", "bfloat16"), 3)
    yield case("algebra/add/none-adds-nothing", "add", [s, None, d], [None, d, d])
    # some readers of decimal text return a neighbour of the float64 that 17 digits identify
    yield case("algebra/scale/float64-17-digits", "scale", dense((4, 2), "digits", "float64"), 0.16969931385370499)
    for k, dtype in enumerate(FLOATS):
        x = duplicates("divide", dtype, INDEX_TYPES[k % 2])
        # for 3 and 49, multiplying by the rounded reciprocal gives another result; -0.1 is first rounded to the wide
        # type of the values
        for c in (3.0, 49.0, -0.1):
            yield case(f"algebra/divide/{dtype}/{c}", "divide", x, c)
        divisor = Array("float64" if dtype == "float64" else "float32", (), [3.0])
        yield case(f"algebra/divide/{dtype}/0-d", "divide", x, divisor)
    special = slices_of([[0.0], [1.0], [-1.0], [math.inf], [math.nan]], [0, 1, 2, 2, 0], (3, 1))
    for c in (0.0, 1e300):  # 1e300 is infinite in float32
        yield case(f"algebra/divide/special/{c}".replace("+", ""), "divide", special, c)
    wide = duplicates("wide")
    for label, pair in (("wide-last", (s, wide)), ("wide-first", (wide, s))):
        yield case(f"algebra/concat/index-types-{label}", "concat", list(pair))
        yield case(f"algebra/add/index-types-{label}", "add", *pair)


def norms() -> Iterator[Case]:
    for name, s in some_cross("norms"):
        yield case(f"norms/norm2/{name}", "norm", s)
        yield case(f"norms/norm1/{name}", "norm", s, ord=1)
        yield case(f"norms/norminf/{name}", "norm", s, ord="inf")
        d = dense((4, 3), "norms", s.values.dtype)
        yield case(f"norms/rows/{name}", "row_norms", s)
        yield case(f"norms/top_k/{name}", "top_k_rows", s, 2)
        yield case(f"norms/global/{name}", "global_norm", {"a": s, "b": [d, None, (s,)]})
    pair = slices_of([[3.0, 0.0], [0.0, 4.0], [3.0, 0.0]], [1, 2, 1], (4, 2))
    yield case("norms/norm2/duplicates-by-hand", "norm", pair)
    yield case("norms/norm2/float32-1e20", "norm", slices_of([[1e20] * 4], [0], (2, 4)))
    yield case("norms/norm2/float64-1e200", "norm", slices_of([[1e200] * 4], [0], (2, 4), "float64"))
    yield case("norms/norm2/float64-1e-200", "norm", slices_of([[3e-200, 4e-200]], [0], (2, 2), "float64"))
    yield case("norms/norm1/float64-large", "norm", slices_of([[1e307, 3e306]], [0], (2, 2), "float64"), ord=1)
    # the exact sum is half-way between two float64 numbers: rounding before the last step changes the result
    tie = [[2.0**27, 1.0, 2.0**-27]] * 3
    yield case("norms/norm2/float64-tie", "norm", slices_of(tie, [0, 1, 2], (4, 3), "float64"))
    one_ulp = [[1.0] + [2.0**-27] * 3]
    yield case("norms/norm2/float64-one-ulp", "norm", slices_of(one_ulp, [0], (2, 4), "float64"))
    # a float32 sum loses each small square, but together the small squares change the norm
    small = slices_of([[4096.0]] + [[1.0]] * 299, list(range(300)), (300, 1))
    yield case("norms/norm2/float32-many-small", "norm", small)
    for label, bad in (("nan", [math.nan, 1.0]), ("inf", [math.inf, 1.0]), ("both", [-math.inf, math.nan])):
        yield case(f"norms/norm2/nonfinite-{label}", "norm", slices_of([bad], [0], (2, 2)))
    for ord in (1, "inf"):
        yield case(f"norms/rows/ord-{ord}", "row_norms", pair, ord=ord)
    yield case("norms/rows/dense", "row_norms", dense((4, 3), "rows", "bfloat16"))
    ties = slices_of([[3.0], [-3.0], [math.nan], [math.inf], [0.0]], [5, 1, 4, 2, 0], (6, 1))
    for k in (0, 1, 3, 9):
        yield case(f"norms/top_k/ties-{k}", "top_k_rows", ties, k)
    zeros = slices_of([[0.0], [0.0]], [0, 1], (3, 1))
    yield case("norms/norm2/zeros", "norm", zeros)
    yield case("norms/norm2/no-rows", "norm", slices_of([], [], (0, 2)))
    mixed = [slices_of([[3.0]], [0], (2, 1), "float16"), slices_of([[4.0]], [0], (2, 1), "float64")]
    yield case("norms/global/mixed-dtypes", "global_norm", mixed)
    yield case("norms/global/mixed-dtypes-wide-first", "global_norm", mixed[::-1])
    for label, size in EXTREMES.items():
        yield case(f"norms/global/mixed-dtypes-{label}", "global_norm", extreme(size))


def midpoints() -> Iterator[Case]:
    """Yield norms and clips for which the exact sum of squares or absolute values is, or almost is, the midpoint of two
    float64 numbers. A bit that is less significant by hundreds of places may decide the rounding."""
    far = 2.0**-200
    equal = slices_of([[0.9999999999999998] * 7], [0], (2, 7), "float64")
    yield case("norms/midpoint/equal", "norm", equal)
    yield case("norms/midpoint/clipped", "clip_by_norm", equal, 2.64575131106459)
    on, above = ([[3.0, 2.0**-25, x]] for x in (0.0, far))
    for label, rows in (("on", on), ("above", above)):
        yield case(f"norms/midpoint/{label}", "norm", slices_of(rows, [0], (2, 3), "float64"))
        sizes = slices_of([[1.0, 2.0**-53, rows[0][2]]], [1], (2, 3), "float64")
        yield case(f"norms/midpoint/sizes-{label}", "norm", sizes, ord=1)
    narrow = slices_of([[2.0**-25, 2.0**-100]], [0], (2, 2))
    spread = {"a": slices_of([[3.0]], [0], (2, 1), "float64"), "b": narrow}
    yield case("norms/midpoint/global", "global_norm", spread)
    yield case("norms/midpoint/rows", "clip_by_row_norm", slices_of(on + above, [1, 0], (2, 3), "float64"), 3.0)


#: Sizes far outside the range of float32. The squares of "huge" and "tiny" are near the limits of float64.
EXTREMES = {"huge": 1e150, "tiny": 1e-150, "large": 1e121}


def extreme(size: float) -> list[Any]:
    """Return [a dense float32 gradient with ordinary numbers, a sparse float64 gradient whose values all equal
    `size`]."""
    return [Array("float32", (2,), [1.5, 0.25]), slices_of([[size], [size]], [1, 1], (3, 1), "float64")]


def clipping() -> Iterator[Case]:
    for label, size in EXTREMES.items():
        yield case(f"clipping/by_global_norm/mixed-dtypes-{label}", "clip_by_global_norm", extreme(size), 0.5)
    for name, s in some_cross("clipping"):
        d = dense((4, 3), "clipping", s.values.dtype)
        yield case(f"clipping/by_value/{name}", "clip_by_value", s, -1.3, 2.1)
        yield case(f"clipping/by_norm/{name}", "clip_by_norm", s, 1.7)
        yield case(f"clipping/by_row_norm/{name}", "clip_by_row_norm", s, 3.1)
        yield case(f"clipping/by_global_norm/{name}", "clip_by_global_norm", [s, None, {"d": d}], 5.0)
        yield case(f"clipping/unchanged/{name}", "clip_by_norm", s, 1e4)
    s = duplicates("limits")
    d = dense((ROWS, 3), "limits")
    for limit in (0.0, math.inf):
        yield case(f"clipping/by_norm/max-{limit}", "clip_by_norm", s, limit)
        yield case(f"clipping/by_global_norm/max-{limit}", "clip_by_global_norm", [s, d], limit)
        yield case(f"clipping/by_row_norm/max-{limit}", "clip_by_row_norm", s, limit)
    # arrays, so that they are traced in traced mode
    high, low = Array("float32", (), [2.0]), Array("float32", (), [-0.25])
    yield case("clipping/by_norm/limit-array", "clip_by_norm", s, high)
    yield case("clipping/by_row_norm/limit-array", "clip_by_row_norm", s, high)
    yield case("clipping/by_global_norm/limit-array", "clip_by_global_norm", [s, d], high)
    yield case("clipping/by_value/bound-arrays", "clip_by_value", s, low, high)
    exact = slices_of([[3.0, 4.0]], [1], (3, 2))
    yield case("clipping/by_norm/equal-is-unchanged", "clip_by_norm", exact, 5.0)
    just_above = math.nextafter(5.0, 0.0)  # the norm 5 exceeds this limit in float64; in float32 they are equal
    yield case("clipping/by_norm/decided-in-float64", "clip_by_norm", exact, just_above, clause="7")
    cancel = slices_of([[30.0], [-30.0], [1.0]], [1, 1, 0], (3, 1))
    yield case("clipping/by_norm/cancelling-is-unchanged", "clip_by_norm", cancel, 2.0)
    nan_value = slices_of([[math.nan, 9.0, -9.0]], [1], (3, 3))
    yield case("clipping/by_value/nan-stays", "clip_by_value", nan_value, -1.0, 1.0)
    yield case("clipping/by_value/dense-any-bounds", "clip_by_value", d, 0.5, 2.0)
    for label, bad in (("nan", math.nan), ("inf", math.inf)):
        x = slices_of([[bad, 1.0], [2.0, 3.0], [0.0, 5.0]], [1, 0, 1], (3, 2))
        for named, mode in NONFINITE:
            for limit in (1.0, 0.0, math.inf):
                yield case(f"clipping/nonfinite/{label}-{named}-max-{limit}", "clip_by_norm", x, limit, nonfinite=mode)
            yield case(f"clipping/nonfinite-global/{label}-{named}", "clip_by_global_norm", [x, d], 1.0, nonfinite=mode)
            yield case(f"clipping/nonfinite-rows/{label}-{named}", "clip_by_row_norm", x, 1.0, nonfinite=mode)
    yield case("clipping/by_norm/leaves-by-their-own", "clip_by_norm", [s, None, d], 2.0)
    yield case("clipping/by_norm/0-d", "clip_by_norm", dense((), "0-d"), 0.01)
    yield case("clipping/by_value/0-d", "clip_by_value", dense((), "0-d"), -0.01, 0.01)
    yield case("clipping/by_row_norm/dense", "clip_by_row_norm", d, 4.0)


def padding() -> Iterator[Case]:
    def embedding_grad(id: str, upstream: Array, ids: Array, **options: Any) -> Case:
        return case(f"padding/embedding_grad/{id}", "embedding_grad", upstream, ids, 7, **options)

    for dtype in FLOATS:
        up = dense((2, 5, 3), "pair", dtype)
        for label, options in {"plain": {}, **PAIR_OPTIONS, "last": {"padding_idx": -1}}.items():
            yield embedding_grad(f"pair-{label}/{dtype}", up, PAIR, **options)
    yield embedding_grad("mask-hides-nan", NAN_UPSTREAM, PAIR, mask=REAL)
    yield embedding_grad("no-ids", Array("float32", (0, 3), []), Array("int32", (0,), []), padding_idx=0)
    yield embedding_grad("0-d-ids", dense((2,), "s"), Array("int32", (), [3]))
    yield embedding_grad("scalar-rows", dense((4,), "r"), Array("int32", (4,), [3, 1, 3, 0]), padding_idx=3)
    yield embedding_grad("all-padding", dense((2, 3), "a"), Array("int32", (2,), [0, 0]), padding_idx=0)
    for name, s in some_cross("padding"):
        yield case(f"padding/drop_padding/{name}", "drop_padding", s, -1)
        yield case(f"padding/scale_by_frequency/{name}", "scale_by_frequency", s)
    yield case("padding/drop_padding/dense", "drop_padding", dense((4, 2), "p"), 2)


def updates() -> Iterator[Case]:
    for name, s in some_cross("updates"):
        dtype = s.values.dtype
        table = dense(tuple(s.dense_shape), "updates", dtype)
        for op in SCATTER:
            x = factors(s) if op in ("mul", "div") else s
            yield case(f"updates/{op}/{name}", f"scatter_{op}", table, x)
    for dtype, op in itertools.product(INDEX_TYPES, SCATTER[:-1]):
        s = duplicates("integers", dtype)
        s = factors(s) if op == "mul" else s
        table = dense((ROWS, 3), "integers", dtype)
        yield case(f"updates/{op}/integers/{dtype}", f"scatter_{op}", table, s)
    special = slices_of([[math.nan], [1.0], [math.inf], [-math.inf]], [0, 0, 1, 1], (3, 1))
    table = Array("float32", (3, 1), [2.0, math.nan, math.inf])
    for op in ("add", "min", "max", "update"):
        yield case(f"updates/{op}/nonfinite", f"scatter_{op}", table, special)
    ones = slices_of([[1.0]] * 600, [1] * 600, (3, 1), "bfloat16")
    zeros = Array("bfloat16", (3, 1), [0.0] * 3)
    yield case("updates/add/saturation", "scatter_add", zeros, ones)


def factors(s: Slices) -> Slices:
    """Return slices with the same indices as `s`, but with floats near 1, or integers -1 and 2. So products of
    duplicates stay in range."""
    kind = s.values.dtype
    near = [-1 if v < 0 else 2 for v in s.values.data] if kind.startswith("int") else [
        round_to(Fraction(1) + Fraction(v) / 64, kind) for v in s.values.data
    ]  # fmt: skip
    return Slices(Array(kind, s.values.shape, near), s.indices, s.dense_shape)


def conversion() -> Iterator[Case]:
    for dtype in FLOATS:
        x = dense((5, 2), "from_dense", dtype)
        x.data[2:4] = [0.0, -0.0]
        yield case(f"conversion/from_dense/{dtype}", "from_dense", x, eager=True)
    x = Array("float32", (3, 1), [math.nan, 0.0, 1.0])
    yield case("conversion/from_dense/nan-is-stored", "from_dense", x, eager=True)


def write(folder: Path) -> None:
    makers = {
        "densify": densify, "coalesce": coalesce, "algebra": algebra, "norms": lambda: itertools.chain(norms(), midpoints()),
        "clipping": lambda: itertools.chain(clipping(), unitwise_cases()), "gradients": gradient_cases,
        "padding": padding, "embedding": embedding_cases, "updates": updates, "optimizers": optimizer_cases,
        "conversion": conversion, "errors": error_cases,
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
