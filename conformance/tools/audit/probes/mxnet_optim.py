"""What mx.optimizer does with row_sparse gradients, and how its formulas differ from the specification's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from islices.conformance import oracle, oracle_optim
from islices.conformance.data import Array
from islices.conformance.tools.audit.inputs import ROWS, WEIGHTS, gradients, plain
from islices.conformance.tools.audit.probe import Ask, CorruptionError, probe
from islices.conformance.tools.audit.probes.mxnet import asked, mx, native, row_sparse

nd, optimizers = mx.nd, mx.optimizer
TABLE = plain(WEIGHTS)
#: A rate whose products are exact, so that the order of operations does not show.
HALF = {"learning_rate": 0.5}


def taken(optimizer: Any, grads: list[Any], stype: str = "default") -> np.ndarray:
    """The table after the steps."""
    table = nd.array(WEIGHTS).tostype(stype)
    state = optimizer.create_state(0, table)
    for grad in grads:
        optimizer.update(0, table, grad, state)
    return table.asnumpy()  # type: ignore[no-any-return]


def specified(name: str, grads: list[Any], rows: str = "touched", **hyper: float) -> Array:
    """The table after the steps of clause 16."""
    return oracle_optim.optimizer_steps(name, {"lr": 0.5, **hyper}, TABLE, grads, rows=rows)["table"]


def steps_of(make: Callable[[], Any], name: str, *given: str, count: int = 2, **hyper: Any) -> Iterator[Ask]:
    """Two steps with each gradient, beside the specification's."""
    for g in gradients(*given):
        expected = specified(name, [g.slices] * count, **hyper)
        yield asked(g.name, lambda g=g: taken(make(), [native(g)] * count), expected)


UNIQUE = ("sorted, unique", "one", "none")

# ---------------------------------------------------------------------- rows stored twice
EVERY: dict[str, Callable[[], Any]] = {
    "SGD with momentum": lambda: optimizers.SGD(momentum=0.5, **HALF),
    "Adam": lambda: optimizers.Adam(**HALF),
    "AdaGrad": lambda: optimizers.AdaGrad(**HALF),
    "GroupAdaGrad": lambda: optimizers.contrib.GroupAdaGrad(**HALF),
    "Ftrl": lambda: optimizers.Ftrl(**HALF),
    "NAG": lambda: optimizers.NAG(momentum=0.5, **HALF),
    "RMSProp": lambda: optimizers.RMSProp(epsilon=1.0, **HALF),
    "LARS": lambda: optimizers.LARS(eta=1.0, **HALF),
    "DCASGD": lambda: optimizers.DCASGD(**HALF),
}


@probe(
    "mxnet", "mx.optimizer.SGD(momentum), Adam, AdaGrad, GroupAdaGrad, Ftrl, NAG, RMSProp, ...", "16",
    claim="a row stored twice is stepped twice, or with its last slice alone; never with the sum",
    instead="islices.coalesce(gradient)",
)  # fmt: skip
def duplicates() -> Iterator[Ask]:
    """The fair reference is the optimizer itself on the summed gradient."""
    (g,) = gradients("duplicates")
    summed = row_sparse(g.dense[[1, 2]], [1, 2])
    for name, make in EVERY.items():
        expected = taken(make(), [summed, summed])
        yield asked(f"{name}, two steps", lambda make=make: taken(make(), [native(g)] * 2), expected)


@probe(
    "mxnet", "mx.optimizer.SGD, Adam with lazy_update=False", "16",
    claim="with rows stored twice, steps are applied to rows they do not belong to",
    instead="islices.optim.adam(lr, rows='all')",
)  # fmt: skip
def standard_duplicates() -> Iterator[Ask]:
    twice, summed = row_sparse([[3, 0], [3, 0], [0, 8]], [1, 1, 2]), row_sparse([[6, 0], [0, 8]], [1, 2])
    ways: dict[str, Callable[[], Any]] = {
        "SGD": lambda: optimizers.SGD(momentum=0.5, lazy_update=False, **HALF),
        "Adam": lambda: optimizers.Adam(lazy_update=False, **HALF),
    }
    for name, make in ways.items():
        expected = taken(make(), [summed])
        yield asked(f"{name}, rows 1, 1, 2", lambda make=make: taken(make(), [twice]), expected)


@probe(
    "mxnet", "mx.optimizer.SGD", "16", claim="w - lr g, on rows stored twice as well", trap="",
    instead="islices.optim.sgd(lr)",
)  # fmt: skip
def sgd() -> Iterator[Ask]:
    yield from steps_of(lambda: optimizers.SGD(**HALF), "sgd")


# ---------------------------------------------------------------------- indices out of range
@probe(
    "mxnet", "mx.optimizer.SGD with index 2**33", "2",
    claim="the place in memory is cut to 32 bits: row 0 is trained", instead="islices.optim.sgd(lr)",
)  # fmt: skip
def far_index() -> Iterator[Ask]:
    far = row_sparse([[1, 1]], [2**33])
    yield asked("index 2**33 of 4 rows: the table afterwards", lambda: taken(optimizers.SGD(**HALF), [far]), WEIGHTS)


@probe(
    "mxnet", "mx.optimizer.SGD with index -1", "2", trap="corrupts",
    claim="it writes to the memory before the table", instead="islices.optim.sgd(lr)",
)  # fmt: skip
def negative_index() -> Iterator[Ask]:
    def call() -> np.ndarray:
        memory = nd.ones((2 * ROWS, 2))
        table = memory[ROWS:]  # a view
        optimizers.SGD(**HALF).update(0, table, row_sparse([[1, 1]], [-1]), None)
        before = memory[:ROWS].asnumpy()
        if not (before == 1).all():
            raise CorruptionError(f"the row before the table holds {before[-1].tolist()}, [1.0, 1.0] before")
        return table.asnumpy()  # type: ignore[no-any-return]

    yield asked("index -1 of 4 rows", call, np.ones((ROWS, 2)))


# ---------------------------------------------------------------------- formulas, on unique rows
@probe(
    "mxnet", "mx.optimizer.SGD(momentum, wd)", "16", claim="lazy_update (the default) is rows='touched'", trap="",
    instead="islices.optim.sgd(lr, momentum=..., weight_decay=...)",
)  # fmt: skip
def momentum() -> Iterator[Ask]:
    options = {"momentum": 0.5, "wd": 0.25, **HALF}
    yield from steps_of(lambda: optimizers.SGD(**options), "sgd", *UNIQUE, momentum=0.5, weight_decay=0.25)


@probe(
    "mxnet", "mx.optimizer.SGD(momentum, wd, lazy_update=False)", "16", claim="it is rows='all'", trap="",
    instead="islices.optim.sgd(lr, momentum=..., rows='all')",
)  # fmt: skip
def momentum_standard() -> Iterator[Ask]:
    options = {"momentum": 0.5, "wd": 0.25, "lazy_update": False, **HALF}
    hyper: dict[str, Any] = {"momentum": 0.5, "weight_decay": 0.25, "rows": "all"}
    yield from steps_of(lambda: optimizers.SGD(**options), "sgd", *UNIQUE[:2], **hyper)


@probe(
    "mxnet", "mx.optimizer.Adam", "16",
    claim="epsilon is not scaled with the bias correction: early steps are smaller", instead="islices.optim.adam(lr)",
)  # fmt: skip
def adam() -> Iterator[Ask]:
    yield from steps_of(lambda: optimizers.Adam(epsilon=0.01, **HALF), "adam", *UNIQUE[:2], count=1, eps=0.01)


@probe(
    "mxnet", "mx.optimizer.AdaGrad", "16", claim="epsilon stands under the root", instead="islices.optim.adagrad(lr)",
)  # fmt: skip
def adagrad() -> Iterator[Ask]:
    yield from steps_of(lambda: optimizers.AdaGrad(eps=0.01, **HALF), "adagrad", *UNIQUE[:2], eps=0.01)


@probe(
    "mxnet", "mx.optimizer.AdaGrad(wd)", "16", claim="it refuses weight decay of row_sparse gradients", trap="raises",
    instead="islices.optim.adagrad(lr, weight_decay=...)",
)  # fmt: skip
def adagrad_decay() -> Iterator[Ask]:
    yield from steps_of(lambda: optimizers.AdaGrad(wd=0.25, **HALF), "adagrad", *UNIQUE[:2], weight_decay=0.25)


@probe(
    "mxnet", "mx.optimizer.contrib.GroupAdaGrad", "16", claim="epsilon stands under the root",
    instead="islices.optim.rowwise_adagrad(lr)",
)  # fmt: skip
def group_adagrad() -> Iterator[Ask]:
    make: Callable[..., Any] = lambda: optimizers.contrib.GroupAdaGrad(eps=0.01, **HALF)  # noqa: E731
    yield from steps_of(make, "rowwise_adagrad", *UNIQUE[:2], eps=0.01)


@probe(
    "mxnet", "mx.optimizer.Ftrl of a dense table", "16", claim="rows that the gradient does not name become zero",
    instead="islices.optim.ftrl(lr)",
)  # fmt: skip
def ftrl_forgets() -> Iterator[Ask]:
    (g,) = gradients("sorted, unique")
    others = [0, 3]
    for stype in ("default", "row_sparse"):
        rows: Callable[..., Any] = lambda stype=stype: taken(optimizers.Ftrl(**HALF), [native(g)], stype)[others]  # noqa: E731
        yield asked(f"table of storage type {stype}: rows 0 and 3", rows, WEIGHTS[others])


@probe(
    "mxnet", "mx.optimizer.Ftrl of a row_sparse table", "16", trap="",
    claim="the named rows move by the specification's formula", instead="islices.optim.ftrl(lr)",
)  # fmt: skip
def ftrl() -> Iterator[Ask]:
    (g,) = gradients("sorted, unique")
    expected = specified("ftrl", [g.slices], l1=0.5, beta=1.0, initial_accumulator=0.0)
    make: Callable[..., Any] = lambda: optimizers.Ftrl(lamda1=0.5, beta=1.0, **HALF)  # noqa: E731
    yield asked(g.name, lambda: taken(make(), [native(g)], "row_sparse"), expected)


@probe(
    "mxnet", "mx.optimizer.Adamax", "16", claim="rows that no gradient has named become NaN: 0 / 0",
    instead="islices.optim.adam(lr)",
)  # fmt: skip
def adamax() -> Iterator[Ask]:
    (g,) = gradients("sorted, unique")
    others = [0, 3]
    yield asked("rows 0 and 3", lambda: taken(optimizers.Adamax(**HALF), [native(g)])[others], WEIGHTS[others])


@probe(
    "mxnet", "mx.optimizer.Adam, an empty gradient", "16", claim="it counts as a step", trap="",
    instead="islices.optim.adam(lr)",
)  # fmt: skip
def empty() -> Iterator[Ask]:
    def call() -> int:
        optimizer, (g,) = optimizers.Adam(), gradients("none")
        taken(optimizer, [native(g)])
        return optimizer.num_update  # type: ignore[no-any-return]

    yield asked("steps counted", call, 1)


@probe(
    "mxnet", "mx.optimizer.SGD(clip_gradient)", "9", claim="slices are clipped one by one, before rows are summed",
    instead="islices.clip_by_value(gradient, lo, hi)",
)  # fmt: skip
def clip_gradient() -> Iterator[Ask]:
    for g in gradients("sorted, unique", "duplicates"):
        expected = specified("sgd", [oracle.clip_by_value(g.slices, -4, 4)])
        step: Callable[..., Any] = lambda g=g: taken(optimizers.SGD(clip_gradient=4.0, **HALF), [native(g)])  # noqa: E731
        yield asked(g.name, step, expected)
