"""Make the golden cases of optimizers for `islices.conformance.generate`."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

from islices.conformance.data import Array, Case
from islices.conformance.makers import FLOATS, INDEX_TYPES, ROWS, case, dense, duplicates, slices
from islices.conformance.oracle import round_to, wide
from islices.conformance.oracle_optim import LATE, OPTIMIZERS, POWERS, SCHEDULED
from islices.optim.formulas import State
from islices.optim.record import RECORDS

#: The layouts of the gradients, which the steps use in turn.
LAYOUTS = ("unsorted-duplicates", "empty", "unsorted-cancelling", "one", "sorted-unique")


def state_of(name: str, hyper: dict[str, Any], table: Array, steps: int, seed: str) -> dict[str, Array]:
    """Return a state of an optimizer for this table, with random numbers and the given count of earlier steps."""
    rng = random.Random(f"state/{name}/{table.dtype}/{table.shape}/{seed}")
    kind = wide(table.dtype)

    def some(spec: State) -> Array:
        shape = table.shape[:1] if spec.per_row else table.shape
        size = [rng.uniform(8, 16) if spec.positive else rng.uniform(-2, 2) for _ in range(math.prod(shape))]
        return Array(kind, tuple(shape), [round_to(x, kind) for x in size])

    states = RECORDS[name].states(hyper)
    return {"step": Array("int32", (1,), [steps])} | {spec.name: some(spec) for spec in states}


def make(id: str, *args: Any, **options: Any) -> Case:
    """Return a case of optimizer steps. `args` are the optimizer's name, its hyperparameters, the table and the
    gradients."""
    return case(f"optimizers/{id}", "optimizer_steps", *args, **options)


def optimizer_cases() -> Iterator[Case]:
    yield from single_steps()
    yield from hundred_steps()
    yield from special_steps()
    yield from scheduled_steps()
    yield from powers()


def scheduled_steps() -> Iterator[Case]:
    """Yield cases in which some hyperparameters are schedules, or arrays of one number. In traced mode, these arrays
    are traced."""
    for label, (name, hyper) in SCHEDULED.items():
        for rows in ("touched", "all"):
            table = dense((ROWS, 3), "weights")
            grads = [slices(layout, "float32", "int32", (3,), "scheduled") for layout in LAYOUTS]
            yield make(f"by-step/{label}/{rows}", name, hyper, table, grads, eager=True, steps=12, rows=rows)
        state = state_of(name, hyper, table, 2, "scheduled")
        yield make(f"by-step/{label}/third-step", name, hyper, table, grads[:1], state=state)
        arrays = {k: Array("float64", (1,), [v[0]]) if isinstance(v, list) else v for k, v in hyper.items()}
        yield make(f"array-hyperparameters/{label}", name, arrays, table, grads[:1], state=state)


def powers() -> Iterator[Case]:
    name, given, exponents = POWERS
    for dtype, power in itertools.product(("float32", "float64"), exponents):
        table = dense((ROWS, 3), "weights", dtype)
        grad = duplicates("powers", dtype, "int32")
        hyper = {**given, "lr_power": -power}
        state = state_of(name, hyper, table, 2, "powers")
        yield make(f"{name}-power/{power}/{dtype}", name, hyper, table, [grad], state=state)


def single_steps() -> Iterator[Case]:
    every = itertools.product(OPTIMIZERS.items(), FLOATS, ("touched", "all"), INDEX_TYPES)
    for (label, (name, hyper)), dtype, rows, index_type in every:
        table = dense((ROWS, 3), "weights", dtype)
        grad = duplicates("step", dtype, index_type)
        state = state_of(name, hyper, table, 6, "single")
        id = f"step/{label}/{rows}/{dtype}/{index_type}"
        yield make(id, name, hyper, table, [grad], state=state, rows=rows)


def hundred_steps() -> Iterator[Case]:
    every = itertools.product(enumerate(OPTIMIZERS.items()), enumerate(FLOATS), ("touched", "all"))
    for (k, (label, (name, hyper))), (d, dtype), rows in every:
        if dtype != "float32" and ((k + d) % 4 or (k % 2 == 0) != (rows == "all")):
            continue  # the cases of single steps have all types
        row_shape = {"float64": (2, 2), "bfloat16": ()}.get(dtype, (3,))
        table = dense((ROWS, *row_shape), "weights", dtype)
        index_type = "int64" if rows == "all" else "int32"
        grads = [slices(layout, dtype, index_type, row_shape, "hundred") for layout in LAYOUTS]
        id = f"hundred-steps/{label}/{rows}/{dtype}"
        yield make(id, name, hyper, table, grads, eager=True, steps=100, rows=rows)


def special_steps() -> Iterator[Case]:
    name, hyper = OPTIMIZERS["adam-decay"]
    table = dense((ROWS, 3), "weights")
    grads = [slices(layout, "float32", "int64", (3,), "special") for layout in LAYOUTS]
    frozen = [4, 0, 7, 8]
    for rows in ("touched", "all"):
        for label, (own, given) in OPTIMIZERS.items():
            yield make(f"frozen/{label}/{rows}", own, given, table, grads, eager=True, rows=rows, frozen=frozen)
        yield make(f"maximize/{rows}", name, hyper, table, grads, eager=True, rows=rows, maximize=True)
        state = state_of(name, hyper, table, 3, "frozen")
        yield make(f"frozen-step/{rows}", name, hyper, table, grads[:1], state=state, rows=rows, frozen=frozen)
        one = dense((ROWS, 3), "dense gradient")
        yield make(f"dense-gradient/{rows}", name, hyper, table, [one], rows=rows)
    for dtype in ("float16", "bfloat16"):
        half = dense((ROWS, 3), "weights", dtype)
        for kind in (dtype, "float32"):
            grads = [slices(layout, kind, "int32", (3,), "master") for layout in LAYOUTS]
            for master in (True, False):
                id = f"mixed-precision/{dtype}/{kind}/{'master' if master else 'alone'}"
                yield make(id, "adam", {"lr": 0.01}, half, grads, eager=True, steps=30, master=master)
    usual = [duplicates("late", "float32", "int32")]
    yield make("none-is-no-step", name, hyper, table, [None], eager=True)
    # test the sums by halves with rows of odd and even lengths, and of length 1
    for width in (1, 2, 5, 7, 8):
        wider = dense((ROWS, width), "weights")
        grad = slices("unsorted-duplicates", "float32", "int32", (width,), "width")
        yield make(f"rowwise_adagrad/width-{width}", "rowwise_adagrad", {"lr": 0.1}, wider, [grad])
    # a dense gradient updates its rows of zeros as well; in the second case, a small mean_square makes variances
    # negative
    zeros = dense((ROWS, 3), "dense gradient")
    zeros.data[6:9] = [0.0] * 3
    state = state_of(name, hyper, table, 3, "dense")
    yield make("dense-gradient/row-of-zeros", name, hyper, table, [zeros], state=state)
    both, given = OPTIMIZERS["rmsprop-centered"]
    small = state_of(both, given, table, 3, "variance")
    small["mean_square"] = Array("float32", (ROWS, 3), [0.25] * (3 * ROWS))
    yield make("rmsprop/no-variance", both, given, table, usual, state=small)
    # use a step number with several binary ones, and float64, which shows the order of the product of powers
    wide_table = dense((ROWS, 3), "weights", "float64")
    for own, steps in (("adam", 10), ("adam-decay", 14)):
        state = state_of(*OPTIMIZERS[own], wide_table, steps, "digits")
        grad = duplicates("digits", "float64", "int32")
        yield make(f"{own}/float64-after-{steps}-steps", *OPTIMIZERS[own], wide_table, [grad], state=state)
    # use step counts before and after a term of the optimizer stops changing
    for own, late in LATE.items():
        for steps in late:
            state = state_of(*OPTIMIZERS[own], wide_table, steps, "late")
            grad = duplicates("late", "float64", "int32")
            yield make(f"{own}/after-{steps}-steps", *OPTIMIZERS[own], wide_table, [grad], state=state)
    # after many steps, some powers of beta are zero
    for steps in (0, 1, 1000, 2**24, 2**31 - 2):
        state = state_of("adam", {}, table, steps, "late")
        yield make(f"adam/after-{steps}-steps", "adam", {"lr": 0.01}, table, usual, state=state)
