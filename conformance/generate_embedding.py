"""Make the golden cases of lookups, bags, per-sample gradients and renorm_rows for `islices.conformance.generate`."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

from islices.conformance.data import NONFINITE, Array, Case, Shape
from islices.conformance.makers import FLOATS, INDEX_TYPES, case, dense
from islices.conformance.oracle_embedding import lead_of, values_of_ids

Options = dict[str, Any]
#: form -> (ids or the pair (values, lengths), the options of the call)
Forms = dict[str, tuple[Any, Options]]
ROWS = 7
#: name -> (ids, shape). Some ids are sorted, and some have duplicates. There are cases without ids, and the arrays of
#: ids have 0 to 3 dimensions.
IDS: dict[str, tuple[list[int], Shape]] = {
    "empty": ([], (0,)),
    "no-columns": ([], (2, 0)),
    "0-d": ([3], ()),
    "one": ([3], (1,)),
    "sorted-unique": ([0, 2, 3, 6], (4,)),
    "unsorted-unique": ([5, 0, 6, 2], (4,)),
    "pair": ([1, 1, 2, 6, 0, 1, 5, 5, 0, 0], (2, 5)),
    "3-d": ([6, 0, 1, 1, 6, 2, 0, 0, 3, 3, 6, 6], (2, 3, 2)),
}


def ids_of(name: str, dtype: str = "int32") -> Array:
    data, shape = IDS[name]
    return Array(dtype, shape, list(data))


PAIR = ids_of("pair", "int64")
REAL = Array("bool", (2, 5), [i != 0 for i in PAIR.data])
#: name -> the options of a gradient for a lookup of the ids PAIR
PAIR_OPTIONS: dict[str, Options] = {
    "padding_idx": {"padding_idx": 0}, "negative": {"padding_idx": -7}, "mask": {"mask": REAL},
    "frequency": {"scale_by_freq": True}, "padding-frequency": {"padding_idx": 0, "scale_by_freq": True},
    "mask-frequency": {"mask": REAL, "scale_by_freq": True},
}  # fmt: skip
#: An upstream gradient with NaN at the ids that the mask hides.
NAN_UPSTREAM = Array("float32", (2, 5, 1), [math.nan if i == 0 else float(k) for k, i in enumerate(PAIR.data)])


def embedding_cases() -> Iterator[Case]:
    yield from lookups()
    yield from bags()
    yield from special_bags()
    yield from ragged()
    yield from samples()
    yield from ragged_samples()
    yield from tied()
    yield from renorm()


# ---------------------------------------------------------------------- rows
def lookups() -> Iterator[Case]:
    for dtype, name, index_type in itertools.product(FLOATS, IDS, INDEX_TYPES):
        ids = ids_of(name, index_type)
        for row_shape in ((3,), (), (2, 2)) if name == "pair" else ((3,),):
            table = dense((ROWS, *row_shape), "table", dtype)
            up = dense((*ids.shape, *row_shape), "upstream", dtype)
            label = f"{name}/{dtype}/{index_type}/rank{len(row_shape)}"
            yield case(f"embedding/lookup/{label}", "lookup", table, ids)
            yield case(f"embedding/gradient/{label}", "lookup_gradient", table, ids, up)
    cube = ids_of("3-d")
    for dtype in FLOATS:
        table, up = dense((ROWS, 3), "table", dtype), dense((2, 5, 3), "pair", dtype)
        for label, options in PAIR_OPTIONS.items():
            yield case(f"embedding/gradient/pair-{label}/{dtype}", "lookup_gradient", table, PAIR, up, **options)
        other = dense((2, 3, 2, 3), "other", dtype)
        yield case(f"embedding/gradient/two-lookups/{dtype}", "double_lookup_gradient", table, PAIR, up, cube, other)
    table = dense((ROWS, 3), "table")
    zeros = Array("int64", (2, 2), [0, 0, 0, 0])
    up = dense((2, 2, 3), "zeros")
    yield case("embedding/gradient/all-padding", "lookup_gradient", table, zeros, up, padding_idx=0)
    column = dense((ROWS, 1), "column")
    yield case("embedding/gradient/mask-hides-nan", "lookup_gradient", column, PAIR, NAN_UPSTREAM, mask=REAL)
    wide = Array("float32", (ROWS, 0), [])
    none = Array("float32", (2, 5, 0), [])
    yield case("embedding/gradient/empty-rows", "lookup_gradient", wide, PAIR, none)
    up = dense((2, 5, 3), "pair")
    for narrow in ("int8", "uint8"):
        ids = ids_of("pair", narrow)
        yield case(f"embedding/lookup/narrow-ids/{narrow}", "lookup", table, ids)
        yield case(f"embedding/gradient/narrow-ids/{narrow}", "lookup_gradient", table, ids, up)
        yield case(f"embedding/grad/narrow-ids/{narrow}", "embedding_grad", up, ids, ROWS, padding_idx=0)
        flat, starts = (Array(narrow, x.shape, list(x.data)) for x in (FLAT_IDS, OFFSETS))
        id = f"embedding/bags/narrow-ids/{narrow}"
        yield case(id, "lookup", table, flat, combiner="sum", offsets=starts, clause="12")


# ---------------------------------------------------------------------- bags
#: 2-D ids, and 1-D ids with offsets. The offsets make empty bags at the start, in the middle and at the end; the other
#: bags have one or several members.
BAG_IDS = Array("int64", (4, 5), [1, 1, 2, 6, 0, 0, 0, 0, 0, 0, 5, 3, 5, 0, 0, 6, 6, 6, 6, 6])
FLAT_IDS = Array("int32", (11,), [4, 0, 3, 3, 0, 6, 1, 1, 2, 0, 5])
OFFSETS = Array("int32", (6,), [0, 0, 3, 4, 4, 11])


def bags() -> Iterator[Case]:
    real = Array("bool", BAG_IDS.shape, [k % 4 != 1 for k in range(20)])
    forms: Forms = {
        "plain": (BAG_IDS, {}),
        "padding": (BAG_IDS, {"padding_idx": 0}),
        "mask": (BAG_IDS, {"mask": real}),
        "padding-mask": (BAG_IDS, {"padding_idx": 0, "mask": real}),
        "offsets": (FLAT_IDS, {"offsets": OFFSETS}),
        "offsets-padding": (FLAT_IDS, {"offsets": OFFSETS, "padding_idx": -7}),
        "offsets-sorted": (Array("int64", (11,), sorted(FLAT_IDS.data)), {"offsets": Array("int64", (2,), [0, 4])}),
        "3-d": (Array("int32", (2, 2, 5), list(BAG_IDS.data)), {"padding_idx": 0}),
        "one": (Array("int32", (1, 1), [3]), {}),
        "no-members": (Array("int32", (3, 0), []), {}),
        "no-bags": (Array("int32", (0, 3), []), {}),
        "offsets-no-bags": (Array("int32", (0,), []), {"offsets": Array("int32", (0,), [])}),
    }
    yield from combined("bags", forms, "weights")
    for dtype, row_shape in itertools.product(("float32", "float16"), ((), (2, 2), (7,), (1,))):
        table = dense((ROWS, *row_shape), "table", dtype)
        up = dense((4, *row_shape), "rows of a bag", dtype)
        w = dense(BAG_IDS.shape, "weights", dtype)
        label = "x".join(map(str, row_shape)) or "scalars"
        id = f"embedding/bags-gradient/row-shapes/{label}/{dtype}"
        given: Options = {"combiner": "mean", "weights": w, "padding_idx": 0}
        yield case(id, "lookup_gradient", table, BAG_IDS, up, **given)
    up, table = dense((4, 3), "frequency"), dense((ROWS, 3), "table")
    id = "embedding/bags-gradient/frequency"
    given = {"combiner": "mean", "padding_idx": 0, "scale_by_freq": True}
    yield case(id, "lookup_gradient", table, BAG_IDS, up, **given)


def combined(name: str, forms: Forms, weights: str) -> Iterator[Case]:
    """Yield lookups and their gradients for every form, dtype and combiner. For every combiner except "max", there are
    also cases with weights."""
    for dtype, combiner, form in itertools.product(FLOATS, ("sum", "mean", "sqrtn", "max"), forms):
        ids, options = forms[form]
        lead = lead_of(ids, options.get("offsets"))
        table, up = dense((ROWS, 3), "table", dtype), dense((*lead, 3), f"{name}/{form}", dtype)
        for weighted in (False,) if combiner == "max" else (False, True):
            given = dict(options, combiner=combiner)
            if weighted:
                given["weights"] = dense(values_of_ids(ids).shape, f"{weights}/{form}", dtype)
            label = f"{combiner}{'-weighted' if weighted else ''}/{form}/{dtype}"
            yield case(f"embedding/{name}/{label}", "lookup", table, ids, **given)
            yield case(f"embedding/{name}-gradient/{label}", "lookup_gradient", table, ids, up, **given)


def special_bags() -> Iterator[Case]:
    """Yield bags with ties, NaN, infinities, zero divisors, and sums that depend on the order."""
    table = Array("float32", (4, 2), [1.0, -2.0, 1.0, -2.0, math.nan, 5.0, -math.inf, -math.inf])
    ids = Array("int64", (3, 3), [1, 0, 1, 0, 2, 2, 3, 3, 3])
    up = Array("float32", (3, 2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    for op, args in (("lookup", (table, ids)), ("lookup_gradient", (table, ids, up))):
        yield case(f"embedding/bags/max-ties-nan-inf/{op}", op, *args, combiner="max")
        led = (table, Array("int32", (3, 2), [2, 0, 2, 2, 2, 3]), *args[2:])
        yield case(f"embedding/bags/max-nan-first/{op}", op, *led, combiner="max")
        yield case(f"embedding/bags/sum-nan-inf/{op}", op, *args, combiner="sum", padding_idx=2)
    big = Array("float32", (3, 1), [1e8, 1.0, -1e8])
    order = Array("int32", (1, 4), [0, 1, 2, 1])
    yield case("embedding/bags/left-fold", "lookup", big, order, combiner="sum")
    cancel = Array("float32", (1, 4), [1.0, -1.0, 0.5, -0.5])
    up = Array("float32", (1, 1), [1.0])
    for combiner in ("mean", "sqrtn"):
        id = f"embedding/bags/cancelling-weights-{combiner}"
        yield case(id, "lookup", big, order, combiner=combiner, weights=cancel)
        yield case(f"{id}-gradient", "lookup_gradient", big, order, up, combiner=combiner, weights=cancel)
    ones, many = Array("bfloat16", (1, 1), [1.0]), Array("int32", (1, 600), [0] * 600)
    yield case("embedding/bags/saturation/bfloat16", "lookup", ones, many, combiner="sum")


# ---------------------------------------------------------------------- ragged, absent
#: Lengths whose last bag ends before the ids end, with empty bags at the start, in the middle and at the end. Negative
#: ids in HOLES are absent.
LENGTHS = Array("int32", (6,), [0, 3, 1, 0, 4, 0])
HOLES = Array("int32", (11,), [4, -1, 3, -1, 0, 6, -9, 1, 2, 0, 5])
KEEP = Array("bool", (11,), [k % 3 != 2 for k in range(11)])
HOLES_2D = Array("int64", (4, 3), [1, -1, 1, -1, -1, -1, 0, 2, -5, 6, 6, 0])


def ragged() -> Iterator[Case]:
    drop: Options = {"invalid": "drop"}
    full = Array("int64", (3,), [5, 0, 6])
    forms: Forms = {
        "lengths": ((FLAT_IDS, LENGTHS), {}),
        "lengths-full": ((Array("int64", (11,), FLAT_IDS.data), full), {}),
        "lengths-padding-mask": ((FLAT_IDS, LENGTHS), {"padding_idx": 0, "mask": KEEP}),
        "lengths-drop": ((HOLES, LENGTHS), {**drop, "padding_idx": 0}),
        "lengths-no-bags": ((Array("int32", (0,), []), Array("int32", (0,), [])), {}),
        "offsets-drop": (HOLES, {"offsets": OFFSETS, **drop}),
        "drop": (HOLES_2D, drop),
        "drop-nothing": (BAG_IDS, {**drop, "padding_idx": 6}),
    }
    yield from combined("ragged", forms, "ragged weights")
    nan = Array("float32", (2, 2), [math.nan] * 2 + [1.0, -2.0])
    ones = Array("float32", (2, 2, 2), [1.0] * 8)
    holes = Array("int64", (2, 2), [1, -1, -7, 1])
    for op, args in (("lookup", ()), ("lookup_gradient", (ones,))):
        yield case(f"embedding/absent/not-row-0/{op}", op, nan, holes, *args, **drop)
        none = Array("float32", (0, 2), [])
        gone = Array("int64", (2, 2), [-1] * 4)
        yield case(f"embedding/absent/no-rows/{op}", op, none, gone, *args, **drop)
    for dtype, form in itertools.product(FLOATS, ("lengths", "lengths-padding-mask", "lengths-drop", "drop")):
        ids, options = forms[form]
        table, up = dense((ROWS, 3), "table", dtype), dense((*values_of_ids(ids).shape, 3), f"rows/{form}", dtype)
        label = f"{form}/{dtype}"
        yield case(f"embedding/ragged/rows/{label}", "lookup", table, ids, **options)
        more: Options = {"scale_by_freq": True} if form == "lengths-drop" else {}
        id = f"embedding/ragged-rows/embedding_grad/{label}"
        yield case(id, "embedding_grad", up, ids, ROWS, **options, **more)
        if not isinstance(ids, tuple):
            yield case(f"embedding/ragged-rows/gradient/{label}", "lookup_gradient", table, ids, up, **options, **more)


# ---------------------------------------------------------------------- per sample
def samples() -> Iterator[Case]:
    forms: Forms = {
        "plain": (PAIR, {}),
        "padding": (PAIR, {"padding_idx": 0}),
        "mask": (PAIR, {"mask": REAL}),
        "3-d": (ids_of("3-d"), {"padding_idx": -1}),
        "1-d": (ids_of("unsorted-unique"), {}),
        "no-samples": (Array("int32", (0, 4), []), {}),
        "no-ids": (Array("int64", (3, 0), []), {"padding_idx": 0}),
        "all-padding": (Array("int64", (2, 2), [1, 1, 1, 1]), {"padding_idx": 1}),
    }
    for dtype, form in itertools.product(FLOATS, forms):
        ids, options = forms[form]
        for row_shape in ((3,), ()):
            up = dense((*ids.shape, *row_shape), f"samples/{form}", dtype)
            label = f"{form}/{dtype}/rank{len(row_shape)}"
            for op in ("norms", "sum", "to_dense", *(["slices"] if ids.shape[0] > 1 else [])):
                id, number = f"embedding/per-sample-{op}/{label}", [1] if op == "slices" else []
                yield case(id, f"per_sample_{op}", up, ids, ROWS, *number, **options)
            for limit in (2.5, 0.0, "inf"):
                id = f"embedding/per-sample-clip/{label}/max-{limit}"
                yield case(id, "per_sample_clip_sum", up, ids, ROWS, limit, **options)
    for dtype in FLOATS:
        up = dense((2, 5, 3), "tree", dtype)
        for limit in (3.0, 40.0):
            d = dense((2, 4), "tree", dtype)
            id = f"embedding/clip-per-sample/{dtype}/max-{limit}"
            yield case(id, "clip_per_sample_sum", up, PAIR, ROWS, d, limit)
    rng = random.Random("cancelling samples")
    rows = [[rng.uniform(1, 4) for _ in range(2)] for _ in range(4)]
    data = [round(v * s, 3) for row in rows for s in (1, -1) for v in row]
    cancelling = Array("float64", (4, 2, 2), data)
    twice = Array("int32", (4, 2), [1, 1, 2, 3, 5, 5, 0, 6])  # the gradients of samples 0 and 2 cancel
    yield case("embedding/per-sample-norms/cancelling", "per_sample_norms", cancelling, twice, ROWS)
    spoiled = Array("float32", (3, 1, 1), [math.inf, 2.0, math.nan])
    one = Array("int32", (3, 1), [1, 1, 2])
    for (named, mode), limit in itertools.product(NONFINITE, (1.0, 0.0)):
        id = f"embedding/per-sample-clip/nonfinite-{named}-max-{limit}"
        yield case(id, "per_sample_clip_sum", spoiled, one, ROWS, limit, nonfinite=mode)


def ragged_samples() -> Iterator[Case]:
    forms: Forms = {
        "lengths": ((FLAT_IDS, LENGTHS), {"padding_idx": 0, "mask": KEEP}),
        "lengths-drop": ((HOLES, LENGTHS), {"invalid": "drop"}),
        "drop": (HOLES_2D, {"invalid": "drop", "padding_idx": 1}),
    }
    for dtype, form in itertools.product(FLOATS, forms):
        ids, options = forms[form]
        up = dense((*values_of_ids(ids).shape, 3), f"ragged samples/{form}", dtype)
        for op in ("norms", "sum", "to_dense"):
            yield case(f"embedding/per-sample-{op}/{form}/{dtype}", f"per_sample_{op}", up, ids, ROWS, **options)
        for op, number in (("slices", 2), ("clip_sum", 2.5)):
            id = f"embedding/per-sample-{op.removesuffix('_sum')}/{form}/{dtype}"
            yield case(id, f"per_sample_{op}", up, ids, ROWS, number, **options)


def whole(dtype: str, shape: Shape, seed: str, most: int = 3) -> Array:
    """Return an array of integers from -most to most, whose products and sums are exact in any order."""
    rng = random.Random(f"whole/{dtype}/{shape}/{seed}")
    return Array(dtype, shape, [float(rng.randint(-most, most)) for _ in range(math.prod(shape))])


def tied() -> Iterator[Case]:
    """Yield cases in which the table is also the output layer. Each sample has 1, 2, 3 or 6 outputs; the table has 3
    columns."""
    empty = Array("int64", (2, 0), [])
    every = Array("int32", (2, ROWS), [*range(ROWS)] * 2)  # every row has an id, so float64 norms are correctly rounded
    for dtype, (form, lead) in itertools.product(
        FLOATS, {"one": (2,), "few": (2, 2), "square": (2, 3), "many": (2, 2, 3)}.items()
    ):
        product = [whole(dtype, (*lead, ROWS), f"g/{form}"), whole(dtype, (*lead, 3), f"x/{form}")]
        for name, ids, options in (
            ("pair", PAIR, {}),
            ("padding", PAIR, {"padding_idx": 0}),
            ("every", every, {}),
            ("nothing", empty, {}),
        ):
            up = whole(dtype, (*ids.shape, 3), f"up/{form}")
            label, args = f"{form}/{name}/{dtype}", (up, ids, ROWS)
            kwargs: Options = {**options, "product": product}
            if dtype != "float64" or name == "every":
                yield case(f"embedding/tied-norms/{label}", "per_sample_norms", *args, **kwargs)
            yield case(f"embedding/tied-sum/{label}", "per_sample_sum", *args, **kwargs)
            yield case(f"embedding/tied-to-dense/{label}", "per_sample_to_dense", *args, **kwargs)
            yield case(f"embedding/tied-slices/{label}", "per_sample_slices", *args, 1, **kwargs)
            for limit in (2.5, 0.0, "inf"):
                if dtype == "float64" and limit == 2.5:
                    continue  # the last bit of the norm may differ, and would change the factor
                yield case(f"embedding/tied-clip/{label}/max-{limit}", "per_sample_clip_sum", *args, limit, **kwargs)
    ones = [1.0] * (2 * ROWS)
    spoiled = [Array("float32", (2, ROWS), ones), Array("float32", (2, 3), [1.0, 2.0, math.nan, *ones[:3]])]
    up = whole("float32", (*PAIR.shape, 3), "spoiled")
    for named, mode in NONFINITE:
        id = f"embedding/tied-clip/nonfinite-{named}"
        yield case(id, "per_sample_clip_sum", up, PAIR, ROWS, 2.5, nonfinite=mode, product=spoiled)


def renorm() -> Iterator[Case]:
    for dtype, (name, limit) in itertools.product(FLOATS, (("some", 4.0), ("all", 0.5), ("none", 1e4), ("zero", 0.0))):
        table = dense((ROWS, 3), "renorm", dtype)
        yield case(f"embedding/renorm/{name}/{dtype}", "renorm_rows", table, PAIR, limit)
    table = Array("float32", (3, 1), [math.inf, 2.0, math.nan])
    every = Array("int32", (3,), [2, 0, 1])
    for named, mode in NONFINITE:
        yield case(f"embedding/renorm/nonfinite-{named}", "renorm_rows", table, every, 1.0, nonfinite=mode)
    empty = Array("int32", (0,), [])
    yield case("embedding/renorm/no-ids", "renorm_rows", table, empty, 1.0)
