"""The part "step" for one framework: its ways made, compared, timed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from islices import get_backend
from islices.conformance.tools.bench.fbgemm_ways import why_no_fbgemm
from islices.conformance.tools.bench.limit import Copying
from islices.conformance.tools.bench.rounds import blocking, does_less, fastest, measure, ratio, summary
from islices.conformance.tools.bench.steps.model import BATCHES, Case, Model, Problem, Way
from islices.conformance.tools.bench.steps.ours import our_ways

__all__ = ["run"]

#: By how much of itself a loss of the framework's own ways may differ from islices': they add up in another order, and
#: add epsilon elsewhere.
TOLERANCE = 1e-3
#: The losses of islices' ways, whose gradients and tables are the same bits: the frameworks' own sums are compiled
#: otherwise.
OUR_TOLERANCE = 1e-5
#: islices' ways that promise the same bits as each other.
SAME_BITS = ("islices", "islices, compiled")


def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure the job's case, given as lists of the fields of `Case`."""
    name = job["backend"]
    block = importlib.import_module(f"islices.conformance.own_calls.{name}").block
    model, kind, clip = job["case"]
    case = Case(Model(tuple(model[0]), *model[1:]), kind, clip)
    emit(**_measured(name, case, block, job))


def _measured(name: str, case: Case, block: Callable[[Any], None], job: dict[str, Any]) -> dict[str, Any]:
    framework = importlib.import_module(f"islices.conformance.tools.bench.steps.{name}").FRAMEWORK
    problem = Problem(case, np.int32 if name == "jax" else np.int64)
    ours, own = our_ways(name, framework, problem), framework.own(problem)
    ways = {label: ready() for label, ready in (ours | own).items()}
    same = _compare(f"{name} {case}", ways, list(ours), block)
    calls = blocking({label: _call(way) for label, way in ways.items()}, block)
    nbytes = problem.nbytes()
    times, limit = Copying(job["threads"]).limit(
        sum(nbytes.values()), lambda: measure(calls, job["repeat"], seconds=job["seconds"])
    )
    found = summary(times, list(ours), list(own))
    milliseconds = found["milliseconds"]
    remarks = {label: said for label, way in ways.items() if (said := way.remark())}
    if name == "torch" and not case.clip and (why := why_no_fbgemm()):
        remarks["FBGEMM"] = why
    return {
        "operation": str(case),
        "case_of": {"model": case.model._asdict(), "optimizer": case.optimizer, "clip": case.clip},
        "bytes": nbytes,
        "limit": limit,
        "over_limit": {label: t / limit["milliseconds"] for label, t in milliseconds.items()},
        "times_as_fast": {label: ratio(times[fastest(times, list(own))[0]], t) for label, t in times.items()},
        "same_bits": same,
        "remarks": remarks,
        **found,
    }


def _call(way: Way) -> Callable[[], Any]:
    return lambda: (way.step(), way.tables())


def _compare(what: str, ways: dict[str, Way], ours: list[str], block: Callable[[Any], None]) -> list[str]:
    """Take the first steps by every way; the ways of islices whose tables are the same bits then.

    A way that takes another step, as its label's remark says, is compared by the loss before it alone.
    """
    losses = {}
    for label, way in ways.items():
        found = []
        for _ in range(BATCHES):
            loss = way.step()
            block((loss, way.tables()))
            found.append(float(np.asarray(loss.asnumpy() if hasattr(loss, "asnumpy") else loss).reshape(())))
        losses[label] = found
    expected = losses[ours[0]]
    for label, found in losses.items():
        count = 1 if does_less(label) else BATCHES
        error = float(np.max(np.abs(np.array(found[:count]) / expected[:count] - 1)))
        allowed = OUR_TOLERANCE if label in SAME_BITS else TOLERANCE
        if not error <= allowed:
            raise RuntimeError(
                f"{what}, {label}: losses {found[:count]}; expected {expected[:count]}, at most {allowed} of them off"
            )
    same = [label for label in SAME_BITS if label in ways]
    for label in same[1:]:
        for got, wanted in zip(_numbers(ways[label]), _numbers(ways[same[0]]), strict=True):
            if not np.array_equal(got, wanted):
                raise RuntimeError(f"{what}: the tables of {label} and {same[0]} differ after {BATCHES} steps")
    return same


def _numbers(way: Way) -> list[np.ndarray[Any, Any]]:
    tables = way.tables()
    return [get_backend(x).to_numpy(x) for x in tables]
