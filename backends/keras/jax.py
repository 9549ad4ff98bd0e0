"""Keras on JAX: the step of a model is a function of its variables, in which the tables of its embeddings are Tables.

JAX's own gradient of a lookup is an array of the table's size. `Training.train_step` therefore takes the gradient by
`islices.value_and_grad`, with an `islices.Table` in the place of each embedding's variable; `Embedding` looks its rows
up there (`look_up`). Whatever else reads the variable meanwhile gets the table as an operand, with its dense gradient
(`watch`): tied weights are right, and cost what the table costs.

Everything stays one jitted function whose state is donated: tables and states are written in place.
See `islices.backends.keras.native`. May import: `keras`, `jax`, `islices.backends.jax`, the core, this folder.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import keras

from islices.autodiff import value_and_grad
from islices.backends.jax import backend
from islices.backends.keras import accumulation
from islices.backends.keras.gradients import Hooks, Slices
from islices.backends.keras.listeners import arrived, note_read, noting, uses_of
from islices.conversion import from_native
from islices.lookups import lookup
from islices.registry import describe
from islices.rows import coalesce
from islices.slices import IndexedSlices
from islices.table import Table

__all__ = ["Hooks", "Sum", "Training", "adopted", "applying", "cast", "check_build", "check_step", "divisible"]
__all__ += ["IN_PLACE", "accumulate", "is_sparse", "listening", "look_up", "replicas", "stock", "summed", "watch"]
__all__ += ["writable"]

#: Whether a rule writes what it steps on.
IN_PLACE = False

applying = contextlib.nullcontext
Sum, accumulate = accumulation.Sum, accumulation.accumulate

#: Within a loss that is differentiated: the tables of variables, by their ids.
_tables: ContextVar[dict[int, Table]] = ContextVar("tables", default={})  # noqa: B039  # never written to


# ---------------------------------------------------------------------- layers
class Watched(keras.Variable):  # type: ignore[misc]
    """The variable of an `Embedding`. Read as a whole while a loss is differentiated, it is an operand of it."""

    @property
    def value(self) -> Any:
        table = _tables.get().get(id(self))
        if table is None:
            return super().value
        note_read(self)
        return self._maybe_autocast(table.weights)


def watch(variable: Any) -> None:
    """Let a variable notice what reads it beside the lookups of its layer."""
    if keras.config.is_nnx_enabled():
        raise NotImplementedError("Embedding: got Keras with NNX enabled; accepted on JAX is Keras without it")
    variable.__class__ = Watched


def look_up(own: Any, layer: Any, ids: Any) -> Any:
    """Rows of the layer's table; outside of a training step Keras' own lookup."""
    table = _tables.get().get(id(layer._embeddings))
    if table is None:
        return own(ids)
    rows = lookup(table, ids)
    for use in uses_of(layer, ids):
        rows = _noted(rows, ids, use)
    inside = jnp.logical_and(ids >= 0, ids < table.shape[0])
    return jnp.where(inside[..., None], rows, jnp.nan)  # as jnp.take: a compiled step cannot raise


def _noted(rows: Any, ids: Any, use: Any) -> Any:
    """The rows, whose gradient is handed to use on its way through; so are the ids, which are not traced then."""

    @jax.custom_vjp
    def identity(rows: Any, ids: Any) -> Any:
        return rows

    def back(ids: Any, upstream: Any) -> tuple[Any, None]:
        use.ids = ids
        arrived(use, upstream)
        return upstream, None

    identity.defvjp(lambda rows, ids: (rows, ids), back)
    return identity(rows, ids)


listening = noting


# ---------------------------------------------------------------------- models
class Training:
    """The step of a model on JAX: Keras' own, but for the gradients of the embeddings."""

    def train_step(self, state: Any, data: Any) -> tuple[Any, Any]:
        trainable, _, of_optimizer, _ = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        model: Any = self
        (loss, y_pred, others, of_metrics), grads = self._gradients(state, data)
        trainable, of_optimizer = model.optimizer.stateless_apply(of_optimizer, grads, list(trainable))
        logs, of_metrics = model._update_metrics_variables(of_metrics, loss, x, y, y_pred, sample_weight)
        return logs, (trainable, others, of_optimizer, of_metrics)

    def _gradients(self, state: Any, data: Any) -> tuple[Any, list[Any]]:
        """What compute_loss_and_updates gives beside the loss, and the gradients of the trainable variables."""
        model: Any = self
        trainable, others, of_optimizer, of_metrics = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        places = frozenset(k for k, v in enumerate(model.trainable_variables) if isinstance(v, Watched))
        check_accepted()

        def loss_of(parameters: list[Any]) -> Any:
            token = _tables.set({id(model.trainable_variables[k]): parameters[k] for k in places})
            try:
                values = [
                    _in_scope(v, p, trainable[k]) if k in places else p
                    for k, (v, p) in enumerate(zip(model.trainable_variables, parameters, strict=True))
                ]
                return model.compute_loss_and_updates(
                    values, others, of_metrics, x, y, sample_weight, training=True, optimizer_variables=of_optimizer
                )
            finally:
                _tables.reset(token)

        parameters = [Table(v) if k in places else v for k, v in enumerate(trainable)]
        (_, aux), grads = value_and_grad(loss_of, has_aux=True)(parameters)
        return aux, grads

    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        model: Any = self
        super()._symbolic_build(iterator=iterator, data_batch=data_batch)  # type: ignore[misc]
        waiting = [one for one in _within(model.optimizer) if accumulation.has_no_room(one)]
        if not waiting:
            return
        if data_batch is None and iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = next(batches)
        if data_batch is None:
            return
        kinds = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
        state = model._get_jax_state(**dict.fromkeys(kinds, True))
        grads = jax.eval_shape(lambda state, data: self._gradients(state, data)[1], state, data_batch)
        for one in waiting:
            accumulation.make_room(one, dict(zip(map(id, model.trainable_variables), grads, strict=True)))


def _within(optimizer: Any) -> list[Any]:
    """An optimizer, and those that it hands its gradients to."""
    inner = getattr(optimizer, "inner_optimizer", None)
    more = [*getattr(optimizer, "optimizers", ()), *([] if inner is None else [inner])]
    return [] if optimizer is None else [optimizer, *(x for one in more for x in _within(one))]


def _in_scope(variable: Any, table: Table, values: Any) -> Any:
    """What Keras's scope holds for a table's variable while a loss is differentiated.

    Reads of the variable go to `Watched`, but for those of regularizers, which ask the scope: they get the operand, and
    nobody else what nothing differentiates.
    """
    if variable.regularizer is None:
        return values
    note_read(variable)
    return table.weights


def check_accepted() -> None:
    """ValueError for what would step past the rows."""
    if keras.distribution.distribution() is not None:
        raise ValueError(
            f"keras.distribution: got {describe(keras.distribution.distribution())}; accepted by a model with sparse "
            "embeddings is none (over processes: islices.all_reduce or islices.ShardedTable in a loop of one's own)"
        )


# ---------------------------------------------------------------------- gradients
def is_sparse(grad: Any) -> bool:
    """Whether a gradient is sparse."""
    return isinstance(grad, IndexedSlices)


def adopted(grad: Any, variable: Any, *, validate: bool) -> Any:
    """A gradient for islices: slices of the variable's shape, or the array."""
    if not is_sparse(grad):
        return grad
    return from_native(grad, dense_shape=tuple(variable.shape), validate=validate)


def summed(grad: Any) -> Any:
    """A sparse gradient with its duplicates summed, which is known of it."""
    return coalesce(grad)


def divisible(grad: Any, variable: Any) -> Any:
    """The gradient, with a division by numbers."""
    return Slices(grad) if is_sparse(grad) else grad


def cast(grad: Any, dtype: str) -> Any:
    """A gradient of the type of that name."""
    if isinstance(grad, IndexedSlices):
        return grad if backend.dtype(grad.values) == dtype else grad.replace(values=grad.values.astype(dtype))
    return jnp.asarray(grad).astype(dtype)


# ---------------------------------------------------------------------- steps
def check_build(optimizer: Any) -> None:
    """ValueError for what moves every row at each micro-batch."""
    if not optimizer.gradient_accumulation_steps:
        return
    for name in ("weight_decay", "use_ema"):
        if getattr(optimizer, name):
            raise ValueError(
                f"{name}: got {getattr(optimizer, name)} beside gradient_accumulation_steps; accepted by Stepped on "
                "JAX is one of the two"
            )


def check_step() -> None:
    """Nothing is refused."""


def replicas(model: Any = None) -> int:
    """How many take a step together."""
    return 1


def writable(variable: Any) -> Any:
    """What a rule steps on, which returns another."""
    return variable.value


def stock(kind: Any) -> Any:
    """The class of Keras that a name of keras.optimizers makes here."""
    return kind
