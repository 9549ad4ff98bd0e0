"""What the audit asks: probes of frameworks' own functions, and how an answer is judged.

A probe is a generator of `Ask`: what went in, the framework's own call, and what the specification says comes out. It
registers itself with its place in its module as number ("torch-3"). Nothing about the outcome is written beforehand:
`claim` is what was measured once and is only shown where it is found again.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from islices.conformance.data import Array
from islices.conformance.operations import UnsupportedError

__all__ = ["OUTCOMES", "PROBES", "Ask", "CorruptionError", "Probe", "examine", "probe"]

#: From bad to good. "corrupts" is found by a process that ended without being asked to, or by memory that changed.
OUTCOMES = ("corrupts", "raises", "differs", "agrees")
#: How upstream issues are named.
ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+")


class CorruptionError(Exception):
    """Raised by a probe's call that finds memory changed which the framework was not given to write."""


class Ask(NamedTuple):
    """One question: what goes in, in a word or two; the framework's call; the specification's answer."""

    given: str
    call: Callable[..., Any]  # called with nothing; what a loop gives it, it has by default
    expected: Any


class Probe(NamedTuple):
    """A question to a framework's own function, over several inputs.

    Attributes
    ----------
    number : str
        "torch-3": stable within a version of the audit.
    library : str
        The module that is asked; where it is not installed the probe is not run, and says so.
    call : str
        The framework's function, as its users write it.
    clause : str
        The clause of the specification it is asked about.
    claim : str
        One sentence: what was measured. Shown only where `trap` is found again.
    trap : str
        The outcome that was measured: "differs", "raises", "corrupts"; "" where none was.
    instead : str
        The islices call to use in its place.
    issue : str
        The upstream issue, "owner/repository#number", where there is one.
    isolated : bool
        Whether it runs in a process of its own, because it may end it.
    """

    number: str
    library: str
    call: str
    clause: str
    claim: str
    trap: str
    instead: str
    issue: str
    isolated: bool
    ask: Callable[[], Iterator[Ask]]


PROBES: dict[str, Probe] = {}


def probe(
    library: str,
    call: str,
    clause: str,
    *,
    claim: str,
    trap: str = "differs",
    instead: str,
    issue: str = "",
    isolated: bool = False,
) -> Callable[[Callable[[], Iterator[Ask]]], Callable[[], Iterator[Ask]]]:
    """Register a probe; it is numbered within its module. See `Probe` for what each field says."""
    if trap not in ("", *OUTCOMES[:3]):
        raise ValueError(f"trap: got {trap!r}; accepted are {', '.join(OUTCOMES[:3])} and ''")
    if issue and not ISSUE.fullmatch(issue):
        raise ValueError(f"issue: got {issue!r}; accepted is 'owner/repository#number'")

    def register(ask: Callable[[], Iterator[Ask]]) -> Callable[[], Iterator[Ask]]:
        framework = ask.__module__.rpartition(".")[2]
        number = f"{framework}-{sum(n.rpartition('-')[0] == framework for n in PROBES) + 1}"
        PROBES[number] = Probe(number, library, call, clause, claim, trap, instead, issue, isolated, ask)
        return ask

    return register


# ---------------------------------------------------------------------- an answer, judged
def examine(question: Probe) -> dict[str, Any]:
    """Ask everything, and report the worst answer: outcome, given, got, expected, error, and how many of each kind.

    What the probe itself raises, outside its calls, is its own fault and is let through.
    """
    started = time.perf_counter()
    answers = [_answer(ask) for ask in question.ask()]
    if not answers:
        raise ValueError(f"probe {question.number} asks nothing")
    counts = Counter(answer["outcome"] for answer in answers)
    answered = [answer for answer in answers if answer["outcome"] in OUTCOMES]
    worst = min(answered or answers[:1], key=_goodness)
    seconds = round(time.perf_counter() - started, 3)
    return {k: v for k, v in worst.items() if k != "size"} | {"counts": dict(counts), "seconds": seconds}


def _goodness(answer: dict[str, Any]) -> tuple[int, float]:
    outcome = answer["outcome"]
    return (OUTCOMES.index(outcome) if outcome in OUTCOMES else len(OUTCOMES), -answer["size"])


def _answer(ask: Ask) -> dict[str, Any]:
    said = {"given": ask.given, "expected": _text(ask.expected), "size": 0.0, "error": ""}
    try:
        got = ask.call()
    except CorruptionError as found:
        return {**said, "outcome": "corrupts", "got": str(found)}
    except UnsupportedError as missing:  # this platform cannot tell
        return {**said, "outcome": "not run", "got": str(missing)}
    except Exception as error:  # whatever a framework raises is an answer
        return {**said, "outcome": "raises", "got": f"{type(error).__name__}: {first_line(error)}"}
    size, wrong = _error(got, ask.expected)
    return {**said, "outcome": "differs" if wrong else "agrees", "got": _text(got), "size": size, "error": wrong}


def first_line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return line if len(line) <= 160 else f"{line[:160]}..."


def _error(got: Any, expected: Any) -> tuple[float, str]:
    """(how large, in words) the largest error is; (0, "") where both are the same, NaN and the sign of 0 aside."""
    if isinstance(expected, (str, bool, type(None))):
        return (0.0, "") if type(got) is type(expected) and got == expected else (math.inf, "another answer")
    a, b = _plain(got), _plain(expected)
    if a.shape != b.shape:
        return math.inf, f"shape {a.shape} instead of {b.shape}"
    with np.errstate(all="ignore"):
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if not wrong.any():
            return 0.0, ""
        off = np.abs(a - b)[wrong]
        largest = float(np.where(np.isnan(off), np.inf, off).max())
        scale = float(np.max(np.abs(b[wrong][np.isfinite(b[wrong])]), initial=0.0))
    relative = f", relative {largest / scale:.2g}" if scale and math.isfinite(largest) else ""
    return largest, f"{largest:.6g}{relative}"


def _plain(x: Any) -> np.ndarray[Any, Any]:
    if isinstance(x, Array):
        return np.array(x.data, np.float64).reshape(x.shape)
    return np.asarray(x).astype(np.float64)


def _text(x: Any) -> str:
    if isinstance(x, (str, bool, type(None))):
        return str(x)
    array, number = _plain(x), "{:.9g}".format
    if array.ndim == 0:
        return number(array.item())
    text = np.array2string(array, separator=", ", threshold=24, formatter={"float_kind": number}, max_line_width=10_000)
    return " ".join(text.split())[:300]
