"""Differentiate with respect to the results of lookups. A GradientTape watches these results (rows or bags), but not
the table.

A tape records operations on watched tensors. The tape of `differentiate` watches only the dense variables and the
result of each lookup, so no table-sized array is computed. Only outer tapes watch the weights and record reads of rows,
so that second derivatives are right. Loop bodies and inner tf.functions are graphs that TensorFlow traces separately. A
lookup in one of these graphs raises an error if value_and_grad is outside of the graph, because the tape cannot watch
the result. May import: `tensorflow`, the core, this folder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops.resource_variable_ops import variable_accessed
from tensorflow.python.pywrap_tfe import TFE_Py_TapeSetPossibleGradientTypes as possible_gradient_types

import islices
from islices.backend import (
    Array,
    Backend,
    Differentiated,
    Gradient,
    Reader,
    SampleLoss,
    Source,
    TapeRecorder,
    Transform,
)
from islices.backends.tensorflow.tensor_memory import plain
from islices.core import trees
from islices.core.conversion import from_native
from islices.embedding import marking
from islices.embedding.lookup_gradients import empty_slices


def here() -> Any:
    """Return the graph that is being built, or None in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


# ---------------------------------------------------------------------- by rows
class TapeReads(TapeRecorder):
    """An object that records the lookups in one table during a call of `differentiate`."""

    def __init__(self, backend: Backend, tape: tf.GradientTape, outer: Any) -> None:
        super().__init__(backend)
        self.tape = tape
        self.outer = outer
        self.graph = here()
        self.thread = threading.get_ident()
        self.open = True

    def bags(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any, read: Reader) -> Array:
        self._check_place()
        if self.outer is not None:
            rows = self.outer.bags(weights, ids, extras, static, read)
        elif self.graph is None and not _is_watched(plain(weights)):  # in this case the lookup may run on the host
            with record.stop_recording():
                rows = read(weights, ids)
        else:
            rows = read(weights, ids)
        self.tape.watch(rows)
        self.found.append((rows, tf.identity(ids), extras, static))  # ids may be a variable that changes later
        return rows

    def _check_place(self) -> None:
        if not self.open:
            raise TypeError(
                "lookup: got a table of a value_and_grad that has ended (or is in its backward pass, as in "
                "tf.recompute_grad); accepted is the table within fn's own run"
            )
        if here() is not self.graph:
            raise TypeError(
                "lookup: got a table of a value_and_grad outside of the graph this lookup is in (an inner tf.function, "
                "the body of a tf.while_loop, tf.cond, tf.map_fn or tf.vectorized_map, or autograph's `if` or `for` "
                "over tensors); accepted is one graph: put tf.function around value_and_grad, move the lookup out of "
                "the loop or branch"
            )
        if threading.get_ident() != self.thread:
            raise TypeError(
                "lookup: got a table of a value_and_grad that runs in another thread; accepted is fn's own thread, "
                "since a tape records no other"
            )
        if not record.could_possibly_record():
            raise TypeError(
                "lookup: got a table of a value_and_grad where TensorFlow's recording is off (tf.recompute_grad, "
                "tf.custom_gradient); accepted is a lookup outside of it, whose rows are passed in"
            )


def _is_watched(weights: Array) -> bool:
    """Return True if a tape would record a read of the weights now. If the weights are a trainable variable, this call
    makes tapes watch it, as a read does."""
    if isinstance(weights, tf.Tensor):
        return bool(possible_gradient_types([weights]))
    variable_accessed(weights)
    return bool(possible_gradient_types([weights.handle]))


def differentiate(
    backend: Backend, fn: Transform, variables: Sequence[Array], sources: Sequence[Source]
) -> Differentiated:
    tape = tf.GradientTape(watch_accessed_variables=False)
    recorders = [TapeReads(backend, tape, s.recorder) for s in sources]
    given, watched = _apart(variables, sources)
    try:
        with tape:
            tape.watch(watched)
            loss, aux = fn(given, [Source(s.weights, r) for s, r in zip(sources, recorders, strict=True)])
    finally:
        for r in recorders:
            r.open = False
    rows = [found[0] for r in recorders for found in r.found]
    made = tape.gradient(loss, [*watched, *rows], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    grads = [dense_gradient(g, x) for g, x in zip(made, [*watched, *rows], strict=True)]
    upstreams = iter(grads[len(watched) :])
    return loss, aux, grads[: len(watched)], [r.looked_up(upstreams) for r in recorders]


def _apart(variables: Sequence[Array], sources: Sequence[Source]) -> tuple[list[Array], list[Array]]:
    """Return (the variables that fn gets, the tensors and variables that the tape watches). The tape can distinguish
    all of them.

    tf.identity makes a new object for each tensor. If a variable is passed twice or is also a table, it is read into a
    tensor. Without these new objects, a gradient would include all uses of the variable together.
    """
    taken = {id(plain(s.weights)) for s in sources}
    given, watched = [], []
    for v in variables:
        own = plain(v)
        if isinstance(own, tf.Tensor) or id(own) in taken:
            v = own = tf.identity(own)
        taken.add(id(own))
        given.append(v)
        watched.append(own)
    return given, watched


def dense_gradient(g: Any, x: Array) -> Array:
    """Convert a gradient of `x` to a dense tensor. The gradient may be a tf.IndexedSlices, which TensorFlow returns for
    gathers."""
    if not isinstance(g, tf.IndexedSlices):
        return g
    if None in tuple(x.shape):  # the core can densify only known shapes
        summed = tf.math.unsorted_segment_sum(g.values, g.indices, tf.shape(x, tf.int64)[0])
        return tf.ensure_shape(summed, x.shape)
    return islices.to_dense(_flat(g, x, tf.constant(tuple(x.shape), tf.int64)))


def _flat(g: tf.IndexedSlices, x: Array, dense_shape: Any) -> tf.IndexedSlices:
    """Reshape the values and indices of a gradient of `x`, so that the slots have a single axis."""
    values = tf.reshape(g.values, [-1, *x.shape[1:]]) if 0 not in tuple(x.shape) else g.values
    return tf.IndexedSlices(values, tf.reshape(g.indices, [-1]), dense_shape)


# ---------------------------------------------------------------------- by tf.gather of plain arrays
def differentiate_rows(
    backend: Backend, fn: Callable[[Any], tuple[Array, Any]], tree: Any, sparse: Any, data: Any = None
) -> tuple[Array, Any, Any]:
    """See `Backend.differentiate_rows`. In TensorFlow, the gradient of tf.gather is already a tf.IndexedSlices."""
    if data is not None:
        reason = "accepted with per_sample=True is an islices.Table, which fn reads by lookup"
        raise backend.lacks("differentiate_rows", reason)
    leaves, names, floats, marked = marking.marked_leaves(backend, tree, sparse)
    given, watched = _apart([leaves[k] for k in floats], [])
    full = list(leaves)
    for k, x in zip(floats, given, strict=True):
        full[k] = x
    tape = tf.GradientTape(watch_accessed_variables=False)
    with tape:
        tape.watch(watched)
        loss, aux = fn(trees.rebuild(tree, iter(full)))
    grads: list[Any] = [None] * len(leaves)
    for k, x, g in zip(floats, watched, tape.gradient(loss, watched), strict=True):
        by_rows = isinstance(g, tf.IndexedSlices)
        wanted = k in marked and (not isinstance(sparse, str) or (by_rows and _pays(sparse, g.indices, x)))
        if not wanted:
            grads[k] = tf.zeros(x.shape, x.dtype) if g is None else dense_gradient(g, x)
        elif g is None:
            grads[k] = empty_slices(backend, x)
        elif by_rows:
            grads[k] = from_native(_flat(g, x, g.dense_shape), dense_shape=tuple(x.shape))
        else:
            raise TypeError(
                f"sparse: got the leaf {names[k]!r}, whose gradient TensorFlow makes dense; accepted are leaves that "
                'fn reads only by tf.gather or tf.nn.embedding_lookup. Leave it out, or use sparse="auto": its '
                "gradient is dense then"
            )
    return loss, aux, trees.rebuild(tree, iter(grads))


def _pays(sparse: str, indices: Array, x: Array) -> bool:
    """Return True if `sparse`, "auto" or "always", selects a sparse gradient for `x`; see `marking.pays`. An unknown
    number of reads counts as 1, and an unknown number of rows in `x` counts as 2."""
    reads, rows = indices.shape.num_elements(), x.shape[0]
    return marking.pays(sparse, 1 if reads is None else reads, 2 if rows is None else rows)


# ---------------------------------------------------------------------- given gradients
def custom_gradient(forward: Callable[..., Array], backward: Gradient) -> Callable[..., Array]:
    def joined(*arrays: Array) -> tuple[Array, Callable[[Array], Any]]:
        with record.stop_recording():  # operations that are not recorded may run on the host
            value = forward(*arrays)

        def gradient(upstream: Any) -> Any:
            if isinstance(upstream, tf.IndexedSlices):
                upstream = dense_gradient(upstream, value)
            # outer tapes record these operations only for second derivatives
            return list(backward(arrays, upstream))

        return value, gradient

    recorded = tf.custom_gradient(joined)

    def f(*arrays: Array) -> Array:
        if tf.executing_eagerly() and not record.could_possibly_record():
            return forward(*arrays)
        # tapes record the read of a variable
        return recorded(*(x if isinstance(x, tf.Tensor) else tf.identity(plain(x)) for x in arrays))

    return f


# ---------------------------------------------------------------------- per sample
def per_sample_gradients(
    fn: SampleLoss,
    variables: Sequence[Array],
    data: Sequence[Array],
) -> list[Array]:
    tensors = [tf.convert_to_tensor(plain(v)) for v in variables]
    if any(x.shape[0] == 0 for x in data):
        return [tf.zeros((0, *t.shape), t.dtype) for t in tensors]

    def one(sample: list[Array]) -> list[Array]:
        own = [tf.identity(t) for t in tensors]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(own)
            loss = fn(list(own), [x[None] for x in sample])
        made = tape.gradient(loss, own, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [dense_gradient(g, t) for g, t in zip(made, own, strict=True)]

    return list(tf.vectorized_map(one, [tf.convert_to_tensor(plain(x)) for x in data]))


# ---------------------------------------------------------------------- autograph
def user_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Let autograph rewrite `fn` if autograph is on in the surrounding tf.function, else return `fn` itself.

    Autograph does not rewrite functions of islices, nor functions that they call. So this function passes `fn` to
    autograph.
    """
    status = tf.__internal__.autograph.control_status_ctx()
    if status.status.name != "ENABLED":
        return fn
    return tf.__internal__.autograph.tf_convert(fn, status)  # type: ignore[no-any-return]
