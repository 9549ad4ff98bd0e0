"""Probes of NumPy, whose arithmetic islices uses on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from islices.conformance.tools.audit.probe import REFUSED, Probe
from islices.conformance.tools.audit.probe_inputs import (
    DUPLICATES,
    FOLDED,
    IDS,
    LOPSIDED,
    VALUES,
    WEIGHTS,
    ZEROS,
    norm_of,
)

COALESCE, NORM, SCALE = "islices.coalesce(gradient)", "islices.norm(gradient)", "islices.scale(gradient, factor)"
ORDER = np.argsort(IDS, kind="stable")


def added(dtype: str) -> Any:
    out = np.zeros(1, dtype)
    np.add.at(out, np.zeros(4096, int), np.ones(4096, dtype))
    return out


def assigned() -> Any:
    table = ZEROS.copy()
    table[DUPLICATES.indices] += DUPLICATES.values
    return table


# fmt: off
PROBES = [
    Probe("numpy.add.at(out, ids, float16)", "3", "it rounds after every addition, so that ones stop counting at 2048",
          COALESCE, "4096 ones", lambda: added("float16"), [4096]),
    Probe("numpy.add.reduceat(values[order], starts)", "3", "it sums in pairs and blocks, not in order of occurrence", COALESCE,
          "600 random rows", lambda: np.add.reduceat(VALUES[ORDER, 0], np.searchsorted(IDS[ORDER], range(3))), FOLDED[:3, 0],
          issue="numpy/numpy#15122"),
    Probe("table[ids] += values", "15", "of an id that occurs several times the last occurrence alone counts",
          "islices.scatter(table, gradient)", "duplicates", assigned, DUPLICATES.dense),
    Probe("table[ids]", "12", "a negative id reads a row from the table's end", "islices.lookup(table, ids)",
          "id -1", lambda: WEIGHTS[[-1]], REFUSED),
    Probe("numpy.linalg.norm", "7", "float64 accumulates in float64, and the order of its sum shows", NORM,
          "1 and 4096 times 2**-27, less 1", lambda: np.linalg.norm(LOPSIDED) - 1, norm_of(LOPSIDED) - 1),
    Probe("float16 array * Python float", "6", "the factor becomes float16 first: 1e-8 is 0 then", SCALE,
          "60000 times 1e-8", lambda: np.array([60000], "f2") * 1e-8, np.array([6e-4], "f2")),
]
