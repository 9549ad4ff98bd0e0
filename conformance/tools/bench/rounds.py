"""Time several implementations of one operation in interleaved rounds, and summarise the times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np

Call = Callable[[], Any]
#: A job, a record, or a part of these, in the form of its JSON.
Record = dict[str, Any]
#: label of an implementation -> its milliseconds in each round
Times = dict[str, list[float]]
MOST_ROUNDS = 200


def measure(variants: dict[str, Call], repeat: int, *, seconds: float = 0.0, inner: int = 1) -> Times:
    """Return the milliseconds of each implementation in each round. The times of an additional first round are not
    returned.

    At least `repeat` rounds run, or half as many if `seconds` is not 0 and the first round takes longer. Then more
    rounds run until `seconds` have passed, but never more than MOST_ROUNDS in all. `inner` is the number of short calls
    that are timed together.
    """
    names = list(variants)
    first = {name: _timed(variants[name], inner) for name in names}
    times: Times = {name: [] for name in names}
    if seconds and sum(first[name] for name in names) * inner > seconds * 1e3:
        repeat = -(-repeat // 2)
    start = time.perf_counter()
    for turn in range(MOST_ROUNDS):
        if turn >= repeat and time.perf_counter() - start >= seconds:
            break
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            times[name].append(_timed(variants[name], inner))
    return times


def _timed(variant: Call, inner: int) -> float:
    """Return the mean milliseconds of `inner` calls. The last result is freed only after the timing, because freeing a
    table is not part of the operation."""
    before = time.perf_counter()
    for _ in range(inner - 1):
        variant()
    result = variant()
    elapsed = time.perf_counter() - before
    del result
    return elapsed * 1e3 / inner


def blocking(variants: dict[str, Call], block: Callable[[Any], None]) -> dict[str, Call]:
    """Return implementations that wait until the result of each call is computed."""

    def wait(variant: Call) -> Call:
        def call() -> Any:
            result = variant()
            block(result)
            return result

        return call

    return {label: wait(variant) for label, variant in variants.items()}


def ratio(a: list[float], b: list[float]) -> float:
    """Return the median, over all rounds, of the ratio of two implementations' times."""
    return median(x / y for x, y in zip(a, b, strict=True))


def does_less(label: str) -> bool:
    """Return True if the label of a framework's call ends in a remark such as "(duplicates not summed)"."""
    return label.endswith(")") and " (" in label


def fastest(times: Times, own: list[str]) -> list[str]:
    """Return a list with the label of the framework's fastest call that does the same as islices, if there is one. If a
    call that does less is even faster, the label of that call follows."""
    order = sorted((label for label in own if label in times), key=lambda label: median(times[label]))
    same = [label for label in order if not does_less(label)]
    return list(dict.fromkeys(same[:1] + order[:1]))


def summary(times: Times, own: list[str]) -> Record:
    """Return the number of rounds, the medians and quartiles of all calls, and the labels of the framework's fastest
    calls. Also return the speed of each call relative to the first of these fastest calls."""
    best = fastest(times, own)
    return {
        "rounds": len(next(iter(times.values()))),
        "milliseconds": {label: median(t) for label, t in times.items()},
        "quartiles": {label: [float(q) for q in np.percentile(t, (25, 75))] for label, t in times.items()},
        "own": best,
        "times_as_fast": {label: ratio(times[best[0]], t) for label, t in times.items()} if best else {},
    }


def timed(job: Record, variants: dict[str, Call], own: Iterable[str]) -> Record:
    """Measure the implementations with the `repeat` and `seconds` of the job, and return the summary."""
    return summary(measure(variants, job["repeat"], seconds=job["seconds"]), list(own))
