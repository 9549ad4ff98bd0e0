"""Check optimizers where no golden vector does: a hundred steps of one compiled program, large tables, memory limits,
and steps that raise an error."""

from __future__ import annotations

from typing import Any

import numpy as np

import islices
from islices.backend import Backend
from islices.conformance.checks import check, same
from islices.conformance.composite_operations import own_calls_of
from islices.conformance.data import Slices
from islices.conformance.execute import read, to_backend
from islices.conformance.makers import ROWS, dense, duplicates, slices
from islices.conformance.oracle_optim import OPTIMIZERS, optimizer_steps
from islices.conformance.peak_memory import peak_growth

#: Layouts with the same number of slots, so that one program can run all steps.
LAYOUTS = ("unsorted-duplicates", "unsorted-cancelling", "sorted-duplicates")
STEPS = 100
#: The optimizers for which the quick profile runs `atomic`.
QUICK = ("adam", "momentum")


def made(label: str, **options: Any) -> Any:
    name, hyper = OPTIMIZERS[label]
    return getattr(islices.optim, name)(**hyper, **options)


def compiled_steps(backend: Backend, *, label: str, rows: str) -> None:
    """Check that a hundred steps of one compiled program return the same bits as the oracle."""
    plain = dense((ROWS, 3), "compiled")
    grads = [slices(layout, "float32", "int32", (3,), "compiled") for layout in LAYOUTS]
    optimizer = made(label, rows=rows)
    table = to_backend(backend, plain)
    state = optimizer.init(table)
    names = list(state)

    def step(table: Any, values: Any, indices: Any, *state: Any) -> list[Any]:
        grad = islices.IndexedSlices(values, indices, (ROWS, 3))
        table, new = optimizer.step(table, grad, dict(zip(names, state, strict=True)))
        return [table, *(new[name] for name in names)]

    compiled = backend.trace(step)
    parts = [(to_backend(backend, g.values), to_backend(backend, g.indices)) for g in grads]
    arrays = [state[name] for name in names]
    for k in range(STEPS):
        table, *arrays = compiled(table, *parts[k % len(parts)], *arrays)
    expected = optimizer_steps(*OPTIMIZERS[label], plain, grads, steps=STEPS, rows=rows)
    same(table, expected["table"], "the table")
    for key, x in zip(names, arrays, strict=True):
        same(x, expected[key], f"state[{key!r}]")


for _label in OPTIMIZERS:
    for _rows in ("touched", "all"):
        check(
            f"optimizers/compiled-hundred-steps/{_label}/{_rows}", "16", traced=True, full=True,
            label=_label, rows=_rows,
        )(compiled_steps)  # fmt: skip


# ---------------------------------------------------------------------- large tables
def other_rows(backend: Backend, *, label: str) -> None:
    """Check that a step changes exactly the rows of its gradient, in the table and in each array of the state except
    "step". The gradient has 65,536 ids; the table has the shape 1M x 4."""
    count, width = 1_000_000, 4
    rng = np.random.default_rng(0)
    ids = rng.integers(0, count, 65_536).astype(np.int32)
    pattern = rng.standard_normal((1000, width), np.float32)
    before = np.tile(pattern, (count // 1000, 1))
    optimizer = made(label)
    table = backend.asarray(before)
    state = optimizer.init(table)
    initial = {k: np.array(backend.to_numpy(x)) for k, x in state.items() if k != "step"}
    grad = islices.IndexedSlices(backend.asarray(pattern[ids % 1000]), backend.asarray(ids), (count, width))
    table, state = optimizer.step(table, grad, state)
    others = np.ones(count, bool)
    others[ids] = False
    for key, old in {"": before, **initial}.items():
        new = backend.to_numpy(table if key == "" else state[key])
        changed = (new.view(np.uint32) != old.view(np.uint32)).reshape(count, -1).any(1)
        assert not changed[others].any(), f"{key or 'table'}: {int(changed[others].sum())} other rows changed"
        assert changed[ids].all(), f"{key or 'table'}: rows of the gradient did not change"


for _label in OPTIMIZERS:
    check(f"optimizers/other-rows-keep-their-bits/{_label}", "16", full=_label != "adam-decay", label=_label)(
        other_rows
    )


@check("optimizers/memory-1e7-rows", "16")
def step_memory(backend: Backend) -> None:
    """Check that an adam step with donate=True on a table of 1e7 x 4 allocates no table-sized array. The table occupies
    160 MB, and so does each moment."""
    table = own_calls_of(backend).trainable(np.zeros((10_000_000, 4), np.float32))
    optimizer = islices.optim.adam(0.01)
    state = optimizer.init(table)
    ids = np.random.default_rng(0).integers(0, 10_000_000, 1000).astype(np.int32)
    grad = islices.IndexedSlices(backend.asarray(np.ones((1000, 4), np.float32)), backend.asarray(ids), (10_000_000, 4))
    table, state = optimizer.step(table, grad, state, donate=True)  # not measured: loads code, copies arrays
    own_calls_of(backend).block([table, *state.values()])  # pending computations still allocate
    (table, state), grown = peak_growth(lambda: optimizer.step(table, grad, state, donate=True))
    assert read(state["step"]).data == [2], "two steps"
    assert grown <= 40_000_000, f"peak memory grew by {grown / 1e6:.0f} MB, a quarter of the table or more"


def atomic(backend: Backend, *, label: str) -> None:
    """Check that a step with a bad index in the last slot raises IndexError, and leaves the table and the state
    unchanged."""
    plain = dense((ROWS, 3), "atomic")
    good = duplicates("atomic")
    optimizer = made(label)
    table = to_backend(backend, plain)
    table, state = optimizer.step(table, to_backend(backend, good), optimizer.init(table))
    before = read({"table": table, **state})
    good.indices.data[-1] = ROWS
    bad = Slices(good.values, good.indices, (None, 3))
    try:
        optimizer.step(table, to_backend(backend, bad), state)
    except IndexError:
        for key, x in before.items():
            same(table if key == "table" else state[key], x, key)
    else:
        raise AssertionError("no IndexError")


for _label in OPTIMIZERS:
    check(
        f"optimizers/nothing-is-written-by-a-call-that-raises/{_label}", "16", wide=True, full=_label not in QUICK,
        label=_label,
    )(atomic)  # fmt: skip
