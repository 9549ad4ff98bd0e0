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
    class Subclass(np.ndarray):
        pass

    record = np.dtype([("a", "f4"), ("b", "i4")])
    return {
        "object": lambda: np.array([[1, None, "x"]] * 3, object),
        "object holding itself": _holding_itself,
        "strings": lambda: np.array([["a", "b", "c"]] * 3),
        "dates": lambda: np.zeros((3, 3), "M8[s]"),
        "records": lambda: np.zeros((3, 3), record),
        "longdouble": lambda: np.ones((3, 3), np.longdouble),
        "masked": lambda: np.ma.masked_array(np.ones((3, 3), np.float32), mask=cast("Any", np.eye(3))),
        "subclass": lambda: np.ones((3, 3), np.float32).view(Subclass),
        "unaligned": lambda: np.frombuffer(bytearray(37), np.float32, 9, 1).reshape(3, 3),
        "broadcast": lambda: np.broadcast_to(np.float32(1), (3, 3)),
        "many dimensions": lambda: np.ones((1,) * 32, np.float32),
    }


def _holding_itself() -> Any:
    x = np.empty(3, object)
    x[0] = x
    return x


# ---------------------------------------------------------------------- torch
def _torch() -> Makers:
    import torch

    class Subclass(torch.Tensor):
        pass

    ones: Callable[..., Any] = lambda *shape, **options: torch.ones(*shape, **options)  # noqa: E731 (a table's shorthand)
    three = torch.tensor([[0, 1, 2]])
    return {
        "meta": lambda: torch.empty(3, 3, device="meta"),
        "meta ids": lambda: torch.empty(3, dtype=torch.int64, device="meta"),
        "without memory": _resized,
        "requires grad": lambda: ones(3, 3, requires_grad=True),
        "transposed": lambda: ones(3, 3).t(),
        "conjugate view": lambda: ones(3, 3, dtype=torch.complex64).conj(),
        "negative view": lambda: ones(3, 3, dtype=torch.complex64).conj().imag,
        "uint32": lambda: torch.zeros(3, dtype=torch.uint32),
        "float8": lambda: ones(3, 3).to(torch.float8_e4m3fn),
        "quantized": lambda: _quiet(lambda: torch.quantize_per_tensor(ones(3, 3), 0.1, 0, torch.quint8)),
        "compressed rows": lambda: _quiet(lambda: torch.eye(3).to_sparse_csr()),
        "two sparse dimensions": lambda: torch.eye(3).to_sparse(),
        "sparse requires grad": lambda: torch.sparse_coo_tensor(three, ones(3, 3), (6, 3), requires_grad=True),
        "sparse huge": lambda: torch.sparse_coo_tensor(three, ones(3, 1), (2**62, 1)),
        "sparse meta": lambda: torch.sparse_coo_tensor(three, ones(3, 3), (6, 3), device="meta"),
        "sparse, falsely coalesced": lambda: torch.sparse_coo_tensor(
            torch.tensor([[2, 1, 1]]), ones(3, 3), (6, 3), is_coalesced=True, check_invariants=False
        ),
        "sparse, out of range": lambda: torch.sparse_coo_tensor(
            torch.tensor([[0, -1, 99]]), ones(3, 3), (6, 3), check_invariants=False
        ),
        "sparse, without values": lambda: torch.sparse_coo_tensor(three[:, :0], ones(0, 3), (6, 3)),
        "nested": lambda: _quiet(lambda: torch.nested.nested_tensor([ones(2), ones(3)])),
        "subclass": lambda: ones(3, 3).as_subclass(Subclass),
        "inference": _inference,
        "0-d ids": lambda: torch.tensor(1),
        "a module": lambda: torch.nn.Linear(2, 2),
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
        "variant": lambda: tf.raw_ops.EmptyTensorList(element_shape=[1], max_num_elements=2, element_dtype=tf.float32),
        "dataset": lambda: tf.data.Dataset.range(3),
        "quint8": lambda: tf.bitcast(tf.ones((3, 3), tf.uint8), tf.quint8),
        "float8": lambda: tf.cast(ones, tf.dtypes.experimental.float8_e4m3fn),
        "variable": lambda: tf.Variable(ones),
        "variable of any shape": lambda: tf.Variable(ones, shape=tf.TensorShape(None)),
        "variable of strings": lambda: tf.Variable([["a"]]),
        "slices without shape": lambda: slices(ones, tf.constant([0, 1, 2]), None),
        "slices out of range": lambda: slices(ones, tf.constant([0, -1, 99])),
        "slices of strings": lambda: slices(tf.constant([["a"]]), tf.constant([0]), (6, 1)),
        "slices of a variable": lambda: slices(tf.Variable(ones), tf.constant([0, 1, 2])),
        "slices, shape of floats": lambda: slices(ones, tf.constant([0, 1, 2]), (6.0, 3.0)),
        "slices, wrong shape": lambda: slices(ones, tf.constant([0, 1, 2]), (-6, 3)),
        "slices, indices of two dimensions": lambda: slices(ones, tf.constant([[0], [1], [2]])),
        "a spec": lambda: tf.TensorSpec((3, 3)),
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
    import jax
    import jax.numpy as jnp
    from jax.experimental import sparse

    def bcoo(data: Any, indices: Any, shape: Any = (6, 3), **claims: bool) -> Any:
        return sparse.BCOO((data, jnp.array(indices, jnp.int32).reshape(-1, 1)), shape=shape, **claims)

    ones = jnp.ones((3, 3))
    of_numpy: Any = np.ones((3, 3), np.float32), np.zeros((3, 1), np.int32)
    return {
        "deleted": _deleted,
        "deleted ids": lambda: _deleted(np.int32),
        "leaked from jit": _leaked,
        "a key": lambda: jax.random.key(0),
        "complex": lambda: jnp.ones((3, 3), jnp.complex64),
        "int4": lambda: jnp.ones((3,), jnp.int4),
        "float8": lambda: jnp.ones((3, 3), jnp.float8_e4m3fn),
        "a shape": lambda: jax.ShapeDtypeStruct((3, 3), jnp.float32),
        "0-d ids": lambda: jnp.asarray(1, jnp.int32),
        "BCOO out of range": lambda: bcoo(ones, [0, -1, 99]),
        "BCOO padding": lambda: bcoo(ones, [0, 6, 6]),
        "BCOO falsely sorted": lambda: bcoo(ones, [2, 1, 1], indices_sorted=True, unique_indices=True),
        "BCOO of two sparse dimensions": lambda: sparse.BCOO.fromdense(jnp.eye(3)),
        "BCOO batch": lambda: sparse.BCOO.fromdense(jnp.ones((2, 3, 4)), n_batch=1, n_dense=1),
        "BCOO huge": lambda: bcoo(jnp.ones((3, 1)), [0, 1, 2], (2**40, 1)),
        "BCOO of NumPy": lambda: sparse.BCOO(of_numpy, shape=(6, 3)),
        "BCOO of junk": lambda: sparse.BCOO.tree_unflatten(
            {"shape": (6, 3), "indices_sorted": False, "unique_indices": False}, (object(), None)
        ),
        "BCSR": lambda: sparse.BCSR.fromdense(jnp.eye(3)),
    }  # fmt: skip


def _deleted(dtype: Any = np.float32) -> Any:
    import jax

    x = jax.device_put(np.ones((3, 3) if dtype is np.float32 else 3, dtype))
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
        "row_sparse float16": lambda: rows([0, 2, 5], "float16"),
        "row_sparse out of range": lambda: rows([0, 2, 99]),
        "row_sparse unsorted": lambda: rows([2, 1, 0]),
        "row_sparse twice": lambda: rows([1, 1, 1]),
        "row_sparse without storage": lambda: nd.sparse.zeros("row_sparse", (6, 3)),
        "a symbol": lambda: mx.sym.Variable("x"),
        "of the NumPy interface": lambda: mx.np.ones((3, 3)),
        "with a sparse gradient": _with_gradient,
        "unknown shape": lambda: nd.empty((0,)),
        "a block": lambda: mx.gluon.nn.Dense(2),
    }


def _with_gradient() -> Any:
    import mxnet as mx

    x = mx.nd.ones((3, 3))
    x.attach_grad(stype="row_sparse")
    return x
