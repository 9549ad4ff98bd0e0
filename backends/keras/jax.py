"""Keras on JAX: the step of a model takes its gradients by `islices.value_and_grad`, which finds the reads of rows.

Everything stays one jitted function whose state is donated: tables and states are written in place.
See `islices.backends.keras.native`. May import: `keras`, `jax`, `islices.backends.jax`, the core, this folder.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import keras

from islices.backends.jax import backend
from islices.backends.jax.host_views import Tracer
from islices.backends.keras import accumulation
from islices.backends.keras.gradients import Hooks, Slices, arrived, within
from islices.core.conversion import from_native
from islices.core.registry import describe
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices
from islices.embedding.autodiff import value_and_grad

__all__ = ["Hooks", "Sum", "adopted", "applying", "cast", "check_build", "check_step", "divisible"]
__all__ += ["IN_PLACE", "TAKES_GRADIENTS", "accumulate", "is_recorded", "is_sparse", "methods", "noted"]
__all__ += ["replicas", "stock", "summed", "writable"]

#: Whether a rule writes what it steps on.
IN_PLACE = False

applying = contextlib.nullcontext
Sum, accumulate = accumulation.Sum, accumulation.accumulate


# ---------------------------------------------------------------------- models
def methods(model: Any) -> dict[str, Any]:
    """Those of a model that take another course: Keras's train_step, but for the gradients of weights read by rows."""
    if keras.config.is_nnx_enabled():
        raise NotImplementedError("row_sparse: got Keras with NNX enabled; accepted on JAX is Keras without it")
    if type(model).train_step is not keras.Model.train_step:
        raise TypeError(
            f"model: got {describe(model)} with a train_step of its class; accepted on JAX is that of keras.Model, "
            "where the gradients are taken. In a train_step of your own, take them by islices.value_and_grad("
            'self.compute_loss_and_updates, has_aux=True, sparse="always") without row_sparse'
        )

    def train_step(method: Any, state: Any, data: Any) -> tuple[Any, Any]:
        trainable, _, of_optimizer, _ = state
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        (loss, y_pred, others, of_metrics), grads = _gradients(model, state, data)
        trainable, of_optimizer = model.optimizer.stateless_apply(of_optimizer, grads, list(trainable))
        logs, of_metrics = model._update_metrics_variables(of_metrics, loss, x, y, y_pred, sample_weight)
        return logs, (trainable, others, of_optimizer, of_metrics)

    def symbolic_build(method: Any, iterator: Any = None, data_batch: Any = None) -> None:
        """Make room for micro-batches, besides: the first batch says how much."""
        method(iterator=iterator, data_batch=data_batch)
        waiting = [one for one in within(model.optimizer) if accumulation.has_no_room(one)]
        if not waiting:
            return
        if data_batch is None and iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = next(batches)
        if data_batch is None:
            return
        kinds = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
        state = model._get_jax_state(**dict.fromkeys(kinds, True))
        grads = jax.eval_shape(lambda state, data: _gradients(model, state, data)[1], state, data_batch)
        for one in waiting:
            accumulation.make_room(one, dict(zip(map(id, model.trainable_variables), grads, strict=True)))

    return {"train_step": train_step, "_symbolic_build": symbolic_build}


def _gradients(model: Any, state: Any, data: Any) -> tuple[Any, list[Any]]:
    """Return the results of compute_loss_and_updates besides the loss, and the gradients of the trainable variables."""
    trainable, others, of_optimizer, of_metrics = state
    if keras.distribution.distribution() is not None:
        raise ValueError(
            f"keras.distribution: got {describe(keras.distribution.distribution())}; accepted by a row_sparse model is "
            "none (over processes: islices.all_reduce or islices.ShardedTable in a loop of your own)"
        )
    differentiate = value_and_grad(model.compute_loss_and_updates, has_aux=True, sparse="always")
    batch = keras.utils.unpack_x_y_sample_weight(data)
    (_, aux), grads = differentiate(
        list(trainable), others, of_metrics, *batch, training=True, optimizer_variables=of_optimizer
    )
    return aux, grads


#: The method of an optimizer that gets the gradients of a step, and as which argument.
TAKES_GRADIENTS = "stateless_apply", 1


def is_recorded(rows: Any) -> bool:
    """Whether a gradient of these rows will be taken."""
    return isinstance(rows, Tracer)


def noted(rows: Any, ids: Any, use: Any) -> Any:
    """The rows, whose gradient goes to use in the backward pass; so do the ids, which are not traced then."""

    @jax.custom_vjp
    def identity(rows: Any, ids: Any) -> Any:
        return rows

    def back(ids: Any, upstream: Any) -> tuple[Any, None]:
        use.ids = ids
        arrived(use, upstream)
        return upstream, None

    identity.defvjp(lambda rows, ids: (rows, ids), back)
    return identity(rows, ids)


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
