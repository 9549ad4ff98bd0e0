"""Define the table of calls with bad input. Each row contains the exception that the specification requires, and the
words that must occur in its message.

A message names the argument, its value, and the accepted values (SPEC.md, "Bad input").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from islices.conformance.data import Array, Case, Slices
from islices.conformance.oracles import clause_of


def f32(*shape: int, value: float = 1.0) -> Array:
    return Array("float32", shape, [value] * math.prod(shape))


def of(dtype: str, *data: Any) -> Array:
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
#: An operation and its first argument. A row of the table adds the other arguments; one argument is bad.
GRADIENT = ("embedding_grad", f32(2, 2))


def foreign(x: Array) -> dict[str, Any]:
    """Mark an array as foreign. The suite converts a foreign array to a framework other than the framework under
    test."""
    return {"foreign": x}


#: id -> (clause, exception, words of the message, operation, arguments, keyword arguments)
TABLE: dict[str, tuple[str, str, list[str], str, list[Any], dict[str, Any]]] = {}


def row(raises: str, id: str, message: str, op: str, *args: Any, clause: str = "", **kwargs: Any) -> None:
    """Add a row to the table. `message` contains parts of the error's message, separated by " ... ". The error's
    message must contain all parts, in any order.

    An IndexError about `indices` or `ids` belongs to clause 2. Other bad input belongs to `clause`, or to the clause of
    the operation if `clause` is empty.
    """
    if raises == "IndexError" and message.startswith(("indices ", "ids ")):
        clause = "2"
    words = message.split(" ... ")
    TABLE[id] = (clause or clause_of(op, args, kwargs), raises, words, op, list(args), kwargs)


type_error, value_error, index_error = (partial(row, kind) for kind in ("TypeError", "ValueError", "IndexError"))


# ---------------------------------------------------------------------- the container
_new = ("IndexedSlices", f32(2, 2))
index_error("index-negative", "indices ... -1 ... position 1 ... 0 <= index < 5", *_new, i64(0, -1), (5, 2))
index_error("index-equal-rows", "indices ... 5 ... position 0 ... padded=True", *_new, i64(5, 0), (5, 2))
index_error("index-huge", f"indices ... {2**62} ... 0 <= index < 5", *_new, i64(0, 2**62), (5, 2))
index_error("index-minus-huge", f"indices ... {-(2**63)}", *_new, i64(0, -(2**63)), (5, 2))
index_error("index-negative-int32", "indices ... -7", *_new, of("int32", 0, -7), (5, 2))
index_error("index-without-rows", "indices ... < 0", "IndexedSlices", f32(1, 2), i64(0), (0, 2))
index_error("index-negative-rows-unknown", "indices ... -2", *_new, i64(0, -2), (None, 2))
index_error("index-beyond-sentinel", "indices ... 6", *_new, i64(0, 6), (5, 2), padded=True)
type_error("index-float", "indices ... float32 ... int32 and int64", *_new, f32(2), (5, 2))
type_error("index-bool", "indices ... bool ... int64", *_new, of("bool", True, False), (5, 2))
_column = Array("int64", (1, 2), [0, 1])
value_error("index-rank-2", "indices ... (1, 2) ... one dimension", *_new, _column, (5, 2))
value_error("index-0-d", "indices ... () ... one dimension", *_new, Array("int64", (), [0]), (5, 2))
type_error("index-list", "indices ... list ... accepted", *_new, [0, 1], (5, 2))
type_error("index-none", "indices ... None ... accepted", *_new, None, (5, 2))
value_error("n-mismatch", "2 values ... 3 indices", *_new, i64(0, 1, 2), (5, 2))
value_error("row-shape-mismatch", "values ... (2,) ... (3,)", *_new, i64(0, 1), (5, 3))
value_error("row-rank-mismatch", "values ... (2,)", *_new, i64(0, 1), (5,))
value_error("dense-shape-empty", "dense_shape ... () ... at least one", *_new, i64(0, 1), ())
value_error("dense-shape-negative", "dense_shape ... -5 ... negative", *_new, i64(0, 1), (-5, 2))
value_error("dense-shape-none-inside", "dense_shape ... only rows may be None", *_new, i64(0, 1), (5, None))
type_error("dense-shape-float", "dense_shape ... 5.5 ... ints", *_new, i64(0, 1), (5.5, 2))
type_error("dense-shape-int", "dense_shape ... 5 ... tuple of ints", *_new, i64(0, 1), 5)
type_error("dense-shape-string", "dense_shape ... tuple of ints", *_new, i64(0, 1), "52")
for label, ids in (("order", i64(3, 1)), ("twice", i64(3, 3))):
    words = "coalesced ... position 1 ... ascending"
    value_error(f"false-coalesced-{label}", words, *_new, ids, (5, 2), coalesced=True, clause="2")
value_error("values-0-d", "values ... 0-d", "IndexedSlices", f32(), i64(), (5,))
for label, statement, array in (
    ("string", "accepted", of("str", "a", "b")),
    ("object", "accepted", of("object", 1.0)),
    ("complex", "complex ... accepted", of("complex64", 1.0)),
    ("bool", "bool ... accepted", of("bool", True)),
    ("uint8", "uint8 ... accepted", of("uint8", 1)),
):
    ids = i64(*range(len(array.data)))
    type_error(f"values-{label}", f"values ... {statement}", "IndexedSlices", array, ids, (5,))
type_error("values-list", "values ... list ... accepted", "IndexedSlices", [[1.0]], i64(0), (5, 1))
type_error("values-none", "values ... None ... accepted", "IndexedSlices", None, i64(0), (5, 1))
type_error("values-slices", "values ... accepted", "IndexedSlices", GOOD, i64(0, 1), (5, 2))
type_error("indices-of-another-framework", "indices ... accepted", *_new, foreign(i64(0, 1)), (5, 2), clause="6")
value_error("replace-values-length", "3 values ... 2 indices", "replace_values", GOOD, f32(3, 2))
type_error("replace-values-framework", "values ... accepted", "replace_values", GOOD, foreign(f32(2, 2)),
    clause="6")  # fmt: skip
type_error("numpy-array-of-slices", "to_dense", "__array__", GOOD)
type_error("length-of-slices", "ambiguous", "__len__", GOOD)
type_error("truth-of-slices", "ambiguous", "__bool__", GOOD)
row("AttributeError", "assignment", "immutable ... replace", "__setattr__", GOOD, "values", f32(2, 2))

# ---------------------------------------------------------------------- densify, algebra, rows
value_error("to-dense-rows-unknown", "rows ... dense_shape", "to_dense", UNKNOWN)
_huge = Slices(f32(1, 64), i64(0), (10**12, 64))
row("MemoryError", "to-dense-1e12-rows", "x ... 1000000000000 ... accepted", "to_dense", _huge)
type_error("to-dense-text", "x ... 'text' ... accepted", "to_dense", "text")
type_error("coalesce-number", "x ... 3 ... accepted", "coalesce", 3)
type_error("coalesce-set", "x ... set ... accepted", "coalesce", {"set": [1]})
type_error("scale-dense-bool", "x ... bool ... accepted", "scale", of("bool", True, False), 2, clause="1")
type_error("add-dense-uint8", "xs ... uint8 ... accepted", "add", *[of("uint8", 1, 2)] * 2, clause="1")
type_error("from-dense-uint8", "x ... uint8 ... accepted", "from_dense", of("uint8", 1, 2))
value_error("add-0-d-to-sparse", "xs ... one shape", "add", Slices(f32(1), i64(0), (5,)), f32())
value_error("keep-rows-mask-rows-unknown", "rows ... unknown", "keep_rows", UNKNOWN, of("bool", True))
value_error("clip-row-norm-0-d", "x ... 0-d", "clip_by_row_norm", f32(), 1.0)
value_error("row-norms-0-d", "x ... 0-d", "row_norms", f32())
value_error("row-norms-order", "ord ... 3 ... 1, 2 or inf", "row_norms", GOOD, ord=3)
type_error("top-k-dense", "x ... dense ... from_dense", "top_k_rows", DENSE, 2)
value_error("top-k-negative", "k ... -1 ... int >= 0", "top_k_rows", GOOD, -1)
type_error("top-k-float", "k ... 1.5 ... int >= 0", "top_k_rows", GOOD, 1.5)
type_error("clip-norm-complex", "max_norm ... complex ... real", "clip_by_norm", GOOD, COMPLEX)
type_error("add-nothing", "xs ... accepted", "add")
type_error("add-dtypes", "xs ... float32 ... float64 ... one dtype", "add", GOOD, WIDE)
type_error("add-dtypes-dense", "xs ... float64 ... one dtype", "add", DENSE, WIDE)
value_error("add-shapes", "xs ... (5, 2) ... (6, 2) ... one shape", "add", GOOD, OTHER_SHAPE)
value_error("add-shapes-dense", "xs ... (5, 2) ... (5, 3)", "add", GOOD, f32(5, 3))
type_error("add-frameworks", "xs ... one framework ... convert", "add", GOOD, foreign(DENSE))
value_error("add-structures", "xs ... structures", "add", [GOOD], [GOOD, GOOD])
_beyond = Slices(f32(1, 2), i64(7), (None, 2))
index_error("add-unknown-rows-out-of-range", "indices ... 7", "add", GOOD, _beyond)
value_error("concat-nothing", "xs ... at least one", "concat", [])
type_error("concat-dense", "xs ... sparse", "concat", [GOOD, DENSE])
type_error("concat-not-a-list", "xs ... list or tuple", "concat", GOOD)
type_error("concat-dtypes", "xs ... one dtype", "concat", [GOOD, WIDE])
type_error("scale-complex", "c ... complex ... real", "scale", GOOD, COMPLEX)
type_error("scale-text", "c ... '2' ... real", "scale", GOOD, "2")
type_error("scale-array", "c ... 0-d", "scale", GOOD, f32(2))
type_error("scale-integers-by-float", "c ... 0.5 ... int", "scale", INTEGERS, 0.5)
type_error("divide-integers", "values ... int32 ... divide", "divide", INTEGERS, 2)
type_error("divide-bool", "divisor ... True ... bool", "divide", GOOD, True, clause="18")
type_error("divide-bool-array", "divisor ... bool", "divide", GOOD, Array("bool", (), [True]), clause="18")
type_error("divide-text", "divisor ... '2' ... real", "divide", GOOD, "2")
type_error("divide-array", "divisor ... 0-d", "divide", GOOD, f32(2))
type_error("divide-slices", "divisor ... IndexedSlices ... accepted", "divide", GOOD, GOOD)
type_error("divide-array-by-slices", "IndexedSlices", "divide", f32(), GOOD)
type_error("divide-number-by-slices", "divisor ... IndexedSlices ... accepted", "divide", 2.0, GOOD)
index_error("keep-rows-out-of-range", "5 ... 0 <= index < 5", "keep_rows", GOOD, i64(0, 5))
index_error("keep-rows-negative", "-1", "keep_rows", DENSE, i64(-1))
type_error("keep-rows-float", "rows ... float32 ... accepted", "keep_rows", GOOD, f32(2))
type_error("keep-rows-rank-2", "rows ... 1-D", "keep_rows", GOOD, Array("int64", (1, 1), [0]))
value_error("drop-rows-mask-length", "rows ... 3 ... 5", "drop_rows", GOOD, of("bool", *[True] * 3))

# ---------------------------------------------------------------------- norms and clipping
value_error("norm-ord", "ord ... 0 ... 1, 2 or inf", "norm", GOOD, 0)
value_error("norm-ord-other", "ord ... 3 ... 1, 2 or inf", "norm", GOOD, 3)
value_error("norm-ord-negative", "ord ... -inf ... 1, 2 or inf", "norm", GOOD, -math.inf)
value_error("norm-ord-nan", "ord ... nan ... 1, 2 or inf", "norm", GOOD, math.nan)
type_error("norm-ord-text", "ord ... '2' ... real", "norm", GOOD, "2")
value_error("global-norm-ord", "ord ... -1 ... 1, 2 or inf", "global_norm", [GOOD], -1)
type_error("norm-integers", "x ... int32 ... floating", "norm", INTEGERS)
type_error("norm-list", "x ... list ... accepted", "norm", [GOOD])
type_error("global-norm-frameworks", "tree ... one framework", "global_norm", [GOOD, foreign(DENSE)])
type_error("global-norm-text", "tree ... 'a' ... accepted", "global_norm", [GOOD, "a"])
value_error("clip-value-order", "lo ... hi ... 2 ... 1", "clip_by_value", GOOD, 2.0, 1.0)
value_error("clip-value-lo-positive", "lo ... densify ... lo <= 0 <= hi", "clip_by_value", GOOD, 0.5, 1.0)
value_error("clip-value-hi-negative", "hi ... densify", "clip_by_value", GOOD, -2.0, -1.0)
value_error("clip-value-arrays", "lo <= hi", "clip_by_value", DENSE, Array("float32", (), [2.0]), 1.0)
value_error("clip-value-nan", "nan ... lo <= hi", "clip_by_value", GOOD, math.nan, 1.0)
type_error("clip-value-text", "hi ... '1' ... real", "clip_by_value", GOOD, -1.0, "1")
for function in ("clip_by_norm", "clip_by_row_norm", "clip_by_global_norm"):
    tree = [GOOD] if function == "clip_by_global_norm" else GOOD
    value_error(f"{function}-negative", "max_norm ... -1 ... >= 0", function, tree, -1.0)
    minus = Array("float32", (), [-1.0])
    value_error(f"{function}-negative-array", "max_norm ... -1 ... >= 0", function, tree, minus)
    value_error(f"{function}-nan", "max_norm ... nan ... >= 0", function, tree, math.nan)
    type_error(f"{function}-text", "max_norm ... '1' ... real", function, tree, "1")
    words = "nonfinite ... 'explode' ... 'zero'"
    value_error(f"{function}-nonfinite-name", words, function, tree, 1.0, nonfinite="explode")
    for label, bad in (("nan", NAN), ("inf", INF)):
        x = [bad] if function == "clip_by_global_norm" else bad
        words = f"{label} ... 'zero'"
        row("FloatingPointError", f"{function}-raise-{label}", words, function, x, 1.0, nonfinite="raise")
for op, *args in (
    ("clip_by_block_rms", GOOD, 1.0), ("adaptive_grad_clip", GOOD, DENSE, 1.0), ("renorm_rows", DENSE, i64(1), 1.0),
    ("per_sample_clip_sum", UP, IDS, 5, 1.0),
):  # fmt: skip
    words = "nonfinite ... 'explode' ... 'zero'"
    value_error(f"{op}-nonfinite-name", words, op, *args, nonfinite="explode", clause="10")
_global, _one = ("clip_by_global_norm", [GOOD], 1.0), ("clip_by_norm", GOOD, 1.0)
value_error("clip-semantics-unknown", "semantics ... 'tf1' ... torch", *_global, semantics="tf1", clause="11")
value_error("clip-semantics-not-here", "semantics ... 'torch' ... keras", *_one, semantics="torch", clause="11")

value_error("clip-axes-range", "axes ... 2 ... -2 to 1", *_one, axes=[2])
value_error("clip-axes-twice", "axes ... [0, -2] ... once", *_one, axes=[0, -2])
type_error("clip-axes-float", "axes ... 1.0 ... int", *_one, axes=1.0)
type_error("clip-axes-text", "axes ... 'rows' ... int", *_one, axes="rows")
row("FloatingPointError", "clip-axes-raise", "nan", "clip_by_norm", NAN, 1.0, axes=[0], nonfinite="raise")
type_error("clip-axes-integers", "x ... int32 ... floating", "clip_by_norm", INTEGERS, 1.0, axes=[0])
value_error("block-rms-negative", "threshold ... -1 ... >= 0", "clip_by_block_rms", GOOD, -1.0)
type_error("block-rms-text", "threshold ... '1' ... real", "clip_by_block_rms", GOOD, "1")
value_error("block-rms-rows-unknown", "x ... None ... known", "clip_by_block_rms", UNKNOWN, 1.0)
value_error("block-rms-semantics", "'torch' ... optax", "clip_by_block_rms", GOOD, 1.0, semantics="torch",
    clause="11")  # fmt: skip
_adaptive = ("adaptive_grad_clip", GOOD)
value_error("adaptive-nan", "clipping ... nan ... >= 0", *_adaptive, DENSE, math.nan)
value_error("adaptive-eps", "eps ... -1 ... >= 0", *_adaptive, DENSE, 1.0, eps=-1.0)
value_error("adaptive-shape", "params ... (6, 2) ... (5, 2)", *_adaptive, f32(6, 2), 1.0)
type_error("adaptive-sparse-params", "params ... dense", *_adaptive, GOOD, 1.0)
type_error("adaptive-no-params", "params ... None", *_adaptive, None, 1.0)
type_error("adaptive-frameworks", "params ... accepted", *_adaptive, foreign(DENSE), 1.0)
value_error("adaptive-structure", "params ... structure", "adaptive_grad_clip", [GOOD], DENSE, 1.0)
value_error("adaptive-six-axes", "axes ... five", "adaptive_grad_clip", *[f32(*[2] * 6)] * 2, 1.0)

# ---------------------------------------------------------------------- padding, conversion
type_error("ids-float", "ids ... float32 ... int32 or int64", *GRADIENT, f32(2, value=0.5), 5)
index_error("ids-out-of-range", "ids ... 5 ... 0 <= index < 5", *GRADIENT, i64(0, 5), 5)
index_error("ids-negative", "ids ... -1", *GRADIENT, i64(0, -1), 5)
value_error("upstream-shape", "upstream ... (2, 3)", "embedding_grad", f32(3, 2), IDS, 5)
type_error("upstream-list", "upstream ... list ... accepted", "embedding_grad", [1.0], i64(0), 5)
value_error("num-rows-negative", "num_rows ... -1", "embedding_grad", UP, IDS, -1)
type_error("num-rows-float", "num_rows ... 5.0 ... int", "embedding_grad", UP, IDS, 5.0)
_pairs = ("embedding_grad", UP, IDS, 5)
index_error("padding-out-of-range", "padding_idx ... 5 ... -5", *_pairs, padding_idx=5)
type_error("padding-text", "padding_idx ... '0' ... int", *_pairs, padding_idx="0")
value_error("mask-shape", "mask ... (2,) ... (2, 3)", *_pairs, mask=of("bool", *[True] * 2))
type_error("mask-float", "mask ... float32 ... boolean", *_pairs, mask=f32(2, 3, value=0.5))
type_error("mask-list", "mask ... list ... boolean", *_pairs, mask=[True])
index_error("drop-padding-out-of-range", "padding_idx ... -6", "drop_padding", GOOD, -6)
value_error("drop-padding-rows-unknown", "padding_idx ... -1", "drop_padding", UNKNOWN, -1)
type_error("frequency-of-dense", "x ... sparse", "scale_by_frequency", DENSE)
type_error("from-native-dense", "x ... from_dense", "from_native", DENSE)
type_error("from-native-number", "x ... 3", "from_native", 3)
type_error("to-native-dense", "s ... IndexedSlices", "to_native", DENSE)
type_error("from-dense-slices", "IndexedSlices", "from_dense", GOOD)
value_error("from-dense-0-d", "x ... 0-d", "from_dense", f32())
value_error("from-dense-rows-twice", "rows ... 2 times", "from_dense", DENSE, i64(1, 1))
value_error("convert-unknown-backend", "'abacus' ... known", "convert", GOOD, "abacus")


def error_cases() -> Iterator[Case]:
    for id, (clause, raises, words, op, args, kwargs) in TABLE.items():
        expect = {"raises": raises, "message": words}
        yield Case(f"errors/{id}", clause, op, args, kwargs, expect, ["eager"])
