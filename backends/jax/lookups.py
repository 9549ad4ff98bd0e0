"""Looking rows up where JAX can see it: primitives that `rewriting` finds again in what JAX traced.

`islices_lookup` stands for the gather of whole rows between the recorder, which binds it, and `differentiate`, which
replaces it. Where nothing replaces it (jax.grad within the differentiated function), it is that gather, with JAX's own
dense derivative. Bags are read by any operations of `islices_hidden` weights, which are the weights to all but
`differentiate`, and marked by `islices_bags`. `islices_operand` marks where the weights are taken as an array.
`islices_attach` hands rows on and lets the gradient that arrives at them arrive at a second input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from islices.backend import Array, Reader

__all__ = ["RECORDER", "attach", "attach_p", "bags_p", "hidden_p", "lookup_p", "mapped_in_front", "operand_p", "read"]


def _gather(weights: Array, ids: Array) -> Array:
    if 0 in weights.shape or 0 in ids.shape:
        return jnp.zeros((*ids.shape, *weights.shape[1:]), weights.dtype)
    if ids.dtype.itemsize < 4:  # too narrow for the number of rows it is compared to
        ids = ids.astype(np.int32)
    dimensions = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(ids.ndim, ids.ndim + weights.ndim - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    # called directly, since weights[ids] and jnp.take wrap a negative id to the end
    return lax.gather(
        weights,
        jnp.expand_dims(ids, ids.ndim),
        dimensions,
        slice_sizes=(1, *weights.shape[1:]),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
        fill_value=0,
    )


#: The rows that ids name, (*ids.shape, *row_shape); zeros where an id is out of range. One dispatch when eager.
read = partial(jax.jit, inline=True)(_gather)


# ---------------------------------------------------------------------- islices_lookup
lookup_p = Primitive("islices_lookup")


@lookup_p.def_impl  # type: ignore[untyped-decorator]
def _lookup(weights: Array, ids: Array, *extras: Array, static: Any, axes: tuple[str, ...]) -> Array:
    return read(weights, ids)


@lookup_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _lookup_shape(weights: Any, ids: Any, *extras: Any, static: Any, axes: tuple[str, ...]) -> ShapedArray:
    return ShapedArray((*ids.shape, *weights.shape[1:]), weights.dtype)


def _lookup_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    rows = lookup_p.bind(*primals, **params)
    if type(tangents[0]) is ad.Zero:
        return rows, ad.Zero(rows.aval.to_tangent_aval())
    return rows, read(tangents[0], primals[1])


def _lookup_batched(args: Any, dims: Any, *, static: Any, axes: tuple[str, ...]) -> tuple[Any, int]:
    weights, *integers = args
    _check_shared(dims[0])
    return lookup_p.bind(weights, *mapped_in_front(integers, dims[1:]), static=static, axes=("vmap", *axes)), 0


def _check_shared(dim: int | None) -> None:
    """Raise TypeError if the table is mapped."""
    if dim is not None:
        raise TypeError(
            "table: got one mapped by jax.vmap within the differentiated function; accepted is a table that all share "
            "(in_axes=None), and not within lax.cond or lax.switch whose predicate is mapped, for which JAX would copy "
            "the table: look the rows up before it, or choose with jnp.where"
        )


def mapped_in_front(arrays: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """The arrays with the mapped axis in front, those without one (None) repeated."""
    size = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
    return [
        jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(arrays, dims, strict=True)
    ]


ad.primitive_jvps[lookup_p] = _lookup_jvp
batching.primitive_batchers[lookup_p] = _lookup_batched
mlir.register_lowering(lookup_p, mlir.lower_fun(_lookup, multiple_results=False))


# ---------------------------------------------------------------------- islices_bags
bags_p = Primitive("islices_bags")  # (bags, weights that they were read of, ids, *extras) -> bags


@bags_p.def_impl  # type: ignore[untyped-decorator]
def _bags(bags: Array, weights: Array, *integers: Array, static: Any, axes: tuple[str, ...]) -> Array:
    return bags


@bags_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _bags_shape(bags: Any, weights: Any, *integers: Any, static: Any, axes: tuple[str, ...]) -> Any:
    return bags


def _bags_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    return bags_p.bind(*primals, **params), tangents[0]  # that of the weights is in it


def _bags_batched(args: Any, dims: Any, *, static: Any, axes: tuple[str, ...]) -> tuple[Any, int]:
    _check_shared(dims[1])
    bags, *integers = mapped_in_front([args[0], *args[2:]], [dims[0], *dims[2:]])
    return bags_p.bind(bags, args[1], *integers, static=static, axes=("vmap", *axes)), 0


ad.primitive_jvps[bags_p] = _bags_jvp
batching.primitive_batchers[bags_p] = _bags_batched
mlir.register_lowering(bags_p, mlir.lower_fun(_bags, multiple_results=False))


# ---------------------------------------------------------------------- weights as they are
def _marker(name: str) -> Primitive:
    """A primitive weights -> weights that says what becomes of them."""
    marker = Primitive(name)
    marker.def_impl(_same)
    marker.def_abstract_eval(_same)
    ad.deflinear2(marker, lambda cotangent, _: [cotangent])
    batching.primitive_batchers[marker] = lambda args, dims: (marker.bind(*args), dims[0])
    mlir.register_lowering(marker, mlir.lower_fun(_same, multiple_results=False))
    return marker


def _same(weights: Any) -> Any:
    return weights


operand_p = _marker("islices_operand")  # as an array that anything may be done with
hidden_p = _marker("islices_hidden")  # for bags that `islices_bags` marks


# ---------------------------------------------------------------------- islices_attach
attach_p = Primitive("islices_attach")
attach: Callable[..., Any] = attach_p.bind  # (rows, delta) -> rows, whose gradient is delta's too


@attach_p.def_impl  # type: ignore[untyped-decorator]
def _attach(rows: Array, delta: Array) -> Array:
    return rows


@attach_p.def_abstract_eval  # type: ignore[untyped-decorator]
def _attach_shape(rows: Any, delta: Any) -> Any:
    return rows


def _attach_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    there = [t for t in tangents if type(t) is not ad.Zero]
    return attach(*primals), there[0] + there[1] if len(there) == 2 else (there or tangents)[0]


def _attach_batched(args: Any, dims: Any) -> tuple[Any, int]:
    return attach(*mapped_in_front(args, dims)), 0


ad.primitive_jvps[attach_p] = _attach_jvp
batching.primitive_batchers[attach_p] = _attach_batched
mlir.register_lowering(attach_p, mlir.lower_fun(_attach, multiple_results=False))


# ---------------------------------------------------------------------- the recorder
class Recorder:
    """The recorder of every differentiation: what was looked up stands in JAX's trace, not here.

    One object without state, since a Table carries it as the static part of a pytree.
    """

    def lookup(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any) -> Array:
        return lookup_p.bind(weights, ids, *extras, static=static, axes=())

    def bags(self, weights: Array, ids: Array, extras: tuple[Array, ...], static: Any, read: Reader) -> Array:
        bags = read(hidden_p.bind(weights), ids)
        segments, each, *others = extras
        # of one axis, so that those of a loop or a map have one more
        count = lax.full((each.shape[0],), 0, np.int32)
        return bags_p.bind(bags, weights, ids, segments, count, *others, static=static, axes=())

    def operand(self, weights: Array) -> Array:
        """The whole table as an array: `rewriting` sees what is done with it."""
        return operand_p.bind(weights)

    def __repr__(self) -> str:
        return "<recorder of the jax backend>"


RECORDER = Recorder()
