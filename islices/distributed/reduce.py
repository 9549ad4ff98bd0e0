"""all_reduce: the sum of every rank's gradients on every rank, with the cheapest messages. SPEC clause 25.

A rank first sums its duplicates. Then each leaf travels by one of two strategies:

gather
    Every rank sends its rows to every rank, which sums them.
ranges
    The rows are cut into one contiguous range per rank, all of about the same size. Each rank gets all ranks' rows of
    its range, sums them, and sends the sums to all.

Both add contributions in the order of ranks, so they give the same bits. `strategy` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from islices.backend import INTEGERS, Array, Backend
from islices.core import modes
from islices.core.arguments import check_name
from islices.core.conversion import accept, restored, to_native
from islices.core.dtypes import dtype_name, host_dtype
from islices.core.host import native_order
from islices.core.linear import scale_values
from islices.core.modes import HOST
from islices.core.registry import describe, find_backend, get_backend
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices, parts
from islices.core.trees import named_leaves, rebuild
from islices.distributed.agree import together
from islices.distributed.engines import find_group, named_backend
from islices.distributed.exchange import HostLeaf, reduce_all
from islices.distributed.group import ArrayGroup, Group
from islices.distributed.inside import reduce_inside
from islices.distributed.strategy import STRATEGIES, Strategy
from islices.norms.norm import check_one_framework

#: How the ranks' gradients become one.
Op: TypeAlias = Literal["sum", "mean"]
OPS = ("sum", "mean")
#: The name under which ranks send the framework of their arrays.
FRAMEWORK = "framework"


def all_reduce(x: Any, op: Op = "sum", group: Any = None, *, strategy: Strategy = "auto") -> Any:
    """Return the sum, or the mean, of every rank's gradients, on every rank.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
        Of one framework; the same structure, shapes and dtypes on every rank. Ranks may store different numbers of
        slices, or none. A rank on which a leaf is None contributes zeros and gets the result; for a sparse leaf, this
        is the framework's sparse type.
    op : {"sum", "mean"}
        "mean" divides the sum by the number of ranks.
    group : None, str, Group or an engine's own object
        See `get_group`. In traced JAX code the name of the mapped axis, or a tuple of names.
    strategy : {"auto", "gather", "ranges"}
        The strategy for messages; it changes no bit of the result. "auto" chooses the fastest by estimate, for each
        leaf.

    Returns
    -------
    structure of x
        Leaves have the types of x's leaves; sparse ones are coalesced. Every rank gets the same bits. With a single
        rank, a leaf may share memory with x's leaf.

    Raises
    ------
    TypeError, ValueError
        Raised on every rank if ranks differ, and on the rank whose x is not a gradient.
    RankError, RankTimeout
        Another rank failed, or did not come within the engine's timeout.

    Notes
    -----
    SPEC clause 25: the coalesced concatenation of every rank's coalesced gradient, in the order of ranks. All leaves
    travel together. Only a JAX program can differentiate through it.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> from islices.distributed import Alone, all_reduce
    >>> s = IndexedSlices(np.array([[1.0], [2.0], [4.0]]), np.array([5, 0, 5]), (6, 1))
    >>> all_reduce({"embedding": s}, group=Alone())["embedding"].indices
    array([0, 5])
    """
    error: Exception | None = None
    leaves: dict[str, Any] = {}
    try:
        named_leaves(x, "x", leaves)
        backends = {name: find_backend(leaf) for name, leaf in leaves.items() if leaf is not None}
        for name, B in backends.items():
            if B is None:
                accept(leaves[name], _called(name))  # raises
        check_one_framework([B for B in backends.values() if B is not None], "x")
    except Exception as raised:  # errors of containers too: the other ranks wait for this one
        error = raised
    # by name: the same on ranks whose dicts differ in order
    ranks, error = find_group(group, [leaves[name] for name in sorted(leaves)], error)
    if isinstance(ranks, Group):
        done = _over_group(leaves, ranks, op, strategy, error)
    elif error is not None:
        raise error
    else:
        done = _over_array_group(leaves, ranks, op, strategy)
    return rebuild(x, iter(done.values()))


# ---------------------------------------------------------------------- within a program
def _over_array_group(leaves: Mapping[str, Any], group: ArrayGroup, op: str, strategy: str) -> dict[str, Any]:
    _check_options(op, strategy)
    done: dict[str, Any] = {}
    for name, x in leaves.items():
        if x is None:
            done[name] = None
            continue
        leaf = accept(x, _called(name))
        _check_mean(leaf, op, name)
        done[name] = restored(_divided(reduce_inside(leaf, group, strategy), op, group.size), leaf, x)
    return done


# ---------------------------------------------------------------------- over a group of processes
class _Prepared(NamedTuple):
    """A leaf ready to travel: its host arrays, a function back to the caller's type, and an array on its device.

    A leaf that is None has None for all of them.
    """

    host: HostLeaf | None = None
    back: Callable[[HostLeaf], Any] | None = None
    like: Array | None = None


def _over_group(
    leaves: Mapping[str, Any], group: Group, op: str, strategy: str, error: Exception | None
) -> dict[str, Any]:
    def prepare() -> dict[str, _Prepared]:
        _check_options(op, strategy)
        # in an order that does not depend on how a rank has put its dict together
        return {name: _prepare(leaves[name], name, op) for name in sorted(leaves)}

    def facts(prepared: Mapping[str, _Prepared]) -> dict[str, Any]:
        own = next((one.like for one in prepared.values() if one.host is not None), None)
        words = {_called(name): _form(one.host) for name, one in prepared.items()}
        return {"op": op, "strategy": strategy, **words} | ({} if own is None else {FRAMEWORK: get_backend(own).name})

    def counts(prepared: Mapping[str, _Prepared]) -> np.ndarray[Any, Any]:
        ids = (None if one.host is None else one.host.indices for one in prepared.values())
        return np.array([0 if x is None else len(x) for x in ids], np.int64)

    with group.exclusive():
        prepared, agreed = together(
            group, "all_reduce", prepare, facts, counts, optional=True, free=(FRAMEWORK,), error=error
        )
        with group.to_the_end("all_reduce"):
            if agreed.each is not None:
                like = next((one.like for one in prepared.values() if one.host is not None), None)
                B = _backend_for(like, agreed.each)
                prepared = {name: _filled(one, _called(name), agreed.each, B, like) for name, one in prepared.items()}
            there = {name: one for name, one in prepared.items() if one.host is not None}
            kept = [name in there for name in prepared]
            rows = [each[kept] for each in agreed.counts]
            summed = reduce_all(group, [one.host for one in there.values()], rows, strategy)  # type: ignore[misc]
    sums = dict(zip(there, summed, strict=True))
    return {
        name: there[name].back(_mean_on_host(sums[name], op, group.size)) if name in there else None  # type: ignore[misc]
        for name in leaves
    }


def _check_options(op: str, strategy: str) -> None:
    check_name(op, OPS, "op")
    check_name(strategy, ("auto", *STRATEGIES), "strategy")


def _called(name: str) -> str:
    """Return the name of a leaf in messages."""
    return f"x.{name}" if name else "x"


def _check_mean(leaf: Any, op: str, name: str) -> None:
    B, values = parts(leaf)
    if op == "mean" and B.dtype(values) in INTEGERS:
        raise TypeError(f"{_called(name)}: got {describe(values)}; accepted is a floating dtype, since op is 'mean'")


def _prepare(x: Any, name: str, op: str) -> _Prepared:
    if x is None:
        return _Prepared()
    leaf = accept(x, _called(name))
    _check_mean(leaf, op, name)
    if not isinstance(leaf, IndexedSlices):
        B = get_backend(leaf)
        return _Prepared(HostLeaf(_on_host(B, leaf)), lambda out: _given(B, out.values, leaf), leaf)
    s = coalesce(leaf)
    B = s.backend

    def back(out: HostLeaf) -> Any:
        assert out.indices is not None
        values, indices = _given(B, out.values, s.values), _given(B, out.indices, s.indices)
        return restored(IndexedSlices._trusted(B, values, indices, s.dense_shape, coalesced=True), leaf, x)

    return _Prepared(HostLeaf(_on_host(B, s.values), _on_host(B, s.indices), s.dense_shape[0]), back, s.values)


def _on_host(B: Backend, x: Array) -> np.ndarray[Any, Any]:
    """Return x in host memory, bfloat16 as uint16, for reading only."""
    views = modes.host_views(B, (x,))
    found = B.to_numpy(x) if views is None else views[0]
    found = native_order(found)
    return np.ascontiguousarray(found).reshape(found.shape)  # which makes 0-d arrays 1-d


def _given(B: Backend, out: np.ndarray[Any, Any], like: Array) -> Array:
    """Return out, whose memory has no other owner, as the framework's array on like's device."""
    return B.asarray(out, like) if B.host_view(like) is None else B.from_host(out, like)


def _form(host: HostLeaf | None) -> Any:
    """Return the properties that must be the same on every rank."""
    if host is None:
        return None
    if host.indices is None:
        return ["dense", dtype_name(host.values.dtype), list(host.values.shape)]
    shape = [host.rows, *host.values.shape[1:]]
    return ["sparse", dtype_name(host.values.dtype), shape, "by", host.indices.dtype.name]


def _backend_for(like: Array | None, each: Sequence[Mapping[str, Any]]) -> Backend:
    """Return the backend of a rank's results for leaves that are None there.

    It is the backend of the rank's other leaves, else that of the first rank with leaves, or NumPy if that is missing.
    """
    if like is not None:
        return get_backend(like)
    names = [one[FRAMEWORK] for one in each if FRAMEWORK in one]
    return named_backend(names[0] if names else "numpy")[0] or get_backend("numpy")


def _filled(one: _Prepared, name: str, each: Sequence[Mapping[str, Any]], B: Backend, like: Array | None) -> _Prepared:
    """Return the leaf, or zeros if it is None here but not on another rank; the result is B's, on like's device."""
    if one.host is not None:
        return one
    form = next((ranks[name] for ranks in each if ranks[name] is not None), None)
    if form is None:
        return one
    kind, dtype, shape = form[:3]
    values = np.zeros(tuple(shape) if kind == "dense" else (0, *shape[1:]), host_dtype(dtype))
    if kind == "dense":
        return _Prepared(HostLeaf(values), lambda out: B.asarray(out.values, like))
    rows = shape[0]

    def back(out: HostLeaf) -> Any:
        assert out.indices is not None
        sums = B.asarray(out.values, like)
        s = IndexedSlices._trusted(B, sums, B.asarray(out.indices, sums), (rows, *shape[1:]), coalesced=True)
        return to_native(s)

    return _Prepared(HostLeaf(values, np.zeros(0, form[4]), rows), back)


def _divided(leaf: Any, op: str, ranks: int) -> Any:
    if op == "sum":
        return leaf
    B, values = parts(leaf)
    means = mean_of(B, values, ranks)
    return leaf.replace(values=means) if isinstance(leaf, IndexedSlices) else means


def _mean_on_host(host: HostLeaf, op: str, ranks: int) -> HostLeaf:
    return host if op == "sum" else host._replace(values=mean_of(HOST, host.values, ranks))


def mean_of(B: Backend, values: Array, ranks: int) -> Array:
    """Return the ranks' mean, given their sum."""
    return scale_values(B, values, [("div", float(ranks))])
