"""The table of bad input, continued: lookups, bags, tables, samples. See `islices.conformance.errors`."""

from __future__ import annotations

import math
from typing import Any

from islices.conformance.data import Array, Slices
from islices.conformance.errors import (
    DENSE,
    GOOD,
    GRADIENT,
    IDS,
    INTEGERS,
    OTHER_SHAPE,
    UP,
    WIDE,
    f32,
    foreign,
    i64,
    of,
    row,
)

# ---------------------------------------------------------------------- lookups, bags
_look = ("lookup", DENSE)
_bag = {"combiner": "sum"}
_flat = ("lookup", DENSE, i64(0, 1))
TWO = Array("int64", (2, 2), [0, 1, 2, 3])
row("lookup-ids-float", "12", "TypeError", ["ids", "float32", "int32 or int64"], *_look, f32(2, value=0.5))
row("lookup-ids-bool", "12", "TypeError", ["ids", "bool"], *_look, of("bool", True, False))
row("lookup-ids-list", "12", "TypeError", ["ids", "list", "accepted"], *_look, [0, 1])
row("lookup-ids-none", "12", "TypeError", ["ids", "None"], *_look, None)
row("lookup-ids-number", "12", "TypeError", ["ids", "3"], *_look, 3)
row("lookup-ids-framework", "12", "TypeError", ["ids"], *_look, foreign(i64(0)))
row("lookup-out-of-range", "2", "IndexError", ["ids", "5", "position 1", "0 <= index < 5"], *_look, i64(0, 5))
row("lookup-negative", "2", "IndexError", ["ids", "-1", "position 0"], *_look, i64(-1, 0))
_nine = Array("int32", (2, 2), [0, 1, 2, 9])
row("lookup-2d-out-of-range", "2", "IndexError", ["ids", "9", "position 3"], *_look, _nine)
row("lookup-no-rows", "2", "IndexError", ["ids", "< 0"], "lookup", Array("float32", (0, 2), []), i64(0))
row("lookup-table-integers", "12", "TypeError", ["table", "int64"], "lookup", i64(1, 2), i64(0))
row("lookup-table-0-d", "12", "ValueError", ["table", "0-d"], "lookup", f32(), i64(0))
row("lookup-table-list", "12", "TypeError", ["table", "list"], "lookup", [1.0], i64(0))
row("lookup-table-slices", "12", "TypeError", ["table", "IndexedSlices"], "lookup", GOOD, i64(0))
row("lookup-mask-shape", "12", "ValueError", ["mask", "(1,)", "(2,)"], *_flat, mask=of("bool", True))
row("lookup-mask-float", "12", "TypeError", ["mask", "float32"], *_look, i64(0), mask=f32(1, value=0.5))
row("lookup-padding-out-of-range", "12", "IndexError", ["padding_idx", "-6"], *_look, i64(0), padding_idx=-6)
row("lookup-padding-text", "12", "TypeError", ["padding_idx", "'0'"], *_look, i64(0), padding_idx="0")
row("lookup-combiner", "19", "ValueError", ["combiner", "'median'", "'sqrtn'"], *_look, TWO, combiner="median")
row("bag-1-d-without-offsets", "19", "ValueError", ["ids", "(2,)", "offsets"], *_flat, **_bag)
row("bag-0-d", "19", "ValueError", ["ids", "()"], *_look, Array("int64", (), [1]), **_bag)
row("offsets-without-combiner", "19", "ValueError", ["offsets", "combiner"], *_flat, offsets=i64(0))
row("offsets-2-d-ids", "19", "ValueError", ["ids", "(2, 2)", "offsets"], *_look, TWO, offsets=i64(0, 2), **_bag)
row("offsets-2-d", "19", "ValueError", ["offsets", "(2, 2)"], *_flat, offsets=TWO, **_bag)
row("offsets-0-d", "19", "ValueError", ["offsets", "()"], *_flat, offsets=Array("int64", (), [0]), **_bag)
row("offsets-float", "19", "TypeError", ["offsets", "float32"], *_flat, offsets=f32(1, value=0.5), **_bag)
row("offsets-list", "19", "TypeError", ["offsets", "list"], *_flat, offsets=[0], **_bag)
_down: dict[str, Any] = {"offsets": i64(0, 2, 1), **_bag}
row("offsets-descend", "19", "ValueError", ["offsets", "1", "after 2"], *_look, i64(0, 1, 2), **_down)
row("offsets-first", "19", "ValueError", ["offsets", "1", "accepted is 0"], *_flat, offsets=i64(1), **_bag)
row("offsets-none-for-ids", "19", "ValueError", ["offsets", "[]"], *_flat, offsets=i64(), **_bag)
row("offsets-last", "19", "ValueError", ["offsets", "3", "2 ids"], *_flat, offsets=i64(0, 3), **_bag)
row("lengths-negative", "12", "ValueError", ["ids", "-1", "position 1"], *_look, (i64(0, 1), i64(1, -1, 1)), **_bag)
row("lengths-exceed", "12", "ValueError", ["ids", "3", "2 values"], *_look, (i64(0, 1), i64(1, 2)), **_bag)
row("lengths-wrap", "12", "ValueError", ["ids", str(2**63)], *_look, (i64(0, 1), i64(2**62, 2**62)), **_bag)
row("lengths-none", "12", "ValueError", ["ids", "2 values"], *_look, (i64(0, 1), i64()), **_bag)
row("lengths-2-d", "12", "ValueError", ["ids", "(2, 2)"], *_look, (i64(0, 1), TWO), **_bag)
row("lengths-values-2-d", "12", "ValueError", ["ids", "(2, 2)"], *_look, (TWO, i64(1, 1)), **_bag)
row("lengths-float", "12", "TypeError", ["ids", "float32"], *_look, (i64(0, 1), f32(2, value=0.5)), **_bag)
row("lengths-offsets", "12", "ValueError", ["offsets"], *_look, (i64(0, 1), i64(2)), offsets=i64(0), **_bag)
row("lengths-out-of-range", "2", "IndexError", ["ids", "5", "position 1"], *_look, (i64(0, 5), i64(1)), **_bag)
_pair: dict[str, Any] = {"weights": (f32(1), i64(1)), **_bag}
row("lengths-weights", "12", "TypeError", ["weights", "tuple"], *_look, (i64(0), i64(1)), **_pair)
row("lengths-triple", "12", "TypeError", ["ids", "tuple"], *_look, (i64(0), i64(1), i64(1)), **_bag)
row("lengths-upstream", "12", "ValueError", ["upstream", "(3, 2)"], "per_sample", f32(3, 2), (i64(0, 1), i64(2)), 5)
row("invalid-name", "12", "ValueError", ["invalid", "'skip'", "'drop'"], *_look, i64(0), invalid="skip")
row("invalid-flag", "12", "ValueError", ["invalid", "True", "'drop'"], *_look, i64(0), invalid=True)
row("absent-out-of-range", "2", "IndexError", ["ids", "5", "position 1"], *_look, i64(-1, 5), invalid="drop")
row("absent-no-rows", "2", "IndexError", ["ids", "0", "position 1"], "lookup", f32(0, 2), i64(-1, 0), invalid="drop")
row("absent-grad", "2", "IndexError", ["ids", "7", "position 1"], *GRADIENT, i64(-1, 7), 5, invalid="drop")
row("absent-grad-name", "12", "ValueError", ["invalid", "'skip'"], *GRADIENT, i64(0, 1), 5, invalid="skip")
row("absent-samples-name", "12", "ValueError", ["invalid", "None"], "per_sample", f32(2, 2), i64(0, 1), 5, invalid=None)
row("weights-without-combiner", "19", "ValueError", ["weights", "combiner"], *_flat, weights=f32(2))
row("weights-with-max", "19", "ValueError", ["weights", "'max'"], *_look, TWO, combiner="max", weights=f32(2, 2))
row("weights-shape", "19", "ValueError", ["weights", "(2,)", "(2, 2)"], *_look, TWO, weights=f32(2), **_bag)
row("weights-dtype", "19", "TypeError", ["weights", "int64", "float32"], *_look, TWO, weights=TWO, **_bag)
row("weights-list", "19", "TypeError", ["weights", "list"], *_look, TWO, weights=[1.0], **_bag)
row("table-integers", "12", "TypeError", ["weights", "int64", "float32"], "Table", i64(1, 2))
row("table-list", "12", "TypeError", ["weights", "list"], "Table", [[1.0]])
row("table-slices", "12", "TypeError", ["weights", "IndexedSlices"], "Table", GOOD)
row("table-0-d", "12", "ValueError", ["weights", "()"], "Table", f32())
row("table-padding", "12", "IndexError", ["padding_idx", "5", "-5"], "Table", DENSE, padding_idx=5)
row("renorm-negative", "10", "ValueError", ["max_norm", "-1.0"], "renorm_rows", DENSE, i64(0), -1.0)
row("renorm-text", "10", "TypeError", ["max_norm", "'1'"], "renorm_rows", DENSE, i64(0), "1")
row("renorm-ids", "2", "IndexError", ["ids", "7"], "renorm_rows", DENSE, i64(7), 1.0)
_nan = f32(2, 1, value=math.nan)
row("renorm-nan", "10", "FloatingPointError", ["nan"], "renorm_rows", _nan, i64(1), 1.0, nonfinite="raise")

# ---------------------------------------------------------------------- per sample
_samples = ("per_sample", UP, IDS, 5)
row("samples-0-d", "14", "ValueError", ["ids", "0-d"], "per_sample", f32(2), Array("int64", (), [1]), 5)
row("samples-ids-float", "14", "TypeError", ["ids", "float32"], "per_sample", f32(2, 2), f32(2, value=0.5), 5)
row("samples-ids-out-of-range", "2", "IndexError", ["ids", "4"], "per_sample", UP, IDS, 4)
row("samples-upstream-shape", "14", "ValueError", ["upstream", "(3, 2)"], "per_sample", f32(3, 2), IDS, 5)
row("samples-mask-shape", "12", "ValueError", ["mask", "(2,)"], *_samples, mask=of("bool", *[True] * 2))
row("samples-padding", "12", "IndexError", ["padding_idx", "5"], *_samples, padding_idx=5)
TIED = [f32(2, 5), f32(2, 2)]
for name, error, words, product in (
    ("no-pair", "TypeError", ["product", "float32", "pair"], f32(2, 5)),
    ("of-three", "TypeError", ["product", "pair"], [*TIED, f32(2)]),
    ("dtype", "TypeError", ["product", "float64", "float32"], [TIED[0], Array("float64", (2, 2), [1.0] * 4)]),
    ("no-array", "TypeError", ["product", "None"], [None, TIED[1]]),
    ("samples", "ValueError", ["product", "3", "2"], [f32(3, 5), f32(3, 2)]),
    ("rank", "ValueError", ["product", "(5,)", "(B, ..., rows)"], [f32(5), f32(2)]),
    ("outputs", "ValueError", ["product", "(2, 3, 5)", "(2, 2, 2)"], [f32(2, 3, 5), f32(2, 2, 2)]),
    ("table", "ValueError", ["product", "4", "(5, 2)"], [f32(2, 4), f32(2, 2)]),
):
    row(f"samples-product-{name}", "14", error, words, *_samples, product=product)
_vector, words = ("per_sample", f32(2, 3), IDS, 5), ["product", "(5,)", "(rows, width)"]
row("samples-product-of-a-vector", "14", "ValueError", words, *_vector, product=TIED)
row("samples-number", "14", "IndexError", ["b", "2", "0 <= b < 2"], "per_sample_slices", UP, IDS, 5, 2)
row("samples-number-negative", "14", "IndexError", ["b", "-1"], "per_sample_slices", UP, IDS, 5, -1)
row("samples-number-text", "14", "TypeError", ["b", "'0'", "int"], "per_sample_slices", UP, IDS, 5, "0")
row("sample-axis-text", "14", "TypeError", ["sample_axis", "'0'", "int"], *_samples, sample_axis="0")
row("sample-axis-negative", "14", "ValueError", ["sample_axis", "-1", "0 <= sample_axis"], *_samples, sample_axis=-1)
_loss = ("samples_of_loss", DENSE)
row("samples-loss-scalar", "14", "ValueError", ["fn", "one loss for each sample", "mean"], *_loss, IDS, "scalar")
row("samples-loss-short", "14", "ValueError", ["fn", "1 losses", "2 samples"], *_loss, IDS, "short")
row("samples-influence", "14", "ValueError", ["influence each other", "argument 0"], *_loss, IDS, "shared")
row("samples-time-major", "14", "ValueError", ["influence each other", "sample_axis"], *_loss, TWO, "time-major")
_clips = ("per_sample_clip_sum", UP, IDS, 5)
row("samples-max-norm", "14", "ValueError", ["max_norm", "-2.0"], *_clips, -2.0)
row("samples-nonfinite", "14", "ValueError", ["nonfinite", "'drop'"], *_clips, 1.0, nonfinite="drop")
row("samples-of-two-sizes", "14", "ValueError", ["tree", "[2, 3]"], "clip_per_sample", [f32(2, 2), f32(3, 2)], 1.0)
row("samples-of-nothing", "14", "ValueError", ["tree", "nothing"], "clip_per_sample", [None], 1.0)
row("samples-of-a-scalar", "14", "ValueError", ["tree", "0-d"], "clip_per_sample", f32(), 1.0)
row("samples-of-slices", "14", "TypeError", ["tree", "IndexedSlices", "PerSample"], "clip_per_sample", GOOD, 1.0)
row("samples-of-integers", "14", "TypeError", ["floating"], "clip_per_sample", i64(1, 2), 1.0)
_two = [f32(2, 2), foreign(f32(2, 2))]
row("samples-of-frameworks", "14", "TypeError", ["tree", "framework"], "clip_per_sample", _two, 1.0)

# ---------------------------------------------------------------------- row updates
FLAT = Slices(f32(1), i64(0), (5,))
row("scatter-dense", "15", "TypeError", ["x", "float32", "sparse"], "scatter_add", DENSE, DENSE)
row("scatter-none", "15", "TypeError", ["x", "None"], "scatter_add", DENSE, None)
row("scatter-into-slices", "15", "TypeError", ["table", "IndexedSlices"], "scatter_add", GOOD, GOOD)
row("scatter-into-a-list", "15", "TypeError", ["table", "list"], "scatter_sub", [1.0], GOOD)
row("scatter-into-booleans", "15", "TypeError", ["table", "bool"], "scatter_add", of("bool", *[True] * 5), FLAT)
row("scatter-into-0-d", "15", "ValueError", ["table", "()"], "scatter_add", f32(), FLAT)
row("scatter-dtype", "15", "TypeError", ["x", "float64", "float32"], "scatter_add", DENSE, WIDE)
row("scatter-shape", "15", "ValueError", ["x", "(6, 2)", "(5, 2)"], "scatter_max", DENSE, OTHER_SHAPE)
row("scatter-row-shape", "15", "ValueError", ["x", "(5,)"], "scatter_min", DENSE, FLAT)
_ints = Array("int32", (5, 2), [1] * 10)
row("scatter-div-integers", "15", "TypeError", ["table", "int32", "floating"], "scatter_div", _ints, INTEGERS)
row("scatter-framework", "15", "TypeError", ["framework"], "scatter_update", foreign(f32(5, 2)), GOOD)
