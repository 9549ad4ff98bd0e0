"""The part "operations": coalesce, clip_by_global_norm and a step of SGD on one gradient, small and large.

islices validates its input. "islices" gets a gradient, "builds" also builds it in each call, "native" gets and returns
the framework's sparse object. All others are the framework's calls. Each is run once, and the norm of its result
compared, before anything is timed. The report says which of the framework's calls is off or raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import islices
from islices import IndexedSlices, get_backend, optim
from islices.conformance.tools.bench.rates import RATE
from islices.conformance.tools.bench.rounds import Call, blocking, does_less, measure, summary, zipf_ids
from islices.conformance.tools.bench.variants import block_of, framework_of, index_dtype

OPERATIONS = ("coalesce", "clip_by_global_norm", "sgd step")
#: (slices, dim) of the default gradients, and rows of the table for each slice.
SIZES, ROWS = ((64, 16), (131_072, 64)), 8
#: Elements from which on a call is timed by itself; of shorter ones, which vary most, so many together in more rounds.
LONG, INNER, ROUNDS = 1 << 16, 20, 30
TOLERANCE = 1e-3


def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure the operations on every size of the job."""
    name = job["backend"]
    for slices, dim in job["sizes"]:
        rows = ROWS * slices
        values = np.random.default_rng(1).standard_normal((slices, dim), np.float32)
        ids = zipf_ids(slices, rows).astype(index_dtype(name))
        short = values.size < LONG
        inner, rounds = (INNER, max(ROUNDS, job["repeat"])) if short else (1, job["repeat"])
        for operation, (variants, own, remarks) in _calls(name, values, ids, rows).items():
            times = measure(variants, rounds, seconds=job["seconds"], inner=inner)
            title = f"{operation}, milliseconds; builds: it builds the IndexedSlices too"
            emit(title=title, operation=f"{slices:,} x {dim}", remarks=remarks, **summary(times, own))


def _calls(name: str, values: Any, ids: Any, rows: int) -> dict[str, tuple[dict[str, Call], list[str], dict[str, str]]]:
    """Return {operation: (all calls, the labels of the framework's, remarks on calls that raise)}."""
    B, framework, shape = get_backend(name), framework_of(name), (rows, values.shape[1])
    v, i = B.asarray(values), B.asarray(ids)
    slices = IndexedSlices(v, i, shape)
    norm = float(islices.norm(slices))
    own = framework.calls(v, i, rows, norm / 2)
    gradients: dict[str, Call] = {"islices": lambda: slices, "builds": lambda: IndexedSlices(v, i, shape)}
    if B.native_name and not B.native_needs_coalesced:
        native = islices.to_native(slices)
        gradients["native"] = lambda: native
    found = {}
    for operation in OPERATIONS:
        ours = {label: _our_call(framework, operation, make, shape, norm / 2) for label, make in gradients.items()}
        expected = {"coalesce": norm, "clip_by_global_norm": norm / 2}.get(operation)
        calls, remarks = _checked(B, shape, blocking(ours | own[operation], block_of(name)), expected)
        found[operation] = calls, [label for label in calls if label not in gradients], remarks
    return found


def _our_call(framework: Any, operation: str, gradient: Call, shape: tuple[int, int], max_norm: float) -> Call:
    if operation == "coalesce":
        return lambda: islices.coalesce(gradient())
    if operation == "clip_by_global_norm":
        return lambda: islices.clip_by_global_norm([gradient()], max_norm)[0][0]
    optimizer, table = optim.sgd(RATE), framework.zeros(shape)
    held = [table, optimizer.init(table)]

    def step() -> Any:
        held[:] = optimizer.step(held[0], gradient(), held[1], donate=True)
        return held[0]

    return step


def _checked(
    B: Any, shape: tuple[int, int], given: dict[str, Call], expected: float | None
) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the calls, with remarks on wrong results, and why others raised; expected: the norm of the result."""
    found, failed = {}, {}
    for label, call in given.items():
        try:
            result = call()
        except Exception as error:  # whatever a framework raises for what it does not have: the others are measured
            failed[label] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        if expected is not None and not does_less(label):
            if isinstance(result, tuple):  # JAX's and NumPy's: values have room for a power of two
                values, ids = result
                pair = B.asarray(values[: len(ids)]), B.asarray(ids)
                result = IndexedSlices(*pair, shape, padded=True, validate=False)
            off = abs(float(islices.norm(result)) / expected - 1)
            label += "" if off <= TOLERANCE else f" (off by {off:.0%})"
        found[label] = call
    return found, failed
