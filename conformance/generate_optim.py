"""The golden cases of optimizers: a part of `islices.conformance.generate`."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from islices.conformance.data import Array, Case, Slices
from islices.conformance.oracle import FORMATS, round_to, wide
from islices.conformance.oracle_optim import LATE, OPTIMIZERS, SCHEDULED, TRACED
from islices.optim.formulas import State
from islices.optim.record import RECORDS

__all__ = ["optimizer_cases", "state_of"]

FLOATS = tuple(FORMATS)
ROWS = 10
#: gradients taken in turn
LAYOUTS = ("unsorted-duplicates", "empty", "unsorted-cancelling", "one", "sorted-unique")
Maker = Callable[..., Case]
Dense = Callable[[str, tuple[int, ...], str], Array]
Layouts = Callable[[str, str, str, tuple[int, ...], str], Slices]


def state_of(name: str, hyper: dict[str, Any], table: Array, steps: int, seed: str) -> dict[str, Array]:
    """Some state that a table could have after so many steps."""
    rng = random.Random(f"state/{name}/{table.dtype}/{table.shape}/{seed}")
    kind = wide(table.dtype)

    def some(spec: State) -> Array:
        shape = table.shape[:1] if spec.per_row else table.shape
        size = [rng.uniform(8, 16) if spec.positive else rng.uniform(-2, 2) for _ in range(math.prod(shape))]
        return Array(kind, tuple(shape), [round_to(x, kind) for x in size])

    states = RECORDS[name].states(hyper)
    return {"step": Array("int32", (1,), [steps])} | {spec.name: some(spec) for spec in states}


def optimizer_cases(case: Maker, dense: Dense, slices: Layouts) -> Iterator[Case]:
    yield from single_steps(case, dense, slices)
    yield from hundred_steps(case, dense, slices)
    yield from special_steps(case, dense, slices)
    yield from scheduled_steps(case, dense, slices)
    yield from powers(case, dense, slices)


def scheduled_steps(case: Maker, dense: Dense, slices: Layouts) -> Iterator[Case]:
    """Hyperparameters that change by the step, and those that are arrays of one, traced where steps are."""
    for label, (name, hyper) in SCHEDULED.items():
        for rows in ("touched", "all"):
            table = dense("float32", (ROWS, 3), "weights")
            grads = [slices(layout, "float32", "int32", (3,), "scheduled") for layout in LAYOUTS]
            id = f"optimizers/by-step/{label}/{rows}"
            flags = ("eager",) if rows == "touched" else ("eager", "full")
            yield case(id, "16", "optimizer_steps", name, hyper, table, grads, flags=flags, steps=12, rows=rows)
        state = state_of(name, hyper, table, 2, "scheduled")
        traced = () if label in ("adam", "ftrl") else ("trace-in-full",)
        id = f"optimizers/by-step/{label}/third-step"
        yield case(id, "16", "optimizer_steps", name, hyper, table, grads[:1], flags=traced, state=state)
        arrays = {k: Array("float64", (1,), [v[0]]) if isinstance(v, list) else v for k, v in hyper.items()}
        id = f"optimizers/array-hyperparameters/{label}"
        yield case(id, "16", "optimizer_steps", name, arrays, table, grads[:1], flags=traced, state=state)


def powers(case: Maker, dense: Dense, slices: Layouts) -> Iterator[Case]:
    """Powers of ftrl's sums of squares: none, roots of roots, whole parts, all digits of a fraction."""
    for dtype, power in itertools.product(("float32", "float64"), (0.0, 0.25, 0.7, 1.5, 2.3, 0.001)):
        table = dense(dtype, (ROWS, 3), "weights")
        grad = slices("unsorted-duplicates", dtype, "int32", (3,), "powers")
        hyper = {"lr": 0.1, "l1": 0.5, "lr_power": -power}
        state = state_of("ftrl", hyper, table, 2, "powers")
        flags = ("trace-in-full",)
        id = f"optimizers/ftrl-power/{power}/{dtype}"
        yield case(id, "16", "optimizer_steps", "ftrl", hyper, table, [grad], flags=flags, state=state)


def single_steps(case: Maker, dense: Dense, slices: Layouts) -> Iterator[Case]:
    every = itertools.product(OPTIMIZERS.items(), FLOATS, ("touched", "all"), ("int32", "int64"))
    for (label, (name, hyper)), dtype, rows, index_type in every:
        default = index_type == "int32" and (dtype == "float32" or label == "adam")
        traced = dtype == "float32" and rows == "touched" and label in TRACED
        table = dense(dtype, (ROWS, 3), "weights")
        grad = slices("unsorted-duplicates", dtype, index_type, (3,), "step")
        state = state_of(name, hyper, table, 6, "single")
        flags = ("full",) if not default else () if traced else ("trace-in-full",)
        id = f"optimizers/step/{label}/{rows}/{dtype}/{index_type}"
        yield case(id, "16", "optimizer_steps", name, hyper, table, [grad], flags=flags, state=state, rows=rows)


def hundred_steps(case: Maker, dense: Dense, slices: Layouts) -> Iterator[Case]:
    every = itertools.product(enumerate(OPTIMIZERS.items()), enumerate(FLOATS), ("touched", "all"))
    for (k, (label, (name, hyper))), (d, dtype), rows in every:
        if dtype != "float32" and ((k + d) % 4 or (k % 2 == 0) != (rows == "all")):
            continue  # single steps cross every type
        row_shape = {"float64": (2, 2), "bfloat16": ()}.get(dtype, (3,))
        table = dense(dtype, (ROWS, *row_shape), "weights")
        index_type = "int64" if rows == "all" else "int32"
        grads = [slices(layout, dtype, index_type, row_shape, "hundred") for layout in LAYOUTS]
        default = dtype == "float32" and (rows == "touched" or label in TRACED)
        flags = ("eager",) if default else ("eager", "full")
        id = f"optimizers/hundred-steps/{label}/{rows}/{dtype}"
        yield case(id, "16", "optimizer_steps", name, hyper, table, grads, flags=flags, steps=100, rows=rows)


def special_steps(case: Maker, dense: Dense, slices: Layouts) -> Iterator[Case]:
    name, hyper = OPTIMIZERS["adam-decay"]
    table = dense("float32", (ROWS, 3), "weights")
    grads = [slices(layout, "float32", "int64", (3,), "special") for layout in LAYOUTS]
    frozen = [4, 0, 7, 8]
    for rows in ("touched", "all"):
        for label, (own, given) in OPTIMIZERS.items():
            flags = ("eager",) if label in TRACED else ("eager", "full")
            id = f"optimizers/frozen/{label}/{rows}"
            yield case(id, "16", "optimizer_steps", own, given, table, grads, flags=flags, rows=rows, frozen=frozen)
        id, flags = f"optimizers/maximize/{rows}", ("eager",)
        yield case(id, "16", "optimizer_steps", name, hyper, table, grads, flags=flags, rows=rows, maximize=True)
        state = state_of(name, hyper, table, 3, "frozen")
        yield case(
            f"optimizers/frozen-step/{rows}", "16", "optimizer_steps", name, hyper, table, grads[:1],
            state=state, rows=rows, frozen=frozen,
        )  # fmt: skip
        one = dense("float32", (ROWS, 3), "dense gradient")
        id = f"optimizers/dense-gradient/{rows}"
        yield case(id, "16", "optimizer_steps", name, hyper, table, [one], flags=("trace-in-full",), rows=rows)
    for dtype in ("float16", "bfloat16"):
        half = dense(dtype, (ROWS, 3), "weights")
        for kind in (dtype, "float32"):
            grads = [slices(layout, kind, "int32", (3,), "master") for layout in LAYOUTS]
            for master in (True, False):
                id = f"optimizers/mixed-precision/{dtype}/{kind}/{'master' if master else 'alone'}"
                flags = ("eager",)
                yield case(
                    id, "16", "optimizer_steps", "adam", {"lr": 0.01}, half, grads, flags=flags, steps=30, master=master
                )
    yield case("optimizers/none-is-no-step", "16", "optimizer_steps", name, hyper, table, [None], flags=("eager",))
    # row sums by halves of odd, even and single lengths
    for width in (1, 2, 5, 7, 8):
        wider = dense("float32", (ROWS, width), "weights")
        grad = slices("unsorted-duplicates", "float32", "int32", (width,), "width")
        id = f"optimizers/rowwise_adagrad/width-{width}"
        yield case(id, "16", "optimizer_steps", "rowwise_adagrad", {"lr": 0.1}, wider, [grad], flags=("trace-in-full",))
    # what a dense gradient names, a row of zeros too; a variance that rounding makes negative
    zeros = dense("float32", (ROWS, 3), "dense gradient")
    zeros.data[6:9] = [0.0] * 3
    state = state_of(name, hyper, table, 3, "dense")
    yield case(
        "optimizers/dense-gradient/row-of-zeros", "16", "optimizer_steps", name, hyper, table, [zeros], state=state
    )
    both, given = OPTIMIZERS["rmsprop-centered"]
    small = state_of(both, given, table, 3, "variance")
    small["mean_square"] = Array("float32", (ROWS, 3), [0.25] * (3 * ROWS))
    yield case(
        "optimizers/rmsprop/no-variance", "16", "optimizer_steps", both, given, table, grads_of(slices), state=small
    )
    # more digits of t, in a type that shows the order of the product
    wide_table = dense("float64", (ROWS, 3), "weights")
    for own, steps in (("adam", 10), ("adam-decay", 14)):
        state = state_of(*OPTIMIZERS[own], wide_table, steps, "digits")
        grad = slices("unsorted-duplicates", "float64", "int32", (3,), "digits")
        id = f"optimizers/{own}/float64-after-{steps}-steps"
        yield case(
            id, "16", "optimizer_steps", *OPTIMIZERS[own], wide_table, [grad], flags=("trace-in-full",), state=state
        )
    # step counts at which something of an optimizer's numbers ends
    for own, late in LATE.items():
        for steps in late:
            state = state_of(*OPTIMIZERS[own], wide_table, steps, "late")
            grad = slices("unsorted-duplicates", "float64", "int32", (3,), "late")
            id = f"optimizers/{own}/after-{steps}-steps"
            yield case(
                id, "16", "optimizer_steps", *OPTIMIZERS[own], wide_table, [grad], flags=("trace-in-full",), state=state
            )
    # the powers of beta after many steps, where some are zero
    for steps in (0, 1, 1000, 2**24, 2**31 - 2):
        state = state_of("adam", {}, table, steps, "late")
        kept = () if steps == 1000 else ("trace-in-full",)
        id = f"optimizers/adam/after-{steps}-steps"
        yield case(id, "16", "optimizer_steps", "adam", {"lr": 0.01}, table, grads_of(slices), flags=kept, state=state)


def grads_of(slices: Layouts) -> list[Slices]:
    return [slices("unsorted-duplicates", "float32", "int32", (3,), "late")]
