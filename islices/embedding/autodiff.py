"""Compute gradients of a function with respect to tables and dense arrays, on every framework except NumPy.

The framework differentiates with respect to the rows or bags that `lookup` returned, not with respect to the table
(`Backend.differentiate`). So a table's gradient has one slice per looked-up row, except for padding and absent ids, and
lookups need no array of the table's size. In JAX, a function may also use `Table.weights`; without per_sample, the
gradient is then dense. SPEC clauses 12, 14 and 17.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from islices.backend import Array, Backend, Host, LookedUp, ProductUse, Source, TableUse, WholeUse
from islices.core import modes
from islices.core.arguments import check_flag, show, whole_number
from islices.core.registry import describe, find_array_backend, get_backend
from islices.core.shapes import size_of
from islices.core.slices import IndexedSlices
from islices.core.trees import flatten, rebuild
from islices.embedding.bags import BagMembers, divided_upstream
from islices.embedding.ids import axis_back, axis_first, flat_ids
from islices.embedding.lookup import LookupOptions, members
from islices.embedding.lookup_gradients import bag_slices, flat_slices, table_gradient
from islices.embedding.per_sample import (
    PerSample,
    axis_of,
    by_sample,
    check_axis,
    check_one_batch,
    join,
    no_samples,
    whole_gradient,
    with_samples,
)
from islices.embedding.table import Table
from islices.embedding.transformed import transformed
from islices.norms.norm import check_one_framework


def value_and_grad(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    sparse: Callable[[str], bool] | str | Any = None,
    per_sample: bool = False,
    sample_axis: int = 0,
    check: bool = True,
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes fn and its gradients.

    By default, the gradient of a Table is an `IndexedSlices`, and the gradient of an array is a dense array.

    Parameters
    ----------
    fn : callable
        A function, written with the framework's operations, that returns a loss of one number (see also has_aux and
        per_sample). The function reads tables with `lookup`, any number of times. JAX traces the function, as in
        jax.jit.
    argnums : int or sequence of int
        The positions of the arguments to differentiate. Each argument is a `Table`, a float array, or a list, tuple or
        dict of them (for JAX any pytree). Other leaves of such a container are passed on, with None as their gradient.
        All other tables and arrays that fn uses are constants.
    has_aux : bool
        True if fn returns a pair (loss, aux), where aux is any object.
    sparse : callable, pytree of bools, "auto" or "always", optional
        Marks the plain arrays that get `IndexedSlices` (JAX, torch and TensorFlow). If a callable or a pytree marks an
        array, fn must use the array only to read rows. A callable gets the path of a leaf in the gradients, in the
        notation of `jax.tree_util.keystr` ("['params']['embed']['embedding']"), and returns a bool. A pytree of bools
        has one bool for each leaf or subtree of the differentiated arguments. "auto" marks each array of two dimensions
        or more that fn reads only by rows, if the array has more rows than fn reads. "always" marks these arrays
        however many rows fn reads. In JAX, rows are read by ``w[ids]``, `jnp.take` along axis 0 in all modes, and
        static and dynamic slices of whole rows. In JAX, fn may also read rows of ``w.astype(...)``, and may read rows
        within jit, vmap, remat, cond and scan. In torch, rows are read by embedding and embedding_bag (without
        scale_grad_by_freq and without mode "max"), index_select along axis 0 and ``w[ids]``; in TensorFlow, by
        tf.gather and tf.nn.embedding_lookup. Arrays that are not marked get the framework's gradients. By default, no
        array gets `IndexedSlices`.
    per_sample : bool
        True if fn returns a vector of B losses, one per sample, and each loss depends on its sample only. Gradients of
        tables, and of arrays that sparse= marks (JAX only), are `PerSample`. Gradients of dense arrays have shape (B,
        *shape). For dense gradients, the framework's vmap runs over the samples in the arguments that are not
        differentiated (MXNet has no vmap). fn must then read the batch from those arguments only.
    sample_axis : int
        With per_sample, the axis of the samples in looked-up ids, in inputs of products with `Table.weights`, and in
        arrays of undifferentiated arguments. For time-major ids (L, B), pass 1. An array with fewer axes has its
        samples along its last axis. The last axis of ids of bags, and of inputs of products, does not count. islices
        never guesses the axis from lengths.
    check : bool
        With per_sample, the first eager call on two or more samples checks two samples. The check runs fn twice more on
        the batch, and once on each of the two samples. A checked call takes about as long as three unchecked calls, and
        draws more random numbers than an unchecked call. The check finds gradients that reach the rows of other
        samples, and losses that change when fn gets the sample without the others. With sparse=, the check only
        compares losses, and fn runs once more, on the batch. Calls that are traced (`jax.jit`, `tf.function`) or
        recorded for a gradient are not checked. Losses are not compared if the batch does not come from the arguments,
        if ids have offsets or are ragged, or if a second run on the batch returns other losses.

    Returns
    -------
    callable
        ``(*args, **kwargs) -> (value, grads)``, or ``((value, aux), grads)``. value is the loss, or with per_sample the
        vector of losses. grads has the structure of the differentiated arguments. A table's gradient is not coalesced:
        it has one slice for each looked-up row, in order, except for padding and absent ids. A table that is not looked
        up has an empty gradient. In JAX without per_sample, the gradient of a table whose `Table.weights` fn uses is
        dense.

    Raises
    ------
    TypeError
        fn is not callable, a flag is not a bool, argnums or sample_axis are not ints, a differentiated argument
        contains no Table and no float array, or frameworks are mixed. The loss is not a float array, or fn returns no
        pair although has_aux is True. A table is used other than by lookup (JAX also accepts Table.weights, with
        per_sample only in products), or looked up where its gradient would be wrong (a TensorFlow loop body). In torch,
        fn changes in place a tensor that is differentiated or needed again. With sparse=, a differentiated argument
        contains a Table, a flag of a leaf is not a bool, or a marked leaf is not a float array with at least one axis.
        Or fn uses a marked array other than to read rows; in JAX and torch, the message then names the operation and
        the line.
    ValueError
        argnums is empty, repeats an argument, or contains a number that is not the position of an argument.
        sample_axis is negative. Without per_sample, the loss is not one number. With per_sample, the loss is not a
        vector with one entry per sample, the numbers of samples differ, or samples influence each other. Or sparse is
        an unknown string, a pytree whose structure differs from that of the differentiated arguments, or a function
        that marks no leaf.
    IndexError
        An id is out of range (not in traced code: SPEC clause 2).
    NotImplementedError
        The arrays are NumPy arrays, for which no framework records gradients (use `embedding_grad`). MXNet supports
        neither second derivatives nor sparse=, and with per_sample no dense arrays. Only JAX supports sparse= together
        with per_sample. With per_sample, a table has scale_by_freq=True, or dense arrays are differentiated together
        with a lookup of ragged ids or with offsets. Within JAX's scan or vmap, a table with scale_by_freq=True is
        looked up. With per_sample, a table is looked up within JAX's scan, or used in a product within scan or vmap.
        With per_sample, a table is looked up within JAX's vmap, and ids have offsets or are ragged. In JAX, a gradient
        to which a product with `Table.weights` contributes is differentiated again. In torch, the call is within
        torch.func.grad or vmap, or a call with sparse= is within another value_and_grad.

    Notes
    -----
    Values and gradients are constants to torch's autograd. For second derivatives, nest calls of value_and_grad, or use
    TensorFlow's tape or jax.grad around a call.

    Examples
    --------
    >>> import torch, islices
    >>> table = islices.Table(torch.ones(1000, 2))
    >>> def loss(table, w, ids):
    ...     return (islices.lookup(table, ids) @ w).sum()
    >>> value, (grad, dense) = islices.value_and_grad(loss, (0, 1))(table, torch.ones(2), torch.tensor([7, 7, 9]))
    >>> grad
    IndexedSlices(n=3, dense_shape=(1000, 2), float32, int64, torch)
    >>> value.item(), grad.indices.tolist(), dense.tolist()
    (6.0, [7, 7, 9], [3.0, 3.0])
    >>> def losses(table, ids, targets):
    ...     return (islices.lookup(table, ids).sum((1, 2)) - targets) ** 2
    >>> step = islices.value_and_grad(losses, per_sample=True)
    >>> values, samples = step(table, torch.tensor([[7, 7], [9, 7]]), torch.tensor([1.0, 2.0]))
    >>> values.tolist(), samples.slices(1).values.tolist()
    ([9.0, 4.0], [[4.0, 4.0], [4.0, 4.0]])

    With sparse= the arguments stay plain arrays and the model does not change:

    >>> import jax.numpy as jnp
    >>> params = {"embedding": jnp.ones((1000, 2)), "w": jnp.ones(2)}
    >>> def plain(params, ids):
    ...     return (params["embedding"][ids] @ params["w"]).sum()
    >>> step = islices.value_and_grad(plain, sparse=lambda path: "embedding" in path)
    >>> value, grads = step(params, jnp.array([7, 7, 9]))
    >>> grads["embedding"]
    IndexedSlices(n=3, dense_shape=(1000, 2), float32, int32, jax)
    >>> grads["embedding"].indices.tolist(), grads["w"].tolist()
    ([7, 7, 9], [3.0, 3.0])
    """
    if not callable(fn):
        raise TypeError(f"fn: got {describe(fn)}; accepted is a callable")
    numbers = _check_argnums(argnums)
    has_aux, per_sample = check_flag(has_aux, "has_aux"), check_flag(per_sample, "per_sample")
    samples = _Samples(check_axis(sample_axis), check_flag(check, "check"))
    options = GradOptions(argnums, numbers, has_aux, samples if per_sample else None)
    if sparse is not None:
        return transformed(_differentiate_rows, fn, options, sparse)
    return transformed(_differentiate, fn, options)


class GradOptions(NamedTuple):
    """The options of `value_and_grad`, except sparse."""

    argnums: int | Sequence[int]  # the user's argument
    numbers: tuple[int, ...]
    has_aux: bool
    samples: _Samples | None


@dataclass
class _Samples:
    """The options and the state of one function that `value_and_grad` returned with per_sample=True."""

    axis: int
    unchecked: bool  # True if a check was requested, until the first eager call has been checked


def _check_argnums(argnums: Any) -> tuple[int, ...]:
    given = argnums if isinstance(argnums, (list, tuple)) else (argnums,)
    numbers = tuple(number for number in map(whole_number, given) if number is not None)
    if len(numbers) < len(given):
        raise TypeError(f"argnums: got {show(argnums)}; accepted is an int or a sequence of ints")
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"argnums: got {show(argnums)}; accepted is at least one, each once")
    return numbers


def _differentiate(
    fn: Callable[..., Any], options: GradOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Call the user's function, and return (value, gradients with respect to tables and arrays)."""
    call, samples = _Call(fn, options, args, kwargs), options.samples
    B, variables, tables = call.B, call.variables, call.tables
    call.fn = B.user_code(fn)

    def run(only: int | None = None) -> Any:
        """Return the result of `Backend.differentiate` for the loss of fn.

        If `only` is given, differentiate the loss of that sample, and return all losses as aux.
        """

        def recorded(new_variables: list[Array], sources: list[Source]) -> tuple[Array, Any]:
            made = [Table._trusted(B, s, t.padding_idx, t.scale_by_freq) for s, t in zip(sources, tables, strict=True)]
            loss, aux = call(call.mirrored(new_variables, made, keep=True))
            return (loss, aux) if only is None else (loss[only : only + 1], loss)

        return B.differentiate(recorded, variables, [t._source for t in tables])

    loss, aux, dense, lookups = run()
    if samples is None:
        sparse = [_table_gradient(B, t, found) for t, found in zip(tables, lookups, strict=True)]
        return call.result(loss, aux, call.mirrored(dense, sparse, keep=False))
    count = math.prod(B.shape(loss))  # type: ignore[arg-type]  # JAX drops the axis of a vector with one loss
    batch = _Batch(call, samples.axis)
    found = _table_samples(B, tables, lookups, samples.axis, count, call.names)
    at_offsets = any(one.static.at_offsets for uses in lookups for one in uses if isinstance(one, LookedUp))
    with B.scope():
        loss = B.reshape(loss, (count,))
    if variables:
        if at_offsets:
            raise NotImplementedError(
                "per_sample: got dense arrays beside a lookup with offsets or ragged ids, which the framework's "
                "vmap cannot cut into samples; accepted are padded ids (B, L), with a mask"
            )
        batch.check(count)

        def one(new_variables: list[Array], cut: list[Array]) -> Array:
            return call.of_one(call.mirrored(new_variables, tables, keep=True), batch.one_sample(B, cut))

        dense = B.per_sample_gradients(one, variables, batch.data(B, variables[0]))
    recorded = B.records_gradient(loss) or any(t._source.watched for t in tables)
    arrays = [loss, *variables, *(t._source.weights for t in tables)]
    if samples.unchecked and count > 1 and not recorded and not modes.is_traced(B, *arrays):
        for b in _largest_two(B, loss):
            _, losses, _, lookups = run(b)
            _check_reach(b, call.names, _table_samples(B, tables, lookups, samples.axis, count, call.names))
            if not at_offsets and batch.sizes == {count} and _is_close(B, loss, losses):
                try:
                    alone = call.of_one(call.given, batch.sample(b))
                except Exception as error:
                    _refuse_influence(b, f"fn raises {type(error).__name__} ({error}) where it gets one sample")
                _check_alone(B, b, loss, alone)
        samples.unchecked = False
    return call.result(loss, aux, call.mirrored(dense, found, keep=False))


def _differentiate_rows(
    fn: Callable[..., Any], options: GradOptions, sparse: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any]:
    """Call the user's function, and return (value, gradients with respect to plain arrays).

    `sparse` marks the arrays that get row-sparse gradients.
    """
    call, samples = _Call(fn, options, args, kwargs), options.samples
    if call.tables:
        raise TypeError("sparse: got it with a Table among the differentiated arguments; accepted are plain arrays")
    B, several = call.B, call.several
    given = tuple(call.given) if several else call.given[0]

    def listed(tree: Any) -> Any:
        return tree if several else (tree,)

    if samples is None:
        loss, aux, grads = B.differentiate_rows(lambda tree: call(listed(tree)), given, sparse)
        return call.result(loss, aux, listed(grads))
    batch, aux = _Batch(call, samples.axis), None
    count = batch.check()

    def one(tree: Any, cut: list[Array]) -> tuple[Array, Any]:
        return call.of_one(listed(tree), batch.one_sample(B, cut)), None

    losses, _, grads = B.differentiate_rows(one, given, sparse, batch.data(B, call.variables[0]))
    check = samples.unchecked and count > 1 and not modes.is_traced(B, losses)
    if check or call.has_aux:
        whole, aux = call(call.given)
        _check_count(B.shape(whole)[0], count)  # type: ignore[arg-type]
        if check:
            for b in _largest_two(B, whole):
                _check_alone(B, b, whole, losses[b : b + 1])
            samples.unchecked = False
    found = (_as_samples(B, x, count) if isinstance(x, IndexedSlices) else x for x in flatten(grads))
    return call.result(losses, aux, listed(rebuild(grads, found)))


def _as_samples(B: Backend, s: IndexedSlices, count: int) -> PerSample:
    """Convert slices to a PerSample. The slices are ordered by sample, with the same number of slices per sample."""
    each = B.shape(s.indices)[0] // max(count, 1)  # type: ignore[operator]
    numbers = B.asarray(np.repeat(np.arange(count, dtype=np.int32), each), s.indices)
    return with_samples(s, numbers, count, absent=True)


#: The description of a vector of losses in error messages.
VECTOR = (
    "one loss for each sample, not their sum or mean (of a mean, rows would get 1/B of each sample's gradient and "
    "dense arrays all of it)"
)


def _check_loss(B: Backend, loss: Any, *, per_sample: bool) -> None:
    if not B.is_array(loss) or B.dtype(loss) not in B.float_dtypes:
        accepted = VECTOR if per_sample else "one number"
        raise TypeError(f"fn: returned {describe(loss)}; accepted as the loss is a float array of {B.name}, {accepted}")
    shape = B.shape(loss)
    if per_sample:
        if None in shape or len(shape) != 1:
            raise ValueError(f"fn: returned a loss of shape {shape}; accepted per sample is a vector (B,), {VECTOR}")
    elif size_of(shape) != 1:
        raise ValueError(f"fn: returned a loss of shape {shape}; accepted is one number (sum it, or take its mean)")


def _check_count(count: int, samples: int) -> None:
    if count != samples:
        subject = "1 sample" if samples == 1 else f"{samples} samples"
        raise ValueError(f"fn: returned {count} losses for {subject}; accepted per sample is {VECTOR}")


# ---------------------------------------------------------------------- the call
class _Call:
    """The user's function and the arguments of one call. An instance can call the function with other arguments."""

    def __init__(
        self, fn: Callable[..., Any], options: GradOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        argnums, numbers, self.has_aux, samples = options
        called = f"got {show(argnums)}, called with {len(args)} positional arguments"
        if any(not -len(args) <= k < len(args) for k in numbers):
            raise ValueError(f"argnums: {called}")
        self.places = [k % len(args) for k in numbers]
        if len(set(self.places)) < len(numbers):
            raise ValueError(f"argnums: {called}; accepted is each once")
        self.fn, self.per_sample, self.args, self.kwargs = fn, samples is not None, args, kwargs
        self.several = isinstance(argnums, (list, tuple))
        self.given = [args[k] for k in self.places]
        self.variables: list[Array] = []
        self.tables: list[Table] = []
        self.names: list[str] = []  # the names of the tables, for errors
        for k, tree in zip(self.places, self.given, strict=True):
            leaves = flatten(tree)
            for n, x in enumerate(leaves):
                if isinstance(x, Table):
                    self.tables.append(x)
                    self.names.append(f"argument {k}" if len(leaves) == 1 else f"argument {k}, leaf {n}")
                elif _is_variable(x):
                    self.variables.append(x)
            if not any(isinstance(x, Table) or _is_variable(x) for x in leaves):
                raise TypeError(
                    f"argument {k}: got {describe(tree)}; accepted is a Table, a float array, or a list, tuple or dict "
                    "with some"
                )
        owners = [*map(get_backend, self.variables), *(t.backend for t in self.tables)]
        check_one_framework(owners, "args")
        self.B = owners[0]

    def __call__(self, given: Sequence[Any], others: Mapping[int | str, Any] = MappingProxyType({})) -> tuple[Any, Any]:
        """Return (loss, aux) of fn with `given` as differentiated arguments, after checking the loss.

        `others` replaces remaining arguments, by position or keyword.
        """
        full = [others.get(k, x) for k, x in enumerate(self.args)]
        for k, x in zip(self.places, given, strict=True):
            full[k] = x
        loss, aux = self.fn(*full, **{k: others.get(k, x) for k, x in self.kwargs.items()}), None
        if self.has_aux:
            if not isinstance(loss, (tuple, list)) or len(loss) != 2:
                raise TypeError(f"fn: returned {describe(loss)} with has_aux=True; accepted is (loss, aux)")
            loss, aux = loss
        _check_loss(self.B, loss, per_sample=self.per_sample)
        return loss, aux

    def of_one(self, given: Sequence[Any], others: Mapping[int | str, Any]) -> Array:
        """Return the loss of a call with one sample, after checking that there is one loss."""
        loss, _ = self(given, others)
        _check_count(self.B.shape(loss)[0], 1)  # type: ignore[arg-type]
        return loss

    def mirrored(self, variables: Iterable[Any], tables: Iterable[Any], *, keep: bool) -> list[Any]:
        """Return the differentiated arguments with new variables and tables.

        Other leaves stay if `keep` is True, else they become None.
        """
        fresh, others = iter(variables), iter(tables)

        def leaf(x: Any) -> Any:
            if isinstance(x, Table):
                return next(others)
            return next(fresh) if _is_variable(x) else x if keep else None

        return [rebuild(tree, map(leaf, flatten(tree))) for tree in self.given]

    def result(self, loss: Array, aux: Any, grads: Sequence[Any]) -> tuple[Any, Any]:
        """Return the loss, aux and gradients in the structure that `value_and_grad` documents."""
        return (loss, aux) if self.has_aux else loss, tuple(grads) if self.several else grads[0]


def _is_variable(x: Any) -> bool:
    B = find_array_backend(x)
    return B is not None and B.dtype(x) in B.float_dtypes


# ---------------------------------------------------------------------- gradients of tables
def _table_gradient(B: Backend, table: Table, uses: Sequence[TableUse]) -> Any:
    """Return a table's gradient: slices, or a dense array if operations other than lookups used the weights."""
    parts = [_slices(B, table, one) for one in uses if isinstance(one, LookedUp)]
    products = [one for one in uses if isinstance(one, ProductUse)]
    dense = [one.gradient for one in uses if isinstance(one, WholeUse)]
    return whole_gradient(B, table._source.weights, parts, products, dense)


def _slices(B: Backend, table: Table, one: LookedUp) -> IndexedSlices:
    options: LookupOptions = one.static
    if options.scale_by_freq and one.axes:
        raise NotImplementedError(
            f"value_and_grad: got a table with scale_by_freq=True looked up within {' and '.join(one.axes)}, whose "
            "rounds are lookups of their own; accepted is a lookup outside of it"
        )
    return table_gradient(_slots(B, table, one), options.padding_idx, options.scale_by_freq, absent=options.absent)


def _slots(B: Backend, table: Table, one: LookedUp) -> IndexedSlices:
    """Return one slice for each id of a lookup, in order, including padding and absent ids (-1)."""
    weights, combiner = table._source.weights, one.static.combiner
    present = one.extras[-1] if one.static.absent else None  # 0 for each absent id, else 1
    rows, *row_shape = B.shape(weights)
    if combiner is None:
        return flat_slices(B, one.upstream, one.ids, table.shape[0], present=present)
    segments, bags = _side_by_side(B, *one.extras[:2]) if one.axes else one.extras[:2]
    keep = None if combiner == "sum" else members(B, one.ids, None, one.static.padding_idx, rows, present)
    with B.scope():
        upstream = B.reshape(one.upstream, (B.shape(bags)[0], *row_shape))
    upstream = divided_upstream(B, upstream, BagMembers(segments, bags, combiner, flat_ids(B, keep)))
    return bag_slices(B, upstream, one.ids, segments, table.shape[0], present)


def _side_by_side(B: Backend, segments: Array, bags: Array) -> tuple[Array, Array]:
    """Return (the bag of each slot, an array with one entry per bag) for many lookups stacked along leading axes.

    The last axis of `segments` and of `bags` belongs to one lookup; the axes before it number the lookups.
    """
    (*lead, n), (*_, count) = B.shape(segments), B.shape(bags)
    with B.scope():
        lookups = size_of(tuple(lead))
        bags = B.reshape(bags, (lookups * count,))  # type: ignore[operator]
        segments = B.reshape(segments, (lookups, n))
        first = B.astype(B.arange(segments), B.dtype(segments)) * count
        return B.reshape(segments + B.reshape(first, (lookups, 1)), (lookups * n,)), bags  # type: ignore[operator]


def _samples(B: Backend, table: Table, one: LookedUp, axis: int) -> PerSample:
    options: LookupOptions = one.static
    s = _slots(B, table, one)
    if options.scale_by_freq:
        raise NotImplementedError(
            "per_sample: got a table with scale_by_freq=True, whose gradient of one sample depends on the others"
        )
    if "scan" in one.axes or (one.axes and options.at_offsets):
        raise NotImplementedError(
            f"per_sample: got a lookup within {' and '.join(one.axes)}, whose ids do not begin with the samples; "
            "accepted is a lookup outside of it, or within jax.vmap over the samples"
        )
    given = None
    if options.at_offsets:
        given = one.extras[:2] if options.combiner is None else one.extras[2:4]
    elif not B.shape(one.ids):
        raise ValueError(
            "per_sample: got a lookup of ids of shape (); accepted is (B, ...), the samples along sample_axis"
        )
    bags = options.combiner is not None
    return by_sample(s, one.ids, axis, options.padding_idx, bags=bags, absent=options.absent, given=given)


# ---------------------------------------------------------------------- per sample
def _samples_of_uses(B: Backend, table: Table, uses: Sequence[TableUse], axis: int, name: str) -> PerSample | None:
    if any(isinstance(one, WholeUse) for one in uses):
        raise TypeError(
            f"per_sample: got table.weights of {name} used in another way than x @ table.weights.T (or "
            "x @ table.weights), whose gradient cannot be told apart by samples (an l2 term is one); accepted are "
            "lookups and such products, x with its samples along sample_axis"
        )
    parts = [_samples(B, table, one, axis) for one in uses if isinstance(one, LookedUp)]
    products = [one for one in uses if isinstance(one, ProductUse)]
    for one in products:
        if one.axes:
            raise NotImplementedError(
                f"per_sample: got a product with table.weights within {' and '.join(one.axes)}, whose factors may not "
                "begin with the samples; accepted is one outside of it"
            )
    return join(B, table._source.weights, parts, products, axis, "per_sample: table.weights")


def _table_samples(
    B: Backend,
    tables: Sequence[Table],
    lookups: Sequence[Sequence[TableUse]],
    axis: int,
    count: int,
    names: Sequence[str],
) -> list[PerSample]:
    """Return each table's gradient per sample. Raise ValueError unless all of them have `count` samples, one per
    loss."""
    found = zip(tables, lookups, names, strict=True)
    made = [_samples_of_uses(B, t, uses, axis, name) for t, uses, name in found]
    known = [x for x in made if x is not None]
    batch = check_one_batch(known)
    if known:
        _check_count(count, batch)
    return [no_samples(B, t._source.weights, count) if x is None else x for x, t in zip(made, tables, strict=True)]


class _Batch:
    """The arguments that are not differentiated; their arrays contain the batch."""

    def __init__(self, call: _Call, axis: int) -> None:
        self.trees = {k: x for k, x in enumerate(call.args) if k not in call.places} | call.kwargs
        self.arrays = [x for tree in self.trees.values() for x in flatten(tree) if find_array_backend(x)]
        self.axes = [axis_of(get_backend(x), x, axis) for x in self.arrays]
        shapes = [get_backend(x).shape(x) for x in self.arrays]
        #: the numbers of samples of the arrays; -1 for a 0-d array
        self.sizes = {shape[axis] if shape else -1 for shape, axis in zip(shapes, self.axes, strict=True)}

    def check(self, losses: int | None = None) -> int:
        """Return the number of samples in the arrays.

        Raise ValueError if there are no arrays, or if the number differs between arrays or from `losses`.
        """
        sizes: set[Any] = self.sizes | ({losses} if losses is not None else set())
        if len(sizes) != 1 or -1 in sizes or not self.arrays:
            raise ValueError(
                f"per_sample: got {len(self.arrays)} arrays beside the differentiated arguments, sizes along "
                f"sample_axis, and number of losses, {sorted(sizes)}; accepted is at least one array, all with as many "
                "samples as losses (close over the rest)"
            )
        return int(sizes.pop())

    def data(self, B: Backend, like: Array) -> list[Array]:
        """Return the arrays with their samples along the first axis. Convert arrays of other frameworks to arrays of B
        on the device of `like`."""
        found = []
        for x, axis in zip(self.arrays, self.axes, strict=True):
            owner = get_backend(x)
            found.append(axis_first(B, x if owner is B else B.asarray(owner.to_numpy(x), like), axis))
        return found

    def one_sample(self, B: Backend, cut: Sequence[Array]) -> dict[int | str, Any]:
        """Return the arguments for one sample. `cut` contains the arrays of `data`, each cut to this sample, with the
        shape (1, ...).
        """
        with B.scope():
            return self._replaced(axis_back(B, x, axis) for x, axis in zip(cut, self.axes, strict=True))

    def sample(self, b: int) -> dict[int | str, Any]:
        """Return the arguments with only sample b of the batch."""
        cuts = ((slice(None),) * axis + (slice(b, b + 1),) for axis in self.axes)
        return self._replaced(x[cut] for x, cut in zip(self.arrays, cuts, strict=True))

    def _replaced(self, arrays: Iterator[Array]) -> dict[int | str, Any]:
        return {
            k: rebuild(tree, (next(arrays) if find_array_backend(x) else x for x in flatten(tree)))
            for k, tree in self.trees.items()
        }


HALVES = ("float16", "bfloat16")


def _refuse_influence(b: int, subject: str) -> NoReturn:
    raise ValueError(
        f"per_sample: got samples that influence each other: {subject}, sample {b}; accepted is fn where the loss of "
        "each sample depends on that sample only, sample_axis being its axis in ids and arguments (no batch norm, no "
        "rows or l2 term shared by the batch, no division by the batch's size; random numbers per sample; the whole "
        "batch among the arguments, or none of it). check=False leaves this check out"
    )


def _largest_two(B: Backend, losses: Array) -> list[int]:
    """Return the numbers of the two samples whose losses have the largest absolute values. NaN and infinite losses come
    last."""
    size = np.abs(_host(B, losses))
    return [int(b) for b in np.argsort(-np.where(np.isfinite(size), size, -1.0), kind="stable")[:2]]


def _check_reach(b: int, names: Sequence[str], tables: Sequence[PerSample]) -> None:
    """Raise ValueError unless the gradient of sample b's loss is 0 or NaN in all slices and products of other samples.

    `tables` are the gradients of sample b's loss with respect to each table.
    """
    for name, x in zip(names, tables, strict=True):
        B = x.backend
        others = np.arange(x.dense_shape[0]) != b
        reached = _is_set(_host(B, x.values)[_host(B, x.samples) != b]).any()
        for pair in x.products:  # either factor may be zero
            g, inputs = (_is_set(_host(B, a)[others]).any(-1) for a in (pair.upstream, pair.inputs))
            reached = reached or (g & inputs).any()
        if reached:
            _refuse_influence(b, f"the gradient of one sample's loss reaches rows of others in {name}")


def _is_set(x: Host) -> Any:
    return (x != 0) & ~np.isnan(x)


def _check_alone(B: Backend, b: int, losses: Array, alone: Array) -> None:
    """Raise ValueError unless losses[b] is close to `alone`, the loss that fn returns for only this sample."""
    if not _is_close(B, losses[b : b + 1], alone):
        _refuse_influence(b, "the loss differs between the whole batch and one sample")


def _is_close(B: Backend, losses: Array, others: Array) -> bool:
    """Return True if losses are as close as SPEC clause 14 requires. A NaN or infinite entry must be the same in both
    arrays."""
    x, y = _host(B, losses), _host(B, others)
    finite = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return False
    x, y = x[finite].astype(np.float64), y[finite].astype(np.float64)
    bound = max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0)) / (4 if B.dtype(losses) in HALVES else 16)
    return bool((np.abs(x - y) <= bound).all())


def _host(B: Backend, x: Array) -> Host:
    with B.scope():
        return B.to_numpy(B.widen(x))
