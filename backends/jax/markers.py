"""Define JAX primitives that mark lookups. The module `tables` finds these primitives in traced programs.

A lookup first passes the weights through `islices_hidden`. Then any operations may compute rows or bags from the
weights, and `islices_lookup` marks the result. `islices_operand` marks a use of the weights as an array. Outside of
`differentiate`, these primitives are identity operations with the usual derivatives. `attach` returns rows, and passes
their gradient to a second input too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from islices.backend import Array, Reader


def _gather(weights: Array, ids: Array) -> Array:
    if 0 in weights.shape or 0 in ids.shape:
        return jnp.zeros((*ids.shape, *weights.shape[1:]), weights.dtype)
    if ids.dtype.itemsize < 4:  # the dtype of ids may not be able to represent the number of rows
        ids = ids.astype(np.int32)
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(ids.ndim, ids.ndim + weights.ndim - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    # lax.gather is called directly, because weights[ids] and jnp.take count a negative id from the end
    return lax.gather(
        weights,
        jnp.expand_dims(ids, ids.ndim),
        dimensions,
        slice_sizes=(1, *weights.shape[1:]),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
        fill_value=0,
    )


#: A function that returns the rows with the given ids, an array of shape ``(*ids.shape, *row_shape)``. An id out of
#: range gets zeros. In eager code, a call is a single dispatch.
read = partial(jax.jit, inline=True)(_gather)
#: The same function, but as a single equation in a trace. If the trace is evaluated eagerly, the equation is also a
#: single dispatch.
_read_at_once = jax.jit(_gather)


# ---------------------------------------------------------------------- islices_lookup
lookup_p = Primitive("islices_lookup")  # (rows or bags, their weights, ids, *extras) -> rows or bags


@lookup_p.def_impl  # type: ignore[untyped-decorator]
@lookup_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _lookup(rows: Any, weights: Any, *integers: Any, static: Any, axes: tuple[str, ...]) -> Any:
    return rows


def _lookup_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    return lookup_p.bind(*primals, **params), tangents[0]  # the tangent of the rows includes that of the weights


def _lookup_batched(args: Any, dims: Any, *, static: Any, axes: tuple[str, ...]) -> tuple[Any, Any]:
    rows, weights, *integers = args
    if dims[1] is not None:  # each mapped call has a different table, so no shared table is differentiated
        return rows, dims[0]
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    rows, *integers = (
        batching.bdim_at_front(x, d, size) for x, d in zip((rows, *integers), (dims[0], *dims[2:]), strict=True)
    )
    return lookup_p.bind(rows, weights, *integers, static=static, axes=("vmap", *axes)), 0


ad.primitive_jvps[lookup_p] = _lookup_jvp
batching.primitive_batchers[lookup_p] = _lookup_batched
mlir.register_lowering(lookup_p, mlir.lower_fun(_lookup, multiple_results=False))


# ---------------------------------------------------------------------- weights as they are
def _marker(name: str) -> Primitive:
    """Make an identity primitive that marks a use of its operand. The operand is the weights of a table."""
    marker = Primitive(name)
    marker.def_impl(_same)
    marker.def_abstract_eval(_same)
    ad.deflinear2(marker, lambda cotangent, _: [cotangent])
    batching.primitive_batchers[marker] = lambda args, dims: (marker.bind(*args), dims[0])
    mlir.register_lowering(marker, mlir.lower_fun(_same, multiple_results=False))
    return marker


def _same(weights: Any) -> Any:
    return weights


operand_p = _marker("islices_operand")  # marks weights that are used as an array
hidden_p = _marker("islices_hidden")  # marks weights from which a lookup reads


# ---------------------------------------------------------------------- rows with a gradient
@jax.custom_jvp
def attach(rows: Array, delta: Array) -> Array:
    """Return `rows`. The gradient of the result becomes the gradient of both `rows` and `delta`."""
    return rows


@partial(attach.defjvp, symbolic_zeros=True)
def _attach_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    there = [t for t in tangents if not isinstance(t, SymbolicZero)]
    return attach(*primals), there[0] + there[1] if len(there) == 2 else there[0]


# ---------------------------------------------------------------------- the recorder
class TraceRecorder:
    """The recorder of all traced tables. The recorder stores nothing, because JAX's trace contains the lookups.

    This recorder is also used outside of `differentiate`, where its primitives are identity operations.
    """

    everywhere = True

    def lookup(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any) -> Array:
        rows = _read_at_once(hidden_p.bind(weights), ids)
        return lookup_p.bind(rows, weights, ids, *extras, static=static, axes=())

    def bags(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any, read: Reader) -> Array:
        bags = read(hidden_p.bind(weights), ids)
        segments, each, *others = extras
        # `count` has one axis; a loop or vmap adds another
        count = lax.full((each.shape[0],), 0, np.int32)
        return lookup_p.bind(bags, weights, ids, segments, count, *others, static=static, axes=())

    def operand(self, weights: Array) -> Array:
        """Return the whole table as an array. The module `tables` can find uses of this array."""
        return operand_p.bind(weights)

    def __repr__(self) -> str:
        return "<recorder of the jax backend>"


RECORDER = TraceRecorder()
