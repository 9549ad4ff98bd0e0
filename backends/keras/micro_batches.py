"""Sum the gradients of micro-batches as slices, in eager code and in TensorFlow's graphs.

May import: `keras`, `numpy`, the core, this folder.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from islices.backends.keras.native import native
from islices.backends.keras.sparse_gradients import accepted, divided
from islices.core.conversion import is_sparse, to_native
from islices.core.linear import add, concat
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices


class Share:
    """The gradient of one micro-batch or, after an addition, of several micro-batches. Keras adds this object to a
    `Sum`, and divides the total by the number of micro-batches."""

    def __init__(self, gradient: Any) -> None:
        self.gradient = gradient  # on TensorFlow, sparse gradients are islices.IndexedSlices only after an addition

    def __add__(self, total: Any) -> Share:
        return Share(total.plus(self.gradient))

    def __truediv__(self, steps: int) -> Any:
        mean = divided(self.gradient, float(steps))
        return to_native(mean) if isinstance(mean, IndexedSlices) else mean


class Sum:
    """The sum of a variable's gradients over micro-batches, as coalesced slices. The arrays of the slices are in
    variables whose length may change."""

    def __init__(self, variable: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
        self.values = native.cell(np.zeros((0, *shape[1:]), dtype), variable)
        self.indices = native.cell(np.zeros(0, np.int64), variable)

    def plus(self, gradient: Any) -> Any:
        """Add a gradient to the sum, and return the result without storing it. If the gradient is an array, the result
        is an array, else coalesced slices."""
        own = IndexedSlices(
            self.values.read_value(), self.indices.read_value(), self.shape, coalesced=True, validate=False
        )
        gradient = native.cast(gradient, self.dtype)
        if is_sparse(gradient):
            return coalesce(concat([own, accepted(gradient, self, validate=False)]))
        return add(own, keras.ops.reshape(gradient, self.shape))

    def assign(self, gradient: Any) -> None:
        """Replace the sum with a sum that `plus` returned."""
        slices = isinstance(gradient, IndexedSlices)
        self.values.assign(gradient.values if slices else gradient)
        self.indices.assign(keras.ops.cast(gradient.indices if slices else keras.ops.arange(self.shape[0]), "int64"))

    def clear(self) -> None:
        self.load(np.zeros((0, *self.shape[1:]), self.dtype), np.zeros(0, np.int64))

    def save(self) -> tuple[Any, ...]:
        """Return the sum's values and indices as NumPy arrays."""
        return tuple(keras.ops.convert_to_numpy(x) for x in (self.values.read_value(), self.indices.read_value()))

    def load(self, values: Any, indices: Any) -> None:
        """Replace the sum with a sum that `save` returned."""
        self.values.assign(np.asarray(values))
        self.indices.assign(np.asarray(indices))
