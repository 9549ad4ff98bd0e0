"""Run Keras on TensorFlow, where tf.GradientTape already computes sparse gradients (tf.IndexedSlices) in eager code, in
graphs and in strategies.

See `islices.backends.keras.native`. May import: `keras`, `tensorflow`, `islices.backends.tensorflow`, the core, this
folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from islices.backend import Host
from islices.backends.keras.sparse_gradients import accepted
from islices.backends.tensorflow.host_calls import compiled_by_xla
from islices.backends.tensorflow.row_segments import sums_in_place
from islices.core.conversion import to_native
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices

if not hasattr(keras.optimizers.Optimizer, "_all_reduce_sum_gradients"):
    raise ImportError(
        f"islices.backends.keras: got Keras {keras.__version__}, whose optimizers have no _all_reduce_sum_gradients; "
        "accepted is Keras 3 as it is up to 3.15"
    )


class ReplicaHooks(keras.optimizers.Optimizer):  # type: ignore[misc]
    """A base class of optimizers that sums duplicates and clips only after the gradients of all replicas have been
    added up."""

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        """Return the gradients unchanged. Keras calls this method too early, before it sums the gradients over
        replicas."""
        return grads

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        pairs = list(super()._all_reduce_sum_gradients(grads_and_vars))
        leaves = [accepted(g, v, validate=False) for g, v in pairs]
        if self._sums_first():
            leaves = self._clip([summed(x) if isinstance(x, IndexedSlices) else x for x in leaves])
        natives = [to_native(g) if isinstance(g, IndexedSlices) else g for g in leaves]
        return [(g, v) for g, (_, v) in zip(natives, pairs, strict=True)]

    def _sums_first(self) -> bool:
        return True

    def _clip(self, grads: list[Any]) -> list[Any]:
        raise NotImplementedError


Hooks = ReplicaHooks


# ---------------------------------------------------------------------- models
def methods(model: Any) -> dict[str, Any]:
    """Return the methods that replace a model's methods. `train_step` stays as it is, because TensorFlow's tape already
    computes sparse gradients."""

    def make_train_function(method: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the optimizer before the step is traced. If the step built the optimizer, the step would make
        variables, and TensorFlow would trace the step twice."""
        if model.built and model.optimizer is not None and not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
        return method(*args, **kwargs)

    return {"make_train_function": make_train_function}


# ---------------------------------------------------------------------- gradients
class DivisibleSlices(tf.IndexedSlices):  # type: ignore[misc]
    """A tf.IndexedSlices that can be divided by a number. Keras divides gradients by loss_scale_factor."""

    def __truediv__(self, c: Any) -> DivisibleSlices:
        return DivisibleSlices(keras.ops.divide(self.values, c), self.indices, self.dense_shape)


def divisible(grad: Any, variable: Any) -> Any:
    """Convert the gradient to a form that can be divided by numbers."""
    if not isinstance(grad, tf.IndexedSlices) or isinstance(grad, DivisibleSlices):
        return grad
    return DivisibleSlices(grad.values, grad.indices, grad.dense_shape)


def summed(leaf: IndexedSlices) -> IndexedSlices:
    """Sum the duplicates of slices. Under XLA, the result keeps the slots of duplicates, filled with zeros."""
    if not compiled_by_xla():
        return coalesce(leaf)
    sums, ids = sums_in_place(leaf.values, leaf.indices, leaf.dense_shape[0])
    return IndexedSlices(sums, ids, leaf.dense_shape, coalesced=True, validate=False)


#: Convert a gradient to another dtype. tf.IndexedSlices stay tf.IndexedSlices.
cast = tf.cast


# ---------------------------------------------------------------------- steps
def replicas(model: Any = None) -> int:
    """Return the number of replicas that take a step together in the model's strategy. If there is no model, use the
    current strategy."""
    strategy = tf.distribute.get_strategy() if model is None else model.distribute_strategy
    return strategy.num_replicas_in_sync  # type: ignore[no-any-return]


def check_step() -> None:
    """Raise ValueError if XLA compiles the step."""
    if compiled_by_xla():
        raise ValueError(
            "jit_compile: got True; accepted by Stepped is False, since shapes are fixed in XLA. A model that Keras "
            "saved on JAX has True: set model.jit_compile = False after loading it"
        )


def writable(variable: Any) -> Any:
    """Return the variable, which optimizers of `islices.optim` can change in place."""
    return variable


def stock(kind: Any) -> Any:
    """Return the class of the objects that ``kind()`` makes on this backend, where `kind` is a class in
    keras.optimizers."""
    return kind


def cell(values: Host, variable: Any) -> Any:
    """Make a variable that contains `values`. The variable's number of rows may change later."""
    with tf.init_scope():
        return tf.Variable(tf.convert_to_tensor(values), shape=(None, *values.shape[1:]))
