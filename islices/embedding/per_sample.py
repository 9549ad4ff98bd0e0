"""Compute gradients per sample from one backward pass.

If a loss is a sum over independent samples, the gradient at a looked-up row belongs to the sample that looked the row
up. So one backward pass computes the gradients of all samples. SPEC clause 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from islices.backend import Array, Backend, ProductUse
from islices.core import modes
from islices.core.arguments import LARGEST, show, whole_number
from islices.core.deferred import Deferred
from islices.core.linear import add, concat, join_arrays
from islices.core.registry import describe, find_array_backend, get_backend
from islices.core.rows import check_memory
from islices.core.shapes import size_of
from islices.core.slices import IndexedSlices
from islices.core.trees import flatten, rebuild
from islices.embedding.ids import Invalid, along_axis, axis_first
from islices.embedding.lookup_gradients import accept_upstream, empty_slices, slots_that_count
from islices.embedding.products import Product, check_product, dense_sum, dense_terms, host_parts, squares
from islices.norms import derivatives
from islices.norms.clip_formulas import ISLICES, Steps
from islices.norms.exact import Groups, Matrix, as_rows, exact_norms
from islices.norms.limits import Limit, limit_of
from islices.norms.nonfinite import Nonfinite, check_nonfinite, finite_norms, refuse_nonfinite
from islices.norms.norm import check_float, check_one_framework, rounded_norms
from islices.norms.unitwise import scale_units

T = TypeVar("T")


class PerSample:
    """The gradients of one table for each of B samples, stored as slices with sample numbers.

    `per_sample`, ``value_and_grad(..., per_sample=True)`` and `Capture.per_sample` return instances. An instance stores
    one slice for each occurrence of a row, like an `IndexedSlices` that is not coalesced. Instances are immutable, and
    are pytrees for JAX.

    Attributes
    ----------
    values : float array, shape (n, *row_shape)
    indices : int32 or int64 array, shape (n,)
    samples : int32 array, shape (n,)
        The sample of each slice.
    dense_shape : tuple of int
        ``(B, rows, *row_shape)``.
    products : tuple of Product
        The factors ``upstream`` (B, T, rows) and ``inputs`` (B, T, width) of each use of a tied table as an output
        layer. The gradient of sample b is its slices, plus the sum over t of the outer products of upstream[b, t] and
        inputs[b, t]. For other tables, the tuple is empty.

    Notes
    -----
    SPEC clause 14.

    Examples
    --------
    >>> import numpy as np, islices
    >>> upstream = np.array([[[3.0], [1.0]], [[4.0], [4.0]]])
    >>> g = islices.per_sample(upstream, np.array([[0, 2], [1, 1]]), 3)
    >>> g
    PerSample(n=4, dense_shape=(2, 3, 1), float64, int64, numpy)
    >>> g.norms().tolist()
    [3.1622776601683795, 8.0]
    """

    __slots__ = ("__weakref__", "_parts", "backend", "dense_shape")
    __array_ufunc__ = None

    _parts: tuple[Array, Array, Array, tuple[Product, ...]] | Deferred
    dense_shape: tuple[int, ...]
    backend: Backend

    def __init__(self) -> None:
        raise TypeError("PerSample: made by per_sample, value_and_grad(..., per_sample=True) or capture")

    @classmethod
    def _trusted(
        cls, backend: Backend, parts: tuple[Array, Array, Array, tuple[Product, ...]] | Deferred, dense_shape: Any
    ) -> PerSample:
        """Return an instance, without checks; `parts` are (values, indices, samples, products)."""
        self = object.__new__(cls)
        for name, x in {"backend": backend, "_parts": parts, "dense_shape": dense_shape}.items():
            object.__setattr__(self, name, x)
        return self

    def _part(self, k: int) -> Any:
        return self._parts.read(self, k) if isinstance(self._parts, Deferred) else self._parts[k]

    @property
    def values(self) -> Array:
        """Return the values of all slices, an array of shape ``(n, *row_shape)``."""
        return self._part(0)

    @property
    def indices(self) -> Array:
        """Return the row number of each slice, an array of shape (n,)."""
        return self._part(1)

    @property
    def samples(self) -> Array:
        """Return the sample of each slice, an array of shape (n,)."""
        return self._part(2)

    @property
    def products(self) -> tuple[Product, ...]:
        """Return the factors of each product with a tied table."""
        return self._part(3)  # type: ignore[no-any-return]

    def __setattr__(self, name: str, *value: object) -> NoReturn:
        raise AttributeError("PerSample is immutable")

    __delattr__ = __setattr__

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("a PerSample does not turn into a dense array by accident: say .to_dense()")

    def __len__(self) -> NoReturn:
        raise TypeError("len() of a PerSample is ambiguous: stored slices are len(x.indices), samples x.dense_shape[0]")

    def __bool__(self) -> NoReturn:
        raise TypeError("the truth value of a PerSample is ambiguous")

    def __reduce__(self) -> Any:
        return _rebuild, (tuple(map(self._part, range(4))), self.dense_shape)

    def __repr__(self) -> str:
        B = self.backend
        parts = self._parts
        values, indices, samples, products = (
            [parts.held(self, k) for k in range(4)] if isinstance(parts, Deferred) else parts
        )
        if not (B.is_array(values) and B.is_array(indices)):  # JAX has put something other than arrays into the pytree
            return f"PerSample({values!r}, {indices!r}, {samples!r}, {self.dense_shape})"
        tied = f"products={len(products)}, " if products else ""
        return (
            f"PerSample(n={(*B.shape(values), None)[0]}, dense_shape={self.dense_shape}, {tied}{B.dtype(values)}, "
            f"{B.dtype(indices)}, {B.name})"
        )

    @property
    def dtype(self) -> Any:
        """Return the framework's dtype of the values."""
        return self.values.dtype

    def norms(self) -> Array:
        """Return the 2-norm of each sample's gradient; duplicates within a sample are summed first.

        Returns
        -------
        array, shape (B,)
            The norms as SPEC clause 7 defines them, in float64 for float64 values, else in float32.
        """
        return _norms([self])[2]

    def clip(self, max_norm: float, *, nonfinite: Nonfinite = "propagate") -> PerSample:
        """Scale each sample's gradient down to a norm of at most max_norm (SPEC clause 10).

        `clip_per_sample` clips by one norm per sample over several tables and dense gradients.

        Parameters
        ----------
        max_norm : float, or 0-d array of the framework
            If a sample's norm is finite, 0 makes the sample's gradient zero, and inf does not change it.
        nonfinite : {"propagate", "raise", "zero"}
            The effect of a NaN or infinite norm: "propagate" makes the stored values of its sample NaN, "raise" raises
            FloatingPointError, and "zero" makes these values zero.

        Returns
        -------
        PerSample
        """
        return clip_per_sample(self, max_norm, nonfinite=nonfinite)[0]

    def sum(self) -> Any:
        """Return the sum of all samples' gradients, with one slice for each occurrence of a row (not coalesced).

        Returns
        -------
        IndexedSlices
            For a tied table (see `products`), whose gradient covers every row, the result is a dense array (rows,
            width).

        Raises
        ------
        MemoryError
            For a tied table, the dense array would exceed this machine's memory.
        """
        return self._whole(self._slices(self.values, self.indices), _factors(self))

    def _slices(self, values: Array, indices: Array) -> IndexedSlices:
        """Return an `IndexedSlices` of the table with these values and indices, without sample numbers."""
        padded = modes.keeps_slots(self.backend, values, indices)
        return IndexedSlices._trusted(self.backend, values, indices, self.dense_shape[1:], padded=padded)

    def _whole(self, s: IndexedSlices, factors: list[Array]) -> Any:
        """Return s plus the dense part that the factors define, or s itself without factors."""
        if not factors:
            return s
        B = self.backend
        check_memory(repr(self), self.dense_shape[1:], B.dtype(self.values), "the gradient of a tied table is dense")
        return add(modes.run(dense_sum, B, factors, dtype=B.dtype(self.values)), s)

    def slices(self, b: int) -> Any:
        """Return the gradient of one sample.

        Parameters
        ----------
        b : int
            The number of the sample, 0 <= b < B.

        Returns
        -------
        IndexedSlices
            For a tied table (see `products`), the result is a dense array (rows, width).

        Raises
        ------
        TypeError, IndexError
            b is not an int, or there is no sample b.
        MemoryError
            For a tied table, the dense array would exceed this machine's memory.
        """
        number = whole_number(b)
        if number is None:
            raise TypeError(f"b: got {describe(b)}; accepted is an int")
        batch, rows, *_ = self.dense_shape
        if not 0 <= number < batch:
            raise IndexError(f"b: got {show(number)}; accepted is 0 <= b < {batch}")
        B = self.backend
        values, indices = modes.run(
            lambda B, v, i, samples: B.select(v, i, B.equal(samples, number), rows),
            B,
            (self.values, self.indices, self.samples),
        )
        one = [modes.run(lambda B, x: B.take(x, B.asarray(np.full(1, number), x)), B, (x,)) for x in _factors(self)]
        return self._whole(self._slices(values, indices), one)

    def to_dense(self) -> Array:
        """Return the dense array that the gradients stand for.

        Returns
        -------
        array, shape (B, rows, *row_shape)

        Raises
        ------
        MemoryError
            The array would exceed this machine's memory; nothing has been allocated.
        """
        check_memory(repr(self), self.dense_shape, self.backend.dtype(self.values), "keep it sparse")
        factors = _factors(self)
        arrays = (self.values, self.indices, self.samples, *factors)
        return modes.run(_densify, self.backend, arrays, dense_shape=self.dense_shape)


def _rebuild(parts: tuple[Array, Array, Array, tuple[Product, ...]], dense_shape: tuple[int, ...]) -> PerSample:
    return PerSample._trusted(get_backend(parts[0]), parts, dense_shape)


# ---------------------------------------------------------------------- construction
def per_sample(
    upstream: Any,
    ids: Any,
    num_rows: int,
    *,
    padding_idx: int | None = None,
    mask: Any = None,
    invalid: Invalid = "raise",
    product: tuple[Array, Array] | None = None,
    sample_axis: int = 0,
) -> PerSample:
    """Return each sample's gradient of a table, from the gradient with respect to the looked-up rows.

    Parameters
    ----------
    upstream : float array, shape (B, ..., *row_shape)
        The gradient, with respect to the looked-up rows, of a loss that is a sum over samples. For ragged ids, upstream
        is ragged too, or is an array with one row per id.
    ids : int32 or int64 array, shape (B, ...), or ragged as in `lookup`
        The ids of the lookup, an array of upstream's framework or of NumPy. The samples are along ``sample_axis``; for
        ragged ids they are the outermost rows.
    num_rows : int
        The number of rows of the table.
    padding_idx : int, optional
        The row that gets no gradient; a negative number counts from the end.
    mask : boolean array of ids' shape, optional
        Where mask is False, upstream counts as zero, even if it is NaN.
    invalid : {"raise", "drop"}
        With "drop", negative ids count as absent and get no slice.
    product : tuple of two float arrays (B, ..., num_rows) and (B, ..., width), optional
        The factors of a tied table (num_rows, width), which is also an output layer ``x @ table.T``: the gradient of
        the layer's output, and x. These factors store the output layer's part of each sample's gradient. Norms and
        clipping include this part.
    sample_axis : int
        The axis of the samples in ids, upstream, mask and product. For time-major ids (L, B), pass 1. An array with
        fewer axes has its samples along its last axis; in the arrays of product, the last axis does not count. islices
        never guesses the axis from lengths.

    Returns
    -------
    PerSample

    Raises
    ------
    TypeError, ValueError, IndexError
        dtypes, shapes or ids do not fit. SPEC clauses 2, 12 and 14.

    Examples
    --------
    >>> import numpy as np
    >>> g = per_sample(np.ones((2, 3, 1)), np.array([[1, 2, 0], [1, 0, 0]]), 4, padding_idx=0)
    >>> g.slices(1).indices.tolist()
    [1]
    >>> g.clip(1.0).sum().values.ravel().round(3).tolist()
    [0.707, 0.707, 1.0]
    """
    found = accept_upstream(upstream, ids, num_rows, padding_idx, mask, invalid)
    axis = check_axis(sample_axis)
    if not found.slices.backend.shape(found.ids):
        raise ValueError("ids: got a 0-d array; accepted is shape (B, ...), one entry per sample along sample_axis")
    made = by_sample(found.slices, found.ids, axis, found.padding, absent=found.absent, given=found.samples)
    return made if product is None else with_product(made, product, "product", axis)


def check_axis(sample_axis: Any) -> int:
    """Return sample_axis as an int; raise TypeError for any other object, and ValueError for a negative number."""
    axis = whole_number(sample_axis)
    if axis is None:
        raise TypeError(f"sample_axis: got {show(sample_axis)}; accepted is an int")
    if axis < 0:
        raise ValueError(f"sample_axis: got {show(axis)}; accepted is 0 <= sample_axis")
    return axis


def axis_of(B: Backend, x: Array, axis: int, *, trailing: int = 0) -> int:
    """Return the axis of the samples in an array whose last `trailing` axes do not count.

    The result is `axis`, but at most the last axis that counts.
    """
    return min(axis, max(len(B.shape(x)) - 1 - trailing, 0))


def with_product(x: PerSample, product: Any, argument: str, axis: int = 0) -> PerSample:
    """Return x with the factors of one more use of the table as an output layer, or raise TypeError or ValueError.

    `product` is a pair: the gradient with respect to the product, and the layer's input.
    """
    if not isinstance(product, (tuple, list)) or len(product) != 2:
        raise TypeError(
            f"{argument}: got {describe(product)}; accepted is a pair, the gradient (B, ..., rows) of x @ table.T and x"
        )
    B, (batch, *shape) = x.backend, x.dense_shape
    upstream, inputs = (
        axis_first(B, a, axis_of(B, a, axis, trailing=1)) if axis and B.is_array(a) else a for a in product
    )
    made = check_product(B, upstream, inputs, B.dtype(x.values), (batch, *shape), argument)
    return PerSample._trusted(B, (x.values, x.indices, x.samples, (*x.products, made)), x.dense_shape)


def batch_of(B: Backend, ids: Array, axis: int = 0) -> int:
    """Return the length of `ids` along an axis, the number of samples, or raise ValueError if it is unknown."""
    batch = B.shape(ids)[axis]
    if batch is None:
        raise ValueError(
            f"ids: got shape {B.shape(ids)}; accepted per sample is a number of samples known while tracing"
        )
    return batch


def by_sample(
    s: IndexedSlices,
    ids: Array,
    axis: int,
    padding: int | None,
    *,
    bags: bool = False,
    absent: bool = False,
    given: tuple[Array, Array] | None = None,
) -> PerSample:
    """Return a lookup's slices as a PerSample. The samples lie along an axis of `ids`, unless `given` contains them.

    If `bags` is True, the last axis of `ids` numbers the members of bags, and cannot be the axis of the samples.
    `given` is (the sample of each id, an array with one entry per sample).
    """
    B = s.backend
    if given is not None:
        return with_samples(s, given[0], batch_of(B, given[1]), padding, absent=absent)
    axis = axis_of(B, ids, axis, trailing=int(bags))
    return with_samples(s, along_axis(B, ids, axis), batch_of(B, ids, axis), padding, absent=absent)


def with_samples(
    s: IndexedSlices, samples: Array, batch: int, padding: int | None = None, *, absent: bool = False
) -> PerSample:
    """Return a PerSample of slices and their samples, without padding and absent ids (see `slots_that_count`).

    Raise ValueError if (batch + 1) * rows exceeds int64.
    """
    rows = s.dense_shape[0]
    if rows is not None and (batch + 1) * rows > LARGEST:  # norms combine a sample and a row into one int64
        raise ValueError(f"num_rows: got {rows} for {batch} samples; accepted is less than 2^63 for all together")
    s, (samples,) = slots_that_count(s, padding, absent, samples)
    return PerSample._trusted(s.backend, (s.values, s.indices, samples, ()), (batch, *s.dense_shape))


def check_one_batch(parts: Sequence[PerSample]) -> int:
    """Return the common number of samples of `parts`, or 0 if `parts` is empty.

    Raise ValueError if the numbers differ.
    """
    batches = {p.dense_shape[0] for p in parts}
    if len(batches) > 1:
        raise ValueError(
            f"per_sample: got lookups of {sorted(batches)} samples; accepted is one number, along sample_axis"
        )
    return next(iter(batches), 0)


def no_samples(B: Backend, weights: Array, batch: int) -> PerSample:
    """Return the empty gradient of a table that no sample looked up."""
    empty = empty_slices(B, weights)
    return with_samples(empty, along_axis(B, empty.indices), batch)


def join(
    B: Backend, weights: Array, parts: list[PerSample], products: Sequence[ProductUse], axis: int, argument: str
) -> PerSample | None:
    """Return a table's gradient per sample from `parts` (one per lookup) and products, or None if both are empty.

    Raise ValueError if the numbers of samples differ.
    """
    if products and not parts:
        inputs = products[0].inputs
        parts = [no_samples(B, weights, batch_of(B, inputs, axis_of(B, inputs, axis, trailing=1)))]
    if not parts:
        return None
    made = parts[0]
    if len(parts) > 1:
        check_one_batch(parts)
        slices = concat([p._slices(p.values, p.indices) for p in parts])
        samples = modes.run(join_arrays, B, [p.samples for p in parts])
        made = PerSample._trusted(B, (slices.values, slices.indices, samples, ()), made.dense_shape)
    for one in products:
        made = with_product(made, _pair(B, made, one), argument, axis)
    return made


def whole_gradient(
    B: Backend,
    weights: Array,
    parts: Sequence[IndexedSlices],
    products: Sequence[ProductUse],
    dense: Sequence[Array] = (),
) -> Any:
    """Return the gradient of a table from the gradients of all its lookups, products and other uses.

    The gradient is a dense array unless all uses are lookups; without any use, the gradient has no slices.
    """
    slices = concat(parts) if parts else empty_slices(B, weights)
    if products:
        together = no_samples(B, weights, 1)
        for one in products:
            pair = _pair(B, together, one)
            flat = [B.reshape(x, (1, size_of(B.shape(x)[:-1]), B.shape(x)[-1])) for x in pair]
            together = with_product(together, flat, "table.weights")
        dense = [*dense, B.custom_gradient(lambda x: x, _refuse)(together.sum())]
    return add(*dense, slices) if dense else slices


def _pair(B: Backend, x: PerSample, one: ProductUse) -> list[Array]:
    with B.scope():
        return [B.astype(a, B.dtype(x.values)) for a in (one.upstream, one.inputs)]


def _refuse(arrays: tuple[Array, ...], upstream: Array) -> NoReturn:
    raise NotImplementedError(
        "table.weights: got a product with those of a table whose gradient is being taken twice; accepted in second "
        "derivatives is lookup(table, ids), or the array itself beside the table"
    )


# ---------------------------------------------------------------------- norms, clipping
def clip_per_sample(tree: T, max_norm: float, *, nonfinite: Nonfinite = "propagate") -> tuple[T, Array]:
    """Scale each sample's gradient down to a norm of at most max_norm over all leaves, as DP-SGD does.

    Parameters
    ----------
    tree : PerSample, dense array (B, ...), or a list, tuple or dict of them
        A leaf that is None stays None.
    max_norm : float, or 0-d array of the framework
        If a sample's norm is finite, 0 makes the sample's gradient zero, and inf does not change it.
    nonfinite : {"propagate", "raise", "zero"}
        The effect of a NaN or infinite norm: "propagate" makes the stored values of its sample NaN, "raise" raises
        FloatingPointError, and "zero" makes these values zero.

    Returns
    -------
    (tree, norms)
        The clipped tree, and the norms before clipping, an array of shape (B,) as `PerSample.norms` returns it. Samples
        whose norm is at most max_norm keep their bits.

    Raises
    ------
    ValueError, TypeError
        max_norm is neither a number >= 0 nor a 0-d array of the framework, a leaf is not accepted, the leaves'
        frameworks or numbers of samples differ, or there are no leaves. Or nonfinite is unknown, or is "raise" in
        traced code.
    FloatingPointError
        nonfinite is "raise", and a norm is NaN or infinite. SPEC clauses 10 and 14.

    Examples
    --------
    >>> import numpy as np, islices
    >>> g = islices.per_sample(np.array([[[3.0]], [[1.0]]]), np.array([[0], [0]]), 2)
    >>> (clipped, dense), norms = clip_per_sample([g, np.array([[4.0], [0.0]])], 2.5)
    >>> norms.tolist(), clipped.values.ravel().tolist(), dense.ravel().tolist()
    ([5.0, 1.0], [1.5, 1.0], [2.0, 0.0])
    """
    limit = limit_of(max_norm)
    nonfinite = check_nonfinite(nonfinite)
    leaves = flatten(tree, "tree")
    _check_leaves([x for x in leaves if x is not None])
    leaves = [None if x is None else _lifted(x, limit) for x in leaves]
    E, norms, given = _norms([x for x in leaves if x is not None])
    with E.scope():
        refuse_nonfinite(E, norms, nonfinite)
        steps = ISLICES.steps(E, norms, limit.of(E, "float64"))
        finite = finite_norms(E, norms, nonfinite)
    out = (None if x is None else _scaled(x, E, steps, finite) for x in leaves)
    return rebuild(tree, out), given


def _check_leaves(leaves: Sequence[Any]) -> None:
    if not leaves:
        raise ValueError("tree: got nothing to clip; accepted is at least one PerSample or dense array (B, ...)")
    owners: list[Backend] = []
    batches: set[Any] = set()
    for x in leaves:
        B = x.backend if isinstance(x, PerSample) else find_array_backend(x)
        if B is None:
            raise TypeError(f"tree: got {describe(x)}; accepted are PerSample and dense arrays (B, ...)")
        shape = x.dense_shape if isinstance(x, PerSample) else B.shape(x)
        if not shape:
            raise ValueError("tree: got a 0-d array; accepted are PerSample and dense arrays (B, ...)")
        owners.append(B)
        batches.add(shape[0])
    check_one_framework(owners, "tree")
    if len(batches) > 1:
        raise ValueError(f"tree: got {sorted(batches)} samples; accepted is one number of samples")


def _scaled(x: Any, E: Backend, steps: Steps, finite: Any) -> Any:
    """Return a leaf with each sample's part multiplied by the sample's factor, or zeros where `finite` is False."""
    B = _owner(x)

    def scaled(a: Array, steps: Steps, *place: Array) -> Array:
        rows, *rest = B.shape(a)
        known = derivatives.constant(B, a)
        return _undifferentiated(B, scale_units(B, known, E, steps, finite, (rows, *[1] * len(rest)), place), [a])

    if not isinstance(x, PerSample):
        return scaled(x, steps)
    # clipping multiplies only one factor of a product, the inputs; zeros replace both factors
    whole = finite is None or (E is modes.HOST and finite.all())
    products = tuple(Product(g if whole else scaled(g, []), scaled(inputs, steps)) for g, inputs in x.products)
    return PerSample._trusted(B, (scaled(x.values, steps, x.samples), x.indices, x.samples, products), x.dense_shape)


def _owner(x: Any) -> Backend:
    return x.backend if isinstance(x, PerSample) else get_backend(x)


def _lifted(x: Any, limit: Limit) -> Any:
    """Return a leaf. If the limit is traced, return the leaf with traced values, as `Limit.lift` does."""
    if not isinstance(x, PerSample):
        return limit.lift(x)
    return PerSample._trusted(x.backend, (limit.lift(x.values), x.indices, x.samples, x.products), x.dense_shape)


def _factors(x: PerSample) -> list[Array]:
    """Return the factors of a tied table in one list, one pair after the other."""
    return [part for pair in x.products for part in pair]


def _norms(leaves: Sequence[Any]) -> tuple[Backend, Array, Array]:
    """Return (E, float64 norms, rounded norms), with one norm per sample over all leaves together.

    The float64 norms are an array of E. The rounded norms, which the user gets, are an array of the leaves' framework.
    """
    arrays: list[Array] = []
    measured: list[Matrix] = []
    wide = False
    for x in leaves:
        B = _owner(x)
        own = [x.values, *_factors(x)] if isinstance(x, PerSample) else [x]
        check_float(B, own[0])
        wide = wide or B.dtype(own[0]) == "float64"
        arrays += own
        values, *factors = (derivatives.constant(B, a) for a in own)
        if isinstance(x, PerSample):
            measured += _parts_of(x, values, factors)
        else:
            measured.append(Matrix(B, as_rows(B, values, B.shape(values)[0])))
    B = _owner(leaves[0])
    E, norms = exact_norms(measured, 2.0)
    given = rounded_norms(B, E, norms, "float64" if wide else "float32", arrays[0])
    return E, norms, _undifferentiated(B, given, arrays)


def _undifferentiated(B: Backend, value: Array, arrays: Sequence[Array]) -> Array:
    """Return `value` as a function of the arrays; the derivative of this function raises NotImplementedError.

    If the value were a constant, derivatives through the value would silently be wrong.
    """

    def backward(*args: Any) -> NoReturn:
        raise NotImplementedError(
            "per_sample: got norms or clips of gradients per sample to differentiate; accepted is the framework's "
            "stop_gradient (detach) of them"
        )

    if not derivatives.requests(B, *arrays):
        return value
    with B.scope():
        return B.with_gradient(value, tuple(arrays), backward)


def _parts_of(x: PerSample, values: Array, factors: Sequence[Array]) -> list[Matrix]:
    """Return the matrices whose norms make up the norms of one table's gradients per sample.

    Without products, the result is one matrix of the distinct rows, grouped by sample. For a tied table on the host, a
    second matrix contains, for each sample, the norm of all other rows. For a tied table on another backend, the only
    matrix contains one norm per sample. `values` and `factors` are those of x, or constants with the same numbers.
    """
    batch, rows, *_ = x.dense_shape
    B, arrays = x.backend, (values, x.indices, x.samples, *factors)
    traced = modes.is_traced(B, *arrays)
    views = None if traced else modes.host_views(B, arrays)
    if views is not None:  # the sums are internal, so they need not return to the framework
        B, arrays = modes.HOST, tuple(views)
    values, indices, samples, *factors = arrays
    with B.scope():
        sums, keys, starts = _sums_by_key(B, values, indices, samples, batch=batch, rows=rows)
        # the samples, counted from 1, since the first start is 0
        place = B.astype(B.searchsorted(starts, keys, right=True), B.dtype(keys))
        samples = place - B.astype(B.equal(keys, keys), B.dtype(keys))
        if not factors:
            segments = B.astype(samples, "int32") if traced else B.to_numpy(samples)
            return [Matrix(B, as_rows(B, sums, B.shape(sums)[0]), Groups(segments, batch))]
        named = keys - B.take(starts, samples)
        if B is not modes.HOST:
            found = squares(B, sums, samples, named, factors, batch=batch, rows=rows)
            return [Matrix(B, B.reshape(B.sqrt(found), (batch, 1)))]
        sums, rest = host_parts(sums, samples, named, factors, batch)
        return [Matrix(B, sums, Groups(samples, batch)), Matrix(B, np.sqrt(rest).reshape(batch, 1))]


def _sums_by_key(
    B: Backend, values: Array, indices: Array, samples: Array, *, batch: int, rows: int
) -> tuple[Array, Array, Array]:
    """Return (sums, keys, starts) for the distinct rows of each sample, with duplicates summed.

    The key of a row is sample * rows + index. `starts` contains each sample's first possible key, and then batch *
    rows. In traced code, an empty slot has the key batch * rows.
    """
    dtype = B.dtype(values)
    stride = B.astype(B.asarray(np.full(1, rows), values), "int64")  # as an array: JAX narrows 64-bit numbers
    keys = B.astype(samples, "int64") * stride + B.astype(indices, "int64")
    if B.is_traced(indices):
        values, keys = B.select(values, keys, B.in_range(indices, rows), batch * rows)
    starts = B.astype(B.asarray(np.arange(batch + 1), values), "int64") * stride
    sums, keys = B.sum_duplicates(B.widen(values), keys, batch * rows)
    return B.astype(sums, dtype), keys, starts


def _densify(
    B: Backend, values: Array, indices: Array, samples: Array, *factors: Array, dense_shape: tuple[int, ...]
) -> Array:
    batch, rows, *row_shape = dense_shape
    sums, keys, _ = _sums_by_key(B, values, indices, samples, batch=batch, rows=rows)
    if not factors:
        flat = B.scatter_rows(sums, keys, (batch * rows, *row_shape))
    else:
        dense = dense_terms(B, *factors, dtype=B.dtype(values))
        flat = B.add_rows(B.reshape(dense, (batch * rows, *row_shape)), sums, keys)
    return B.reshape(flat, dense_shape)
