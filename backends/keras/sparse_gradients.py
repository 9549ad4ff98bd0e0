"""Pass row-sparse gradients through a Keras optimizer on backends where optimizers accept only arrays.

Keras divides gradients by its loss scale, and `IndexedSlices` supports this division. On TensorFlow, gradients stay
tf.IndexedSlices, because tf.distribute cannot sum other sparse gradients over replicas (see tensorflow.py). May import:
`keras`, the core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from islices.core.conversion import from_native, is_sparse
from islices.core.linear import scale_values
from islices.core.rows import coalesce, to_dense
from islices.core.slices import IndexedSlices, parts


def accepted(grad: Any, variable: Any, *, validate: bool) -> Any:
    """Convert a sparse gradient to slices with the shape of the variable. Return any other gradient unchanged. If
    `validate` is True, check the slices."""
    return from_native(grad, dense_shape=tuple(variable.shape), validate=validate) if is_sparse(grad) else grad


def cast(grad: Any, dtype: str) -> Any:
    """Convert a gradient to another dtype. A sparse gradient becomes slices."""
    return from_native(grad).astype(dtype) if is_sparse(grad) else keras.ops.cast(grad, dtype)


def divisible(grad: Any, variable: Any) -> Any:
    """Convert a sparse gradient to slices without checking its ids, and return any other gradient unchanged. The
    result can be divided by a number."""
    return accepted(grad, variable, validate=False)


def divided(gradient: Any, c: float) -> Any:
    """Divide slices or an array by a number, without replacing the division by a product with the reciprocal."""
    if isinstance(gradient, IndexedSlices):
        return gradient / c
    return scale_values(*parts(gradient), [("div", c)])


def within(optimizer: Any) -> Iterator[Any]:
    """Yield an optimizer and all optimizers inside it, to which it passes gradients."""
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for one in (*getattr(optimizer, "optimizers", ()), *([] if inner is None else [inner])):
        yield from within(one)


def as_array(gradient: Any) -> Any:
    """Convert slices to an array with the shape of the variable, and return any other gradient unchanged."""
    return to_dense(gradient) if isinstance(gradient, IndexedSlices) else gradient


class ArrayHooks(keras.optimizers.Optimizer):  # type: ignore[misc]
    """A base class of optimizers that sums duplicates and clips at the same point as Keras. At this point, Keras has
    removed the loss scale, and added up micro-batches."""

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        if self._sums_first():
            grads = self._clip(coalesce(grads))
        return [self._for_rule(g) for g in grads]

    def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        if self.gradient_accumulation_steps:  # Keras adds the gradients to its variables
            grads = [as_array(g) for g in grads]
        super()._backend_apply_gradients(grads, trainable_variables)

    def _sums_first(self) -> bool:
        return True

    def _clip(self, grads: list[Any]) -> list[Any]:
        raise NotImplementedError

    def _for_rule(self, grad: Any) -> Any:
        """Convert the gradient to the form that the optimizer's step accepts."""
        raise NotImplementedError
