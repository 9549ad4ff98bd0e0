"""Keras on JAX: the step of a model takes its gradients by `islices.value_and_grad`, which finds the reads of rows.

Everything stays one jitted function whose state is donated: tables and states are written in place.
See `islices.backends.keras.native`. May import: `keras`, `jax`, `islices.backends.jax`, the core, this folder.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax.numpy as jnp
import keras

from islices.backends.jax import backend
from islices.backends.keras.sparse_gradients import ArrayHooks, Slices
from islices.core.conversion import from_native
from islices.core.registry import describe
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices
from islices.embedding.autodiff import value_and_grad

__all__ = ["Hooks", "adopted", "applying", "cast", "check_build", "check_step", "divisible"]
__all__ += ["IN_PLACE", "cell", "is_sparse", "methods", "replicas", "stock", "summed", "writable"]

#: Whether a rule writes what it steps on.
IN_PLACE = False

applying = contextlib.nullcontext
Hooks = ArrayHooks
cell: Any = None


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

    return {"train_step": train_step}


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
    """Raise ValueError for micro-batches: shapes are fixed in a compiled step, the rows of several batches are not."""
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            f"gradient_accumulation_steps: got {optimizer.gradient_accumulation_steps}; accepted by Stepped on JAX is "
            "None (fit larger batches)"
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
