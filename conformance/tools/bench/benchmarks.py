"""Describe the gradients for the part "operations". A description states the number of slices, the distribution of row
numbers, and the length of rows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from islices.backend import Host

AXES: dict[str, tuple[Any, ...]] = {
    "operation": ("coalesce", "clip_by_global_norm", "norm", "to_dense"),
    "slices": (64, 1_024, 8_192, 65_536, 131_072, 1_048_576),
    "dim": (1, 16, 64, 256),
    "distribution": ("unique", "uniform", "zipf"),
}
ROWS = 1_000_000
#: The number of rows for to_dense, which is measured only on small tables.
DENSE_ROWS = 65_536


class Benchmark(NamedTuple):
    """A measured case, which is one operation on one kind of gradient. The default gradient has 131,072 slices of 64
    numbers."""

    operation: str
    slices: int = 131_072
    dim: int = 64
    distribution: str = "zipf"

    @property
    def rows(self) -> int:
        return DENSE_ROWS if self.operation == "to_dense" else max(ROWS, self.slices)

    @property
    def sensible(self) -> bool:
        """Return False if the distribution "unique" needs more rows than the table has."""
        return self.distribution != "unique" or self.slices <= self.rows

    def __str__(self) -> str:
        return f"{self.operation} {self.slices:,} x {self.dim} {self.distribution}"


def default_cases() -> list[Benchmark]:
    """Return every operation on the default gradient, then coalesce and clip_by_global_norm with one axis changed at a
    time."""
    first = [Benchmark(operation) for operation in AXES["operation"]]
    others = [case._replace(**{axis: value}) for case in first[:2] for axis in list(AXES)[1:] for value in AXES[axis]]
    return list(dict.fromkeys(first + others))


def cross(given: Mapping[str, Sequence[Any]]) -> list[Benchmark]:
    """Return every sensible combination of the given values. If no operation is given, use all operations. For every
    other axis without given values, use the default of `Benchmark`."""
    defaults = {"operation": AXES["operation"], **{axis: (x,) for axis, x in Benchmark._field_defaults.items()}}
    values = [given.get(axis) or defaults[axis] for axis in AXES]
    return [case for case in itertools.starmap(Benchmark, itertools.product(*values)) if case.sensible]


@lru_cache(maxsize=2)
def draw_ids(distribution: str, slices: int, rows: int) -> Host:
    """Return random row numbers. Row numbers of the distribution "unique" are distinct."""
    rng = np.random.default_rng(0)
    if distribution == "unique":
        return rng.permutation(rows)[:slices]
    return rng.integers(0, rows, slices) if distribution == "uniform" else zipf_ids(slices, rows)


def zipf_ids(count: int, rows: int) -> Host:
    """Return row numbers whose frequencies follow Zipf's law with exponent 1.1. The frequent rows are at random places
    of the table."""
    rng = np.random.default_rng(0)
    cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -1.1)
    ranks = np.searchsorted(cumulated, rng.random(count) * cumulated[-1])
    scattered: Host = rng.permutation(rows)[ranks]
    return scattered
