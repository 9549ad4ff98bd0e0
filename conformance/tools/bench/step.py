"""Run the part "step": whole training steps, because users wait for whole steps.

A step consists of lookup, loss, gradient, clipping by the global norm in some cases, and an optimizer's step on the
rows of the batch. The model sums rows in bags, and adds up the bags of its tables. The loss is half the squared
distance between the sums and targets, times LOSS_SCALE. Every implementation starts from the same tables and reads the
same batches. Losses are compared before the timing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from islices import Table, clip_by_global_norm, get_backend, lookup, value_and_grad
from islices.backend import Host
from islices.conformance.tools.bench.benchmarks import zipf_ids
from islices.conformance.tools.bench.limit import Copying
from islices.conformance.tools.bench.rates import OPTIMIZERS, bytes_of_rows
from islices.conformance.tools.bench.rounds import blocking, does_less, timed
from islices.conformance.tools.bench.variants import Ready, Way, block_of, framework_of, index_dtype, our_variant

#: The loss is half the squared distance times this factor. The factor is a power of two, so that compilers that fuse
#: products and sums round like eager code.
LOSS_SCALE = 2.0**-8
#: The limit of the clip: far below the norm of any batch's gradient, so that every step clips.
MAX_NORM = 2.0**-3
#: The number of batches, which the steps read in turn. The rows of all batches together do not fit the caches of most
#: processors.
BATCHES = 4
#: The allowed relative difference between the losses of islices and of implementations that are not in `SAME_BITS`.
#: These implementations may sum in another order than islices, and add epsilon at other places.
TOLERANCE = 1e-3
#: The allowed relative difference between the losses of the implementations in `SAME_BITS`. The gradients and tables of
#: these implementations have the same bits, but a compiled loss may be summed in another order.
OUR_TOLERANCE = 1e-5
#: The implementations of islices whose tables must have the same bits.
SAME_BITS = ("islices", "islices, compiled")


class Model(NamedTuple):
    """The description of a model that sums rows of float32 tables, and of the batch size. A batch has `bags` samples,
    each with one bag of `ids` ids per table."""

    rows: tuple[int, ...]
    dim: int
    bags: int
    ids: int

    def __str__(self) -> str:
        several = f"{len(self.rows)} tables of {self.rows[0]:,} to {self.rows[-1]:,} rows"
        tables = f"{self.rows[0]:,}" if len(self.rows) == 1 else several
        ids = "one Zipf(1.1) id each" if self.ids == 1 else f"{self.ids} Zipf(1.1) ids each"
        return f"{tables} x {self.dim} float32, {self.bags:,} bags of {ids}"


BAGS = Model((1_000_000,), 64, 4_096, 16)
#: A model as in a recommender, with one id per feature. The sizes of the tables are from 1,000 to 1,000,000 rows.
TABLES = Model(tuple(round(float(n)) for n in np.geomspace(1_000, 1_000_000, 26)), 64, 2_048, 1)


class Training(NamedTuple):
    """A measured case. The fields are the model, the optimizer that trains the model, and whether gradients are
    clipped."""

    model: Model
    optimizer: str
    clip: bool

    def __str__(self) -> str:
        return f"{self.optimizer}, clipped" if self.clip else self.optimizer


def cases_of(backend: str) -> list[Training]:
    cases = [Training(BAGS, "adam", True), Training(BAGS, "adam", False)]
    if backend == "torch":  # FBGEMM needs torch, and many recommenders are trained with torch
        cases.append(Training(BAGS, "rowwise_adagrad", False))
        cases += [Training(TABLES, kind, False) for kind in ("sgd", "adagrad", "adam")]
    return cases


def title_of(case: Training) -> str:
    return (
        f"whole steps: lookup, loss, gradient, optimizer; {case.model}; x copy: times a copy of the bytes that must "
        "move; x other: times as fast as the fastest program without islices"
    )


class Problem:
    """The data of a case. The data are batches of NumPy arrays (ids of each table, target), and the tables before the
    first step."""

    def __init__(self, case: Training, index_dtype: Any) -> None:
        self.case = case
        model, rng = case.model, np.random.default_rng(2)
        shape = (BATCHES, model.bags) if model.ids == 1 else (BATCHES, model.bags, model.ids)
        ids = [zipf_ids(BATCHES * model.bags * model.ids, rows) for rows in model.rows]
        ids = [x.astype(index_dtype).reshape(shape) for x in ids]
        targets = rng.standard_normal((BATCHES, model.bags, model.dim), np.float32)
        self.batches = [([x[k] for x in ids], targets[k]) for k in range(BATCHES)]

    def start(self) -> list[Host]:
        """Return the tables before the first step. Each call returns the same numbers in new memory."""
        rng, dim = np.random.default_rng(3), self.case.model.dim
        return [rng.standard_normal((rows, dim), np.float32) * np.float32(0.1) for rows in self.case.model.rows]

    def feed(self, ids: Callable[[Any], Any], target: Callable[[Any], Any]) -> Iterator[Any]:
        """Return an endless iterator over the batches. `ids` and `target` convert NumPy arrays to arrays of the
        framework."""
        return cycle([([ids(x) for x in batch], target(wanted)) for batch, wanted in self.batches])

    def feed_one(self, ids: Callable[[Any], Any], target: Callable[[Any], Any]) -> Iterator[Any]:
        """Return an endless iterator over the batches of a model with one table, as pairs (ids, target)."""
        return ((x, wanted) for (x,), wanted in self.feed(ids, target))

    def nbytes(self) -> dict[str, int]:
        """Return the number of bytes that a step must read and write, by kind, as the mean over the batches.

        Rows of tables and of state count twice, because a step reads and writes these rows; other arrays count once.
        Clipping adds no bytes, because a step that knows the norm of the gradient need not write the summed gradient.
        """
        model = self.case.model
        distinct = sum(len(np.unique(x)) for ids, _ in self.batches for x in ids) / len(self.batches)
        bags = model.bags * model.dim * 4
        return {
            "ids": sum(x.nbytes for x in self.batches[0][0]),
            **bytes_of_rows(self.case.optimizer, distinct, model.dim),
            **dict.fromkeys(("bags", "targets", "upstream gradient"), bags),
        }


# ---------------------------------------------------------------------- implementations with islices, the same code on
# each framework
def our_variants(name: str, problem: Problem) -> dict[str, Ready]:
    """Return {label: function that makes an implementation with islices}. The label "islices" stands for the usual
    form.

    For a model with several tables, return only the `more_of_ours` of the framework, if there are any.
    """
    framework, variants = framework_of(name), {}
    more: dict[str, Ready] = framework.more_of_ours(problem) if hasattr(framework, "more_of_ours") else {}
    if more and len(problem.case.model.rows) > 1:  # only these, because each implementation needs gigabytes
        return more
    variants["islices"] = lambda: _ready(name, framework, problem, None)
    if hasattr(framework, "compiled"):
        variants["islices, compiled"] = lambda: _ready(name, framework, problem, framework.compiled)
    return variants | more


def _ready(name: str, framework: Any, problem: Problem, compiled: Any) -> Way:
    B, optimizer = get_backend(name), OPTIMIZERS[problem.case.optimizer]
    tables = [Table(framework.table(x)) for x in problem.start()]
    states = optimizer.init(tables)
    step = _whole_step(framework.total, optimizer, problem.case.clip)
    return our_variant(
        compiled(step, tables, states) if compiled else step, tables, states, problem.feed(B.asarray, B.asarray)
    )


def _whole_step(total: Callable[[Any], Any], optimizer: Any, clip: bool) -> Callable[..., Any]:
    """Return a training step(tables, states, ids, target) -> (tables, states, loss), as users of islices write it."""

    def loss(tables: list[Table], ids: list[Any], target: Any) -> Any:
        bags = [
            lookup(table, x, combiner="sum" if len(x.shape) == 2 else None)
            for table, x in zip(tables, ids, strict=True)
        ]
        off = sum(bags[1:], bags[0]) - target
        return total(off * off) * (0.5 * LOSS_SCALE)

    differentiated = value_and_grad(loss)

    def step(tables: Any, states: Any, ids: list[Any], target: Any) -> tuple[Any, Any, Any]:
        value, gradients = differentiated(tables, ids, target)
        if clip:
            gradients, _ = clip_by_global_norm(gradients, MAX_NORM)
        tables, states = optimizer.step(tables, gradients, states, donate=True)
        return tables, states, value

    return step


# ---------------------------------------------------------------------- compared, and timed
def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure the case of a job. job["case"] lists the fields of `Training`."""
    name, block = job["backend"], block_of(job["backend"])
    (rows, *model), kind, clip = job["case"]
    case = Training(Model(tuple(rows), *model), kind, clip)
    problem = Problem(case, index_dtype(name))
    ours, own = our_variants(name, problem), framework_of(name).steps(problem)
    variants = {label: ready() for label, ready in (ours | own).items()}
    compare(f"{name} {case}", variants, block)
    calls = blocking({label: variant.timed for label, variant in variants.items()}, block)
    nbytes = problem.nbytes()
    found = Copying(job["threads"]).beside(sum(nbytes.values()), lambda: timed(job, calls, own))
    left_out = name == "torch" and not clip and not importlib.util.find_spec("fbgemm_gpu")
    emit(
        title=title_of(case),
        operation=str(case),
        bytes=nbytes,
        remarks={"FBGEMM": "left out, not installed: pip install fbgemm-gpu-cpu==1.8.0"} if left_out else {},
        **found,
    )


def compare(subject: str, variants: dict[str, Way], block: Callable[[Any], None]) -> None:
    """Take the first steps with every implementation. Raise RuntimeError if losses differ by more than the
    tolerance, or if the tables of two implementations in `SAME_BITS` differ.

    If a label ends in a remark in brackets, the implementation takes only one step, and only its loss is compared.
    """
    expected: Any = None
    for label, variant in variants.items():
        found: list[float] = []
        for _ in range(1 if does_less(label) else BATCHES):
            loss, _ = result = variant.timed()
            block(result)
            found.append(float(np.asarray(loss.asnumpy() if hasattr(loss, "asnumpy") else loss).reshape(())))
        expected = found if expected is None else expected
        error = float(np.max(np.abs(np.array(found) / expected[: len(found)] - 1)))
        allowed = OUR_TOLERANCE if label in SAME_BITS else TOLERANCE
        if not error <= allowed:
            raise RuntimeError(
                f"{subject}, {label}: losses {found}; expected {expected}, at most {allowed} of them off"
            )
    tables = [
        [get_backend(x).to_numpy(x) for x in variants[label].tables()] for label in SAME_BITS if label in variants
    ]
    for some in tables[1:]:
        if not all(map(np.array_equal, some, tables[0])):
            raise RuntimeError(f"{subject}: the tables of {' and '.join(SAME_BITS)} differ after {BATCHES} steps")
