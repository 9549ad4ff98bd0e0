"""Make the golden cases of clipping along axes, by the root mean square, and by the norms of parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from islices.conformance.data import NONFINITE, Array, Case, Slices
from islices.conformance.makers import case, dense, slices, some_cross


def unitwise_cases() -> Iterator[Case]:
    for k, (name, s) in enumerate(some_cross("unitwise")):
        rank = len(s.dense_shape)
        every = [axes for n in range(rank + 1) for axes in itertools.combinations(range(rank), n)]
        axes = list(every[k % len(every)])
        yield case(f"clipping/axes/{name}", "clip_by_norm", s, 1.9, axes=axes)
        yield case(f"clipping/by_block_rms/{name}", "clip_by_block_rms", s, 0.9)
        table = dense(tuple(s.dense_shape), "params", s.values.dtype)
        yield case(f"clipping/adaptive/{name}", "adaptive_grad_clip", s, table, 0.25)
        if rank > 1:
            yield case(f"clipping/adaptive-rows/{name}", "adaptive_grad_clip", s, table, 0.3, axes=list(range(1, rank)))

    s = slices("unsorted-duplicates", "float32", "int64", (2, 2), "axes")
    d = dense((4, 2, 3), "axes")
    for x, label in ((s, "sparse"), (d, "dense")):
        for n in range(4):
            for chosen in itertools.combinations(range(3), n):
                id = f"clipping/axes/{label}-{''.join(map(str, chosen)) or 'none'}"
                yield case(id, "clip_by_norm", x, 2.5, axes=list(chosen))
    yield case("clipping/axes/negative", "clip_by_norm", s, 2.5, axes=-2)
    yield case("clipping/axes/unchanged", "clip_by_norm", s, 1e4, axes=[0])
    yield case("clipping/axes/leaves", "clip_by_norm", [s, None, d], 2.5, axes=[0, 2])
    yield case("clipping/axes/0-d", "clip_by_norm", dense((), "0-d"), 0.01, axes=[])
    for limit in (0.0, math.inf):
        yield case(f"clipping/axes/max-{limit}", "clip_by_norm", s, limit, axes=[0])
        yield case(f"clipping/by_block_rms/max-{limit}", "clip_by_block_rms", [s, d], limit)
        yield case(f"clipping/adaptive/max-{limit}", "adaptive_grad_clip", d, d, limit)
    for label, bad in (("nan", math.nan), ("inf", math.inf)):
        values = Array("float32", (3, 2), [bad, 1.0, 2.0, 3.0, 0.0, 5.0])
        x = Slices(values, Array("int64", (3,), [1, 0, 1]), (3, 2))
        table = dense((3, 2), "bad")
        for named, mode in NONFINITE:
            id = f"{label}-{named}"
            yield case(f"clipping/axes/nonfinite-columns/{id}", "clip_by_norm", x, 1.0, axes=[0], nonfinite=mode)
            yield case(f"clipping/axes/nonfinite-rows/{id}", "clip_by_norm", x, 1.0, axes=[1], nonfinite=mode)
            yield case(f"clipping/by_block_rms/nonfinite/{id}", "clip_by_block_rms", x, 1.0, nonfinite=mode)
            yield case(f"clipping/adaptive/nonfinite/{id}", "adaptive_grad_clip", x, table, 0.1, nonfinite=mode)
        spoilt = Array("float32", (3, 2), [bad, *table.data[1:]])
        yield case(f"clipping/adaptive/params-{label}", "adaptive_grad_clip", x, spoilt, 0.1)
    for shape in ((5, 1), (1, 4), (3, 2, 2, 2), (2, 2, 1, 2, 2), (6,), ()):
        name = "x".join(map(str, shape)) or "0-d"
        x, p = dense(shape, "units"), dense(shape, "units of params")
        yield case(f"clipping/adaptive/units-of-{name}", "adaptive_grad_clip", x, p, 0.2)
    zeros = Array("float32", (4, 2, 3), [0.0] * 24)
    yield case("clipping/adaptive/params-of-zeros", "adaptive_grad_clip", d, zeros, 2.0)
    yield case("clipping/adaptive/eps", "adaptive_grad_clip", d, zeros, 0.5, eps=0.5)
    tree = [s, None, d]
    params = [dense(s.dense_shape, "tree"), None, dense((4, 2, 3), "tree")]
    yield case("clipping/adaptive/tree", "adaptive_grad_clip", tree, params, 0.2)
    huge = Slices(Array("float64", (2, 2), [1e200, -3e200, 1e-200, 2.0]), Array("int64", (2,), [3, 3]), (10**9, 2))
    yield case("clipping/by_block_rms/huge-table", "clip_by_block_rms", huge, 1.0)
    none = Slices(Array("float32", (0, 2), []), Array("int64", (0,), []), (0, 2))
    yield case("clipping/by_block_rms/no-rows", "clip_by_block_rms", none, 1.0)
