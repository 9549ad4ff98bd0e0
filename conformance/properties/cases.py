"""Random cases: calls of the suite's operations with the results that the oracle computes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from islices.conformance.data import Array, Case
from islices.conformance.generate import factors
from islices.conformance.generate_optim import state_of
from islices.conformance.oracle import SCATTER
from islices.conformance.oracle_optim import OPTIMIZERS
from islices.conformance.oracles import ORACLES
from islices.conformance.properties.strategies import (
    FACTORS,
    LIMITS,
    ROWS,
    Draw,
    Kind,
    array,
    kinds,
    looked_up,
    moderate,
    row_numbers,
    slices,
)

Call = tuple[list[Any], dict[str, Any]]


@st.composite
def cases(draw: Draw) -> Case:
    """Random cases of every operation that the oracle knows."""
    kind = draw(kinds())
    s, dense = slices(draw, kind, moderate), array(draw, kind, moderate)
    limit, padding = draw(st.sampled_from((0.0, *LIMITS))), draw(st.sampled_from((0, 1, -1)))
    samples = list(looked_up(draw).values())
    some_rows, low = row_numbers(draw), draw(st.sampled_from((0.0, -0.9, -4.0)))
    calls: dict[str, Call] = {
        **{op: ([s], {}) for op in ("coalesce", "to_dense", "scale_by_frequency")},
        "scale": ([s, draw(st.sampled_from(FACTORS))], {}),
        "add": ([s, draw(st.sampled_from((dense, slices(draw, kind, moderate))))], {}),
        "norm": ([s], {"ord": draw(st.sampled_from((1, 2, "inf")))}),
        "global_norm": ([[s, dense, None]], {}),
        "clip_by_value": ([s, low, 1.0 - low], {}),
        **{op: ([s, limit], {}) for op in ("clip_by_norm", "clip_by_row_norm")},
        "clip_by_global_norm": ([[s, None, {"d": dense}], limit], {}),
        "keep_rows": ([s, some_rows], {}),
        "drop_padding": ([s, padding], {}),
        "embedding_grad": ([s.values, s.indices, ROWS], {"padding_idx": padding}),
        **{f"scatter_{op}": ([dense, factors(s) if op in ("mul", "div") else s], {}) for op in SCATTER},
        "optimizer_steps": step(draw, dense, s, some_rows.data),
        "renorm_rows": ([dense, s.indices, limit], {}),
        **bags(draw, kind, dense, padding),
        "per_sample_norms": (samples, {"padding_idx": padding}),
        "per_sample_to_dense": (samples, {}),
        "per_sample_clip_sum": ([*samples, limit], {}),
    }
    op = draw(st.sampled_from(sorted(calls)))
    args, options = calls[op]
    return Case("random", "17", op, args, options, ORACLES[op](*args, **options))


def step(draw: Draw, table: Array, grad: Any, frozen: list[int]) -> Call:
    """One step of an optimizer from some state."""
    name, hyper = draw(st.sampled_from(list(OPTIMIZERS.values())))
    state = state_of(name, hyper, table, draw(st.sampled_from((0, 3, 1000, 10**8))), "random")
    options = {"rows": draw(st.sampled_from(("touched", "all"))), "maximize": draw(st.booleans())}
    return [name, hyper, table, [grad]], {"state": state, "frozen": draw(st.sampled_from((None, frozen))), **options}


def bags(draw: Draw, kind: Kind, table: Array, padding: int) -> dict[str, Call]:
    """A lookup of bags and its gradient: along the last axis, at offsets or by lengths, with any of the options."""
    n = kind.n or 1
    flat = draw(st.sampled_from(("", "offsets", "lengths")))
    shape = (2 * n,) if flat else (n, 2)
    invalid = draw(st.sampled_from(("raise", "drop")))
    data = draw(st.lists(st.integers(-(invalid == "drop"), ROWS - 1), min_size=2 * n, max_size=2 * n))
    ids: Any = Array(kind.index_type, shape, data)
    combiner = draw(st.sampled_from(("sum", "mean", "sqrtn", "max")))
    choices = {
        "padding_idx": padding, "max_norm": draw(st.sampled_from((0.0, *LIMITS))),
        "mask": Array("bool", shape, draw(st.lists(st.booleans(), min_size=2 * n, max_size=2 * n))),
        "weights": array(draw, kind, moderate, shape),
    }  # fmt: skip
    chosen = draw(st.sets(st.sampled_from([name for name in choices if name != "weights" or combiner != "max"])))
    options = {"combiner": combiner, "invalid": invalid, **{name: choices[name] for name in sorted(chosen)}}
    starts = [0, *sorted(draw(st.lists(st.integers(0, 2 * n), min_size=n - 1, max_size=n - 1)))]
    if flat == "offsets":
        options["offsets"] = Array("int64", (n,), starts)
    elif flat:
        lengths = [b - a for a, b in zip(starts, [*starts[1:], 2 * n], strict=True)]
        ids = (ids, Array(kind.index_type, (n,), lengths))
    upstream = array(draw, kind, moderate, (n, *kind.row_shape))
    return {"lookup": ([table, ids], options), "lookup_gradient": ([table, ids, upstream], options)}
