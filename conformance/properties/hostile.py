"""Test public functions with hostile input: random calls whose arguments are wrong, unusual or share memory.

``python -m islices.conformance.properties hostile -b torch`` looks for calls that break one of two promises. First, a
call returns, or raises one of the errors `ACCEPTED` with a message. A TypeError, ValueError or IndexError names an
argument. A framework's RuntimeError about devices or groups is accepted, too. Second, a call that raises changes no
array. A call that returns changes only its targets, unless arguments share memory. Hypothesis draws the calls, and
shrinks the first call that breaks a promise.
"""

from __future__ import annotations

import contextlib
import faulthandler
import re
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import islices
from islices.backend import Backend
from islices.conformance.data import leaves_of
from islices.conformance.properties.hostile_calls import HostileCall, calls
from islices.conformance.properties.running import search

#: The errors that a call may raise, whatever its arguments are. `_wrong_error` also accepts some RuntimeErrors.
ACCEPTED = (
    TypeError, ValueError, IndexError, MemoryError, NotImplementedError, FloatingPointError, ModuleNotFoundError,
)  # fmt: skip
#: The names that a message may use for leaves of nested arguments, for parts of leaves, and for arrays that an adapter
#: reads.
PARTS = ("x", "values", "indices", "dense_shape", "array")
#: The seconds after which a call counts as hung; the process then ends with a traceback.
PATIENCE = 60


@contextlib.contextmanager
def noted(text: str, log: Path | None) -> Iterator[None]:
    """Guard a call that may end the process: write the call's text to the log before the call. End the process if the
    call takes longer than `PATIENCE` seconds. Without a log, do nothing."""
    if log:
        log.write_text(text, "utf-8")
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def attack(backend: Backend, examples: int, seed: int, *, log: Path | None = None) -> tuple[Counter[str], str]:
    """Make hostile calls. Return (counts of the outcomes, description of the smallest call that breaks a promise, or
    "").

    A call may end the process, so each call is first written to the log.
    """
    came: Counter[str] = Counter()
    others = [islices.get_backend(name) for name in ("numpy", "jax", "torch", "mxnet", "tensorflow")
              if name != backend.name and name in islices.list_backends()][:2]  # fmt: skip

    def problem_of(call: HostileCall) -> str:
        text = repr(call)
        with noted(text, log):
            word, problem = judge(call)
        came[word] += 1
        if came.total() % 10_000 == 0:
            backend.forget_compiled()
        return problem and f"{problem}\n{text}"

    found = search(calls(backend, others), examples, seed, problem_of)
    return came, found[1] if found else ""


def judge(call: HostileCall) -> tuple[str, str]:
    """Make the call. Return (a word for the outcome, a description of the broken promise). The description is "" if no
    promise was broken."""
    try:
        with call.environment():
            for x in _arrays(call.entry.run(**call.arguments)):
                if callable(wait := getattr(type(x), "wait_to_read", None)):
                    wait(x)  # MXNet computes asynchronously; wait, because its errors belong to this call
    except BaseException as error:
        return type(error).__name__, _wrong_error(call, error)
    free = {id(x) for name in call.entry.targets for x in _arrays(call.arguments[name])}
    under = free and "the memory under a view"
    kept = [w for w in call.watched if id(w.array) not in free and w.label != under]
    changed = [] if call.aliased else [w.changed for w in kept if w.changed]
    return "returned", f"{call.name} changes {changed[0]}" if changed else ""


def _wrong_error(call: HostileCall, error: BaseException) -> str:
    """Return a text with the promise that this error breaks and the end of the traceback. Return "" if the error breaks
    no promise."""
    came, where = type(error).__name__, "".join(traceback.format_exception(error)[-4:])
    message = "".join(traceback.format_exception_only(error)).partition(": ")[2].strip()
    names = {*call.arguments, *PARTS, *call.entry.words, call.name.rpartition(".")[2]}
    if changed := [w.changed for w in call.watched if w.changed]:
        return f"{call.name} raises {came} and has changed {changed[0]}\n{where}"
    if isinstance(error, RuntimeError) and re.search("device|group", message):
        return ""  # errors about devices or groups come from the framework and are clear
    if not isinstance(error, ACCEPTED):
        return f"{call.name} raises {came}\n{where}"
    if not message:
        return f"{came} without a message\n{where}"
    if isinstance(error, ACCEPTED[:3]) and not re.search(rf"\b({'|'.join(map(re.escape, names))})\b", message):
        return f"{came} names no argument\n{where}"
    return ""


def _arrays(x: Any) -> Iterator[Any]:
    """Yield the arrays in a nested structure: the values and indices of slices, the weights of tables, and all other
    leaves."""
    for leaf in leaves_of(x):
        if isinstance(leaf, islices.IndexedSlices):
            yield from (leaf.values, leaf.indices)
        else:
            yield leaf.weights if isinstance(leaf, islices.Table) else leaf
