"""The process in which hostile calls are made: ``python -m ... BACKEND SEED FIRST LAST NATIVE_SHARE LOG``.

It writes the number of an input before it makes the call, so that whoever watches knows where it died. LOG "-" shows
each call and what came of it instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import islices
from islices.backend import Backend
from islices.conformance.properties.hostile_calls import Call, draw_call
from islices.conformance.properties.hostile_input import Watched

__all__ = ["ACCEPTED", "Verdict", "judge", "main"]

#: What a call may raise, whatever it is given.
ACCEPTED = (TypeError, ValueError, IndexError, MemoryError, NotImplementedError, FloatingPointError)
#: What a message calls a leaf of a nested argument, its parts, and what an adapter is to take into its framework.
PARTS = ("x", "values", "indices", "dense_shape", "array")
#: How often what frameworks compiled is let go, and counts are written.
HOUSEKEEPING, REPORT = 10_000, 200


class Verdict(NamedTuple):
    """What came of a call: a word to count, and where a promise was broken, a key to group by and a text."""

    came: str
    key: str = ""
    text: str = ""


def judge(call: Call) -> Verdict:
    """Make the call, and hold what came of it against what every call promises."""
    with islices.execution(call.mode):
        try:
            _settle(call.entry.run(**call.arguments))
        except BaseException as error:
            return _raised(call, error)
    if call.aliased:
        return Verdict("returned")
    free = {id(x) for name in call.entry.targets for x in _arrays(call.arguments[name])}
    under = free and "the memory under a view"
    if changed := _changed([w for w in call.watched if id(w.array) not in free and w.label != under]):
        return Verdict("returned", f"{call.name} changes {changed[0]}", f"{call.name} returned, and changed {changed}")
    return Verdict("returned")


def _raised(call: Call, error: BaseException) -> Verdict:
    came, message = type(error).__name__, _message(error)
    where = _where(error)
    at = where.splitlines()[0]
    text = f"{call.name}({', '.join(call.spoilt)} spoilt), {call.mode}: {came}: {message:.600}\n  at {where}"
    if changed := _changed(call.watched):
        return Verdict(came, f"{call.name} raises {came} and has changed {changed[0]}", text)
    if isinstance(error, RuntimeError) and "device" in message:  # arrays of two devices: the framework says it well
        return Verdict(came)
    if not isinstance(error, (*ACCEPTED, *call.entry.raises)):
        return Verdict(came, f"{came} at {at}", text)
    names = {*call.arguments, *PARTS, *call.entry.words, call.name.rpartition(".")[2]}
    if isinstance(error, (TypeError, ValueError, IndexError)) and not _names_one(message, names):
        return Verdict(came, f"{came} names no argument at {at}", text)
    return Verdict(came) if message else Verdict(came, f"{came} without a message at {at}", text)


def _names_one(message: str, names: set[str]) -> bool:
    return re.search(rf"\b({'|'.join(map(re.escape, names))})\b", message) is not None


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # an exception that cannot even be printed
        return f"<its message raises {type(second).__name__}>"


def _where(error: BaseException) -> str:
    """The library's last frames of the traceback, innermost first."""
    frames = [
        f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if "properties" not in frame.filename
    ]
    own = [
        f
        for f in frames
        if f.startswith(("islices/", "optim/", "kernels/", *(f"{b}/" for b in islices.list_backends())))
    ]
    return "\n  from ".join(reversed((own or frames)[-3:])) or "the call itself"


def _settle(result: Any) -> None:
    """Wait for what MXNet computes behind our back: its errors belong to the call."""
    for x in _arrays(result):
        if callable(wait := getattr(type(x), "wait_to_read", None)):
            wait(x)


def _arrays(x: Any) -> Iterator[Any]:
    """The arrays, or what stands in their places, of a nested structure."""
    if isinstance(x, (list, tuple)):
        for item in x:
            yield from _arrays(item)
    elif isinstance(x, dict):
        yield from _arrays(list(x.values()))
    elif isinstance(x, islices.IndexedSlices):
        yield from (x.values, x.indices)
    elif isinstance(x, islices.Table):
        yield x.weights
    else:
        yield x


def _changed(watched: list[Watched]) -> list[str]:
    """Labels of the arrays that no longer hold what they held."""
    out = []
    for label, array, backend, bits in watched:
        try:
            now = backend.to_numpy(array)
        except Exception as error:  # whatever a framework says of an array that is gone
            out.append(f"{label} (lost: {type(error).__name__})")
            continue
        if not _same_bits(now, bits):
            out.append(label)
    return out


def _same_bits(now: np.ndarray[Any, Any], before: np.ndarray[Any, Any]) -> bool:
    if now.shape != before.shape:
        return False
    if now.dtype != before.dtype:  # another byte order, or 64 bits that JAX holds as 32
        now = now.astype(before.dtype) if before.dtype != np.uint16 else now.view(np.uint16)
    return now.tobytes() == before.tobytes()


# ---------------------------------------------------------------------- the run
def main(argv: list[str]) -> int:
    name, seed, first, last, share, log = argv
    backend = islices.get_backend(name)
    others = list(_others(name))
    if log == "-":
        return _aloud(backend, others, int(seed), range(int(first), int(last)), float(share))
    counts: Counter[str] = Counter()
    fd = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number in range(int(first), int(last)):
        os.write(fd, b"%d\n" % number)
        verdict = _one(backend, others, int(seed), number, float(share))
        counts[verdict.came] += 1
        if verdict.key:
            line = {"number": number, "key": verdict.key, "text": verdict.text}
            os.write(fd, json.dumps(line).encode() + b"\n")
        if number % HOUSEKEEPING == HOUSEKEEPING - 1:
            backend.forget_compiled()
        if number % REPORT == REPORT - 1 or number == int(last) - 1:
            os.write(fd, json.dumps({"counts": counts}).encode() + b"\n")
            counts.clear()
    os.close(fd)
    return 0


def _others(name: str) -> Iterator[Backend]:
    """NumPy, and the one of the other frameworks that loads soonest."""
    if name != "numpy":
        yield islices.get_backend("numpy")
    installed = islices.list_backends()
    for other in ("jax", "torch", "mxnet", "tensorflow"):
        if other != name and other in installed:
            yield islices.get_backend(other)
            return


def _one(backend: Backend, others: list[Backend], seed: int, number: int, share: float) -> Verdict:
    rng = random.Random(f"{backend.name}/{seed}/{number}")
    with _width(rng, backend) as wide:
        try:
            call = draw_call(rng, backend, others, share, wide=wide)
        except Exception as error:  # good arguments that could not be made say nothing about the call
            text = "".join(traceback.format_exception(error))[-1500:]
            return Verdict("harness error", f"harness error: {type(error).__name__} at {_where(error)}", text)
        return judge(call)


@contextlib.contextmanager
def _width(rng: random.Random, backend: Backend) -> Iterator[bool]:
    """Whether the framework's 64-bit types are switched on, which is now and then."""
    wide = rng.random() < 0.3
    with backend.wide_types() if wide else contextlib.nullcontext():
        yield wide


def _aloud(backend: Backend, others: list[Backend], seed: int, numbers: range, share: float) -> int:
    found = 0
    for number in numbers:
        rng = random.Random(f"{backend.name}/{seed}/{number}")
        with _width(rng, backend) as wide:
            call = draw_call(rng, backend, others, share, wide=wide)
            print(f"input {number}: {call.name} on {backend.name}, {call.mode}; spoilt: {', '.join(call.spoilt)}")
            for key, value in call.arguments.items():
                print(f"  {key} = {show(value)}", flush=True)
            verdict = judge(call)
        print(f"came: {verdict.came}\n{verdict.key or 'as promised'}\n{verdict.text}")
        found |= bool(verdict.key)
    return found


def show(x: Any, depth: int = 0) -> str:
    """An argument as text, whatever it is."""
    try:
        if isinstance(x, islices.IndexedSlices):
            flags = f"coalesced={x.coalesced}, padded={x.padded}"
            return f"IndexedSlices({show(x.values)}, {show(x.indices)}, {x.dense_shape}, {flags})"
        if isinstance(x, islices.Table):
            return f"Table({show(x.weights)}, padding_idx={x.padding_idx})"
        if type(x) in (list, tuple, dict) and depth < 4:
            items = x.items() if isinstance(x, dict) else enumerate(x)
            return f"{type(x).__name__}({', '.join(f'{k}: {show(v, depth + 1)}' for k, v in items)})"
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        if dtype is None:
            return f"{x!r:.200}"
        data = ""
        with contextlib.suppress(Exception):  # an array that cannot be read is shown by its type
            if not islices.get_backend(x).is_native(x):
                data = f" {islices.get_backend(x).to_numpy(x).tolist()!r:.200}"
        return f"{type(x).__name__} {dtype} {shape}{data}"
    except Exception as error:  # an object made to raise
        return f"<{object.__repr__(x)}: showing it raises {type(error).__name__}>"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
