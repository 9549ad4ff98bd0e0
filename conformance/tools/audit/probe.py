"""Define `Probe`, which describes one call of a framework. A probe contains the call, the answer that the
specification requires, and a sentence about the measured behaviour.

Every module in probes/ has a table `PROBES` of probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.data import Array

#: The expected answer of a call that must raise an error.
REFUSED = "an error"


class CorruptionError(Exception):
    """The error that a probe raises if the framework wrote to forbidden memory, for example outside of the table."""


class Probe(NamedTuple):
    """A call of a framework's function, with the answer that the specification requires.

    Attributes
    ----------
    call, clause : str
        The framework's function as users write it, and the number of the clause that specifies the answer.
    claim : str
        One sentence about the measured behaviour. The Markdown report omits the sentence for the outcomes "broken" and
        "not run".
    instead : str
        The code that users can write instead, usually a call of islices.
    given : str
        A short name of the input.
    request : callable
        A function that makes the framework's call and returns the answer.
    expected : str, bool or array
        The specification's answer, or `REFUSED` if the call must raise.
    trap : str
        The outcome that was measured when the probe was written: "differs", "raises" or "corrupts".
    issue : str
        The upstream issue, "owner/repository#number", or "" if there is none.
    isolated : bool
        True if no other probe may run in the same process, because the call may end the process.
    """

    call: str
    clause: str
    claim: str
    instead: str
    given: str
    request: Callable[[], Any]
    expected: Any
    trap: str = "differs"
    issue: str = ""
    isolated: bool = False


def examine(probe: Probe) -> dict[str, str]:
    """Make the call of a probe, and compare the answer with the expected answer. Return {"outcome": ..., "got": ...,
    "error": ...}."""
    try:
        got = probe.request()
    except CorruptionError as found:
        return {"outcome": "corrupts", "got": str(found), "error": ""}
    except UnsupportedError as missing:  # this platform cannot run the probe
        return {"outcome": "not run", "got": str(missing), "error": ""}
    except Exception as error:  # every error of a framework counts as an answer
        outcome = "agrees" if probe.expected is REFUSED else "raises"
        return {"outcome": outcome, "got": f"{type(error).__name__}: {first_line(error)}", "error": ""}
    if probe.expected is REFUSED:
        return {"outcome": "differs", "got": "no error", "error": ""}
    wrong = difference(got, probe.expected)
    return {"outcome": "differs" if wrong else "agrees", "got": text(got), "error": wrong}


def first_line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return line if len(line) <= 160 else f"{line[:160]}..."


def difference(got: Any, expected: Any) -> str:
    """Describe the difference between two answers. Return "" for equal answers.

    The description states the largest absolute error, or the two shapes if they differ. For texts and bools, the
    description is "another answer". NaN equals NaN, and -0 equals +0.
    """
    if isinstance(expected, str | bool):
        return "" if type(got) is type(expected) and got == expected else "another answer"
    a, b = plain(got), plain(expected)
    if a.shape != b.shape:
        return f"shape {a.shape} instead of {b.shape}"
    with np.errstate(all="ignore"):
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        off = np.abs(a - b)[wrong]
    return f"{np.where(np.isnan(off), math.inf, off).max():.6g}" if wrong.any() else ""


def plain(x: Any) -> np.ndarray[Any, Any]:
    if isinstance(x, Array):
        return np.array(x.data, np.float64).reshape(x.shape)
    return np.asarray(x).astype(np.float64)


def text(x: Any) -> str:
    if isinstance(x, str | bool):
        return str(x)
    formatter: Any = {"float_kind": "{:.9g}".format}
    return " ".join(np.array2string(plain(x), separator=", ", threshold=24, formatter=formatter).split())[:300]
