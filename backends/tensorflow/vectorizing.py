"""Register converters for operations that tf.vectorized_map does not know. Without converters, these operations
would run in a loop over the members of the batch.

An import of this module registers a converter for each operation, unless the installed TensorFlow already has one. May
import: `tensorflow`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor


def _resource_gather(given: Any) -> Any:
    """Convert a gather from a variable to a single gather with the indices of all members."""
    if given.get_attr("batch_dims"):
        raise pfor.ConversionNotImplementedError("batch_dims")
    table, indices = given.unstacked_input(0), given.stacked_input(1)
    return pfor.wrap(tf.raw_ops.ResourceGather(resource=table, indices=indices, dtype=given.get_attr("dtype")), True)


def _hidden(given: Any) -> Any:
    return pfor.wrap(tf.raw_ops.PlaceholderWithDefault(input=given.stacked_input(0), shape=tf.TensorShape(None)), True)


def _scatter_nd(given: Any) -> Any:
    """Convert a scatter to a single scatter in which the member is the first coordinate. The additions of each member
    keep their order."""
    given.stack_inputs([0, 1])
    indices, updates, shape = given.stacked_input(0), given.stacked_input(1), given.unstacked_input(2)
    members = tf.shape(indices, indices.dtype)[0]
    lead = tf.concat([tf.shape(indices)[:-1], [1]], 0)
    number = tf.reshape(tf.range(members), tf.concat([[-1], tf.ones_like(lead[1:])], 0))
    together = tf.concat([tf.broadcast_to(number, lead), indices], -1)
    return pfor.wrap(
        tf.scatter_nd(together, updates, tf.concat([members[None], tf.cast(shape, indices.dtype)], 0)), True
    )


for _name, _converter in (
    ("ResourceGather", _resource_gather),
    ("PlaceholderWithDefault", _hidden),
    ("ScatterNd", _scatter_nd),
):
    with contextlib.suppress(KeyError):  # TensorFlow already has a converter
        pfor.RegisterPFor(_name)(_converter)
