"""Check that compiled kernels give the same numbers as NumPy, on 1, 2 and 4 threads. The gradients are too large for
golden vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import islices
from islices.backend import Backend, Host
from islices.conformance.checks import check
from islices.conformance.composite_operations import UnsupportedError, own_calls_of
from islices.conformance.data import leaves_of
from islices.conformance.oracle_optim import OPTIMIZERS
from islices.core.host import bfloat16_bits

COUNT, ROWS, WIDTH = 20_000, 3_000, 8
THREADS = (1, 2, 4)
#: A function of (backend, slices, a function that makes a table) that returns the result to compare.
Operation = Callable[[Backend, islices.IndexedSlices, Callable[[], Any]], Any]


def scatter(op: str) -> Operation:
    return lambda B, s, table: islices.scatter(table(), s, op)


def steps(label: str) -> Operation:
    name, hyper = OPTIMIZERS[label]

    def two(B: Backend, s: islices.IndexedSlices, table: Callable[[], Any]) -> Any:
        weights = table()
        optimizer = getattr(islices.optim, name)(**hyper)
        state = optimizer.init(weights)
        for _ in range(2):
            weights, state = optimizer.step(weights, s, state)
        return [weights, *state.values()]

    return two


OPERATIONS: dict[str, Operation] = {
    "coalesce": lambda B, s, table: islices.coalesce(s),
    "to_dense": lambda B, s, table: islices.to_dense(s),
    "norm": lambda B, s, table: [islices.norm(s), islices.norm(s, 1), islices.norm(s.values)],
    "clip_by_global_norm": lambda B, s, table: list(islices.clip_by_global_norm([s, s.values], 1.0)),
    **{f"scatter_{op}": scatter(op) for op in ("add", "sub", "update", "min", "max", "mul", "div")},
    **{f"step/{label}": steps(label) for label in OPTIMIZERS},
}


def numbers(B: Backend, x: Any) -> Iterator[Host]:
    """Yield the arrays of a result as flat NumPy copies. Slices yield values and indices; bfloat16 numbers become
    float32."""
    for leaf in leaves_of(x):
        for part in (leaf.values, leaf.indices) if isinstance(leaf, islices.IndexedSlices) else (leaf,):
            plain = np.array(B.to_numpy(part)).reshape(-1)
            half = plain.dtype == np.uint16
            yield (plain.astype(np.uint32) << np.uint32(16)).view(np.float32) if half else plain


def same_bits(B: Backend, *, operation: str, dtype: str) -> None:
    """Check that an operation on slices with duplicates gives the same numbers without kernels and with kernels on 1, 2
    and 4 threads."""
    if dtype not in B.float_dtypes:
        raise UnsupportedError(f"{B.name} has no {dtype}")
    rng = np.random.default_rng(0)
    ids = (ROWS * rng.random(COUNT) ** 1.5).astype(np.int64)  # row 0 occurs about a hundred times
    values, start = (rng.standard_normal((k, WIDTH), np.float32) for k in (COUNT, ROWS))
    half = dtype == "bfloat16"
    values = B.asarray(bfloat16_bits(values) if half else values)

    def table() -> Any:
        return B.asarray(bfloat16_bits(start)) if half else own_calls_of(B).trainable(start)

    def outcome() -> list[Host]:
        s = islices.IndexedSlices(values, B.asarray(ids), (ROWS, WIDTH))
        return list(numbers(B, OPERATIONS[operation](B, s, table)))

    with islices.config.use_kernels(False):
        expected = outcome()
    before = islices.config.get_num_threads()
    try:
        for count in THREADS:
            islices.config.set_num_threads(count)
            got = outcome()
            assert len(got) == len(expected), "as many arrays"
            for k, (g, e) in enumerate(zip(got, expected, strict=True)):
                bad = np.flatnonzero(~((g == e) | ((g != g) & (e != e))))
                assert bad.size == 0, (
                    f"{operation} with {count} threads: array {k} differs in {bad.size} places, the first {bad[0]}: "
                    f"got {g[bad[0]]!r}, without kernels {e[bad[0]]!r}"
                )
    finally:
        islices.config.set_num_threads(before)


#: the beginning of an operation's name -> its place in the matrix: (group, clause)
PLACES = {
    "coalesce": ("coalesce", "4"), "to_dense": ("densify", "5"), "norm": ("norms", "7"), "clip": ("clipping", "10"),
    "scatter": ("updates", "15"), "step": ("optimizers", "16"),
}  # fmt: skip
#: The operations that the quick profile also checks in bfloat16.
HALVES = ("coalesce", "clip_by_global_norm", "scatter_add", "step/adam")
#: The steps that the quick profile checks. Golden cases cover the others.
STEPS = ("step/adam", "step/rowwise_adagrad", "step/ftrl-power")

for _operation in OPERATIONS:
    _group, _clause = next(place for name, place in PLACES.items() if _operation.startswith(name))
    for _dtype in ("float32", "bfloat16"):
        _full = _operation.startswith("step/") and _operation not in STEPS
        _full |= _dtype != "float32" and _operation not in HALVES
        check(  # eager code runs kernels only in mode host
            f"{_group}/kernels/{_operation}/{_dtype}", _clause, full=_full, host=True,
            operation=_operation, dtype=_dtype,
        )(same_bits)  # fmt: skip
