"""Compute how far a result may differ from the expected result because of rounding. The bounds follow the
specification.

Clause 20 states a bound for sums in any order. Clause 22 states a bound for factors that contain norms, and norms get a
similar bound. Clause 23 states a bound for steps of optimizers. From the case's arguments, islices on NumPy computes
the sums of |terms|, the counts of terms, and the changes of the weights and the state.

May import: `islices`, `numpy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

import islices
from islices.conformance.composite_operations import operation
from islices.conformance.data import EPS, Array, Case, Slices, arrays_of, map_leaves
from islices.conformance.execute import read, to_backend

SUMS = ("coalesce", "to_dense", "add", "scatter_add", "scatter_sub", "lookup")
NORMS = (
    "norm", "global_norm", "clip_by_norm", "clip_by_global_norm", "clip_by_row_norm", "clip_by_block_rms",
    "adaptive_grad_clip", "renorm_rows",
)  # fmt: skip
#: A limit on the number of roundings, such as those of products, that an element has besides those of its sum or norm.
BESIDE = 8


class Bound(NamedTuple):
    """The bound of each element in the arrays of a result, and the clause that states the bound."""

    says: str
    allowed: list[Any]


def bound_of(case: Case) -> Bound | None:
    """Return the `Bound` of a case, with one item per array of the result, in order. If the result contains slices, the
    bound covers only their values. Return None if no clause states a bound for the case."""
    want = list(_floats(case.expect))
    if not want or any(x.dtype not in EPS for x in arrays_of(case.expect)):
        return None if case.op != "optimizer_steps" else _steps(case)
    if case.op in SUMS and case.kwargs.get("combiner") != "max":
        return _sums(case, want)
    if case.op in NORMS:
        n = max(2, *(math.prod(x.shape) for x in arrays_of(case.args)))
        relative = (4 * math.log2(n) + 16) / 2 + BESIDE
        allowed = [relative * EPS[x.dtype] * _sizes(x) for x in want]
        return Bound("within clause 22's bound of norms in any order", allowed)
    return _steps(case) if case.op == "optimizer_steps" else None


def _sums(case: Case, want: list[Array]) -> Bound:
    """Return the bound of clause 20: n eps (sum of |terms|) per element. The bound of a 16-bit result also includes one
    rounding to 16 bits."""
    sizes = _floats(_evaluated(case, _absolute))
    counts = _floats(_evaluated(case, _ones))
    allowed = []
    for x, size, count in zip(want, sizes, counts, strict=True):
        wide = EPS["float32" if x.dtype in ("float16", "bfloat16") else x.dtype]
        narrow = EPS[x.dtype] * _sizes(x) if wide != EPS[x.dtype] else 0.0
        allowed.append(np.array(count.data) * wide * np.array(size.data) + narrow)
    return Bound("within clause 20's bound of sums in any order", allowed)


def _steps(case: Case) -> Bound | None:
    """Return a bound like that of clause 23 for tables: the sum of (64 + k) eps R + 2 eps |w| over the steps k. For
    each array, R is the largest change of an element in one step so far. |w| is the largest absolute value after step
    k."""
    grads = case.args[3]
    count = case.kwargs.get("steps") or len(grads)
    before: dict[str, Any] = {"table": case.args[2], **(case.kwargs.get("state") or {})}
    allowed = dict.fromkeys(case.expect, 0.0)
    moved = dict(allowed)
    for k in range(1, count + 1):
        after = _stepped(case, before, grads[(k - 1) % len(grads)])
        for key, x in after.items():
            if x.dtype in EPS:
                start = before.get(key)
                old = 0.0 if start is None else np.array(start.data, np.float64)
                moved[key] = max(moved[key], _largest(np.array(x.data, np.float64) - old))
                allowed[key] += EPS[x.dtype] * ((64 + k) * moved[key] + 2 * _largest(_sizes(x)))
        before = after
    return Bound(
        "within clause 23's bound of steps", [np.full(len(x.data), allowed[key]) for key, x in case.expect.items()]
    )


def _stepped(case: Case, before: dict[str, Any], grad: Any) -> Any:
    """Return the table and the state after one step from `before`."""
    table, state = before["table"], {key: x for key, x in before.items() if key != "table"}
    first = {} if state else {"master": case.kwargs["master"]} if "master" in case.kwargs else {}
    options = {key: x for key, x in case.kwargs.items() if key not in ("steps", "state", "master")}
    one = replace(case, args=[*case.args[:2], table, [grad]])
    return _evaluated(one, lambda x: x, options | ({"state": state} if state else first))


def _largest(x: Any) -> float:
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max()) if finite.size else 0.0


# ---------------------------------------------------------------------- the case on other numbers
def _evaluated(case: Case, change: Callable[[Any], Any], kwargs: dict[str, Any] | None = None) -> Any:
    """Run the case on NumPy and return the result. `change` first replaces each float array in the arguments.

    A scatter_sub runs as a scatter_add, so that sums of |terms| do not cancel. `kwargs` replaces the keyword arguments
    of the case.
    """
    B = islices.get_backend("numpy")
    options = dict(case.kwargs if kwargs is None else kwargs)
    with islices.config.execution("host"), islices.config.use_kernels(False), np.errstate(all="ignore"):
        args = [to_backend(B, _mapped(x, change)) for x in case.args]
        named = {key: to_backend(B, _mapped(x, change)) for key, x in options.items()}
        return read(operation("scatter_add" if case.op == "scatter_sub" else case.op)(*args, **named))


def _mapped(x: Any, change: Callable[[Any], Any]) -> Any:
    def changed(leaf: Any) -> Any:
        if isinstance(leaf, Slices):
            return replace(leaf, values=changed(leaf.values))
        return change(leaf) if isinstance(leaf, Array) and leaf.dtype in EPS else leaf

    return map_leaves(changed, x)


def _absolute(x: Array) -> Array:
    return Array("float64", x.shape, [abs(v) for v in x.data])


def _ones(x: Array) -> Array:
    return Array("float64", x.shape, [1.0] * len(x.data))


def _sizes(x: Array) -> Any:
    return np.abs(np.array(x.data, np.float64))


def _floats(x: Any) -> Iterator[Array]:
    return (found for found in arrays_of(x) if found.dtype in EPS)
