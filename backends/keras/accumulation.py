"""Micro-batches in a compiled step of JAX, where shapes are fixed: the slices of each wait, in order, until the step.

What waits has room for as many slots a micro-batch as the first batch of `fit` looks up. All of them are coalesced at
each call, and the step has a flag: what waited in the others' order gives the bits of the other backends.
May import: `keras`, `jax`, `numpy`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from islices.backends.keras.branches import taking
from islices.backends.keras.gradients import Slices, divided
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices

__all__ = ["Sum", "accumulate", "has_no_room", "make_room"]


class Sum:
    """The slices of one variable's micro-batches since the last step, or their sum where they are dense."""

    def __init__(self, variable: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.variable, self.shape, self.dtype = variable, shape, dtype
        self.in_use = False
        self.values: Any = None  # (steps - 1, slots, *row), or of the variable's shape
        self.indices: Any = None  # (steps - 1, slots): a row behind the last where there is none
        self.loaded: Any = None  # slices that wait for their room

    def make_room(self, optimizer: Any, slots: int | None) -> None:
        """Variables of the optimizer for so many slots a micro-batch; None: for dense gradients."""
        name, waiting = f"{optimizer.name}_waiting", optimizer.gradient_accumulation_steps - 1
        if slots is None:
            self.values = optimizer.add_variable(self.shape, dtype=self.dtype, name=name)
        else:
            nothing = keras.initializers.Constant(self.shape[0])
            self.values = optimizer.add_variable((waiting, slots, *self.shape[1:]), dtype=self.dtype, name=name)
            self.indices = optimizer.add_variable((waiting, slots), nothing, "int32", name=f"{name}_indices")
        if self.loaded is not None:
            self.load(*self.loaded)

    def plus(self, grad: Any, position: Any, is_last: Any) -> Any:
        """What waited and a gradient behind it; the gradient waits too, but in the last one's place nothing does."""
        if not isinstance(grad, IndexedSlices):
            grad = jnp.reshape(grad, self.shape).astype(self.dtype)
            total = self.values.value + grad
            self.values.assign(jnp.where(is_last, 0, total))
            return total
        count, slots = grad.indices.shape[0], self.indices.shape[1]
        if count > slots:
            raise ValueError(
                f"gradient_accumulation_steps: got a batch of {count} ids after one of {slots}; accepted on JAX are as "
                "many as in the first batch at most (compile the model again)"
            )
        values, indices = self.values.value, self.indices.value
        rows = (values.reshape(-1, *self.shape[1:]), grad.values.astype(self.dtype))
        ids = (indices.reshape(-1), grad.indices.astype(np.int32))
        joined = IndexedSlices(jnp.concatenate(rows), jnp.concatenate(ids), self.shape, padded=True, validate=False)
        where = jnp.where(is_last, 0, position)  # then all are forgotten
        shorter = [(0, slots - count)]
        more = jnp.pad(rows[1], shorter + [(0, 0)] * (len(self.shape) - 1))
        named = jnp.pad(ids[1], shorter, constant_values=self.shape[0])
        self.values.assign(lax.dynamic_update_index_in_dim(values, more, where, 0))
        named = lax.dynamic_update_index_in_dim(indices, named, where, 0)
        self.indices.assign(jnp.where(is_last, self.shape[0], named))
        return coalesce(joined)

    def save(self) -> tuple[Any, Any]:
        """The slices that wait, as NumPy arrays."""
        if self.values is None:
            return self.loaded or (np.zeros((0, *self.shape[1:]), self.dtype), np.zeros(0, np.int64))
        values = np.asarray(self.values.value).reshape(-1, *self.shape[1:])
        if self.indices is None:
            return values, np.arange(self.shape[0])
        indices = np.asarray(self.indices.value).reshape(-1)
        named = indices < self.shape[0]
        return values[named], indices[named].astype(np.int64)

    def clear(self) -> None:
        """Nothing waits."""
        self.loaded = None
        if self.values is not None:
            self.values.assign(jnp.zeros_like(self.values.value))
        if self.indices is not None:
            self.indices.assign(jnp.full_like(self.indices.value, self.shape[0]))

    def load(self, values: Any, indices: Any) -> None:
        """What `save` gave."""
        if self.values is None:
            self.loaded = (np.asarray(values), np.asarray(indices))
            return
        self.clear()
        if self.indices is None:
            whole = np.zeros(self.shape, self.dtype)
            np.add.at(whole, indices, values)
            self.values.assign(whole)
            return
        into = np.array(self.values.value), np.array(self.indices.value)
        flat = into[0].reshape(-1, *self.shape[1:]), into[1].reshape(-1)
        flat[0][: len(values)], flat[1][: len(indices)] = values, indices
        self.values.assign(into[0])
        self.indices.assign(into[1])


def has_no_room(optimizer: Any) -> bool:
    """Whether an optimizer adds micro-batches up, and does not know yet how large they are."""
    return any(total.values is None for total in getattr(optimizer, "_sums", ()))


def make_room(optimizer: Any, grads: Mapping[int, Any]) -> None:
    """Room for micro-batches like these gradients, by the ids of their variables: shapes are enough."""
    for total in optimizer._sums:
        grad = grads[id(total.variable)]
        total.make_room(optimizer, grad.indices.shape[0] if isinstance(grad, IndexedSlices) else None)


def accumulate(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Add micro-batches up, and step on their mean behind the last one of a step."""
    if has_no_room(optimizer):
        raise ValueError(
            f"gradient_accumulation_steps: got {optimizer.gradient_accumulation_steps} outside of `fit` and "
            "`train_on_batch` of a row_sparse model, which see how large the batches are; accepted on JAX is None there"
        )
    steps = optimizer.gradient_accumulation_steps
    position = keras.ops.convert_to_tensor(optimizer._iterations) % steps
    is_last = position == steps - 1
    means = []
    for grad, variable in zip(grads, variables, strict=True):
        grad = grad.slices if isinstance(grad, Slices) else grad
        total = optimizer._accumulated_gradients[optimizer._get_variable_index(variable)]
        mean = divided(total.plus(grad, position, is_last), float(steps))
        means.append(mean if len(variable.shape) or isinstance(mean, IndexedSlices) else jnp.reshape(mean, ()))
    with taking(is_last):
        optimizer._backend_update_step(optimizer._clip_gradients(means), variables, optimizer.learning_rate)
