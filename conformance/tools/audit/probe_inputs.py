"""Define the gradients that many probes pass to the frameworks, and numbers whose sums and norms show how a framework
rounds.

float32 represents the sums and norms of the gradients exactly.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from islices.backend import Host
from islices.conformance import oracle
from islices.conformance.data import Array

ROWS = 4
#: The table before any step: the numbers 1 to 8.
WEIGHTS = np.arange(1.0, 2 * ROWS + 1, dtype=np.float32).reshape(ROWS, 2)
ZEROS = np.zeros((ROWS, 2), np.float32)


class GivenGradient(NamedTuple):
    """A gradient of a table with the shape (ROWS, 2)."""

    values: Host
    indices: Host
    dense: Host  # the table-sized array in which duplicates are summed


def given(rows: Any, indices: list[int]) -> GivenGradient:
    values, dense = np.array(rows, np.float32), ZEROS.copy()
    np.add.at(dense, indices, values)
    return GivenGradient(values, np.array(indices, np.int64), dense)


UNIQUE = given([[3, 0], [0, 4]], [1, 2])
DUPLICATES = given([[3, 0], [0, 8], [3, 0]], [1, 2, 1])  # the norm is 10; the norm of the stored values is 9.06
# the norm is 5; the norm of the stored values is 141.5
CANCELLING = given([[100, 0], [0, 4], [-100, 0], [3, 0]], [1, 2, 1, 3])

SUBNORMAL = np.full(2, 1e-40, np.float32)
#: A float64 sum of the squares, in order, loses every square after the first. Together, the lost squares would change
#: the sum.
LOPSIDED = np.concatenate([[1.0], np.full(4096, 2.0**-27)])


def floats(n: int, seed: int = 0) -> Host:
    """Return n random nonzero float32 numbers with magnitudes of about 1e-3 to 1e3."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3, n), np.float32)


def left_fold(values: Host, ids: Host, rows: int = ROWS) -> Host:
    """Return a table with the sum of each row. Slices are added one at a time in the order of `ids`, as clause 3
    requires."""
    out = np.zeros((rows, *values.shape[1:]), values.dtype)
    for row, value in zip(ids, values, strict=True):
        out[row] += value
    return out


#: 600 slices that belong to three rows. The sums of the rows depend on the order of the additions.
VALUES, IDS = floats(1200).reshape(600, 2), np.random.default_rng(1).integers(0, 3, 600)
FOLDED = left_fold(VALUES, IDS)


def norm_of(x: Host) -> float:
    """Return the correctly rounded norm of an array."""
    return float(oracle.norm(Array(x.dtype.name, x.shape, x.reshape(-1).tolist())).data[0])
