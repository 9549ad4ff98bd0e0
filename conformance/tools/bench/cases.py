"""What the bench measures operations on: how many slices of which rows, how long, of which types."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

__all__ = ["AXES", "OPERATIONS", "Benchmark", "cross", "default_cases", "draw_ids", "zipf_ids"]

OPERATIONS = ("coalesce", "clip_by_global_norm", "norm", "to_dense", "scatter_add")
#: What `--full` crosses. The index type "own" is the one each framework's users have: int32 in JAX, else int64.
AXES: dict[str, tuple[Any, ...]] = {
    "operation": OPERATIONS,
    "slices": (64, 1_024, 8_192, 65_536, 131_072, 1_048_576),
    "dim": (1, 16, 64, 256),
    "distribution": ("unique", "uniform", "zipf"),
    "dtype": ("float32", "bfloat16"),
    "index_dtype": ("int32", "int64"),
}
ROWS = 1_000_000
#: to_dense is measured on small tables only, scatter_add where a table for each way fits a small machine.
DENSE_ROWS, TABLE_ELEMENTS = 65_536, 1 << 26


class Benchmark(NamedTuple):
    """One operation on one kind of gradient."""

    operation: str
    slices: int = 131_072
    dim: int = 64
    distribution: str = "zipf"
    dtype: str = "float32"
    index_dtype: str = "own"

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return DENSE_ROWS if self.operation == "to_dense" else max(ROWS, self.slices)

    @property
    def sensible(self) -> bool:
        """Whether the table can be had, and its rows named."""
        if self.distribution == "unique" and self.slices > self.rows:
            return False
        return self.operation != "scatter_add" or self.rows * self.dim <= TABLE_ELEMENTS

    def __str__(self) -> str:
        types = "".join(f" {x}" for x in (self.dtype, self.index_dtype) if x not in ("float32", "own"))
        return f"{self.operation} {self.slices:,} x {self.dim} {self.distribution}{types}"


def default_cases() -> list[Benchmark]:
    """What takes minutes: one size in all its operations, and from there one axis at a time."""
    two = ("coalesce", "clip_by_global_norm")
    cases = [Benchmark(operation) for operation in OPERATIONS]
    cases += [Benchmark(operation, distribution="uniform") for operation in two] + [
        Benchmark("coalesce", distribution="unique")
    ]
    cases += [Benchmark(operation, slices=n) for operation in two for n in AXES["slices"] if n != 131_072]
    cases += [Benchmark(operation, dim=dim) for operation in two for dim in AXES["dim"] if dim != 64]
    cases += [Benchmark(operation, dtype="bfloat16") for operation in two]
    cases += [Benchmark("coalesce", index_dtype="int32")]
    return sorted(cases, key=_gradient)


def _gradient(case: Benchmark) -> tuple[Any, ...]:
    """Cases of one gradient stand together, so that it is made once."""
    return case.rows, *case[1:]


def cross(given: Mapping[str, Sequence[Any]], *, full: bool) -> list[Benchmark]:
    """Every combination of what is given for each axis; of an axis that is not, all values or the default one."""
    axes: list[Iterable[Any]] = []
    for name, values in AXES.items():
        rest = values if full or name == "operation" else (Benchmark._field_defaults[name],)
        axes.append(given.get(name) or rest)
    return sorted((c for c in itertools.starmap(Benchmark, itertools.product(*axes)) if c.sensible), key=_gradient)


@lru_cache(maxsize=2)
def draw_ids(distribution: str, slices: int, rows: int) -> np.ndarray[Any, Any]:
    """Row numbers of a gradient; those of "unique" are in no order."""
    rng = np.random.default_rng(0)
    if distribution == "unique":
        return rng.permutation(rows)[:slices]
    return rng.integers(0, rows, slices) if distribution == "uniform" else zipf_ids(slices, rows)


def zipf_ids(count: int, rows: int) -> np.ndarray[Any, Any]:
    """Row numbers whose frequencies follow Zipf's law with exponent 1.1, scattered over the table."""
    rng = np.random.default_rng(0)
    cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -1.1)
    ranks = np.searchsorted(cumulated, rng.random(count) * cumulated[-1])
    scattered: np.ndarray[Any, Any] = rng.permutation(rows)[ranks]
    return scattered
