"""Convert gradients between frameworks, sparse objects to and from IndexedSlices, and dense arrays to IndexedSlices.

`accept` converts a user's leaf to the object that the library computes on, and `restored` converts results back.
`map_accepted` does both for each leaf of lists, tuples, named tuples and dicts. Many public functions use these three
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from islices.backend import INDEX_NAMES, INDICES, Array, Backend, Host
from islices.core import modes
from islices.core.arguments import check_flag
from islices.core.deferred import NativeIndices, native_look
from islices.core.registry import broken_backends, describe, find_array_backend, find_backend, get_backend
from islices.core.slices import (
    IndexedSlices,
    check_arrays,
    check_dense_shape,
    check_indices,
    check_padding,
    check_values_dtype,
    is_known,
    shape_with_rows,
)
from islices.core.trees import flatten, rebuild

T = TypeVar("T")


# ---------------------------------------------------------------------- one leaf
def from_native(x: Any, *, dense_shape: Iterable[int | None] | None = None, validate: bool = True) -> IndexedSlices:
    """Return a framework's sparse gradient as an `IndexedSlices`. Duplicates are not summed.

    The values share memory with the values of x. For MXNet, however, the values are a copy.

    Parameters
    ----------
    x : tf.IndexedSlices, torch sparse COO tensor, jax BCOO, mxnet RowSparseNDArray or IndexedSlices
        Only the first dimension, the rows, may be sparse. islices checks the object before the framework computes with
        it.
    dense_shape : sequence of int, optional
        A shape that replaces the object's shape, for example for a tf.IndexedSlices whose dense_shape is None.
    validate : bool
        If False, skip the checks that read the indices.

    Returns
    -------
    IndexedSlices

    Raises
    ------
    TypeError
        x is not a sparse gradient of a supported framework (use `from_dense` for a dense array). Or a dtype,
        dense_shape or validate is not accepted.
    ValueError, IndexError
        x is not row-sparse, the values or indices of x do not fit the shape, or x claims to be coalesced but is not.
        Or dense_shape is not valid. Or x is a torch tensor that requires a gradient, while torch records operations.
        SPEC clauses 1 and 2.

    Examples
    --------
    >>> import numpy as np
    >>> s = IndexedSlices(np.ones((1, 2)), np.array([0]), (3, 2))
    >>> from_native(s) is s
    True
    """
    if isinstance(x, IndexedSlices):
        shape = x.dense_shape if dense_shape is None else check_dense_shape(dense_shape)
        if shape == x.dense_shape:
            return x
        check_padding(x, shape)
        validate = check_flag(validate, "validate")
        return IndexedSlices(x.values, x.indices, shape, coalesced=x.coalesced, padded=x.padded, validate=validate)
    backend = find_backend(x)
    if backend is None or not backend.is_native(x):
        hint = "; a dense array becomes slices by from_dense(x)" if backend is not None else ""
        raise TypeError(f"x: got {describe(x)}; accepted is a framework's row-sparse gradient{hint}")
    s = _of_native(backend, x, dense_shape, validate=check_flag(validate, "validate"))
    return s._like(s.values)  # without the `Look`: the user may keep the slices and change the arrays' memory


def _of_native(backend: Backend, x: Any, dense_shape: Any = None, *, validate: bool = True) -> IndexedSlices:
    """Make slices from the parts of a native sparse object. If `validate` is False, do not check the indices.

    If `dense_shape` is given, it replaces the object's shape.
    """
    values, indices, shape, coalesced, padded, look = backend.from_native(x)
    if dense_shape is not None or not is_known(shape):
        shape = check_dense_shape(shape if dense_shape is None else dense_shape)
    look = look or backend.look((values, indices))
    check_arrays(backend, values, indices, shape, look)
    if validate and not look.traced[1]:
        check_indices(backend, indices, shape[0], coalesced=coalesced, padded=padded, look=look)
    return IndexedSlices._trusted(
        backend, values, NativeIndices(look, indices), shape, coalesced=coalesced, padded=padded
    )


def to_native(s: IndexedSlices, *, like: Any = None) -> Any:
    """Convert slices to the framework's sparse type. The result may share memory with the slices.

    Parameters
    ----------
    s : IndexedSlices
    like : native sparse object, optional
        If like is given, the result for TensorFlow has a dense_shape only if like has one. The two dense_shapes have
        the same dtype if the numbers fit. Other frameworks do not use like.

    Returns
    -------
    tf.IndexedSlices, torch sparse COO tensor, jax BCOO or mxnet RowSparseNDArray
        For NumPy, which has no sparse type, the result is s itself.

    Raises
    ------
    TypeError
        s is not an IndexedSlices, or like is not a sparse object of the framework of s. For NumPy, like is not checked.
    ValueError
        The framework's type cannot represent s. The types of torch, JAX and MXNet need a known number of rows, and
        torch's type fewer than 2^63 elements. MXNet's type also needs fewer than 2^31 - 1 elements, and rows with at
        least one element; it does not support bfloat16.

    Notes
    -----
    Indices are converted to int64 if the framework's type requires it (torch, MXNet). MXNet's type cannot have
    duplicates, so s is coalesced first. SPEC clause 1.

    Examples
    --------
    >>> import numpy as np
    >>> s = IndexedSlices(np.ones((1, 2)), np.array([0]), (3, 2))
    >>> to_native(s) is s
    True
    """
    if not isinstance(s, IndexedSlices):
        raise TypeError(f"s: got {describe(s)}; accepted is an IndexedSlices")
    backend = s.backend
    if not backend.native_name:
        return s
    if not (like is None or backend.is_native(like)):
        raise TypeError(f"like: got {describe(like)}; accepted are None and a {backend.native_name}")
    if s.padded and not backend.sentinel_padding:
        s = without_padding(s)
    if backend.native_needs_coalesced and not s.coalesced:
        s = coalesce_slices(s)
    look = native_look(s) if backend.native_of_views else None
    indices = s.indices if look is None or look.views is None else look.views[1]
    with backend.scope():
        return backend.to_native(s.values, indices, s.dense_shape, coalesced=s.coalesced, padded=s.padded, like=like)


def without_padding(s: IndexedSlices) -> IndexedSlices:
    """Return s without padding slots. In traced code with static shapes, the slots stay and contain zeros."""
    if not s.padded:
        return s
    rows = s.dense_shape[0]
    values, indices = modes.run(
        lambda B, v, i: B.select(v, i, B.in_range(i, rows), rows), s.backend, (s.values, s.indices)
    )
    return s._like(values, indices, padded=modes.keeps_slots(s.backend, values, indices))


def counted(s: IndexedSlices, *, raw: bool = False) -> IndexedSlices:
    """Return the slices from which a norm is computed. Sum duplicates unless `raw` is True, and remove empty slots.

    In traced code, slots may stay; slots with an index out of range then get zeros as values.
    """
    if not (raw or s.coalesced):
        return coalesce_slices(s)  # type: ignore[no-any-return]
    if not modes.is_traced(s.backend, s.values):
        return without_padding(s)
    rows = s.dense_shape[0]
    values = modes.run(
        lambda B, v, i: B.where(B.as_column(B.in_range(i, rows), v), v, B.zeros_like(v)),
        s.backend, (s.values, s.indices),
    )  # fmt: skip
    return s._like(values)


def _no_leaf(x: Any, argument: str) -> TypeError:
    """Return the TypeError for an argument that is neither a gradient nor an array of a supported framework."""
    return TypeError(
        f"{argument}: got {describe(x)}; accepted are sparse gradients and dense arrays of "
        "NumPy, TensorFlow, PyTorch, JAX and MXNet, IndexedSlices, None, or lists, tuples and dicts of them"
        f"{broken_backends()}"
    )


def accept(x: Any, argument: str = "x") -> Any:
    """Return a sparse gradient as an IndexedSlices, or a dense array unchanged; raise TypeError for any other object.

    For an invalid sparse object, raise the errors of `from_native`. `restored` converts results back to the user's
    type.
    """
    if isinstance(x, IndexedSlices):
        return x
    backend = find_backend(x)
    if backend is None:
        raise _no_leaf(x, argument)
    if not backend.is_native(x):
        check_values_dtype(backend, x, argument)
        return x
    return _of_native(backend, x)


def restored(result: Any, leaf: Any, given: Any) -> Any:
    """Convert slices to the sparse type of `given`, the user's object that `accept` converted to `leaf`.

    Return dense results unchanged, and also slices if `given` is an IndexedSlices or a dense array. If the result is
    `leaf` itself, return `given`.
    """
    if result is leaf:
        return given
    sparse = isinstance(result, IndexedSlices) and not isinstance(given, IndexedSlices)
    return to_native(result, like=given) if sparse and leaf is not given else result


def map_accepted(fn: Callable[[Any], Any], tree: T, argument: str = "x", *, native: str = "") -> T:
    """Apply `fn` to every leaf of a tree. `accept` first converts the leaf; at the end `restored` converts the result.

    None stays None. `native` is the name of a method of `Backend` with a faster implementation for native sparse
    objects. If this method returns None, `fn` is applied.
    """
    if isinstance(tree, IndexedSlices):
        return fn(tree)  # type: ignore[no-any-return]
    if tree is None:
        return tree
    if isinstance(tree, (list, tuple, dict)):
        leaves = iter([map_accepted(fn, leaf, argument, native=native) for leaf in flatten(tree, argument)])
        return rebuild(tree, leaves)  # type: ignore[no-any-return]
    backend = find_backend(tree) if native else None
    done = None if backend is None else getattr(backend, native)(tree)
    if done is not None:
        return done  # type: ignore[no-any-return]
    leaf = accept(tree, argument)
    return restored(fn(leaf), leaf, tree)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- duplicates
def coalesce_slices(s: Any) -> Any:
    """Return slices with duplicates summed and with strictly ascending indices. Only traced results may be padded.

    If s is a dense array, return s itself. Return coalesced slices themselves if they are traced or have no padding.
    """
    if not isinstance(s, IndexedSlices) or (s.coalesced and not s.padded):
        return s
    B, values, native = s.backend, s.values, native_look(s)
    look = modes.look_at(B, () if native else (values, s.indices), native)
    traced = look.traced[0] or look.traced[1]
    if s.coalesced and traced:
        return s
    rows, loose = s.dense_shape[0], traced or s.padded
    if look.views is None:
        sums, indices = modes.run("sum_rows", B, (values, s.indices), look, rows=rows, loose=loose)
    else:
        view, ids = modes.compute("sum_rows", look.views, rows=rows, loose=loose)
        sums = B.from_host(view, values)
        if native:
            indices = NativeIndices(native._replace(shapes=[view.shape, ids.shape], views=[view, ids], spans=None))
        else:
            indices = B.from_host(ids, values)
    return IndexedSlices._trusted(B, sums, indices, s.dense_shape, coalesced=True, padded=traced and B.sentinel_padding)


# ---------------------------------------------------------------------- dense arrays, other frameworks
def from_dense(x: Array, indices: Any = None) -> IndexedSlices:
    """Return the nonzero rows of a dense array, or the rows given by indices, as slices.

    Parameters
    ----------
    x : array, shape (rows, *row_shape)
    indices : 1-D array of int32 or int64, optional
        The rows to store, in this order, without duplicates. The default is every row with a nonzero entry, in
        ascending order.

    Returns
    -------
    IndexedSlices

    Raises
    ------
    ValueError
        x is 0-d, or indices contains a row twice. Or x is traced and indices is None, so that the nonzero rows are
        unknown. SPEC clause 1.
    TypeError, IndexError
        x is not a dense array of a supported dtype, indices are not 1-D int32 or int64, or an index is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from_dense(np.array([[0.0, 0.0], [1.0, 0.0]])).indices
    array([1])
    """
    backend = find_array_backend(x)
    if backend is None:
        raise TypeError(f"x: got {describe(x)}; accepted is a dense array (a sparse one becomes slices by from_native)")
    check_values_dtype(backend, x, "x")
    shape = shape_with_rows(x)
    if indices is None:
        if backend.is_traced(x):
            raise ValueError(
                "indices: must be given while tracing, and for arrays without data: which rows hold zeros is not known"
            )
        ids = backend.asarray(np.flatnonzero(nonzero_rows(backend.to_numpy(x))), x)
    else:
        ids = _distinct(backend, indices, shape[0], x)
    values = modes.run("take", backend, (x, ids))
    return IndexedSlices._trusted(backend, values, ids, shape, coalesced=indices is None)


def nonzero_rows(x: Host) -> Host:
    """Return a mask of the rows of a host array that have a nonzero element; NaN counts as nonzero."""
    flat = x.reshape(x.shape[0], int(np.prod(x.shape[1:])))
    if x.dtype == np.uint16:  # bit patterns of bfloat16: remove the sign bit
        flat = flat & 0x7FFF
    found: Host = (flat != 0).any(axis=1)
    return found


def _distinct(backend: Backend, indices: Any, rows: int | None, like: Array) -> Array:
    """Return indices as an array of the backend, after checks. A NumPy array of int32 or int64 is converted.

    Raise TypeError unless indices are a 1-D array of int32 or int64. Unless the indices are traced, raise IndexError
    for an index out of range, and ValueError for a duplicate.
    """
    if isinstance(indices, np.ndarray) and not backend.is_array(indices) and indices.dtype.name in INDICES:
        indices = backend.asarray(indices, like)
    if not backend.is_array(indices) or backend.dtype(indices) not in INDICES or len(backend.shape(indices)) != 1:
        raise TypeError(
            f"indices: got {describe(indices)}; accepted is a 1-D {INDEX_NAMES} array of {backend.name} or NumPy"
        )
    if not backend.is_traced(indices):
        check_indices(backend, indices, rows)
        seen, counts = np.unique(backend.to_numpy(indices), return_counts=True)
        if len(seen) and counts.max() > 1:
            row, times = int(seen[counts.argmax()]), int(counts.max())
            raise ValueError(f"indices: got row {row} {times} times; accepted are rows once each")
    return indices


def convert(x: Any, backend: str | Backend) -> Any:
    """Convert gradients or arrays to another framework. Each leaf is converted through NumPy, and memory is not shared.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
    backend : str or Backend
        The target framework.

    Returns
    -------
    structure of x
        A sparse leaf becomes an IndexedSlices with the target's arrays; a dense leaf becomes a dense array of the
        target. dtypes stay the same, except that JAX without jax_enable_x64 stores int64 as int32.

    Raises
    ------
    TypeError
        A leaf is not a gradient, or the target lacks a dtype of x. For example, NumPy without ml_dtypes lacks bfloat16,
        and JAX without jax_enable_x64 lacks float64.
    IndexError
        The target stores int64 as int32, and a number does not fit. SPEC clause 1.

    Examples
    --------
    >>> import numpy as np
    >>> convert([np.ones(2), None], "numpy")
    [array([1., 1.]), None]
    """
    target = get_backend(backend)

    def one(leaf: Any) -> Any:
        if isinstance(leaf, IndexedSlices):
            leaf = without_padding(leaf)
            values = target.asarray(leaf.backend.to_numpy(leaf.values))
            indices = target.asarray(leaf.backend.to_numpy(leaf.indices), values)
            return IndexedSlices._trusted(target, values, indices, leaf.dense_shape, coalesced=leaf.coalesced)
        if leaf is None:
            return None
        source = get_backend(leaf)
        if not source.is_array(leaf):
            return one(from_native(leaf))
        check_values_dtype(source, leaf, "x")
        return target.asarray(source.to_numpy(leaf))

    return rebuild(x, map(one, flatten(x)))


def is_sparse(x: object) -> bool:
    """Return True if x is an IndexedSlices, or a sparse object of a framework, such as a tf.IndexedSlices.

    Parameters
    ----------
    x : object

    Returns
    -------
    bool
        The result is also True for some objects that `from_native` does not accept, such as CSR and nested tensors of
        torch. For all other objects, such as dense arrays, None and containers, the result is False.

    Notes
    -----
    SPEC clause 1.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> is_sparse(IndexedSlices(np.ones((1, 2)), np.array([0]), (3, 2))), is_sparse(np.ones(3))
    (True, False)
    """
    if isinstance(x, IndexedSlices):
        return True
    backend = find_backend(x)
    return backend is not None and backend.is_native(x)


def leaves(tree: Any) -> list[Any]:
    """Return the sparse gradients and dense arrays of a nested structure, in order.

    Parameters
    ----------
    tree : sparse gradient, dense array, None, or a list, tuple or dict of them
        The function also looks into named tuples, and into pytrees that are registered with JAX.

    Returns
    -------
    list
        The leaves are the objects in tree, not copies; None is left out.

    Raises
    ------
    TypeError
        The structure contains another object, such as a generator, a dataclass or a string.
    ValueError
        The structure has more than 100 nested levels.

    Notes
    -----
    SPEC clause 1.

    Examples
    --------
    >>> import numpy as np
    >>> leaves({"a": np.ones(1), "b": [None, np.zeros(1)]})
    [array([1.]), array([0.])]
    """
    return [x for x in _checked(tree) if x is not None]


def map_leaves(fn: Callable[[Any], Any], tree: T) -> T:
    """Return the structure with fn applied to each sparse gradient and dense array.

    Parameters
    ----------
    fn : callable
        The function is called with each sparse gradient and dense array in tree, without a conversion. The return value
        replaces the argument.
    tree : sparse gradient, dense array, None, or a list, tuple or dict of them
        The function also looks into named tuples, and into pytrees that are registered with JAX.

    Returns
    -------
    structure of tree
        None stays None.

    Raises
    ------
    TypeError
        fn is not callable, or the structure contains another object, such as a generator, a dataclass or a string.
    ValueError
        The structure has more than 100 nested levels.

    Notes
    -----
    SPEC clause 1.

    Examples
    --------
    >>> import numpy as np
    >>> map_leaves(np.negative, {"a": np.ones(1), "b": None})
    {'a': array([-1.]), 'b': None}
    """
    if not callable(fn):
        raise TypeError(f"fn: got {describe(fn)}; accepted is a callable")
    return rebuild(tree, iter([None if x is None else fn(x) for x in _checked(tree)]))  # type: ignore[no-any-return]


def _checked(tree: Any) -> list[Any]:
    found = flatten(tree, "tree")
    for x in found:
        if x is not None and find_backend(x) is None:
            raise _no_leaf(x, "tree")
    return found
