"""Register IndexedSlices and PerSample as composite tensors of TensorFlow, so that tf.function, loops and data sets
accept them.

By default, tf.nest treats composite tensors as leaves, as it treats tf.IndexedSlices. So `tf.nest.map_structure` does
not compute with row numbers. May import: `tensorflow`, the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import composite_tensor, type_spec_registry

from islices.backend import Array
from islices.core.registry import get_backend
from islices.core.slices import IndexedSlices
from islices.embedding.per_sample import PerSample


class _Spec(tf.TypeSpec):  # type: ignore[misc]
    """The base class of `IndexedSlicesSpec` and `PerSampleSpec`. A spec stores the specs of the arrays, and the
    attributes that are constants in a graph."""

    __slots__ = ("arrays", "static")

    def __init__(self, arrays: Sequence[tf.TensorSpec], static: Sequence[Any]) -> None:
        self.arrays, self.static = tuple(arrays), tuple(static)

    def _serialize(self) -> tuple[Any, ...]:
        return self.arrays, self.static

    @property
    def _component_specs(self) -> tuple[tf.TensorSpec, ...]:
        return self.arrays


class IndexedSlicesSpec(_Spec):
    """The tf.TypeSpec of an `IndexedSlices`. `static` is the tuple (dense_shape, coalesced, padded) of the slices."""

    value_type = IndexedSlices

    def _to_components(self, value: IndexedSlices) -> tuple[Array, ...]:
        return value.values, value.indices

    def _from_components(self, components: Sequence[Array]) -> IndexedSlices:
        shape, coalesced, padded = self.static
        values, indices = components
        owner = get_backend("tensorflow")
        return IndexedSlices._trusted(owner, values, indices, tuple(shape), coalesced=coalesced, padded=padded)


class PerSampleSpec(_Spec):
    """The tf.TypeSpec of a `PerSample` without products. `static` is the attribute dense_shape."""

    value_type = PerSample

    def _to_components(self, value: PerSample) -> tuple[Array, ...]:
        return value.values, value.indices, value.samples

    def _from_components(self, components: Sequence[Array]) -> PerSample:
        values, indices, samples = components
        return PerSample._trusted(get_backend("tensorflow"), (values, indices, samples, ()), tuple(self.static))


def spec_of(x: IndexedSlices | PerSample) -> tf.TypeSpec:
    """Return the tf.TypeSpec of slices or per-sample gradients, whose arrays must belong to TensorFlow or NumPy. Raise
    TypeError for a `PerSample` with products."""
    if isinstance(x, IndexedSlices):
        static = (x.dense_shape, x.coalesced, x.padded)
        return IndexedSlicesSpec([_of_array(x.values), _of_array(x.indices)], static)
    if x.products:
        raise TypeError(
            f"x: got {x!r} of a layer that is tied; accepted by a tf.function are per-sample gradients of lookups, or "
            "what is computed of these: norms, clipped sums"
        )
    return PerSampleSpec([_of_array(part) for part in (x.values, x.indices, x.samples)], x.dense_shape)


def _of_array(x: Array) -> tf.TensorSpec:
    if isinstance(x, tf.Tensor):
        return tf.TensorSpec(x.shape, x.dtype)
    backend = get_backend(x)
    return tf.TensorSpec(backend.shape(x), backend.dtype(x))


def register() -> None:
    base = composite_tensor.CompositeTensor
    names = ("__tf_tracing_type__", "_consumers", "_convert_variables_to_tensors", "_shape_invariant_to_type_spec")
    for kind, spec in {IndexedSlices: IndexedSlicesSpec, PerSample: PerSampleSpec}.items():
        type_spec_registry.register(f"islices.{spec.__name__}")(spec)  # saved models need this
        base.register(kind)
        for name, part in {"_type_spec": property(spec_of), **{name: vars(base)[name] for name in names}}.items():
            setattr(kind, name, part)
