"""The table of bad input, with each call, the exception that the specification states, and words that its message
must contain.

A message contains the argument, the value, and the accepted values. SPEC.md, "Bad input".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from islices.conformance.data import Array, Case, Slices


def f32(*shape: int, value: float = 1.0) -> Array:
    return Array("float32", shape, [value] * math.prod(shape))


def of(dtype: str, *data: Any) -> Array:
    """Return a 1-D array."""
    return Array(dtype, (len(data),), list(data))


def i64(*ids: int) -> Array:
    return of("int64", *ids)


GOOD = Slices(f32(2, 2), i64(1, 3), (5, 2))
WIDE = Slices(Array("float64", (1, 2), [1.0, 2.0]), i64(0), (5, 2))
OTHER_SHAPE = Slices(f32(1, 2), i64(0), (6, 2))
UNKNOWN = Slices(f32(1, 2), i64(0), (None, 2))
INTEGERS = Slices(Array("int32", (1, 2), [1, 2]), i64(0), (5, 2))
NAN = Slices(f32(1, 2, value=math.nan), i64(0), (5, 2))
INF = Slices(f32(1, 2, value=math.inf), i64(0), (5, 2))
DENSE = f32(5, 2)
UP, IDS = f32(2, 3, 2), Array("int64", (2, 3), [0, 1, 2, 3, 4, 0])
COMPLEX = {"complex": [1.0, 2.0]}
#: An operation and its first arguments, of which a row spoils those that follow.
GRADIENT = ("embedding_grad", f32(2, 2))


def foreign(x: Array) -> dict[str, Any]:
    """Return an array of a framework other than the one under test."""
    return {"foreign": x}


#: id -> (clause, exception, words of the message, operation, arguments, keyword arguments)
TABLE: dict[str, tuple[str, str, list[str], str, list[Any], dict[str, Any]]] = {}


def row(id: str, clause: str, raises: str, words: list[str], op: str, *args: Any, **kwargs: Any) -> None:
    TABLE[id] = (clause, raises, words, op, list(args), kwargs)


# ---------------------------------------------------------------------- the container
_new = ("IndexedSlices", f32(2, 2))
row("index-negative", "2", "IndexError", ["indices", "-1", "position 1", "0 <= index < 5"], *_new, i64(0, -1), (5, 2))
row("index-equal-rows", "2", "IndexError", ["indices", "5", "position 0", "padded=True"], *_new, i64(5, 0), (5, 2))
row("index-huge", "2", "IndexError", ["indices", str(2**62), "0 <= index < 5"], *_new, i64(0, 2**62), (5, 2))
row("index-minus-huge", "2", "IndexError", ["indices", str(-(2**63))], *_new, i64(0, -(2**63)), (5, 2))
row("index-negative-int32", "2", "IndexError", ["indices", "-7"], *_new, of("int32", 0, -7), (5, 2))
row("index-without-rows", "2", "IndexError", ["indices", "< 0"], "IndexedSlices", f32(1, 2), i64(0), (0, 2))
row("index-negative-rows-unknown", "2", "IndexError", ["indices", "-2"], *_new, i64(0, -2), (None, 2))
row("index-beyond-sentinel", "2", "IndexError", ["indices", "6"], *_new, i64(0, 6), (5, 2), padded=True)
row("index-float", "1", "TypeError", ["indices", "float32", "int32 and int64"], *_new, f32(2), (5, 2))
row("index-bool", "1", "TypeError", ["indices", "bool", "int64"], *_new, of("bool", True, False), (5, 2))
_column = Array("int64", (1, 2), [0, 1])
row("index-rank-2", "1", "ValueError", ["indices", "(1, 2)", "one dimension"], *_new, _column, (5, 2))
row("index-0-d", "1", "ValueError", ["indices", "()", "one dimension"], *_new, Array("int64", (), [0]), (5, 2))
row("index-list", "1", "TypeError", ["indices", "list", "accepted"], *_new, [0, 1], (5, 2))
row("index-none", "1", "TypeError", ["indices", "None", "accepted"], *_new, None, (5, 2))
row("n-mismatch", "1", "ValueError", ["2 values", "3 indices"], *_new, i64(0, 1, 2), (5, 2))
row("row-shape-mismatch", "1", "ValueError", ["values", "(2,)", "(3,)"], *_new, i64(0, 1), (5, 3))
row("row-rank-mismatch", "1", "ValueError", ["values", "(2,)"], *_new, i64(0, 1), (5,))
row("dense-shape-empty", "1", "ValueError", ["dense_shape", "()", "at least one"], *_new, i64(0, 1), ())
row("dense-shape-negative", "1", "ValueError", ["dense_shape", "-5", "negative"], *_new, i64(0, 1), (-5, 2))
row("dense-shape-none-inside", "1", "ValueError", ["dense_shape", "only rows may be None"], *_new, i64(0, 1), (5, None))
row("dense-shape-float", "1", "TypeError", ["dense_shape", "5.5", "ints"], *_new, i64(0, 1), (5.5, 2))
row("dense-shape-int", "1", "TypeError", ["dense_shape", "5", "tuple of ints"], *_new, i64(0, 1), 5)
row("dense-shape-string", "1", "TypeError", ["dense_shape", "tuple of ints"], *_new, i64(0, 1), "52")
for label, ids in (("order", i64(3, 1)), ("twice", i64(3, 3))):
    words = ["coalesced", "position 1", "ascending"]
    row(f"false-coalesced-{label}", "2", "ValueError", words, *_new, ids, (5, 2), coalesced=True)
row("values-0-d", "1", "ValueError", ["values", "0-d"], "IndexedSlices", f32(), i64(), (5,))
for label, statement, array in (
    ("string", [], of("str", "a", "b")),
    ("object", [], of("object", 1.0)),
    ("complex", ["complex"], of("complex64", 1.0)),
    ("bool", ["bool"], of("bool", True)),
    ("uint8", ["uint8"], of("uint8", 1)),
):
    ids, words = i64(*range(len(array.data))), ["values", *statement, "accepted"]
    row(f"values-{label}", "1", "TypeError", words, "IndexedSlices", array, ids, (5,))
row("values-list", "1", "TypeError", ["values", "list", "accepted"], "IndexedSlices", [[1.0]], i64(0), (5, 1))
row("values-none", "1", "TypeError", ["values", "None", "accepted"], "IndexedSlices", None, i64(0), (5, 1))
row("values-slices", "1", "TypeError", ["values", "accepted"], "IndexedSlices", GOOD, i64(0, 1), (5, 2))
row("indices-of-another-framework", "6", "TypeError", ["indices", "accepted"], *_new, foreign(i64(0, 1)), (5, 2))
row("replace-values-length", "1", "ValueError", ["3 values", "2 indices"], "replace_values", GOOD, f32(3, 2))
row("replace-values-framework", "6", "TypeError", ["values", "accepted"], "replace_values", GOOD, foreign(f32(2, 2)))
row("numpy-array-of-slices", "5", "TypeError", ["to_dense"], "__array__", GOOD)
row("length-of-slices", "1", "TypeError", ["ambiguous"], "__len__", GOOD)
row("truth-of-slices", "1", "TypeError", ["ambiguous"], "__bool__", GOOD)
row("assignment", "1", "AttributeError", ["immutable", "replace"], "__setattr__", GOOD, "values", f32(2, 2))

# ---------------------------------------------------------------------- densify, algebra, rows
row("to-dense-rows-unknown", "5", "ValueError", ["rows", "dense_shape"], "to_dense", UNKNOWN)
_huge = Slices(f32(1, 64), i64(0), (10**12, 64))
row("to-dense-1e12-rows", "5", "MemoryError", ["x", "1000000000000", "accepted"], "to_dense", _huge)
row("to-dense-text", "5", "TypeError", ["x", "'text'", "accepted"], "to_dense", "text")
row("coalesce-number", "4", "TypeError", ["x", "3", "accepted"], "coalesce", 3)
row("coalesce-set", "4", "TypeError", ["x", "set", "accepted"], "coalesce", {"set": [1]})
row("scale-dense-bool", "1", "TypeError", ["x", "bool", "accepted"], "scale", of("bool", True, False), 2)
row("add-dense-uint8", "1", "TypeError", ["xs", "uint8", "accepted"], "add", *[of("uint8", 1, 2)] * 2)
row("from-dense-uint8", "1", "TypeError", ["x", "uint8", "accepted"], "from_dense", of("uint8", 1, 2))
row("add-0-d-to-sparse", "6", "ValueError", ["xs", "one shape"], "add", Slices(f32(1), i64(0), (5,)), f32())
row("keep-rows-mask-rows-unknown", "13", "ValueError", ["rows", "unknown"], "keep_rows", UNKNOWN, of("bool", True))
row("clip-row-norm-0-d", "10", "ValueError", ["x", "0-d"], "clip_by_row_norm", f32(), 1.0)
row("row-norms-0-d", "7", "ValueError", ["x", "0-d"], "row_norms", f32())
row("row-norms-order", "7", "ValueError", ["ord", "3", "1, 2 or inf"], "row_norms", GOOD, ord=3)
row("top-k-dense", "13", "TypeError", ["x", "dense", "from_dense"], "top_k_rows", DENSE, 2)
row("top-k-negative", "13", "ValueError", ["k", "-1", "int >= 0"], "top_k_rows", GOOD, -1)
row("top-k-float", "13", "TypeError", ["k", "1.5", "int >= 0"], "top_k_rows", GOOD, 1.5)
row("clip-norm-complex", "10", "TypeError", ["max_norm", "complex", "real"], "clip_by_norm", GOOD, COMPLEX)
row("add-nothing", "6", "TypeError", ["xs", "accepted"], "add")
row("add-dtypes", "6", "TypeError", ["xs", "float32", "float64", "one dtype"], "add", GOOD, WIDE)
row("add-dtypes-dense", "6", "TypeError", ["xs", "float64", "one dtype"], "add", DENSE, WIDE)
row("add-shapes", "6", "ValueError", ["xs", "(5, 2)", "(6, 2)", "one shape"], "add", GOOD, OTHER_SHAPE)
row("add-shapes-dense", "6", "ValueError", ["xs", "(5, 2)", "(5, 3)"], "add", GOOD, f32(5, 3))
row("add-frameworks", "6", "TypeError", ["xs", "one framework", "convert"], "add", GOOD, foreign(DENSE))
row("add-structures", "6", "ValueError", ["xs", "structures"], "add", [GOOD], [GOOD, GOOD])
_beyond = Slices(f32(1, 2), i64(7), (None, 2))
row("add-unknown-rows-out-of-range", "2", "IndexError", ["indices", "7"], "add", GOOD, _beyond)
row("concat-nothing", "6", "ValueError", ["xs", "at least one"], "concat", [])
row("concat-dense", "6", "TypeError", ["xs", "sparse"], "concat", [GOOD, DENSE])
row("concat-not-a-list", "6", "TypeError", ["xs", "list or tuple"], "concat", GOOD)
row("concat-dtypes", "6", "TypeError", ["xs", "one dtype"], "concat", [GOOD, WIDE])
row("scale-complex", "6", "TypeError", ["c", "complex", "real"], "scale", GOOD, COMPLEX)
row("scale-text", "6", "TypeError", ["c", "'2'", "real"], "scale", GOOD, "2")
row("scale-array", "6", "TypeError", ["c", "0-d"], "scale", GOOD, f32(2))
row("scale-integers-by-float", "6", "TypeError", ["c", "0.5", "int"], "scale", INTEGERS, 0.5)
row("divide-integers", "6", "TypeError", ["values", "int32", "divide"], "divide", INTEGERS, 2)
row("divide-bool", "18", "TypeError", ["divisor", "True", "bool"], "divide", GOOD, True)
row("divide-bool-array", "18", "TypeError", ["divisor", "bool"], "divide", GOOD, Array("bool", (), [True]))
row("divide-text", "6", "TypeError", ["divisor", "'2'", "real"], "divide", GOOD, "2")
row("divide-array", "6", "TypeError", ["divisor", "0-d"], "divide", GOOD, f32(2))
row("divide-slices", "6", "TypeError", ["divisor", "IndexedSlices", "accepted"], "divide", GOOD, GOOD)
row("divide-array-by-slices", "6", "TypeError", ["IndexedSlices"], "divide", f32(), GOOD)
row("divide-number-by-slices", "6", "TypeError", ["divisor", "IndexedSlices", "accepted"], "divide", 2.0, GOOD)
row("keep-rows-out-of-range", "13", "IndexError", ["5", "0 <= index < 5"], "keep_rows", GOOD, i64(0, 5))
row("keep-rows-negative", "13", "IndexError", ["-1"], "keep_rows", DENSE, i64(-1))
row("keep-rows-float", "13", "TypeError", ["rows", "float32", "accepted"], "keep_rows", GOOD, f32(2))
row("keep-rows-rank-2", "13", "TypeError", ["rows", "1-D"], "keep_rows", GOOD, Array("int64", (1, 1), [0]))
row("drop-rows-mask-length", "13", "ValueError", ["rows", "3", "5"], "drop_rows", GOOD, of("bool", *[True] * 3))

# ---------------------------------------------------------------------- norms and clipping
row("norm-ord", "7", "ValueError", ["ord", "0", "1, 2 or inf"], "norm", GOOD, 0)
row("norm-ord-other", "7", "ValueError", ["ord", "3", "1, 2 or inf"], "norm", GOOD, 3)
row("norm-ord-negative", "7", "ValueError", ["ord", "-inf", "1, 2 or inf"], "norm", GOOD, -math.inf)
row("norm-ord-nan", "7", "ValueError", ["ord", "nan", "1, 2 or inf"], "norm", GOOD, math.nan)
row("norm-ord-text", "7", "TypeError", ["ord", "'2'", "real"], "norm", GOOD, "2")
row("global-norm-ord", "8", "ValueError", ["ord", "-1", "1, 2 or inf"], "global_norm", [GOOD], -1)
row("norm-integers", "7", "TypeError", ["x", "int32", "floating"], "norm", INTEGERS)
row("norm-list", "7", "TypeError", ["x", "list", "accepted"], "norm", [GOOD])
row("global-norm-frameworks", "8", "TypeError", ["tree", "one framework"], "global_norm", [GOOD, foreign(DENSE)])
row("global-norm-text", "8", "TypeError", ["tree", "'a'", "accepted"], "global_norm", [GOOD, "a"])
row("clip-value-order", "9", "ValueError", ["lo", "hi", "2", "1"], "clip_by_value", GOOD, 2.0, 1.0)
row("clip-value-lo-positive", "9", "ValueError", ["lo", "densify", "lo <= 0 <= hi"], "clip_by_value", GOOD, 0.5, 1.0)
row("clip-value-hi-negative", "9", "ValueError", ["hi", "densify"], "clip_by_value", GOOD, -2.0, -1.0)
row("clip-value-arrays", "9", "ValueError", ["lo <= hi"], "clip_by_value", DENSE, Array("float32", (), [2.0]), 1.0)
row("clip-value-nan", "9", "ValueError", ["nan", "lo <= hi"], "clip_by_value", GOOD, math.nan, 1.0)
row("clip-value-text", "9", "TypeError", ["hi", "'1'", "real"], "clip_by_value", GOOD, -1.0, "1")
for function in ("clip_by_norm", "clip_by_row_norm", "clip_by_global_norm"):
    tree = [GOOD] if function == "clip_by_global_norm" else GOOD
    row(f"{function}-negative", "10", "ValueError", ["max_norm", "-1", ">= 0"], function, tree, -1.0)
    minus = Array("float32", (), [-1.0])
    row(f"{function}-negative-array", "10", "ValueError", ["max_norm", "-1", ">= 0"], function, tree, minus)
    row(f"{function}-nan", "10", "ValueError", ["max_norm", "nan", ">= 0"], function, tree, math.nan)
    row(f"{function}-text", "10", "TypeError", ["max_norm", "'1'", "real"], function, tree, "1")
    words = ["nonfinite", "'explode'", "'zero'"]
    row(f"{function}-nonfinite-name", "10", "ValueError", words, function, tree, 1.0, nonfinite="explode")
    for label, bad in (("nan", NAN), ("inf", INF)):
        x = [bad] if function == "clip_by_global_norm" else bad
        words = [label, "'zero'"]
        row(f"{function}-raise-{label}", "10", "FloatingPointError", words, function, x, 1.0, nonfinite="raise")
for op, *args in (
    ("clip_by_block_rms", GOOD, 1.0), ("adaptive_grad_clip", GOOD, DENSE, 1.0), ("renorm_rows", DENSE, i64(1), 1.0),
    ("per_sample_clip_sum", UP, IDS, 5, 1.0),
):  # fmt: skip
    row(
        f"{op}-nonfinite-name", "10", "ValueError", ["nonfinite", "'explode'", "'zero'"], op, *args, nonfinite="explode"
    )
_global, _one = ("clip_by_global_norm", [GOOD], 1.0), ("clip_by_norm", GOOD, 1.0)
row("clip-semantics-unknown", "11", "ValueError", ["semantics", "'tf1'", "torch"], *_global, semantics="tf1")
row("clip-semantics-not-here", "11", "ValueError", ["semantics", "'torch'", "keras"], *_one, semantics="torch")

row("clip-axes-range", "10", "ValueError", ["axes", "2", "-2 to 1"], *_one, axes=[2])
row("clip-axes-twice", "10", "ValueError", ["axes", "[0, -2]", "once"], *_one, axes=[0, -2])
row("clip-axes-float", "10", "TypeError", ["axes", "1.0", "int"], *_one, axes=1.0)
row("clip-axes-text", "10", "TypeError", ["axes", "'rows'", "int"], *_one, axes="rows")
row("clip-axes-raise", "10", "FloatingPointError", ["nan"], "clip_by_norm", NAN, 1.0, axes=[0], nonfinite="raise")
row("clip-axes-integers", "10", "TypeError", ["x", "int32", "floating"], "clip_by_norm", INTEGERS, 1.0, axes=[0])
row("block-rms-negative", "10", "ValueError", ["threshold", "-1", ">= 0"], "clip_by_block_rms", GOOD, -1.0)
row("block-rms-text", "10", "TypeError", ["threshold", "'1'", "real"], "clip_by_block_rms", GOOD, "1")
row("block-rms-rows-unknown", "10", "ValueError", ["x", "None", "known"], "clip_by_block_rms", UNKNOWN, 1.0)
row("block-rms-semantics", "11", "ValueError", ["'torch'", "optax"], "clip_by_block_rms", GOOD, 1.0, semantics="torch")
_adaptive = ("adaptive_grad_clip", GOOD)
row("adaptive-nan", "10", "ValueError", ["clipping", "nan", ">= 0"], *_adaptive, DENSE, math.nan)
row("adaptive-eps", "10", "ValueError", ["eps", "-1", ">= 0"], *_adaptive, DENSE, 1.0, eps=-1.0)
row("adaptive-shape", "10", "ValueError", ["params", "(6, 2)", "(5, 2)"], *_adaptive, f32(6, 2), 1.0)
row("adaptive-sparse-params", "10", "TypeError", ["params", "dense"], *_adaptive, GOOD, 1.0)
row("adaptive-no-params", "10", "TypeError", ["params", "None"], *_adaptive, None, 1.0)
row("adaptive-frameworks", "10", "TypeError", ["params", "accepted"], *_adaptive, foreign(DENSE), 1.0)
row("adaptive-structure", "10", "ValueError", ["params", "structure"], "adaptive_grad_clip", [GOOD], DENSE, 1.0)
row("adaptive-six-axes", "10", "ValueError", ["axes", "five"], "adaptive_grad_clip", *[f32(*[2] * 6)] * 2, 1.0)

# ---------------------------------------------------------------------- padding, conversion
row("ids-float", "12", "TypeError", ["ids", "float32", "int32 or int64"], *GRADIENT, f32(2, value=0.5), 5)
row("ids-out-of-range", "2", "IndexError", ["ids", "5", "0 <= index < 5"], *GRADIENT, i64(0, 5), 5)
row("ids-negative", "2", "IndexError", ["ids", "-1"], *GRADIENT, i64(0, -1), 5)
row("upstream-shape", "12", "ValueError", ["upstream", "(2, 3)"], "embedding_grad", f32(3, 2), IDS, 5)
row("upstream-list", "12", "TypeError", ["upstream", "list", "accepted"], "embedding_grad", [1.0], i64(0), 5)
row("num-rows-negative", "12", "ValueError", ["num_rows", "-1"], "embedding_grad", UP, IDS, -1)
row("num-rows-float", "12", "TypeError", ["num_rows", "5.0", "int"], "embedding_grad", UP, IDS, 5.0)
_pairs = ("embedding_grad", UP, IDS, 5)
row("padding-out-of-range", "12", "IndexError", ["padding_idx", "5", "-5"], *_pairs, padding_idx=5)
row("padding-text", "12", "TypeError", ["padding_idx", "'0'", "int"], *_pairs, padding_idx="0")
row("mask-shape", "12", "ValueError", ["mask", "(2,)", "(2, 3)"], *_pairs, mask=of("bool", *[True] * 2))
row("mask-float", "12", "TypeError", ["mask", "float32", "boolean"], *_pairs, mask=f32(2, 3, value=0.5))
row("mask-list", "12", "TypeError", ["mask", "list", "boolean"], *_pairs, mask=[True])
row("drop-padding-out-of-range", "12", "IndexError", ["padding_idx", "-6"], "drop_padding", GOOD, -6)
row("drop-padding-rows-unknown", "12", "ValueError", ["padding_idx", "-1"], "drop_padding", UNKNOWN, -1)
row("frequency-of-dense", "12", "TypeError", ["x", "sparse"], "scale_by_frequency", DENSE)
row("from-native-dense", "1", "TypeError", ["x", "from_dense"], "from_native", DENSE)
row("from-native-number", "1", "TypeError", ["x", "3"], "from_native", 3)
row("to-native-dense", "1", "TypeError", ["s", "IndexedSlices"], "to_native", DENSE)
row("from-dense-slices", "1", "TypeError", ["IndexedSlices"], "from_dense", GOOD)
row("from-dense-0-d", "1", "ValueError", ["x", "0-d"], "from_dense", f32())
row("from-dense-rows-twice", "1", "ValueError", ["rows", "2 times"], "from_dense", DENSE, i64(1, 1))
row("convert-unknown-backend", "1", "ValueError", ["'abacus'", "known"], "convert", GOOD, "abacus")


def error_cases() -> Iterator[Case]:
    for id, (clause, raises, words, op, args, kwargs) in TABLE.items():
        expect = {"raises": raises, "message": words}
        yield Case(f"errors/{id}", clause, op, args, kwargs, expect, ["eager"])
