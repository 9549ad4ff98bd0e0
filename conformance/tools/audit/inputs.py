"""What probes give the frameworks: small gradients whose sums and norms are exact, crossed as the suite's are.

Exact data keeps two questions apart: what an operation means, and how it rounds. Probes of rounding bring their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from islices.conformance.data import Array, Slices

__all__ = ["ROWS", "WEIGHTS", "Given", "gradients", "plain"]

ROWS = 4
#: The table before anything is done to it: 1 to 8.
WEIGHTS = np.arange(1.0, 2 * ROWS + 1, dtype=np.float32).reshape(ROWS, 2)


class Given(NamedTuple):
    """A gradient of a table of ROWS x 2, as NumPy and as the oracles take it."""

    name: str
    values: np.ndarray
    indices: np.ndarray
    slices: Slices

    @property
    def dense(self) -> np.ndarray:
        """What it denotes: duplicates summed."""
        out = np.zeros((ROWS, *self.values.shape[1:]), self.values.dtype)
        np.add.at(out, self.indices, self.values)
        return out


#: name -> (values, indices). The norm of each is a whole number; duplicates change it.
TABLE: dict[str, tuple[list[list[float]], list[int]]] = {
    "sorted, unique": ([[3, 0], [0, 4]], [1, 2]),
    "unsorted, unique": ([[0, 4], [3, 0]], [2, 1]),
    "duplicates": ([[3, 0], [0, 8], [3, 0]], [1, 2, 1]),  # raw norm 9.06, true 10
    "cancelling duplicates": ([[100, 0], [0, 4], [-100, 0], [3, 0]], [1, 2, 1, 3]),  # raw 141.5, true 5
    "one": ([[3, 4]], [2]),
    "none": ([], []),
}


def gradients(*names: str, dtype: str = "float32", index_type: str = "int64") -> Iterator[Given]:
    """The gradients of those names, or all of them."""
    for name in names or TABLE:
        rows, ids = TABLE[name]
        values = np.array(rows, dtype).reshape(len(rows), 2)
        indices = np.array(ids, index_type)
        yield Given(name, values, indices, Slices(plain(values), plain(indices), (ROWS, 2)))


def plain(x: Any) -> Array:
    """An array as the oracles take it."""
    x = np.asarray(x)
    return Array(str(x.dtype), x.shape, x.reshape(-1).tolist())
