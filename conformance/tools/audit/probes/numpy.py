"""NumPy: the arithmetic under every path on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from islices.conformance.tools.audit.inputs import DUPLICATES, FOLDED, IDS, LOPSIDED, VALUES, WEIGHTS, ZEROS, norm_of
from islices.conformance.tools.audit.probe import REFUSED, Probe

COALESCE, NORM, SCALE = "islices.coalesce(gradient)", "islices.norm(gradient)", "islices.scale(gradient, factor)"
CLIP = "islices.clip_by_value(gradient, lo, hi)"
ORDER = np.argsort(IDS, kind="stable")


def added(dtype: str) -> Any:
    out = np.zeros(1, dtype)
    np.add.at(out, np.zeros(4096, int), np.ones(4096, dtype))
    return out


def assigned() -> Any:
    table = ZEROS.copy()
    table[DUPLICATES.indices] += DUPLICATES.values
    return table


def read_only() -> bool:
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    return x.__dlpack__() is not None


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
    Probe("numpy.linalg.norm", "7", "squares overflow, in float16 from 256 on", NORM,
          "four times 1e200", lambda: np.linalg.norm(np.full(4, 1e200)), 2e200),
    Probe("numpy.linalg.norm", "7", "float64 accumulates in float64, and the order of its sum shows", NORM,
          "1 and 4096 times 2**-27, less 1", lambda: np.linalg.norm(LOPSIDED) - 1, norm_of(LOPSIDED) - 1),
    Probe("numpy.clip(values, lo, hi)", "9", "lo above hi is accepted without an error", CLIP,
          "from 3 to 1", lambda: np.clip(ZEROS, 3, 1), REFUSED),
    Probe("float16 array * Python float", "6", "the factor becomes float16 first: 1e-8 is 0 then", SCALE,
          "60000 times 1e-8", lambda: np.array([60000], "f2") * 1e-8, np.array([6e-4], "f2")),
    Probe("array * numpy.float32(c), array * numpy.float64(c)", "18", "since NumPy 2 a NumPy scalar of more bits widens the array",
          SCALE, "float32 times float64", lambda: (ZEROS * np.float64(0.5)).dtype.name, "float32"),
    Probe("numpy.maximum, numpy.minimum", "9", "of 0 and -0 the answer is the second: for this the specification counts them as equal",
          CLIP, "maximum(0, -0)", lambda: str(np.maximum(np.array([0.0]), np.array([-0.0]))[0]), "0.0"),
    Probe("array.__dlpack__(), numpy.from_dlpack", "1", "a read-only array, as JAX and pandas hand them out, is refused",
          "islices.convert(gradient, backend)", "__dlpack__ of read-only ones", read_only, True, "raises", "numpy/numpy#20742"),
]
