"""Gradients of a function with respect to tables and dense arrays, on every framework.

The framework differentiates with respect to the rows that `lookup` returned, never with respect to the table
(`Backend.differentiate`): so the gradient is made of the looked-up rows, and costs what they cost. SPEC clauses 12,
14 and 17.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from islices.backend import Array, Backend, LookedUp, ProductUse, Source, TableUse, WholeUse
from islices.core import modes
from islices.core.arguments import check_flag, show, whole_number
from islices.core.linear import add, concat
from islices.core.registry import describe, find_backend, get_backend
from islices.core.shapes import size_of
from islices.core.slices import IndexedSlices
from islices.core.trees import flatten, rebuild
from islices.embedding.bags import divided_upstream
from islices.embedding.ids import axis_first, first_axis
from islices.embedding.lookup_gradients import bag_slices, empty_slices, flat_slices, table_gradient
from islices.embedding.lookups import LookupOptions, members
from islices.embedding.per_sample import (
    PerSample,
    axis_of,
    batch_of,
    check_axis,
    check_one_batch,
    join,
    samples_of,
    with_product,
    with_samples,
)
from islices.embedding.sample_check import check_alone, check_reach, is_repeated, largest_two, refuse_influence
from islices.embedding.table import Table
from islices.embedding.transformed import transformed

__all__ = ["value_and_grad"]


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
    """Return a function that computes fn and its gradients: IndexedSlices for a Table, dense for an array.

    Parameters
    ----------
    fn : callable
        The user's own framework code; returns a loss of one number. It reads tables by `lookup`, as often as it
        likes. JAX traces it, as jax.jit would.
    argnums : int or sequence of int
        Which positional arguments are differentiated: a `Table`, a float array, or a list, tuple or dict of them (for
        JAX any pytree). What else such a container holds is passed on, with None as its gradient. Tables and arrays
        that fn gets in another way are constants.
    has_aux : bool
        fn returns (loss, anything).
    sparse : callable, pytree of bools, "auto" or "always", optional
        Which plain arrays get `IndexedSlices`, because fn reads them by rows (JAX, torch and TensorFlow). A callable
        gets the leaf's path as `jax.tree_util.keystr` spells it in the gradients ("['params']['embed']['embedding']")
        and returns a bool. A pytree of bools is a prefix of the differentiated arguments. "auto" marks each array of
        two dimensions or more that fn reads only by rows and that has more rows than fn reads; "always" marks it
        however many fn reads. In JAX, rows are read by ``w[ids]``, `jnp.take` along axis 0 in all modes, static and
        dynamic slices of whole rows, also of ``w.astype(...)`` and within jit, vmap, remat, cond and scan. In torch,
        by embedding, embedding_bag, index_select and ``w[ids]``; in TensorFlow, by tf.gather and
        tf.nn.embedding_lookup. Other arrays get the framework's gradients. Without it no array gets `IndexedSlices`.
    per_sample : bool
        fn returns a vector of B losses, one per sample, each of which depends on its sample alone. Gradients of tables,
        and of arrays that sparse= marks (JAX only), are `PerSample`. Those of dense arrays are (B, *shape), by the
        framework's vmap over the samples of all arrays among the other arguments (MXNet has none). fn must then read
        its batch from those arguments alone.
    sample_axis : int
        With per_sample: the axis of the samples in ids that are looked up and in the arrays among the other arguments,
        1 for time-major ids (L, B). Arrays with fewer axes have their samples along the last one, bags along the axes
        before their last. It is never guessed from lengths.
    check : bool
        With per_sample: the first eager call for two samples or more checks two of them. fn runs twice more with the
        batch and twice with one sample, so that call costs about three calls, and draws more random numbers. Calls
        that are traced (`jax.jit`, `tf.function`) or whose gradient is recorded are not checked. Where fn has its
        batch from elsewhere than its arguments, or ids have offsets or are ragged, only gradients that reach the rows
        of other samples are found.

    Returns
    -------
    callable
        ``(*args, **kwargs) -> (value, grads)``, or ``((value, aux), grads)``. value is the loss, per sample the vector
        of losses. grads mirrors the differentiated
        arguments. A table's gradient has one slice for each looked-up row, in order, uncoalesced; without the
        padding's. A table that is not looked up has an empty one.

    Raises
    ------
    TypeError
        A flag that is no bool, argnums that are no ints; nothing to differentiate, frameworks mixed, a table used other
        than by lookup, a lookup where its gradient would be wrong (a TensorFlow loop body), a loss that is no
        floating-point number. With sparse=, a marked array that fn uses other than by rows (the message names the
        primitive and the line), or that is no float array; a Table.
    ValueError
        argnums names no argument; a loss of more than one number. Per sample, a loss that is no vector with one entry
        per sample; samples that influence each other. A function as sparse that marks no leaf.
    IndexError
        An id is out of range (not in traced code: SPEC clause 2).
    NotImplementedError
        NumPy, which records no gradients: see `embedding_grad`. Second derivatives in MXNet. sparse= in MXNet, with
        per_sample outside of JAX, and in torch within value_and_grad.

    Notes
    -----
    Values and gradients are constants to torch's autograd: for second derivatives nest value_and_grad, or use
    TensorFlow's tape or jax.grad around it.

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

    With sparse= the arguments stay plain arrays, and the model stays as it is:

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
    if sparse is not None:
        return transformed(_differentiate_rows, fn, argnums, numbers, has_aux, sparse, samples if per_sample else None)
    return transformed(_differentiate, fn, argnums, numbers, has_aux, samples if per_sample else None)


class _Samples:
    """The options of one function that is differentiated per sample."""

    def __init__(self, axis: int, unchecked: bool) -> None:
        self.axis = axis
        self.unchecked = unchecked  # until the first eager call has been checked


def _check_argnums(argnums: Any) -> tuple[int, ...]:
    given = argnums if isinstance(argnums, (list, tuple)) else (argnums,)
    numbers = tuple(number for number in map(whole_number, given) if number is not None)
    if len(numbers) < len(given):
        raise TypeError(f"argnums: got {show(argnums)}; accepted is an int or a sequence of ints")
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"argnums: got {show(argnums)}; accepted is at least one, each once")
    return numbers


def _differentiate(
    fn: Callable[..., Any],
    argnums: int | Sequence[int],
    numbers: tuple[int, ...],
    has_aux: bool,
    samples: _Samples | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Any]:
    places = _places(argnums, numbers, args)
    trees = [_Differentiated(args[k], f"argument {k}") for k in places]
    variables = [x for tree in trees for x in tree.of_kind("variable")]
    tables: list[Table] = [x for tree in trees for x in tree.of_kind("table")]
    B = _one_backend(variables, tables)
    fn = B.user_code(fn)

    def call(new_variables: Sequence[Array], new_tables: Sequence[Table], others: dict[int | str, Any]) -> Any:
        fresh = {"variable": iter(new_variables), "table": iter(new_tables)}
        full = [others.get(k, x) for k, x in enumerate(args)]
        for k, tree in zip(places, trees, strict=True):
            full[k] = tree.with_fresh(fresh, keep=True)
        return fn(*full, **{k: others.get(k, x) for k, x in kwargs.items()})

    def run(others: dict[int | str, Any], only: int | None = None) -> Any:
        """What `Backend.differentiate` returns; with only, of one sample's loss, and all losses as aux."""

        def recorded(new_variables: list[Array], sources: list[Source]) -> tuple[Array, Any]:
            made = [Table._trusted(B, s, t.padding_idx, t.scale_by_freq) for s, t in zip(sources, tables, strict=True)]
            out = call(new_variables, made, others)
            loss, aux = _loss_and_aux(out) if has_aux else (out, None)
            _check_loss(B, loss, per_sample=samples is not None)
            return (loss, aux) if only is None else (loss[only : only + 1], loss)

        return B.differentiate(recorded, variables, [t._source for t in tables])

    loss, aux, dense, lookups = run({})
    sparse: list[Any]
    if samples is None:
        sparse = [_table_gradient(B, t, found) for t, found in zip(tables, lookups, strict=True)]
    else:
        count = math.prod(B.shape(loss))  # type: ignore[arg-type]  # of one loss, JAX's has no axis any more
        batch = _Batch(args, kwargs, places, samples.axis)
        names = [name for kind in ("table", "variable") for tree in trees for name in tree.names(kind)]
        sparse = _table_samples(B, tables, lookups, samples.axis, count, names)
        with B.scope():
            loss = B.reshape(loss, (count,))
        if variables:
            if any(one.static.at_offsets for found in lookups for one in found if isinstance(one, LookedUp)):
                raise NotImplementedError(
                    "per_sample: got dense arrays beside a lookup with offsets or ragged ids, which the framework's "
                    "vmap cannot cut into samples; accepted are padded ids (B, L), with a mask"
                )
            dense = _per_sample_dense(B, call, has_aux, variables, tables, batch, count)
        recorded = B.records_gradient(loss) or any(t._source.watched for t in tables)
        arrays = [loss, *variables, *(t._source.weights for t in tables)]
        if samples.unchecked and count > 1 and not recorded and not modes.is_traced(B, *arrays):
            _check_samples(B, run, loss, tables, batch, names, samples.axis, [*sparse, *dense])
            samples.unchecked = False
    made = {"variable": iter(dense), "table": iter(sparse)}
    grads = tuple(tree.with_fresh(made, keep=False) for tree in trees)
    value = (loss, aux) if has_aux else loss
    return value, grads if isinstance(argnums, (list, tuple)) else grads[0]


def _places(argnums: int | Sequence[int], numbers: tuple[int, ...], args: tuple[Any, ...]) -> list[int]:
    """The positions of the differentiated arguments."""
    if any(not -len(args) <= k < len(args) for k in numbers):
        raise ValueError(f"argnums: got {show(argnums)}, called with {len(args)} positional arguments")
    places = [k % len(args) for k in numbers]
    if len(set(places)) < len(places):
        called = f"{len(args)} positional arguments"
        raise ValueError(f"argnums: got {show(argnums)}, called with {called}; accepted is each once")
    return places


def _differentiate_rows(
    fn: Callable[..., Any],
    argnums: int | Sequence[int],
    numbers: tuple[int, ...],
    has_aux: bool,
    sparse: Any,
    samples: _Samples | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Any]:
    places = _places(argnums, numbers, args)
    trees = [_Differentiated(args[k], f"argument {k}") for k in places]
    if any(tree.of_kind("table") for tree in trees):
        raise TypeError("sparse: got it with a Table among the differentiated arguments; accepted are plain arrays")
    B = _one_backend([x for tree in trees for x in tree.of_kind("variable")], [])
    several = isinstance(argnums, (list, tuple))

    def call(given: Any, others: dict[int | str, Any]) -> tuple[Array, Any]:
        full = [others.get(k, x) for k, x in enumerate(args)]
        for k, x in zip(places, given if several else (given,), strict=True):
            full[k] = x
        out = fn(*full, **{k: others.get(k, x) for k, x in kwargs.items()})
        loss, aux = _loss_and_aux(out) if has_aux else (out, None)
        _check_loss(B, loss, per_sample=samples is not None)
        return loss, aux

    given = tuple(args[k] for k in places) if several else args[places[0]]
    if samples is None:
        loss, aux, grads = B.differentiate_rows(lambda tree: call(tree, {}), given, sparse)
    else:
        loss, aux, grads = _row_samples(
            B, call, given, sparse, _Batch(args, kwargs, places, samples.axis), samples, has_aux
        )
    return ((loss, aux) if has_aux else loss), grads


def _row_samples(
    B: Backend, call: Callable[..., Any], given: Any, sparse: Any, batch: _Batch, samples: _Samples, has_aux: bool
) -> tuple[Array, Any, Any]:
    """(losses, aux, gradients per sample) of plain arrays: each sample runs alone."""
    count = batch.count()

    def one(tree: Any, cut: list[Array]) -> tuple[Array, Any]:
        loss, _ = call(tree, batch.one_sample(B, cut))
        _check_count(B.shape(loss)[0], 1)  # type: ignore[arg-type]
        return loss, None

    like = next(x for x in _Tree(given).leaves if _kind(x))
    losses, _, grads = B.differentiate_rows(one, given, sparse, batch.data(B, like))
    check, aux = samples.unchecked and count > 1 and not modes.is_traced(B, losses), None
    if check or has_aux:
        whole, aux = call(given, {})
        _check_count(B.shape(whole)[0], count)  # type: ignore[arg-type]
        if check:
            for b in largest_two(B, whole):
                check_alone(B, b, ["the loss"], [whole], [losses[b : b + 1]])
            samples.unchecked = False
    tree = _Tree(grads)
    found = (_as_samples(B, x, count) if isinstance(x, IndexedSlices) else x for x in tree.leaves)
    return losses, aux, tree.rebuild(found)


def _as_samples(B: Backend, s: IndexedSlices, count: int) -> PerSample:
    """Slices that lie sample by sample, equally many of each."""
    each = B.shape(s.indices)[0] // count  # type: ignore[operator]
    numbers = B.asarray(np.repeat(np.arange(count, dtype=np.int32), each), s.indices)
    return with_samples(s, numbers, count, None, absent=True)


def _loss_and_aux(out: Any) -> tuple[Array, Any]:
    if not isinstance(out, (tuple, list)) or len(out) != 2:
        raise TypeError(f"fn: returned {describe(out)} with has_aux=True; accepted is (loss, aux)")
    return out[0], out[1]


#: Why a scalar is no loss per sample.
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
    elif None in shape or math.prod(shape) != 1:  # type: ignore[arg-type]
        raise ValueError(f"fn: returned a loss of shape {shape}; accepted is one number (sum it, or take its mean)")


def _check_count(count: int, samples: int) -> None:
    if count != samples:
        what = "1 sample" if samples == 1 else f"{samples} samples"
        raise ValueError(f"fn: returned {count} losses for {what}; accepted per sample is {VECTOR}")


# ---------------------------------------------------------------------- arguments
class _Tree:
    """An argument taken apart: its leaves, and the way back."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.leaves = flatten(tree)

    def rebuild(self, leaves: Iterator[Any]) -> Any:
        return rebuild(self.tree, leaves)


class _Differentiated(_Tree):
    """An argument that is differentiated: its leaves are tables, variables, and what is passed on."""

    def __init__(self, tree: Any, what: str) -> None:
        super().__init__(tree)
        self.what = what
        self.kinds = [_kind(x) for x in self.leaves]
        if not any(self.kinds):
            raise TypeError(
                f"{what}: got {describe(tree)}; accepted is a Table, a float array, or a list, tuple or dict with some"
            )

    def of_kind(self, kind: str) -> list[Any]:
        return [x for x, k in zip(self.leaves, self.kinds, strict=True) if k == kind]

    def names(self, kind: str) -> list[str]:
        """The leaves of a kind as errors name them."""
        one = len(self.leaves) == 1
        return [self.what if one else f"{self.what}, leaf {n}" for n, k in enumerate(self.kinds) if k == kind]

    def with_fresh(self, fresh: dict[str, Iterator[Any]], *, keep: bool) -> Any:
        """The same structure with fresh leaves by kind; what is not differentiated is kept, or becomes None."""
        pairs = zip(self.leaves, self.kinds, strict=True)
        return self.rebuild(next(fresh[k]) if k else (x if keep else None) for x, k in pairs)


def _kind(x: Any) -> str:
    """ "table", "variable", or "" for what is not differentiated."""
    if isinstance(x, Table):
        return "table"
    B = find_backend(x)
    return "variable" if B is not None and B.is_array(x) and B.dtype(x) in B.float_dtypes else ""


def _one_backend(variables: Sequence[Array], tables: Sequence[Table]) -> Backend:
    owners = {B.name: B for B in [*map(get_backend, variables), *(t.backend for t in tables)]}
    if len(owners) > 1:
        raise TypeError(f"args: got arrays of {' and '.join(sorted(owners))}; accepted is one framework (see convert)")
    return next(iter(owners.values()))


# ---------------------------------------------------------------------- gradients of tables
def _table_gradient(B: Backend, table: Table, uses: Sequence[TableUse]) -> Any:
    """Slices; dense where the weights were an operand too."""
    parts = [_slices(B, table, one) for one in uses if isinstance(one, LookedUp)]
    slices = concat(parts) if parts else empty_slices(B, table._source.weights)
    dense = [one.gradient for one in uses if isinstance(one, WholeUse)]
    products = [_factors(B, table, one) for one in uses if isinstance(one, ProductUse)]
    if products:
        together = with_samples(empty_slices(B, table._source.weights), slices.indices[:0], 1, None)
        for pair in products:
            flat = [B.reshape(x, (1, size_of(B.shape(x)[:-1]), B.shape(x)[-1])) for x in pair]
            together = with_product(together, flat, "table.weights")
        dense.append(B.custom_gradient(lambda x: x, _refuse)(together.sum()))
    return add(*dense, slices) if dense else slices


def _factors(B: Backend, table: Table, one: ProductUse) -> list[Array]:
    dtype = B.dtype(table._source.weights)
    with B.scope():
        return [B.astype(x, dtype) for x in (one.upstream, one.inputs)]


def _refuse(arrays: tuple[Array, ...], upstream: Array) -> NoReturn:
    raise NotImplementedError(
        "table.weights: got a product with those of a table whose gradient is being taken twice; accepted in second "
        "derivatives is lookup(table, ids), or the array itself beside the table"
    )


def _slices(B: Backend, table: Table, one: LookedUp) -> IndexedSlices:
    options: LookupOptions = one.static
    if options.scale_by_freq and one.axes:
        raise NotImplementedError(
            f"value_and_grad: got a table with scale_by_freq=True looked up within {' and '.join(one.axes)}, whose "
            "rounds are lookups of their own; accepted is a lookup outside of it"
        )
    return table_gradient(_slots(B, table, one), options.padding_idx, options.scale_by_freq, absent=options.absent)


def _slots(B: Backend, table: Table, one: LookedUp) -> IndexedSlices:
    """One slice for each of a lookup's ids, in order."""
    weights, present, combiner = table._source.weights, _present(one), one.static.combiner
    rows, *row_shape = B.shape(weights)
    if combiner is None:
        return flat_slices(B, one.upstream, one.ids, table.shape[0], present=present)
    segments, bags = _side_by_side(B, *one.extras[:2]) if one.axes else one.extras[:2]
    keep = None
    if combiner != "sum":
        keep = members(B, one.ids, None, one.static.padding_idx, rows, present)
    with B.scope():
        upstream = B.reshape(one.upstream, (B.shape(bags)[0], *row_shape))
        keep = None if keep is None else B.reshape(keep, B.shape(segments))
    upstream = divided_upstream(B, upstream, segments, bags, combiner, keep)
    return bag_slices(B, upstream, one.ids, segments, table.shape[0], present)


def _side_by_side(B: Backend, segments: Array, bags: Array) -> tuple[Array, Array]:
    """Each slot's bag, (n,), and an array as long as there are bags, of lookups with axes before the only one of
    theirs."""
    (*lead, n), (*_, count) = B.shape(segments), B.shape(bags)
    with B.scope():
        lookups = size_of(tuple(lead))
        bags = B.reshape(bags, (lookups * count,))  # type: ignore[operator]
        segments = B.reshape(segments, (lookups, n))
        first = B.astype(B.arange(segments), B.dtype(segments)) * count
        return B.reshape(segments + B.reshape(first, (lookups, 1)), (lookups * n,)), bags  # type: ignore[operator]


def _present(one: LookedUp) -> Array | None:
    """1 for each of the ids that names a row; None if all do."""
    return one.extras[-1] if one.static.absent else None


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
    if options.at_offsets:
        samples, starts = one.extras[:2] if options.combiner is None else one.extras[2:4]
        return with_samples(s, samples, batch_of(B, starts), options.padding_idx, absent=options.absent)
    if not B.shape(one.ids):
        raise ValueError(
            "per_sample: got a lookup of ids of shape (); accepted is (B, ...), the samples along sample_axis"
        )
    samples, batch = samples_of(B, one.ids, axis, bags=options.combiner is not None)
    return with_samples(s, samples, batch, options.padding_idx, absent=options.absent)


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
    if products and not parts:
        inputs = products[0].inputs
        parts = [_no_samples(B, table, batch_of(B, inputs, axis_of(B, inputs, axis, trailing=1)))]
    made = join(parts) if parts else None
    for one in products:
        made = with_product(made, _factors(B, table, one), "per_sample: table.weights", axis)  # type: ignore[arg-type]
    return made


def _table_samples(
    B: Backend,
    tables: Sequence[Table],
    lookups: Sequence[Sequence[TableUse]],
    axis: int,
    count: int,
    names: Sequence[str],
) -> list[PerSample]:
    """Each table's gradient per sample, of count losses."""
    found = zip(tables, lookups, names, strict=False)
    made = [_samples_of_uses(B, t, uses, axis, name) for t, uses, name in found]
    known = [x for x in made if x is not None]
    batch = check_one_batch(known)
    if known:
        _check_count(count, batch)
    return [_no_samples(B, t, count) if x is None else x for x, t in zip(made, tables, strict=True)]


def _no_samples(B: Backend, table: Table, batch: int) -> PerSample:
    empty = empty_slices(B, table._source.weights)
    return with_samples(empty, first_axis(B, empty.indices), batch, None)


class _Batch:
    """The arguments that are not differentiated: the arrays among them hold the batch."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[int], axis: int) -> None:
        self.trees: dict[int | str, _Tree] = {k: _Tree(x) for k, x in enumerate(args) if k not in places}
        self.trees.update((name, _Tree(x)) for name, x in kwargs.items())
        self.arrays = [x for tree in self.trees.values() for x in tree.leaves if _is_array(x)]
        self.axes = [axis_of(get_backend(x), x, axis) for x in self.arrays]

    def count(self) -> int:
        """The number of samples; ValueError where the arrays do not have the same."""
        sizes = set(self.sizes())
        if len(sizes) != 1:
            raise ValueError(
                f"per_sample: got {len(self.arrays)} arrays among the other arguments, sizes along sample_axis "
                f"{sorted(sizes)}; accepted is at least one array, all with as many samples (close over the rest)"
            )
        return int(sizes.pop())

    def data(self, B: Backend, like: Array) -> list[Array]:
        """The arrays, of B as like is, with their samples first."""
        found = []
        for x, axis in zip(self.arrays, self.axes, strict=True):
            owner = get_backend(x)
            found.append(axis_first(B, x if owner is B else B.asarray(owner.to_numpy(x), like), axis))
        return found

    def one_sample(self, B: Backend, cut: Sequence[Array]) -> dict[int | str, Any]:
        """The arguments with one sample of `data`, of shape (1, ...)."""
        with B.scope():
            arrays = [
                B.permute(x, [*range(1, axis + 1), 0, *range(axis + 1, len(B.shape(x)))]) if axis else x
                for x, axis in zip(cut, self.axes, strict=True)
            ]
        return self.replaced(arrays)

    def sizes(self) -> list[Any]:
        """The number of samples that each array has; -1 for none."""
        shapes = [get_backend(x).shape(x) for x in self.arrays]
        return [shape[axis] if shape else -1 for shape, axis in zip(shapes, self.axes, strict=True)]

    def replaced(self, arrays: Iterable[Array]) -> dict[int | str, Any]:
        """The arguments with other arrays."""
        fresh = iter(arrays)
        return {
            k: tree.rebuild(next(fresh) if _is_array(x) else x for x in tree.leaves) for k, tree in self.trees.items()
        }

    def sample(self, b: int) -> dict[int | str, Any]:
        """The arguments with sample b alone."""
        cuts = ((slice(None),) * axis + (slice(b, b + 1),) for axis in self.axes)
        return self.replaced(x[cut] for x, cut in zip(self.arrays, cuts, strict=True))


def _per_sample_dense(
    B: Backend,
    call: Callable[..., Any],
    has_aux: bool,
    variables: Sequence[Array],
    tables: Sequence[Table],
    batch: _Batch,
    count: int,
) -> list[Array]:
    """(B, *shape) for each dense variable: the batch is what the other arguments hold."""
    sizes = {count, *batch.sizes()}
    if len(sizes) != 1 or not batch.arrays:
        raise ValueError(
            f"per_sample: got {len(batch.arrays)} arrays beside the differentiated arguments and {count} losses, sizes "
            f"along sample_axis {sorted(sizes)}; accepted for dense arrays is at least one array, all with as many "
            "samples as losses (close over the rest)"
        )

    def one(new_variables: list[Array], cut: list[Array]) -> Array:
        out = call(new_variables, tables, batch.one_sample(B, cut))
        loss = _loss_and_aux(out)[0] if has_aux else out
        _check_loss(B, loss, per_sample=True)
        _check_count(B.shape(loss)[0], 1)  # type: ignore[arg-type]
        return loss

    return B.per_sample_gradients(one, variables, batch.data(B, variables[0]))


def _check_samples(
    B: Backend,
    run: Callable[..., Any],
    loss: Array,
    tables: Sequence[Table],
    batch: _Batch,
    names: Sequence[str],
    axis: int,
    found: Sequence[Any],
) -> None:
    """Check that two samples depend on themselves alone: see `islices.embedding.sample_check`."""
    count = B.shape(loss)[0]
    shapes = [(), *(B.shape(x)[1:] for x in found[len(tables) :])]
    for b in largest_two(B, loss):
        _, losses, _, lookups = run({}, b)
        reached = _table_samples(B, tables, lookups, axis, count, names)  # type: ignore[arg-type]
        check_reach(b, names[: len(tables)], reached)
        at_offsets = any(one.static.at_offsets for uses in lookups for one in uses if isinstance(one, LookedUp))
        if at_offsets or set(batch.sizes()) != {count} or not is_repeated(B, loss, losses):
            continue
        try:
            alone, _, dense, lookups = run(batch.sample(b))
            _check_count(math.prod(B.shape(alone)), 1)  # type: ignore[arg-type]
            sparse = _table_samples(B, tables, lookups, axis, 1, names)
        except Exception as error:
            refuse_influence(b, f"fn raises {type(error).__name__} ({error}) where it gets one sample")
        with B.scope():
            alone, *dense = [B.reshape(x, (1, *shape)) for x, shape in zip([alone, *dense], shapes, strict=True)]
        check_alone(B, b, ["the loss", *names], [loss, *found], [alone, *sparse, *dense])


def _is_array(x: Any) -> bool:
    B = find_backend(x)
    return B is not None and B.is_array(x)
