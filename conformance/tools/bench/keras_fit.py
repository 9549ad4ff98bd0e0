"""The part "keras": `model.fit` of stock Keras and by rows, on one of Keras's backends.

A model is an embedding, the mean of its rows, and a dense layer. All ways to train it start from the same weights and
read the same batches; a round is an epoch of each. Memory is what the first epoch behind the one that compiles takes at
its peak, beside the model and the optimizer's state.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from islices import optim
from islices.conformance.memory import peak_growth
from islices.conformance.tools.bench.rounds import Call, measure, summary

__all__ = ["BACKENDS", "CASES", "run"]

BACKENDS = ("tensorflow", "torch", "jax")
ROWS, DIM, BATCH, IDS, STEPS = 2_000_000, 16, 256, 20, 8
STOCK, OURS = "Keras", "islices"
#: How far apart the tables of ways that take the same steps may be, of weights up to 5.
TOLERANCE = 1e-4
#: Keras's Adam, which moves every row, by islices; and the way that does less than that.
EVERY_ROW, LAZY = "islices, every row", "islices (lazy)"


class Case(NamedTuple):
    """An optimizer of Keras by name, its learning rate, islices' rules in its place, and the layer's options."""

    optimizer: str
    rate: float
    rules: dict[str, dict[str, Any]]
    options: dict[str, Any] = {}  # noqa: RUF012  # never written to


KERAS: dict[str, Any] = {"semantics": "keras"}
CASES = {
    "sgd": Case("SGD", 0.1, {OURS: KERAS}),
    "adagrad": Case("Adagrad", 0.01, {OURS: KERAS}),
    "adam": Case("Adam", 0.001, {EVERY_ROW: {"rows": "all", **KERAS}, LAZY: {}}),
    "sgd, l2 of the table": Case("SGD", 0.1, {OURS: KERAS}, {"embeddings_regularizer": "l2"}),
}


def run(job: dict[str, Any], emit: Callable[..., None]) -> None:
    """Measure each case."""
    os.environ["KERAS_BACKEND"] = job["backend"]  # read when Keras is imported
    import keras

    rng = np.random.default_rng(0)
    # no batch names a row twice: Keras on TensorFlow squares each duplicate by itself, and would train another model
    ids = np.concatenate([rng.choice(ROWS, (BATCH, IDS), replace=False) for _ in range(STEPS)])
    data = ids.astype(np.int32), rng.standard_normal((STEPS * BATCH, 1), np.float32)
    start = [rng.standard_normal((ROWS, DIM), np.float32), np.full((DIM, 1), 0.5, np.float32), np.zeros(1, np.float32)]
    for name, case in CASES.items():
        models = _models(case, start)
        peaks: dict[str, float] = {}
        model: Any = None
        for label, model in models.items():
            _epoch(model, data)  # compiles
            _give_back(model)
            peaks[label] = max(peak_growth(partial(_epoch, model, data))[1], 0) / 2**20
        apart = _apart(name, models)
        ways: dict[str, Call] = {label: partial(_epoch, model, data) for label, model in models.items()}
        times = measure(ways, job["repeat"], seconds=job["seconds"])
        found = summary({label: [t / STEPS for t in ts] for label, ts in times.items()}, [*case.rules], [STOCK])
        size = {"rows": ROWS, "dim": DIM, "batch": BATCH, "ids": IDS, "steps": STEPS}
        emit(operation=name, keras=keras.__version__, peaks=peaks, apart=apart, size=size, **found)
        del models, ways, model


def _models(case: Case, start: list[Any]) -> dict[str, Any]:
    import keras

    from islices.backends import keras as by_rows

    stock = getattr(keras.optimizers, case.optimizer)(case.rate)
    rule = getattr(optim, case.optimizer.lower())
    optimizers = {STOCK: stock}
    for label, options in case.rules.items():
        optimizers[label] = by_rows.Stepped(rule(case.rate, **options))
    models = {}
    for label, optimizer in optimizers.items():
        table = keras.layers.Embedding(ROWS, DIM, embeddings_initializer="zeros", **case.options)
        model = keras.Sequential([table, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1, "tanh")])
        if label != STOCK:
            by_rows.row_sparse(model)
        model.build((None, IDS))
        model.set_weights(start)
        model.compile(optimizer, loss="mse")
        models[label] = model
    return models


def _apart(name: str, models: dict[str, Any]) -> dict[str, float]:
    """The largest distance of each table from that of Keras's own way."""
    first = models[STOCK].get_weights()[0]
    found: dict[str, float] = {}
    for label, model in models.items():
        if label != STOCK:
            found[label] = float(np.max(np.abs(model.get_weights()[0] - first)))
            if label != LAZY and not found[label] <= TOLERANCE:
                raise RuntimeError(f"{name}, {label}: the table is {found[label]} from Keras's; expected {TOLERANCE}")
    return found


def _epoch(model: Any, data: tuple[Any, Any]) -> None:
    model.fit(*data, batch_size=BATCH, shuffle=False, verbose=0)


def _give_back(model: Any) -> None:
    """The gradients that torch keeps, and the C library's free memory: none of it hides what an epoch takes."""
    getattr(model, "zero_grad", lambda: None)()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
