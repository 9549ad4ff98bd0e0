"""The TensorFlow backend, for eager tensors, variables, and symbolic tensors inside tf.function.

Most primitives consist of one or a few TensorFlow operations, so they run on any device and in traced code. (Within
XLA, `unique` and `sum_rows` raise ValueError.) The backend compensates for the following properties of TensorFlow:

- `tf.math.segment_sum` does not add rows from left to right. `tf.math.unsorted_segment_sum` does, but is slow with
  several threads. So `tf.scatter_nd` computes sums. On CPUs, `tf.scatter_nd` adds from left to right with any number of
  threads.
- Grappler, which optimizes the graphs of tf.function, replaces divisions by products with the reciprocal of a constant,
  or with `rsqrt`. Grappler also merges products with constants, and reorders sums. `opaque` prevents these changes.
- Autograph rewrites the code that a tf.function calls. A rule excludes the code of islices. The rewritten code would
  also work, but rewriting takes seconds, and tracing would take twice as long.
- TensorFlow has no ``isin``, and its ``unique`` does not sort. The backend computes both with sorted ids.

In this folder, `tensor_memory` shares memory between NumPy and TensorFlow, `tapes` computes gradients with respect to
the results of lookups, and `keras_layers` captures Keras's layers. May import: `tensorflow`, `numpy`, the core, this
folder. This backend does not import Keras. The backend recognizes Keras's variables by a type of TensorFlow (`DENSE`).
"""

from __future__ import annotations

from islices.core.registry import require

require("tensorflow")

import contextlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import config
from tensorflow.python.eager import record
from tensorflow.python.pywrap_tfe import TFE_Py_TapeSetPossibleGradientTypes as possible_gradient_types

from islices.backend import Array, Backend, Host, LoopState, Shape, Slots
from islices.backends.tensorflow import (
    composites,
    host_calls,
    keras_layers,
    ragged_tensors,
    sparse,
    tapes,
    tensor_memory,
    vectorizing,  # noqa: F401
)
from islices.backends.tensorflow import row_segments as segments_of

#: Make a function a method of the backend without a wrapper. The type is Any, because type checkers expect a parameter
#: `self`.
method: Any = staticmethod
#: The type of tensors, variables and Keras's variables (which are not tf.Variables), but not of composites such as
#: RaggedTensor.
DENSE = tf.__internal__.types.Tensor


def opaque(x: Array) -> Array:
    """Hide the shape and the value of `x` from Grappler by an operation that returns `x`. If `x` is not symbolic,
    return `x` itself.

    If Grappler knew the shape, it could merge the additions around `x` into one `add_n`, which adds in a different
    order.
    """
    if not tf.is_symbolic_tensor(x):
        return x
    hidden = tf.raw_ops.PlaceholderWithDefault(input=x, shape=tf.TensorShape(None))
    hidden.set_shape(x.shape)
    return hidden


def _one_type(a: Array, b: Array) -> tuple[Array, Array]:
    """Return both operands as tensors. If one is a Python number, it gets the dtype of the other, because TensorFlow
    would convert a float to float32.

    Raise OverflowError for an int that the dtype cannot represent.
    """
    if not isinstance(a, DENSE):
        return _number(a, b.dtype), b
    return a, b if isinstance(b, DENSE) else _number(b, a.dtype)


def _number(c: float, dtype: Any) -> Array:
    dtype = tf.as_dtype(dtype)
    if dtype.is_integer and not dtype.min <= c <= dtype.max:  # tf.constant would wrap around
        raise OverflowError(f"got {c}; accepted is an int that fits the values' type {dtype.name}")
    return tf.constant(c, dtype)


def _typed(fn: Callable[..., Array]) -> Any:
    """Wrap a function of two tensors as a method in which one of the operands may also be a Python number."""
    return method(lambda a, b: fn(*_one_type(a, b)))


class TensorflowBackend(Backend):
    name = "tensorflow"
    module = "tensorflow"
    memory_error = "OOM when allocating tensor"
    native_name = "tf.IndexedSlices"

    # ------------------------------------------------------------------ identity
    def devices(self) -> tuple[str, ...]:
        accelerators = [d for d in tf.config.list_physical_devices() if d.device_type != "CPU"]
        return ("cpu", *(d.name.removeprefix("/physical_device:").lower() for d in accelerators))

    def is_array(self, x: object) -> bool:
        return isinstance(x, DENSE)

    def is_native(self, x: object) -> bool:
        return isinstance(x, tf.IndexedSlices)

    # ------------------------------------------------------------------ looking at an array
    def dtype(self, x: Array) -> str:
        return _dtype_name(x.dtype)

    def shape(self, x: Array) -> Shape:
        if x.shape.rank is None:
            # for an argument of the traced function, x.name contains the argument's name
            raise ValueError(
                f"{x.name.partition(':')[0]}: got a tensor of unknown rank; accepted is one whose rank is known"
            )
        return tuple(x.shape)

    def is_traced(self, x: Array) -> bool:
        # while a graph is built, even an operation on an eager tensor has a symbolic result
        return tf.is_symbolic_tensor(x) or not tf.executing_eagerly()

    def records_gradient(self, x: Array) -> bool:
        if not record.could_possibly_record():
            return False
        if isinstance(x, tf.Tensor):
            return bool(possible_gradient_types([x]))
        # a tape watches a trainable variable from its first read on
        return bool(x.trainable or possible_gradient_types([tensor_memory.handle(x)]))

    def memory_span(self, x: Array) -> tuple[int, int] | None:
        if isinstance(x, tf.Tensor):  # tensors do not change: a write first gives the variable separate memory
            return None
        place = id(tensor_memory.handle(x)) if hasattr(x, "handle") or hasattr(x, "value") else id(x)
        return place, place + 1

    host_view = method(tensor_memory.view)
    to_numpy = method(tensor_memory.fetch)

    def from_host(self, array: Host, like: Array) -> Array:
        return tensor_memory.accept(array)

    def asarray(self, array: Host, like: Array | None = None) -> Array:
        with _beside(like):
            return tensor_memory.copy(np.asarray(array))

    # ------------------------------------------------------------------ the framework's sparse and ragged forms
    from_native = method(sparse.take_apart)
    take_ragged = method(ragged_tensors.take_apart)
    to_native = method(sparse.to_native)

    # ------------------------------------------------------------------ where the arithmetic runs
    def on_device(self, x: Array, device: str) -> Array:
        with tf.device(device):
            return tf.identity(x)

    trace = method(partial(tf.function, autograph=False))

    # ------------------------------------------------------------------ array primitives
    abs = method(tf.abs)
    concat = method(partial(tf.concat, axis=0))
    isfinite = method(tf.math.is_finite)
    less_equal = _typed(tf.less_equal)
    maximum = _typed(tf.maximum)
    minimum = _typed(tf.minimum)
    outer_products = method(partial(tf.matmul, transpose_a=True))
    permute = method(tf.transpose)
    running_sum = method(tf.cumsum)
    sqrt = method(tf.sqrt)
    zeros_like = method(tf.zeros_like)

    def astype(self, x: Array, dtype: str) -> Array:
        return tf.cast(x, dtype)

    def reshape(self, x: Array, shape: Sequence[int | None]) -> Array:
        shape = tuple(shape)
        if None in shape and 0 in shape:  # TensorFlow cannot infer the length, so use the dimensions of x
            trailing = shape[1:]
            rank = len(x.shape)
            lead = rank - len(trailing) if tuple(x.shape)[rank - len(trailing) :] == trailing else 1
            shape = (tf.reduce_prod(tf.shape(x)[:lead]), *trailing) if shape[0] is None else (*shape[:-1], 0)
        dims = [-1 if n is None else n for n in shape]
        if not all(isinstance(n, int) for n in dims):
            return tf.reshape(x, dims)
        # an array, because TensorFlow converts a list several times more slowly; int32, because XLA sometimes accepts
        # nothing else
        return tf.reshape(x, np.array(dims, np.int32 if max(dims, default=0) < 2**31 else np.int64))

    def zeros(self, shape: Sequence[int], dtype: str, like: Array) -> Array:
        with _beside(like):
            return tf.zeros([tf.shape(like)[i] if n is None else n for i, n in enumerate(shape)], dtype)

    def take(self, x: Array, positions: Array) -> Array:
        return tf.gather(tensor_memory.plain(x), positions)  # if x is a variable, only these rows are read

    def where(self, mask: Array, a: Array, b: Array) -> Array:
        return tf.where(mask, *_one_type(a, b))

    def div(self, a: Array, b: Array) -> Array:
        a, b = _one_type(a, b)
        return opaque(tf.divide(a, opaque(b)))

    def round_product(self, a: Array, b: Array | float) -> Array:
        return opaque(tf.multiply(*_one_type(a, b)))

    def row_amax(self, x: Array) -> Array:
        # the maximum of no elements is -inf, so take 0; both operations keep NaN
        return tf.maximum(tf.reduce_max(tf.abs(x), 1), tf.zeros((), x.dtype))

    def row_sum(self, x: Array) -> Array:
        return opaque(tf.reduce_sum(x, 1))

    def largest(self, x: Array, k: int) -> Array:
        return tf.sort(tf.math.top_k(x, tf.minimum(k, tf.size(x))).indices)  # top_k prefers the first of equal numbers

    def while_any(self, condition: Callable[..., Array], body: Callable[..., LoopState], state: LoopState) -> LoopState:
        shapes = tuple(x.shape for x in state)
        found = tf.while_loop(lambda *x: tf.reduce_any(condition(*x)), body, state, shape_invariants=shapes)
        return tuple(found)

    def columns(self, x: Array, start: int, stop: int) -> Array:
        return opaque(x[:, start:stop])

    def widen(self, x: Array) -> Array:
        return opaque(super().widen(x))  # opaque, because the core adds up widened arrays

    # ------------------------------------------------------------------ sparse primitives
    equal = method(tf.equal)
    fold_rows = method(segments_of.fold_rows)
    in_range = method(segments_of.in_range)
    isin = method(segments_of.isin)
    logical_not = method(tf.logical_not)
    searchsorted = method(segments_of.searchsorted)
    segment_max = method(segments_of.segment_max)
    traced_bags = method(host_calls.bags)
    traced_step = method(host_calls.step)

    def select(self, values: Array, indices: Array, keep: Array, rows: int | None) -> tuple[Array, Array]:
        def some() -> list[Array]:
            slots = tf.where(keep)[:, 0]
            return [tf.gather(values, slots), tf.gather(indices, slots)]

        kept: list[Array] = segments_of.unless_all(keep, [values, indices], some) if self.is_traced(keep) else some()
        return kept[0], kept[1]

    def unique(self, indices: Array, rows: int | None) -> tuple[Array, Array]:
        segments_of.refuse_xla("a search for duplicates")
        distinct, place = tf.unique(indices, out_idx=tf.int64)
        order = tf.argsort(distinct)
        rank = tf.cast(tf.math.invert_permutation(order), tf.int64)
        return tf.gather(distinct, order), tf.gather(rank, place)

    def segment_sum(self, values: Array, segments: Array, count: int | None) -> Array:
        count = segments_of.number(segments) if count is None else count
        dims = [count, *tuple(values.shape)[1:]]
        shape = [tf.shape(values, tf.int64)[i] if n is None else n for i, n in enumerate(dims)]
        return segments_of.scatter(values, segments, shape)

    def sum_rows(self, values: Array, indices: Array, rows: int | None, *, loose: bool) -> tuple[Array, Array]:
        def by_operations(values: Array, indices: Array) -> tuple[Array, Array]:
            return super(TensorflowBackend, self).sum_rows(values, indices, rows, loose=loose)

        segments_of.refuse_xla("a sum of duplicates")
        traced = self.is_traced(values) and host_calls.sum_rows(values, indices, rows, by_operations)
        return traced or by_operations(values, indices)

    def scatter_rows(self, values: Array, ids: Array, shape: tuple[int, ...]) -> Array:
        values, ids = segments_of.in_table(values, ids, shape[0])
        return segments_of.scatter(values, ids, shape)

    def add_rows(self, dense: Array, values: Array, ids: Array) -> Array:
        if segments_of.rows_hold_nothing(values):
            return tf.identity(dense)
        values, ids = segments_of.in_table(values, ids, tf.shape(dense, tf.int64)[0])
        sums = tf.cast(self.widen(tf.gather(dense, ids)) + self.widen(values), values.dtype)
        return tf.tensor_scatter_nd_update(dense, tf.cast(ids, tf.int64)[:, None], sums)

    def arange(self, x: Array) -> Array:
        return tf.range(tf.shape(x, tf.int64)[0])

    def set_rows(self, table: Array, ids: Array, values: Array, *, donate: bool = False) -> Array:
        if segments_of.rows_hold_nothing(values):
            return table
        values, ids = segments_of.in_table(values, ids, self.shape(table)[0])
        with record.stop_recording():
            if isinstance(table, tf.Tensor):
                return tf.tensor_scatter_nd_update(table, tf.cast(ids, tf.int64)[:, None], values)
            tf.raw_ops.ResourceScatterUpdate(resource=tensor_memory.handle(table), indices=ids, updates=values)
        return table

    def traced_norm(
        self, leaves: Sequence[Slots], ord: int, otherwise: Callable[[Sequence[Slots]], Array]
    ) -> Array | None:
        if host_calls.compiled_by_xla():
            return otherwise([segments_of.slots_in_place(x) for x in leaves])
        return host_calls.norm(leaves, ord, otherwise)

    def in_place(self, x: Array) -> bool:
        return not isinstance(x, tf.Tensor)

    writable = method(tensor_memory.writable)

    def variable(self, x: Array, like: Array) -> Array:
        return tf.Variable(x, trainable=False) if self.in_place(like) else x

    def made_like(self, x: Array, like: Array) -> Array:
        return tf.Variable(x, trainable=like.trainable) if self.in_place(like) else x

    # ------------------------------------------------------------------ differentiation, models
    capture = method(keras_layers.capture)
    custom_gradient = method(tapes.custom_gradient)
    is_model = method(keras_layers.is_model)
    per_sample_gradients = method(tapes.per_sample_gradients)
    user_code = method(tapes.user_code)

    def stop_gradient(self, x: Array) -> Array:
        return tf.stop_gradient(tensor_memory.plain(x))

    differentiate: Any = tapes.differentiate
    differentiate_rows: Any = tapes.differentiate_rows

    # ------------------------------------------------------------------ composites
    def read_rows(self, table: Array, ids: Array) -> Array:
        if not self.is_traced(ids):
            return self.take(table, ids)
        return segments_of.read_checked(tensor_memory.plain(table), ids)


@cache
def _dtype_name(dtype: Any) -> str:
    return str(tf.as_dtype(dtype).name)


def _beside(like: Array | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which new tensors are on the device of `like`. If `like` is None, symbolic, a variable, or on
    the CPU, the context has no effect."""
    if isinstance(like, tf.Tensor) and not tf.is_symbolic_tensor(like) and not tensor_memory.on_cpu(like):
        return tf.device(like.device)  # type: ignore[no-any-return]
    return contextlib.nullcontext()


backend = TensorflowBackend()

#: Autograph does not rewrite the code of islices. `user_code` passes the user's function to autograph.
config.CONVERSION_RULES = (config.DoNotConvert("islices"), *config.CONVERSION_RULES)

composites.register()
