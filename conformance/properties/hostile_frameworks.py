"""What each framework has that is no plain array: tensors without memory, of odd dtypes and layouts, broken on purpose.

One function a framework gives makers by label. A plug-in's framework has none here, which costs it nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np

from islices import get_backend

__all__ = ["oddities"]

Makers = dict[str, Callable[[], Any]]


@cache
def oddities(backend_name: str) -> Makers:
    """label -> maker of the framework's own odd objects."""
    makers = {"numpy": _numpy, "torch": _torch, "tensorflow": _tensorflow, "jax": _jax, "mxnet": _mxnet}
    return makers[backend_name]() if backend_name in makers else {}


# ---------------------------------------------------------------------- NumPy
def _numpy() -> Makers:
    return {
        "object": lambda: np.array([[1, None, "x"]] * 3, object),
        "strings": lambda: np.array([["a", "b", "c"]] * 3),
        "longdouble": lambda: np.ones((3, 3), np.longdouble),
        "masked": lambda: np.ma.masked_array(np.ones((3, 3), np.float32), mask=cast("Any", np.eye(3))),
        "unaligned": lambda: np.frombuffer(bytearray(37), np.float32, 9, 1).reshape(3, 3),
        "broadcast": lambda: np.broadcast_to(np.float32(1), (3, 3)),
    }


# ---------------------------------------------------------------------- torch
def _torch() -> Makers:
    import torch

    ones: Callable[..., Any] = lambda *shape, **options: torch.ones(*shape, **options)  # noqa: E731 (a table's shorthand)
    three = torch.tensor([[0, 1, 2]])
    return {
        "meta": lambda: torch.empty(3, 3, device="meta"),
        "without memory": _resized,
        "requires grad": lambda: ones(3, 3, requires_grad=True),
        "conjugate view": lambda: ones(3, 3, dtype=torch.complex64).conj(),
        "float8": lambda: ones(3, 3).to(torch.float8_e4m3fn),
        "compressed rows": lambda: _quiet(lambda: torch.eye(3).to_sparse_csr()),
        "sparse huge": lambda: torch.sparse_coo_tensor(three, ones(3, 1), (2**62, 1)),
        "sparse, falsely coalesced": lambda: torch.sparse_coo_tensor(
            torch.tensor([[2, 1, 1]]), ones(3, 3), (6, 3), is_coalesced=True, check_invariants=False
        ),
        "sparse, out of range": lambda: torch.sparse_coo_tensor(
            torch.tensor([[0, -1, 99]]), ones(3, 3), (6, 3), check_invariants=False
        ),
        "inference": _inference,
        "0-d ids": lambda: torch.tensor(1),
    }  # fmt: skip


def _quiet(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says what is a beta or deprecated
        return make()


def _resized() -> Any:
    import torch

    x = torch.ones(3, 3)
    x.untyped_storage().resize_(0)
    return x


def _inference() -> Any:
    import torch

    with torch.inference_mode():
        return torch.ones(3, 3)


# ---------------------------------------------------------------------- TensorFlow
def _tensorflow() -> Makers:
    import tensorflow as tf

    def slices(values: Any, indices: Any, shape: Any = (6, 3)) -> Any:
        return tf.IndexedSlices(values, indices, None if shape is None else tf.constant(shape))

    ones = tf.ones((3, 3))
    return {
        "ragged": lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]),
        "sparse": lambda: tf.sparse.from_dense(tf.eye(3)),
        "strings": lambda: tf.constant([["a", "b", "c"]] * 3),
        "float8": lambda: tf.cast(ones, tf.dtypes.experimental.float8_e4m3fn),
        "variable": lambda: tf.Variable(ones),
        "variable of any shape": lambda: tf.Variable(ones, shape=tf.TensorShape(None)),
        "slices without shape": lambda: slices(ones, tf.constant([0, 1, 2]), None),
        "slices out of range": lambda: slices(ones, tf.constant([0, -1, 99])),
        "slices, wrong shape": lambda: slices(ones, tf.constant([0, 1, 2]), (-6, 3)),
        "0-d ids": lambda: tf.constant(1),
        "of a graph": _of_a_graph,
    }


@cache
def _of_a_graph() -> Any:
    """A symbolic tensor that has got out of the graph it belongs to."""
    import tensorflow as tf

    with tf.Graph().as_default():
        return tf.ones((3, 3))


# ---------------------------------------------------------------------- JAX
def _jax() -> Makers:
    import jax.numpy as jnp
    from jax.experimental import sparse

    def bcoo(data: Any, indices: Any, shape: Any = (6, 3), **claims: bool) -> Any:
        return sparse.BCOO((data, jnp.array(indices, jnp.int32).reshape(-1, 1)), shape=shape, **claims)

    ones = jnp.ones((3, 3))
    return {
        "deleted": _deleted,
        "leaked from jit": _leaked,
        "complex": lambda: jnp.ones((3, 3), jnp.complex64),
        "float8": lambda: jnp.ones((3, 3), jnp.float8_e4m3fn),
        "0-d ids": lambda: jnp.asarray(1, jnp.int32),
        "BCOO out of range": lambda: bcoo(ones, [0, -1, 99]),
        "BCOO falsely sorted": lambda: bcoo(ones, [2, 1, 1], indices_sorted=True, unique_indices=True),
        "BCOO of two sparse dimensions": lambda: sparse.BCOO.fromdense(jnp.eye(3)),
        "BCOO of junk": lambda: sparse.BCOO.tree_unflatten(
            {"shape": (6, 3), "indices_sorted": False, "unique_indices": False}, (object(), None)
        ),
    }  # fmt: skip


def _deleted() -> Any:
    import jax

    x = jax.device_put(np.ones((3, 3), np.float32))
    x.delete()
    return x


@cache
def _leaked() -> Any:
    """A tracer that has got out of the function it belongs to."""
    import jax

    out: list[Any] = []
    jax.jit(out.append)(np.ones((3, 3), np.float32))
    return out[0]


# ---------------------------------------------------------------------- MXNet
def _mxnet() -> Makers:
    get_backend("mxnet")  # MXNet does not import beside a NumPy of today by itself
    import mxnet as mx

    nd = mx.nd

    def rows(indices: Any, dtype: str = "float32") -> Any:
        values = nd.array(np.ones((len(indices), 3)), dtype=dtype)
        return nd.sparse.row_sparse_array((values, nd.array(indices, dtype="int64")), shape=(6, 3), dtype=dtype)

    return {
        "compressed rows": lambda: nd.array(np.eye(3)).tostype("csr"),
        "row_sparse": lambda: rows([0, 2, 5]),
        "row_sparse out of range": lambda: rows([0, 2, 99]),
        "row_sparse unsorted": lambda: rows([2, 1, 0]),
        "row_sparse twice": lambda: rows([1, 1, 1]),
        "of the NumPy interface": lambda: mx.np.ones((3, 3)),
        "with a sparse gradient": _with_gradient,
    }


def _with_gradient() -> Any:
    import mxnet as mx

    x = mx.nd.ones((3, 3))
    x.attach_grad(stype="row_sparse")
    return x
