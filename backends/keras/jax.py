"""Run Keras on JAX. The training step computes gradients with `islices.value_and_grad`, which detects reads of rows.

If Keras compiles the step, the step is still a single jitted function whose state is donated, so XLA updates tables and
states in place. See `islices.backends.keras.native`. May import: `keras`, `jax`, `numpy`, `islices.backends.jax`, the
core, this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from islices.backends.jax import backend
from islices.backends.keras.sparse_gradients import ArrayHooks, cast, divided, divisible  # noqa: F401  # of `native`
from islices.core.conversion import is_sparse
from islices.core.registry import describe
from islices.core.rows import coalesce
from islices.core.scatter import scatter
from islices.core.slices import IndexedSlices
from islices.embedding.autodiff import value_and_grad

Hooks, summed = ArrayHooks, coalesce


# ---------------------------------------------------------------------- models
def methods(model: Any) -> dict[str, Any]:
    """Return the methods that replace a model's methods. The new train_step computes a sparse gradient for each weight
    of two dimensions or more that the model reads only by rows."""
    if getattr(keras.config, "is_nnx_enabled", bool)():  # older versions of Keras have no NNX
        raise NotImplementedError("row_sparse: got Keras with NNX enabled; accepted on JAX is Keras without it")
    if type(model).train_step is not keras.Model.train_step:
        raise TypeError(
            f"model: got {describe(model)} with a train_step of its class; accepted on JAX is that of keras.Model, "
            "where the gradients are taken. In a train_step of your own, take them by islices.value_and_grad("
            'self.compute_loss_and_updates, has_aux=True, sparse="always") without row_sparse'
        )

    def train_step(method: Any, state: Any, data: Any) -> tuple[Any, Any]:
        if keras.distribution.distribution() is not None:
            raise ValueError(
                f"keras.distribution: got {describe(keras.distribution.distribution())}; accepted by a row_sparse "
                "model is none (over processes: islices.distributed.all_reduce or ShardedTable in your own loop)"
            )
        trainable, others, of_optimizer, of_metrics = state
        if not trainable:
            return method(state, data)  # type: ignore[no-any-return]
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        differentiate = value_and_grad(model.compute_loss_and_updates, has_aux=True, sparse="always")
        (_, (loss, y_pred, others, of_metrics)), grads = differentiate(
            list(trainable), others, of_metrics, x, y, sample_weight, training=True, optimizer_variables=of_optimizer
        )
        trainable, of_optimizer = model.optimizer.stateless_apply(of_optimizer, grads, list(trainable))
        logs, of_metrics = model._update_metrics_variables(of_metrics, loss, x, y, y_pred, sample_weight)
        return logs, (trainable, others, of_optimizer, of_metrics)

    return {"train_step": train_step}


# ---------------------------------------------------------------------- steps
def replicas(model: Any = None) -> int:
    return 1


def stock(kind: Any) -> Any:
    """Return the class of the objects that ``kind()`` makes on this backend, where `kind` is a class in
    keras.optimizers."""
    return kind


# ---------------------------------------------------------------------- steps that may not be taken
#: (the flag of the current step, the id() of each variable that the step itself keeps unchanged if the flag is false)
_flagged: ContextVar[tuple[Any, set[int]] | None] = ContextVar("flagged", default=None)


def taken() -> Any:
    """Return the flag of the current step, a traced bool that is true if the step takes effect. If the step has no such
    flag, return True."""
    flagged = _flagged.get()
    return True if flagged is None else flagged[0]


def keep(variables: Sequence[Any]) -> None:
    """Record that the current step itself keeps these variables unchanged if its flag is false. `take_if` then does not
    select between their old and new values."""
    flagged = _flagged.get()
    if flagged is not None:
        flagged[1].update(map(id, variables))


def take_if(flag: Any, variables: Sequence[Any], step: Callable[[], None]) -> None:
    """Call `step`, which changes the variables, if the flag is true. If the flag is traced, call `step` and then select
    between the old and the new values, because a branch in XLA would copy tables."""
    if not backend.is_traced(flag):
        if flag:
            step()
        return
    before, outer, kept = [v.value for v in variables], _flagged.get(), set[int]()
    token = _flagged.set((flag if outer is None else flag & outer[0], kept))
    try:
        step()
    finally:
        _flagged.reset(token)
    for variable, old in zip(variables, before, strict=True):
        if id(variable) not in kept and variable.value is not old:
            variable.assign(jnp.where(flag, variable.value, old))
    if outer is not None:
        outer[1].update(kept)


# ---------------------------------------------------------------------- micro-batches
class DenseSum:
    """The sum of a variable's gradients over micro-batches. The sum consists of an array of the variable's shape, and
    one flag per row. A flag is True if a gradient contains the row."""

    def __init__(self, variable: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype

    def build(self, optimizer: Any) -> None:
        """Add variables for the sum to the optimizer."""
        self.values = optimizer.add_variable(self.shape, dtype=self.dtype, name="sum_values")
        self.named = optimizer.add_variable(self.shape[:1], dtype="bool", name="sum_named")

    def plus(self, gradient: Any) -> Any:
        """Add a gradient, and return the sum. Slots of a sparse gradient are added one by one. If the gradient is an
        array, the result is an array, else coalesced slices."""
        rows, values = self.shape[0], self.values.value
        gradient = cast(gradient, self.dtype)
        if not is_sparse(gradient):
            self.values.assign(values + gradient.reshape(self.shape))
            self.named.assign(jnp.ones(rows, bool))
            return self.values.value
        self.values.assign(scatter(values, gradient))
        self.named.assign(self.named.value.at[gradient.indices].set(True, mode="drop"))
        (ids,) = jnp.nonzero(self.named.value, size=rows, fill_value=rows)
        found = self.values.value.at[ids].get(mode="fill", fill_value=0)
        return IndexedSlices(found, ids, self.shape, coalesced=True, padded=True, validate=False)

    def clear(self, flag: Any = True) -> None:
        """Remove all rows from the sum if the flag is true."""
        for x in (self.values, self.named):
            x.assign(jnp.where(flag, jnp.zeros_like(x.value), x.value))

    def save(self) -> tuple[Any, Any]:
        """Return the sum's values and indices as NumPy arrays."""
        (ids,) = np.nonzero(np.asarray(self.named.value))
        return np.asarray(self.values.value)[ids], ids

    def load(self, values: Any, indices: Any) -> None:
        """Replace the sum with a sum that `save` returned."""
        self.clear()
        self.values.assign(self.values.value.at[indices].set(values))
        self.named.assign(self.named.value.at[indices].set(True))


def accumulate(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Add the gradients of a micro-batch to the sums. After the last micro-batch, take a step with the means, and clear
    the sums."""
    steps = optimizer.gradient_accumulation_steps
    is_last = (optimizer._iterations.value + 1) % steps == 0
    totals = [optimizer._accumulated_gradients[optimizer._get_variable_index(v)] for v in variables]
    means = [divided(total.plus(grad), float(steps)) for total, grad in zip(totals, grads, strict=True)]

    def step() -> None:
        clipped = optimizer._clip_gradients(means)
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(clipped, variables, optimizer.learning_rate)

    take_if(is_last, [*variables, *optimizer.variables], step)
    for total in totals:
        total.clear(is_last)
