"""What Keras' own optimizers do with tf.IndexedSlices: duplicates, untouched rows, clipping, memory.

The reference is the same optimizer on the dense gradient, duplicates summed: what it computes from it is no question
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from islices.conformance import oracle
from islices.conformance.operations import UnsupportedError
from islices.conformance.tools.audit.inputs import ROWS, gradients
from islices.conformance.tools.audit.probe import Ask, probe
from islices.conformance.tools.audit.probes.keras import keras, sized
from islices.conformance.tools.audit.probes.tensorflow import native, slices, two_devices
from islices.optim.record import RECORDS

two_devices()

K = keras.optimizers
Make = Callable[[], Any]
DUPLICATES = ("duplicates", "cancelling duplicates")
#: The optimizers that islices has, too.
OURS = {
    record.presets["keras"].source.rpartition(".")[2]: record.name
    for record in RECORDS.values()
    if "keras" in record.presets
}
NAMES = ("Adam", "AdamW", "Nadam", "Adamax", "Adagrad", "RMSprop", "Adadelta", "Ftrl", "Adafactor", "Lion", "Lamb",
         "Muon", "ScheduleFreeAdamW")  # fmt: skip
OPTIMIZERS: dict[str, Make | None] = {
    "SGD": partial(K.SGD, 0.5),
    "SGD(momentum=0.5)": partial(K.SGD, 0.5, momentum=0.5),
    "SGD(momentum=0.5, nesterov=True)": partial(K.SGD, 0.5, momentum=0.5, nesterov=True),
    **{name: getattr(K, name, None) for name in NAMES},  # some came with later versions
}
#: Those that are linear in the gradient, or see its sign only: duplicates change nothing.
RIGHT = {"SGD", "SGD(momentum=0.5)", "SGD(momentum=0.5, nesterov=True)", "Lion", "Muon"}
#: Those that move weights that no gradient named, now or ever.
LAZY = {"SGD", "Adagrad", "RMSprop", "Adadelta", "Adafactor", "ScheduleFreeAdamW"}


def stepped(make: Make, *grads: Any) -> tuple[np.ndarray[Any, Any], Any]:
    """(the table, the optimizer) after steps from a table of ones."""
    weights, optimizer = keras.Variable(np.ones((ROWS, 2), np.float32)), make()
    for grad in grads:
        optimizer.apply_gradients([(grad, weights)])
    return np.asarray(weights), optimizer


def absent(name: str) -> Ask:
    def call() -> None:
        raise UnsupportedError(f"Keras {keras.__version__} has no {name}")

    return Ask(name, call, "")


def compared(name: str, make: Make | None, *given: str) -> Iterator[Ask]:
    """A step with each gradient, then one that shows the state that the first has left."""
    if make is None:
        yield absent(name)
        return
    then = slices([[1, 2], [3, 4]], [1, 3])
    for g in gradients(*given):
        expected, _ = stepped(make, tf.constant(g.dense), tf.convert_to_tensor(then))
        yield Ask(g.name, partial(lambda x: stepped(make, x, then)[0], native(g)), expected)


def ours(name: str, arguments: str, otherwise: str) -> str:
    name, _, given = name.rstrip(")").partition("(")
    given = f"{given}, " if given else ""
    return f"islices.optim.{OURS[name]}(lr, {given}{arguments})" if name in OURS else otherwise


# ---------------------------------------------------------------------- duplicates and untouched rows
def optimizer(name: str) -> None:
    make = OPTIMIZERS[name]

    @probe(
        "keras", f"keras.optimizers.{name}", "16",
        claim="the weights are those of the dense gradient, duplicates or not" if name in RIGHT else
        "duplicates are not summed first: the weights are not those of the dense gradient",
        trap="" if name in RIGHT else "differs",
        instead=ours(name, "rows='all', semantics='keras'", "the optimizer on islices.coalesce(gradient)"),
    )  # fmt: skip
    def ask_duplicates() -> Iterator[Ask]:
        yield from compared(name, make, *DUPLICATES)

    @probe(
        "keras", f"keras.optimizers.{name}: rows that no gradient names", "16",
        claim="they stay as they are" if name in LAZY else
        "weights move in rows that the step's gradient does not name: there is no lazy form",
        trap="" if name in LAZY else "differs",
        instead=ours(name, "rows='touched'", "islices.optim.adam(lr, rows='touched'), which comes nearest"),
    )  # fmt: skip
    def ask_untouched() -> Iterator[Ask]:
        if make is None:
            yield absent(name)
            return
        first, then = slices([[1, 2]], [1]), slices([[1, 2]], [3])
        others, known = [0, 2, 3], make
        yield Ask("a step with row 1: the others", lambda: stepped(known, first)[0][others], np.ones((3, 2)))
        before = stepped(make, first)[0][:3]
        yield Ask("then one with row 3: the others", lambda: stepped(known, first, then)[0][:3], before)


for _name in OPTIMIZERS:
    optimizer(_name)


@probe(
    "keras", "keras.optimizers.*, indices without duplicates", "16",
    claim="the weights are those of the dense gradient, sorted or not", trap="",
    instead="islices.optim, semantics='keras'",
)  # fmt: skip
def unique() -> Iterator[Ask]:
    for name, make in OPTIMIZERS.items():
        for ask in compared(name, make, "unsorted, unique"):
            yield ask._replace(given=f"{name}, {ask.given}")


@probe(
    "keras", "keras.optimizers.RMSprop(centered=True)", "16",
    claim="duplicates give other weights or, by rho, an error about an index that nobody gave",
    trap="raises", instead="islices.optim.rmsprop(lr, centered=True, rows='all', semantics='keras')",
)  # fmt: skip
def centered() -> Iterator[Ask]:
    x = slices([[1, 1]] * 5, [1] * 5)
    for rho in (0.3, 0.9):
        make = partial(K.RMSprop, rho=rho, centered=True)
        expected, _ = stepped(make, tf.convert_to_tensor(x))
        yield Ask(f"five ones in one row, rho={rho}", lambda make=make: stepped(make, x)[0], expected)


@probe(
    "keras", "keras.optimizers.SGD", "16",
    claim="each duplicate's share of the step is rounded by itself, not their sum",
    instead="islices.optim.sgd(lr)",
)  # fmt: skip
def shares_rounded() -> Iterator[Ask]:
    values = np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32)
    x = slices(values, np.zeros(64, np.int64))
    expected, _ = stepped(partial(K.SGD, 0.1), tf.convert_to_tensor(x))
    yield Ask("64 contributions to a row", lambda: stepped(partial(K.SGD, 0.1), x)[0], expected)


@probe(
    "keras", "keras.optimizers.SGD(weight_decay=0.5)", "16",
    claim="all rows decay, named by the gradient or not",
    instead="islices.optim.sgd(lr, weight_decay=...)",
)  # fmt: skip
def weight_decay() -> Iterator[Ask]:
    make = partial(K.SGD, 0.5, weight_decay=0.5)
    yield Ask("rows 0 and 2", lambda: stepped(make, slices([[1, 2], [3, 4]], [1, 3]))[0][[0, 2]], np.ones((2, 2)))


@probe(
    "keras", "keras.optimizers.Adam and the others but SGD, a step with slices", "16",
    claim="arrays of the table's rows are made in every step, however few rows the gradient has",
    instead="islices.optim.adam(lr): time and memory follow the gradient", issue="keras-team/keras#19992",
)  # fmt: skip
def memory() -> Iterator[Ask]:
    for name in ("Adagrad", "Adam", "Nadam", "Adamax", "RMSprop", "Adadelta", "Ftrl", "Lion"):
        yield grown(name)


def grown(name: str) -> Ask:
    rows, make = 1009, OPTIMIZERS[name]
    assert make is not None  # these came with the first versions
    weights, made = keras.Variable(np.ones((rows, 2), np.float32)), make()
    made.build([weights])
    x = slices([[1, 2], [3, 4]], [1, 3], rows)
    return Ask(name, lambda: sized(lambda: made.apply_gradients([(x, weights)]), rows), "follows the slices")


@probe(
    "keras", "keras.optimizers.SGD, a step with slices", "16",
    claim="nothing of the table's size is made", trap="",
    instead="islices.optim.sgd(lr)",
)  # fmt: skip
def memory_sgd() -> Iterator[Ask]:
    yield grown("SGD")


# ---------------------------------------------------------------------- clipping and scaling
CLIPS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "clipnorm": ("islices.clip_by_norm(gradient, limit) first", lambda s: oracle.clip_by_norm(s, 2.5)),
    "global_clipnorm": ("islices.clip_by_global_norm(gradients, limit) first", lambda s: oracle.clip_by_norm(s, 2.5)),
    "clipvalue": ("islices.clip_by_value(gradient, -limit, limit) first", lambda s: oracle.clip_by_value(s, -2.5, 2.5)),
}


def clipping(name: str) -> None:
    instead, clipped = CLIPS[name]

    @probe(
        "keras", f"keras.optimizers.*({name}=...)", "9" if name == "clipvalue" else "10",
        claim="the stored values are clipped: too little where duplicates add up, too much where they cancel",
        instead=instead,
    )  # fmt: skip
    def ask() -> Iterator[Ask]:
        make = partial(K.SGD, 1.0, **{name: 2.5})
        for g in gradients("sorted, unique", "one", *DUPLICATES):
            step = np.asarray(oracle.to_dense(clipped(g.slices)).data, np.float32).reshape(ROWS, 2)
            yield Ask(f"SGD, {g.name}", partial(lambda x: 1 - stepped(make, x)[0], native(g)), 1 - (1 - step))


for _name in CLIPS:
    clipping(_name)


@probe(
    "keras", "keras.optimizers.*(clipnorm=..., global_clipnorm=...) under tf.distribute", "10",
    claim="each replica's gradient is clipped before they are added: two that point the same way step twice as far",
    instead="islices.clip_by_global_norm(gradients, limit) after the all-reduce",
)  # fmt: skip
def replicas() -> Iterator[Ask]:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for name in ("clipnorm", "global_clipnorm"):

        def call(name: str = name) -> Any:
            with strategy.scope():
                weights, optimizer = keras.Variable(np.zeros((ROWS, 2), np.float32)), K.SGD(1.0, **{name: 1.0})
                optimizer.build([weights])

            def replica() -> None:
                k = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
                grad = tf.IndexedSlices(tf.stack([[3 + k, 0.0]]), tf.constant([1]), tf.constant([ROWS, 2]))
                optimizer.apply_gradients([(grad, weights)])

            strategy.run(replica)
            return np.linalg.norm(np.asarray(weights))

        yield Ask(f"{name}=1, gradients (3, 0) and (4, 0): length of the step", call, 1.0)


@probe(
    "keras", "keras.optimizers.*(loss_scale_factor=...)", "6",
    claim="slices are divided by an operator that they do not have",
    trap="raises", instead="islices.scale(gradient, 1 / factor) first",
)  # fmt: skip
def loss_scale_factor() -> Iterator[Ask]:
    make, x = partial(K.SGD, 0.5, loss_scale_factor=2.0), native(next(gradients("sorted, unique")))
    expected, _ = stepped(make, tf.convert_to_tensor(x))
    yield Ask("SGD", lambda: stepped(make, x)[0], expected)


@probe(
    "keras", "LossScaleOptimizer, gradient_accumulation_steps=2, use_ema=True", "16",
    claim="right on duplicates with SGD", trap="",
    instead="islices.optim.LossScale, islices.add",
)  # fmt: skip
def wrappers() -> Iterator[Ask]:
    ways: dict[str, Make] = {
        "LossScaleOptimizer": lambda: K.LossScaleOptimizer(K.SGD(0.5), initial_scale=2.0),
        "gradient_accumulation_steps=2": partial(K.SGD, 0.5, gradient_accumulation_steps=2),
        "use_ema=True": partial(K.SGD, 0.5, use_ema=True),
    }
    for label, make in ways.items():
        for ask in compared(label, make, *DUPLICATES):
            yield ask._replace(given=f"{label}, {ask.given}")


@probe(
    "tf_keras", "tf_keras.optimizers.SGD(clipnorm=..., global_clipnorm=..., clipvalue=...)", "10",
    claim="the stored values are clipped, duplicates summed afterwards",
    instead="islices.clip_by_global_norm(gradients, limit) first",
)  # fmt: skip
def tf_keras() -> Iterator[Ask]:
    import tf_keras as legacy  # pyright: ignore[reportMissingImports]

    def call(name: str, x: Any) -> Any:
        weights = tf.Variable(tf.zeros((ROWS, 2)))
        legacy.optimizers.SGD(1.0, **{name: 2.5}).apply_gradients([(x, weights)])
        return -np.asarray(weights)

    for name, (_, clipped) in CLIPS.items():
        for g in gradients(*DUPLICATES):
            yield Ask(f"{name}, {g.name}", partial(call, name, native(g)), oracle.to_dense(clipped(g.slices)))
