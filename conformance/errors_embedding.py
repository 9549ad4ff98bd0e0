"""Add the bad input of lookups, bags, tables, samples and row updates to the table in `islices.conformance.errors`."""

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
    index_error,
    of,
    row,
    type_error,
    value_error,
)

# ---------------------------------------------------------------------- lookups, bags
_look = ("lookup", DENSE)
_bag = {"combiner": "sum"}
_ragged: dict[str, Any] = {**_bag, "clause": "12"}
_flat = ("lookup", DENSE, i64(0, 1))
TWO = Array("int64", (2, 2), [0, 1, 2, 3])
type_error("lookup-ids-float", "ids ... float32 ... int32 or int64", *_look, f32(2, value=0.5))
type_error("lookup-ids-bool", "ids ... bool", *_look, of("bool", True, False))
type_error("lookup-ids-list", "ids ... list ... accepted", *_look, [0, 1])
type_error("lookup-ids-none", "ids ... None", *_look, None)
type_error("lookup-ids-number", "ids ... 3", *_look, 3)
type_error("lookup-ids-framework", "ids", *_look, foreign(i64(0)))
index_error("lookup-out-of-range", "ids ... 5 ... position 1 ... 0 <= index < 5", *_look, i64(0, 5))
index_error("lookup-negative", "ids ... -1 ... position 0", *_look, i64(-1, 0))
_nine = Array("int32", (2, 2), [0, 1, 2, 9])
index_error("lookup-2d-out-of-range", "ids ... 9 ... position 3", *_look, _nine)
index_error("lookup-no-rows", "ids ... < 0", "lookup", Array("float32", (0, 2), []), i64(0))
type_error("lookup-table-integers", "table ... int64", "lookup", i64(1, 2), i64(0))
value_error("lookup-table-0-d", "table ... 0-d", "lookup", f32(), i64(0))
type_error("lookup-table-list", "table ... list", "lookup", [1.0], i64(0))
type_error("lookup-table-slices", "table ... IndexedSlices", "lookup", GOOD, i64(0))
value_error("lookup-mask-shape", "mask ... (1,) ... (2,)", *_flat, mask=of("bool", True))
type_error("lookup-mask-float", "mask ... float32", *_look, i64(0), mask=f32(1, value=0.5))
index_error("lookup-padding-out-of-range", "padding_idx ... -6", *_look, i64(0), padding_idx=-6)
type_error("lookup-padding-text", "padding_idx ... '0'", *_look, i64(0), padding_idx="0")
value_error("lookup-combiner", "combiner ... 'median' ... 'sqrtn'", *_look, TWO, combiner="median")
value_error("bag-1-d-without-offsets", "ids ... (2,) ... offsets", *_flat, **_bag)
value_error("bag-0-d", "ids ... ()", *_look, Array("int64", (), [1]), **_bag)
value_error("offsets-without-combiner", "offsets ... combiner", *_flat, offsets=i64(0), clause="19")
value_error("offsets-2-d-ids", "ids ... (2, 2) ... offsets", *_look, TWO, offsets=i64(0, 2), **_bag)
value_error("offsets-2-d", "offsets ... (2, 2)", *_flat, offsets=TWO, **_bag)
value_error("offsets-0-d", "offsets ... ()", *_flat, offsets=Array("int64", (), [0]), **_bag)
type_error("offsets-float", "offsets ... float32", *_flat, offsets=f32(1, value=0.5), **_bag)
type_error("offsets-list", "offsets ... list", *_flat, offsets=[0], **_bag)
_down: dict[str, Any] = {"offsets": i64(0, 2, 1), **_bag}
value_error("offsets-descend", "offsets ... 1 ... after 2", *_look, i64(0, 1, 2), **_down)
value_error("offsets-first", "offsets ... 1 ... accepted is 0", *_flat, offsets=i64(1), **_bag)
value_error("offsets-none-for-ids", "offsets ... []", *_flat, offsets=i64(), **_bag)
value_error("offsets-last", "offsets ... 3 ... 2 ids", *_flat, offsets=i64(0, 3), **_bag)
value_error("lengths-negative", "ids ... -1 ... position 1", *_look, (i64(0, 1), i64(1, -1, 1)), **_ragged)
value_error("lengths-exceed", "ids ... 3 ... 2 values", *_look, (i64(0, 1), i64(1, 2)), **_ragged)
value_error("lengths-wrap", f"ids ... {2**63}", *_look, (i64(0, 1), i64(2**62, 2**62)), **_ragged)
value_error("lengths-none", "ids ... 2 values", *_look, (i64(0, 1), i64()), **_ragged)
value_error("lengths-2-d", "ids ... (2, 2)", *_look, (i64(0, 1), TWO), **_ragged)
value_error("lengths-values-2-d", "ids ... (2, 2)", *_look, (TWO, i64(1, 1)), **_ragged)
type_error("lengths-float", "ids ... float32", *_look, (i64(0, 1), f32(2, value=0.5)), **_ragged)
value_error("lengths-offsets", "offsets", *_look, (i64(0, 1), i64(2)), offsets=i64(0), **_ragged)
index_error("lengths-out-of-range", "ids ... 5 ... position 1", *_look, (i64(0, 5), i64(1)), **_bag)
_pair: dict[str, Any] = {"weights": (f32(1), i64(1)), **_ragged}
type_error("lengths-weights", "weights ... tuple", *_look, (i64(0), i64(1)), **_pair)
type_error("lengths-triple", "ids ... tuple", *_look, (i64(0), i64(1), i64(1)), **_ragged)
value_error("lengths-upstream", "upstream ... (3, 2)", "per_sample", f32(3, 2), (i64(0, 1), i64(2)), 5,
    clause="12")  # fmt: skip
value_error("invalid-name", "invalid ... 'skip' ... 'drop'", *_look, i64(0), invalid="skip")
value_error("invalid-flag", "invalid ... True ... 'drop'", *_look, i64(0), invalid=True)
index_error("absent-out-of-range", "ids ... 5 ... position 1", *_look, i64(-1, 5), invalid="drop")
index_error("absent-no-rows", "ids ... 0 ... position 1", "lookup", f32(0, 2), i64(-1, 0), invalid="drop")
index_error("absent-grad", "ids ... 7 ... position 1", *GRADIENT, i64(-1, 7), 5, invalid="drop")
value_error("absent-grad-name", "invalid ... 'skip'", *GRADIENT, i64(0, 1), 5, invalid="skip")
value_error("absent-samples-name", "invalid ... None", "per_sample", f32(2, 2), i64(0, 1), 5, invalid=None,
    clause="12")  # fmt: skip
value_error("weights-without-combiner", "weights ... combiner", *_flat, weights=f32(2), clause="19")
value_error("weights-with-max", "weights ... 'max'", *_look, TWO, combiner="max", weights=f32(2, 2))
value_error("weights-shape", "weights ... (2,) ... (2, 2)", *_look, TWO, weights=f32(2), **_bag)
type_error("weights-dtype", "weights ... int64 ... float32", *_look, TWO, weights=TWO, **_bag)
type_error("weights-list", "weights ... list", *_look, TWO, weights=[1.0], **_bag)
type_error("table-integers", "weights ... int64 ... float32", "Table", i64(1, 2))
type_error("table-list", "weights ... list", "Table", [[1.0]])
type_error("table-slices", "weights ... IndexedSlices", "Table", GOOD)
value_error("table-0-d", "weights ... ()", "Table", f32())
index_error("table-padding", "padding_idx ... 5 ... -5", "Table", DENSE, padding_idx=5)
value_error("renorm-negative", "max_norm ... -1.0", "renorm_rows", DENSE, i64(0), -1.0, clause="10")
type_error("renorm-text", "max_norm ... '1'", "renorm_rows", DENSE, i64(0), "1", clause="10")
index_error("renorm-ids", "ids ... 7", "renorm_rows", DENSE, i64(7), 1.0)
_nan = f32(2, 1, value=math.nan)
row("FloatingPointError", "renorm-nan", "nan", "renorm_rows", _nan, i64(1), 1.0, nonfinite="raise", clause="10")

# ---------------------------------------------------------------------- per sample
_samples = ("per_sample", UP, IDS, 5)
value_error("samples-0-d", "ids ... 0-d", "per_sample", f32(2), Array("int64", (), [1]), 5)
type_error("samples-ids-float", "ids ... float32", "per_sample", f32(2, 2), f32(2, value=0.5), 5)
index_error("samples-ids-out-of-range", "ids ... 4", "per_sample", UP, IDS, 4)
value_error("samples-upstream-shape", "upstream ... (3, 2)", "per_sample", f32(3, 2), IDS, 5)
value_error("samples-mask-shape", "mask ... (2,)", *_samples, mask=of("bool", *[True] * 2), clause="12")
index_error("samples-padding", "padding_idx ... 5", *_samples, padding_idx=5, clause="12")
TIED = [f32(2, 5), f32(2, 2)]
for name, raises, message, product in (
    ("no-pair", "TypeError", "product ... float32 ... pair", f32(2, 5)),
    ("of-three", "TypeError", "product ... pair", [*TIED, f32(2)]),
    ("dtype", "TypeError", "product ... float64 ... float32", [TIED[0], Array("float64", (2, 2), [1.0] * 4)]),
    ("no-array", "TypeError", "product ... None", [None, TIED[1]]),
    ("samples", "ValueError", "product ... 3 ... 2", [f32(3, 5), f32(3, 2)]),
    ("rank", "ValueError", "product ... (5,) ... (B, ..., rows)", [f32(5), f32(2)]),
    ("outputs", "ValueError", "product ... (2, 3, 5) ... (2, 2, 2)", [f32(2, 3, 5), f32(2, 2, 2)]),
    ("table", "ValueError", "product ... 4 ... (5, 2)", [f32(2, 4), f32(2, 2)]),
):
    row(raises, f"samples-product-{name}", message, *_samples, product=product)
_vector = ("per_sample", f32(2, 3), IDS, 5)
value_error("samples-product-of-a-vector", "product ... (5,) ... (rows, width)", *_vector, product=TIED)
index_error("samples-number", "b ... 2 ... 0 <= b < 2", "per_sample_slices", UP, IDS, 5, 2)
index_error("samples-number-negative", "b ... -1", "per_sample_slices", UP, IDS, 5, -1)
type_error("samples-number-text", "b ... '0' ... int", "per_sample_slices", UP, IDS, 5, "0")
type_error("sample-axis-text", "sample_axis ... '0' ... int", *_samples, sample_axis="0")
value_error("sample-axis-negative", "sample_axis ... -1 ... 0 <= sample_axis", *_samples, sample_axis=-1)
_loss = ("samples_of_loss", DENSE)
value_error("samples-loss-scalar", "fn ... one loss for each sample ... mean", *_loss, IDS, "scalar")
value_error("samples-loss-short", "fn ... 1 losses ... 2 samples", *_loss, IDS, "short")
value_error("samples-influence", "influence each other ... argument 0", *_loss, IDS, "shared")
value_error("samples-time-major", "influence each other ... sample_axis", *_loss, TWO, "time-major")
_clips = ("per_sample_clip_sum", UP, IDS, 5)
value_error("samples-max-norm", "max_norm ... -2.0", *_clips, -2.0)
value_error("samples-nonfinite", "nonfinite ... 'drop'", *_clips, 1.0, nonfinite="drop")
value_error("samples-of-two-sizes", "tree ... [2, 3]", "clip_per_sample", [f32(2, 2), f32(3, 2)], 1.0)
value_error("samples-of-nothing", "tree ... nothing", "clip_per_sample", [None], 1.0)
value_error("samples-of-a-scalar", "tree ... 0-d", "clip_per_sample", f32(), 1.0)
type_error("samples-of-slices", "tree ... IndexedSlices ... PerSample", "clip_per_sample", GOOD, 1.0)
type_error("samples-of-integers", "floating", "clip_per_sample", i64(1, 2), 1.0)
_two = [f32(2, 2), foreign(f32(2, 2))]
type_error("samples-of-frameworks", "tree ... framework", "clip_per_sample", _two, 1.0)

# ---------------------------------------------------------------------- row updates
FLAT = Slices(f32(1), i64(0), (5,))
type_error("scatter-dense", "x ... float32 ... sparse", "scatter_add", DENSE, DENSE)
type_error("scatter-none", "x ... None", "scatter_add", DENSE, None)
type_error("scatter-into-slices", "table ... IndexedSlices", "scatter_add", GOOD, GOOD)
type_error("scatter-into-a-list", "table ... list", "scatter_sub", [1.0], GOOD)
type_error("scatter-into-booleans", "table ... bool", "scatter_add", of("bool", *[True] * 5), FLAT)
value_error("scatter-into-0-d", "table ... ()", "scatter_add", f32(), FLAT)
type_error("scatter-dtype", "x ... float64 ... float32", "scatter_add", DENSE, WIDE)
value_error("scatter-shape", "x ... (6, 2) ... (5, 2)", "scatter_max", DENSE, OTHER_SHAPE)
value_error("scatter-row-shape", "x ... (5,)", "scatter_min", DENSE, FLAT)
_ints = Array("int32", (5, 2), [1] * 10)
type_error("scatter-div-integers", "table ... int32 ... floating", "scatter_div", _ints, INTEGERS)
type_error("scatter-framework", "framework", "scatter_update", foreign(f32(5, 2)), GOOD)
