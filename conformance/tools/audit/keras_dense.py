"""Questions to Keras that its backends without row-sparse gradients share, and what optimizers do on each of them.

Imported by modules of probes once they have chosen KERAS_BACKEND; what is declared belongs to the module named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np

from islices.conformance import oracle
from islices.conformance.oracle_optim import optimizer_steps
from islices.conformance.tools.audit.inputs import ROWS, WEIGHTS, Given, gradients, plain
from islices.conformance.tools.audit.probe import Ask, probe

__all__ = ["Backend", "declare_layers", "declare_optimizers", "declare_rounding"]

Array = np.ndarray[Any, Any]
Question = Callable[[], Iterator[Ask]]
K, ops = keras.optimizers, keras.ops
LOOKUP = "islices.lookup(table, ids)"
#: What frameworks raise where they refuse.
REFUSALS = (IndexError, OverflowError, RuntimeError, TypeError, ValueError)


class Backend(NamedTuple):
    """What a backend has of its own, and what was measured there.

    Attributes
    ----------
    name : str
        As people call it.
    gradient : callable
        (layer, ids) -> the gradient of the sum of a lookup, as the backend has it.
    sparse : callable
        A gradient as the backend's row-sparse tensor.
    is_sparse : callable
        Whether a tensor is one.
    traps : mapping
        Question -> (trap, claim).
    """

    name: str
    gradient: Callable[[Any, Any], Any]
    sparse: Callable[[Given], Any]
    is_sparse: Callable[[Any], bool]
    traps: dict[str, tuple[str, str]]


def array(x: Any) -> Array:
    return np.asarray(ops.convert_to_numpy(x))


def asked(module: str, call: str, clause: str, **said: Any) -> Callable[[Question], Question]:
    """A probe that counts as the module's."""

    def register(ask: Question) -> Question:
        ask.__module__ = module
        return probe("keras", call, clause, **said)(ask)

    return register


def answered(call: Callable[[], Any]) -> Any:
    """What came, or "refused"."""
    try:
        return call()
    except REFUSALS:
        return "refused"


# ---------------------------------------------------------------------- lookups
def layer_of(**options: Any) -> Any:
    made = keras.layers.Embedding(ROWS, 2, **options)
    made.build()
    made.set_weights([WEIGHTS])
    return made


def looked_up(ids: Any) -> Array:
    """The last row that is read."""
    rows: Array = array(ops.stop_gradient(layer_of()(np.array([0, ids]))))[-1]
    return rows


def declare_layers(module: str, on: Backend) -> None:
    """Embedding, take, segment_sum, scatter."""
    words = f", {on.name} backend"

    @asked(
        module, f"keras.layers.Embedding{words}", "12", issue="keras-team/keras#18420", trap="differs",
        claim="its gradient is dense, a table's size in every step: only the TensorFlow backend has row-sparse ones",
        instead="islices.lookup(table, ids) in islices.value_and_grad",
    )  # fmt: skip
    def kind() -> Iterator[Ask]:
        ids = np.array([1, 2, 1])
        for name, given in (("ids 1, 2, 1", ids), ("no ids", ids[:0])):
            call = partial(lambda x: "row-sparse" if on.is_sparse(on.gradient(layer_of(), x)) else "dense", given)
            yield Ask(name, call, "row-sparse")

    trap, claim = on.traps["ids"]

    @asked(module, f"keras.layers.Embedding{words}, ids out of range", "2", trap=trap, claim=claim, instead=LOOKUP)
    def ids() -> Iterator[Ask]:
        for index in (-1, -ROWS - 1, ROWS):
            yield Ask(f"id {index}", partial(answered, partial(looked_up, index)), "refused")

    @asked(
        module, f"keras.layers.Embedding{words}, ids that are no int32", "2", trap="differs", instead=LOOKUP,
        claim="fractions are cut off and integers cut to 32 bits: 1.9 and 2**32 + 1 read row 1",
    )  # fmt: skip
    def types() -> Iterator[Ask]:
        for index in (1.9, 2**32 + 1):
            yield Ask(f"id {index}", partial(answered, partial(looked_up, index)), "refused")

    @asked(
        module, f"keras.layers.Embedding(mask_zero=True){words}", "12", trap="differs",
        claim="row 0 gets a gradient: the layer only hands the mask on",
        instead="islices.lookup(table, ids, padding_idx=0)",
    )  # fmt: skip
    def mask_zero() -> Iterator[Ask]:
        given = np.array([[0, 2, 0, 1]])
        wanted = oracle.embedding_grad(
            plain(np.ones((1, 4, 2), np.float32)), plain(given), ROWS, mask=plain(given != 0)
        )
        call = partial(lambda: array(on.gradient(layer_of(mask_zero=True), given)))
        yield Ask("ids 0, 2, 0, 1", call, oracle.to_dense(wanted))

    for name, call in INDEXED.items():
        trap, claim = on.traps[name]
        instead = LOOKUP if name == "take" else "islices.coalesce(x)"
        indexed(module, f"keras.ops.{name}{words}", call, trap=trap, claim=claim, instead=instead)


INDEXED: dict[str, Callable[[int], Any]] = {
    "take": lambda i: ops.take(WEIGHTS, np.array([0, i]), axis=0)[-1],
    "segment_sum": lambda i: ops.segment_sum(np.ones((3, 2), np.float32), np.array([1, i, 1]), ROWS),
    "scatter": lambda i: ops.scatter(np.array([[1], [i], [1]]), np.ones((3, 2), np.float32), (ROWS, 2)),
}


def indexed(module: str, text: str, call: Callable[[int], Any], **said: str) -> None:
    @asked(module, f"{text}, indices out of range", "2", **said)
    def ask() -> Iterator[Ask]:
        for index in (-1, ROWS):
            yield Ask(f"index {index}", partial(answered, partial(lambda i: array(call(i)), index)), "refused")


# ---------------------------------------------------------------------- optimizers
def stepped(make: Callable[[], Any], grads: Sequence[Any], start: float = 1.0) -> Array:
    """The table after steps from `start`."""
    weights, optimizer = keras.Variable(np.full((ROWS, 2), start, np.float32)), make()
    for grad in grads:
        optimizer.apply_gradients([(grad, weights)])
    return array(weights).astype(np.float64)


def tensor(x: Any) -> Any:
    return ops.convert_to_tensor(np.asarray(x, np.float32))


def of_row(row: int, values: Sequence[float] = (1.0, 2.0)) -> Any:
    x = np.zeros((ROWS, 2), np.float32)
    x[row] = values
    return tensor(x)


#: Those that move rows which have a state, and one that moves all; RMSprop and Adagrad without momentum do not.
MOVING = ("Adam", "Lion", "Ftrl")
SPARSE = ("SGD", "RMSprop")


def declare_optimizers(module: str, on: Backend) -> None:
    """Untouched rows, row-sparse gradients, clips."""
    words = f", {on.name} backend"

    @asked(
        module, f"keras.optimizers.Adam, Lion, Ftrl{words}: rows that no gradient names", "16", trap="differs",
        claim="a dense gradient names all rows: weights move in rows that the step's batch does not have",
        instead="islices.optim.adam(lr), lion, ftrl: rows='touched'",
    )  # fmt: skip
    def untouched() -> Iterator[Ask]:
        for name in MOVING:
            make, first = partial(getattr(K, name), 0.5), of_row(1)
            before = stepped(make, [first])[:3]
            yield Ask(f"{name}, a step with row 1: the others", lambda before=before: before[[0, 2]], np.ones((2, 2)))
            yield Ask(f"{name}, a step with row 1, then one with row 3: the others",
                      lambda make=make: stepped(make, [of_row(1), of_row(3)])[:3], before)  # fmt: skip

    trap, claim = on.traps["sparse"]

    @asked(
        module, f"keras.optimizers.{', '.join(SPARSE)}{words}: the backend's own sparse gradients", "16", trap=trap,
        claim=claim, instead="islices.optim, semantics='keras'",
    )  # fmt: skip
    def sparse() -> Iterator[Ask]:
        for name in SPARSE:
            (g,) = gradients("duplicates")
            make = partial(getattr(K, name), 0.5)
            wanted = stepped(make, [tensor(g.dense)]).round(5)
            yield Ask(f"{name}, {g.name}", lambda make=make, g=g: stepped(make, [on.sparse(g)]).round(5), wanted)

    trap, claim = on.traps["sparse clips"]

    @asked(
        module, f"keras.optimizers.*(clipnorm=..., clipvalue=...){words}: the backend's own sparse gradients", "10",
        trap=trap, claim=claim,
        instead="islices.clip_by_norm(gradient, limit), islices.clip_by_value(gradient, lo, hi)",
    )  # fmt: skip
    def sparse_clips() -> Iterator[Ask]:
        (g,) = gradients("duplicates")
        for name in ("clipnorm", "global_clipnorm", "clipvalue"):
            make = partial(K.SGD, 1.0, **{name: 2.5})
            wanted = stepped(make, [tensor(g.dense)], 0.0).round(5)
            yield Ask(f"SGD({name}=2.5)", lambda make=make: stepped(make, [on.sparse(g)], 0.0).round(5), wanted)

    @asked(
        module, f"keras.optimizers.*(clipnorm=..., global_clipnorm=...){words}", "10", trap="",
        claim="right on dense gradients: by each variable's norm, or by that of all together",
        instead="islices.clip_by_norm(gradient, limit), islices.clip_by_global_norm(gradients, limit)",
    )  # fmt: skip
    def clips() -> Iterator[Ask]:
        for name in ("clipnorm", "global_clipnorm"):
            for g in gradients("duplicates", "one", "none"):
                wanted = np.array(oracle.to_dense(oracle.clip_by_norm(g.slices, 2.5)).data).reshape(ROWS, 2)
                make = partial(K.SGD, 1.0, **{name: 2.5})
                call = partial(lambda make, g: -stepped(make, [tensor(g.dense)], 0.0).round(5), make, g)
                yield Ask(f"{name}=2.5, {g.name}", call, wanted.round(5))

    @asked(
        module, f"keras.optimizers.*(clipnorm=..., global_clipnorm=...){words}, large gradients", "10", trap="differs",
        claim="where squares overflow float32 the step is 0 with clipnorm, NaN in every weight with global_clipnorm",
        instead="islices.clip_by_norm(gradient, limit), islices.clip_by_global_norm(gradients, limit)",
        issue="keras-team/keras#14075",
    )  # fmt: skip
    def overflow() -> Iterator[Ask]:
        wanted = np.zeros((ROWS, 2))
        wanted[1] = [0.6, 0.8]
        for name in ("clipnorm", "global_clipnorm"):
            make = partial(K.SGD, 1.0, **{name: 1.0})
            call = partial(lambda make: -stepped(make, [of_row(1, (3e19, 4e19))], 0.0).round(5), make)
            yield Ask(f"{name}=1, a row (3e19, 4e19)", call, wanted)


# ---------------------------------------------------------------------- scalars
def declare_rounding(module: str, backend: str) -> None:
    """How the numbers of a step are formed; on every backend."""

    @asked(
        module, f"keras.optimizers.Adam, AdamW, Adamax, {backend} backend, the first step", "18", trap="differs",
        claim="1 - beta ** t is formed in float32 and keeps four digits there: Adam's step of 1 is off by 7e-6",
        instead="islices.optim.adam(lr), adamw, adamax: scalars are formed in float64",
    )  # fmt: skip
    def first_step() -> Iterator[Ask]:
        for name in ("Adam", "AdamW", "Adamax"):
            call = partial(
                lambda make: stepped(make, [tensor(np.ones((ROWS, 2)))], 0.0)[0],
                partial(getattr(K, name), 1.0, epsilon=0.0),
            )
            yield Ask(f"{name}, gradient 1, learning rate 1, epsilon 0", call, [-1.0, -1.0])

    @asked(
        module, f"keras.optimizers.Adam, {backend} backend, small gradients", "16", trap="differs",
        claim="epsilon is added before the root's bias is corrected: a gradient of 1e-7 moves weights by 0.03, not 0.5",
        instead="islices.optim.adam(lr), or with semantics='keras' for Keras' own step",
    )  # fmt: skip
    def epsilon() -> Iterator[Ask]:
        g = np.full((ROWS, 2), 1e-7, np.float32)
        table = plain(np.zeros((ROWS, 2), np.float32))
        found = optimizer_steps("adam", {"lr": 1.0, "eps": 1e-7}, table, [oracle.from_dense(plain(g))])["table"]
        wanted = np.array(found.data).reshape(ROWS, 2).round(5)
        yield Ask("gradient 1e-7, learning rate 1, epsilon 1e-7",
                  lambda: stepped(partial(K.Adam, 1.0, epsilon=1e-7), [tensor(g)], 0.0).round(5), wanted)  # fmt: skip
