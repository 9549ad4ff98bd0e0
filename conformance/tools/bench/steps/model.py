"""What is trained: tables whose rows are summed to bags, and how far those are from targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from islices.conformance.tools.bench.cases import zipf_ids
from islices.conformance.tools.bench.limit import moved

__all__ = [
    "BAGS", "LOSS_SCALE", "MAX_NORM", "TABLES", "Batch", "Case", "Model", "Problem", "Ready", "Way", "bytes_of_case",
    "cases_of", "nothing",
]  # fmt: skip

#: The loss is half the squared distance times this: a power of two, so that compilers which contract products into sums
#: round as eager code does.
LOSS_SCALE = 2.0**-8
#: Far below the norm of any batch's gradient: every step clips.
MAX_NORM = 2.0**-3
#: Batches that are read in turn. Rows of all of them are more than the caches hold.
BATCHES = 4
FLOAT = 4


class Model(NamedTuple):
    """Tables of float32, and a batch: of each table a bag for every sample."""

    rows: tuple[int, ...]
    dim: int
    bags: int
    ids: int
    """Ids of a bag."""


BAGS = Model((1_000_000,), 64, 4_096, 16)
#: As in a recommender: an id of each feature, whose tables differ in size by a thousand.
TABLES = Model(tuple(round(float(n)) for n in np.geomspace(1_000, 1_000_000, 26)), 64, 2_048, 1)


class Case(NamedTuple):
    """A model, the optimizer that trains it, and whether gradients are clipped."""

    model: Model
    optimizer: str
    clip: bool

    def __str__(self) -> str:
        return f"{self.optimizer}, clipped" if self.clip else self.optimizer


class Batch(NamedTuple):
    """One batch."""

    ids: list[Any]
    """Of each table, (bags, ids), or (bags,) where a bag has one."""
    target: Any


def nothing() -> str:
    """The remark where there is none."""
    return ""


class Way(NamedTuple):
    """A way to train, from the start."""

    step: Callable[[], Any]
    """Take the next step; its loss, which the caller waits for."""
    tables: Callable[[], list[Any]]
    """The tables as they are now."""
    remark: Callable[[], str] = nothing
    """How it runs, where that is found out on the way."""


Ready = Callable[[], Way]


def cases_of(backend: str) -> list[Case]:
    """What is measured on a framework."""
    cases = [Case(BAGS, "adam", True), Case(BAGS, "adam", False)]
    if backend == "torch":  # where FBGEMM is, and where recommenders are trained
        cases.append(Case(BAGS, "rowwise_adagrad", False))
        cases += [Case(TABLES, kind, False) for kind in ("sgd", "adagrad", "adam")]
    return cases


class Problem:
    """The batches of a case, in NumPy, and the tables as they start."""

    def __init__(self, case: Case, index_dtype: Any) -> None:
        self.case = case
        model, rng = case.model, np.random.default_rng(2)
        shape = (BATCHES, model.bags) if model.ids == 1 else (BATCHES, model.bags, model.ids)
        ids = [zipf_ids(BATCHES * model.bags * model.ids, rows) for rows in model.rows]
        ids = [x.astype(index_dtype).reshape(shape) for x in ids]
        targets = rng.standard_normal((BATCHES, model.bags, model.dim), np.float32)
        self.batches = [Batch([x[k] for x in ids], targets[k]) for k in range(BATCHES)]
        self._index_bytes = np.dtype(index_dtype).itemsize

    def start(self) -> list[np.ndarray[Any, Any]]:
        """The tables: the same numbers at each call, in memory of their own."""
        rng, dim = np.random.default_rng(3), self.case.model.dim
        return [rng.standard_normal((rows, dim), np.float32) * np.float32(0.1) for rows in self.case.model.rows]

    def nbytes(self) -> dict[str, int]:
        """The bytes that a step must move, by what they are: the mean of the batches."""
        distinct = sum(len(np.unique(x)) for batch in self.batches for x in batch.ids) / len(self.batches)
        return bytes_of_case(self.case, distinct, self._index_bytes)


def bytes_of_case(case: Case, distinct: float, index: int) -> dict[str, int]:
    """What a step must read and write at least, each thing once, by name.

    distinct rows are named by all ids of a batch. Each is read once, for the bags and for the step, and written once,
    its state too. Clipping moves nothing more: a step that has the norm of the gradient's sums need not write them.
    """
    model = case.model
    wide, narrow = moved(case.optimizer)
    bags = model.bags * model.dim * FLOAT
    return {
        "ids": len(model.rows) * model.bags * model.ids * index,
        "rows of tables": round(2 * distinct * model.dim * FLOAT),
        "rows of state": round(2 * distinct * ((wide - 1) * model.dim + narrow) * FLOAT),
        "bags": bags,
        "targets": bags,
        "upstream gradient": bags,
    }
