"""Define all_reduce, which sums the gradients of all ranks, and gives every rank the sum. SPEC clause 25.

Each rank first coalesces its sparse gradients. Then the ranks use one of two strategies for each leaf:

gather
    Every rank sends its rows to all ranks. Every rank computes the sum.
ranges
    The rows are divided into one contiguous range per rank, each with about the same number of stored rows. Each rank
    receives the rows of its range from all ranks, sums them, and sends the sums to all ranks.

Both strategies add contributions in the order of ranks, so the results have the same bits. By default, the module
`strategy` estimates which one is faster, and chooses it.

Over a mapped axis of JAX or in a replica context of TensorFlow, `all_reduce` is part of a program, which may be traced.
Traced code cannot read values. So within a program, messages depend only on shapes, and invalid values may raise no
error. Programs always gather slices, because the lengths of ranges would depend on the indices. If shapes are static,
ranks also send padding. The result then has as many rows, with padding, as the slices of all ranks together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from islices.backend import INTEGERS, Array, Backend, Host
from islices.core import modes
from islices.core.arguments import check_name, show
from islices.core.conversion import accept, restored, to_native
from islices.core.dtypes import host_dtype
from islices.core.host import native_order
from islices.core.linear import scale_values
from islices.core.modes import HOST
from islices.core.registry import describe, find_backend, get_backend
from islices.core.rows import coalesce
from islices.core.shapes import size_of
from islices.core.slices import IndexedSlices, parts, shape_of
from islices.core.trees import named_leaves, rebuild
from islices.distributed.agree import Facts, Preflight, together
from islices.distributed.engines import find_group, named_backend
from islices.distributed.exchange import HostLeaf, reduce_all, sparse_leaf
from islices.distributed.group import ArrayGroup, Group
from islices.distributed.strategy import STRATEGIES, Strategy, choose, costs
from islices.norms.norm import check_one_framework

#: The operation that combines the ranks' gradients.
Op: TypeAlias = Literal["sum", "mean"]
OPS = ("sum", "mean")
#: The name under which ranks send the framework of their arrays.
FRAMEWORK = "framework"


def all_reduce(x: Any, op: Op = "sum", group: Any = None, *, strategy: Strategy = "auto") -> Any:
    """Sum the gradients of all ranks, or compute their mean, and return the result on every rank.

    Parameters
    ----------
    x : sparse gradient, dense array, None, or a list, tuple or dict of them
        This rank's gradients, all of one framework. Structure, shapes and dtypes must be the same on every rank. The
        numbers of stored rows may differ. If a leaf is None on some ranks, these ranks contribute zeros and get the
        result. On ranks with None, a sparse result has the framework's sparse type (IndexedSlices for NumPy). A leaf
        stays None if it is None on every rank, or if the call is part of a program that runs on several ranks.
    op : {"sum", "mean"}
        "mean" divides the sum by the number of ranks.
    group : None, str, Group or an engine's group object
        See `get_group`. In traced JAX code, pass the name of the mapped axis, or a tuple of names.
    strategy : {"auto", "gather", "ranges"}
        The method by which the ranks exchange data. The result has the same bits with every strategy. "auto" estimates
        the time that each strategy needs, and chooses the faster one for each leaf. Within a program, "ranges" raises
        ValueError.

    Returns
    -------
    structure of x
        A leaf that is not None in x keeps its type, and sparse leaves are coalesced. Every rank gets the same bits. If
        there is only one rank, a leaf may share memory with the leaf of x.

    Raises
    ------
    TypeError, ValueError
        This rank's arguments are invalid, or the ranks are processes and their arguments differ. In the second case,
        every rank raises the error.
    RankError, RankTimeout
        Another rank failed, or did not call within the group's timeout.

    Notes
    -----
    Each rank's sparse gradient is coalesced. The sum has the same bits as if these gradients were
    concatenated in the order of ranks, and coalesced again (SPEC clause 25). If ranks are processes, all leaves share
    the same collectives. Only JAX programs can differentiate through the call.

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
    except Exception as raised:  # report even errors that a container raises: other ranks wait
        error = raised
    # sorted by name, because the order of dicts may differ between ranks
    ranks = find_group(group, [leaves[name] for name in sorted(leaves)], error)
    if isinstance(ranks, Group):
        done = _over_group(leaves, ranks, op, strategy, error)
    elif error is not None:
        raise error
    else:
        done = _over_array_group(leaves, ranks, op, strategy)
    return rebuild(x, iter(done.values()))


def _check_options(op: str, strategy: str) -> None:
    check_name(op, OPS, "op")
    check_name(strategy, ("auto", *STRATEGIES), "strategy")


def _called(name: str) -> str:
    """Return the name of a leaf for error messages, such as "x.embedding"."""
    return f"x.{name}" if name else "x"


def _accept(x: Any, name: str, op: str) -> Any:
    """Check a leaf that is not None, and return the checked leaf."""
    leaf = accept(x, _called(name))
    B, values = parts(leaf)
    if op == "mean" and B.dtype(values) in INTEGERS:
        raise TypeError(f"{_called(name)}: got {describe(values)}; accepted is a floating dtype, since op is 'mean'")
    return leaf


def form_of(leaf: Any) -> list[Any]:
    """Return the properties of a leaf that must be the same on every rank, as JSON values."""
    B, values = parts(leaf)
    return ["sparse" if isinstance(leaf, IndexedSlices) else "dense", B.dtype(values), list(shape_of(leaf))]


def finished(B: Backend, values: Array, op: str, ranks: int) -> Array:
    """Return `values`, a sum over `ranks` ranks; if `op` is "mean", divide them by `ranks`."""
    return values if op == "sum" else scale_values(B, values, [("div", float(ranks))])


# ---------------------------------------------------------------------- within a program
def _over_array_group(leaves: Mapping[str, Any], group: ArrayGroup, op: str, strategy: str) -> dict[str, Any]:
    _check_options(op, strategy)
    done: dict[str, Any] = {}
    for name, x in leaves.items():
        if x is None:
            done[name] = None
            continue
        leaf = _accept(x, name, op)
        if strategy not in ("auto", "gather"):
            raise ValueError(
                f"strategy: got {show(strategy)} for {group.engine}; accepted within a program are 'auto' and 'gather'"
            )
        if isinstance(leaf, IndexedSlices):
            total = _gathered(coalesce(leaf), group)
            out = total.replace(values=finished(total.backend, total.values, op, group.size))
        else:
            B = get_backend(leaf)
            out = finished(B, _summed(B, leaf, group, strategy), op, group.size)
        done[name] = restored(out, leaf, x)
    return done


def _gathered(s: IndexedSlices, group: ArrayGroup) -> IndexedSlices:
    """Sum coalesced slices over all ranks."""
    B = s.backend
    with B.scope():
        values, indices = group.all_gather(s.values), group.all_gather(s.indices)
    still = s.padded or modes.keeps_slots(B, values, indices)
    return coalesce(IndexedSlices._trusted(B, values, indices, s.dense_shape, padded=still))


def _summed(B: Backend, x: Array, group: ArrayGroup, strategy: str) -> Array:
    """Sum a dense array over all ranks."""
    shape = B.shape(x)
    size = size_of(shape) or 0
    cuts = size and strategy == "auto" and type(group).all_to_all is not ArrayGroup.all_to_all
    found = costs(group.size, row_bytes=host_dtype(B.dtype(x)).itemsize, most=size, union=size, dense=True)
    with B.scope():
        if cuts and choose(found, group.size) == "ranges":
            return B.reshape(_summed_by_ranges(B, B.reshape(x, (size,)), group), shape)
        return _fold(B, group.all_gather(B.reshape(x, (1, *shape))), group.size)


def _summed_by_ranges(B: Backend, x: Array, group: ArrayGroup) -> Array:
    """Sum a 1-D array over all ranks. Each rank sums one range, and then all ranks gather the sums."""
    (count,) = B.shape(x)
    assert count is not None
    each = -(-count // group.size)
    rest = each * group.size - count
    if rest:
        x = B.concat([x, B.zeros((rest,), B.dtype(x), x)])
    blocks = B.reshape(group.all_to_all(x), (group.size, each))
    return group.all_gather(_fold(B, blocks, group.size))[:count]


def _fold(B: Backend, blocks: Array, ranks: int) -> Array:
    """Add the blocks along axis 0, which is the axis of ranks, in the order of ranks.

    16-bit values are added in float32, and the sum is rounded once.
    """
    shape = B.shape(blocks)[1:]
    dtype = B.dtype(blocks)
    wide = B.widen(B.reshape(blocks, (ranks, *shape)))
    order = B.arange(wide)
    total: Any = None
    for rank in range(ranks):
        block = B.reshape(B.take(wide, order[rank : rank + 1]), shape)
        total = block if total is None else total + block
    return B.astype(total, dtype)


# ---------------------------------------------------------------------- over a group of processes
class _Prepared(NamedTuple):
    B: Backend  # the backend of the result
    like: Array  # an array on the device of the result, or None if the device is unknown
    host: HostLeaf
    form: list[Any]  # must be the same on every rank: kind, dtype, shape; for slices also "by" and the index dtype
    put: Callable[[Backend, Host, Array], Array]
    restore: Callable[[IndexedSlices], Any] = lambda s: s  # converts slices to the caller's type

    def result(self, columns: Sequence[Host]) -> Any:
        """Convert the sum of a leaf to the caller's type."""
        *indices, values = columns
        shape = tuple(self.form[2])
        if self.host.dense:
            return self.put(self.B, values.reshape(shape), self.like)
        values, ids = (self.put(self.B, x, self.like) for x in (values, indices[0].astype(self.form[4], copy=False)))
        return self.restore(IndexedSlices._trusted(self.B, values, ids, shape, coalesced=True))


def _over_group(
    leaves: Mapping[str, Any], group: Group, op: str, strategy: str, error: Exception | None
) -> dict[str, Any]:
    names = sorted(leaves)  # sorted, because the order of dicts may differ between ranks

    def prepare() -> Preflight[dict[str, _Prepared]]:
        _check_options(op, strategy)
        prepared = {name: _prepared(leaves[name], name, op) for name in names if leaves[name] is not None}
        forms = {_called(name): prepared[name].form if name in prepared else None for name in names}
        framework = next((one.B.name for one in prepared.values()), None)
        stored = [prepared[name].host.stored if name in prepared else 0 for name in names]
        return prepared, {"op": op, "strategy": strategy, **forms, FRAMEWORK: framework}, stored

    with group.exclusive():
        prepared, agreed = together(group, "all_reduce", prepare, optional=True, free=(FRAMEWORK,), error=error)
        with group.to_the_end("all_reduce"):
            if agreed.each is not None:
                prepared |= _zeros(prepared, [name for name in names if name not in prepared], agreed.each)
            kept = [name for name in names if name in prepared]
            rows = [stored[[name in prepared for name in names]] for stored in agreed.counts]
            summed = reduce_all(group, [prepared[name].host for name in kept], rows, strategy)
    done: dict[str, Any] = dict.fromkeys(leaves)
    for name, host in zip(kept, summed, strict=True):
        *indices, values = host.columns
        done[name] = prepared[name].result([*indices, finished(HOST, values, op, group.size)])
    return done


def _prepared(x: Any, name: str, op: str) -> _Prepared:
    leaf = _accept(x, name, op)
    B, values = parts(leaf)
    if not isinstance(leaf, IndexedSlices):
        host = _on_host(B, values)
        return _Prepared(B, values, HostLeaf([host.reshape(-1)]), form_of(leaf), _given)
    s = coalesce(leaf)
    form = [*form_of(leaf), "by", B.dtype(s.indices)]
    host_leaf = sparse_leaf(_on_host(B, s.values), _on_host(B, s.indices), s.dense_shape[0])
    return _Prepared(B, s.values, host_leaf, form, _given, lambda out: restored(out, leaf, x))


def _zeros(prepared: Mapping[str, _Prepared], names: Sequence[str], each: Sequence[Facts]) -> dict[str, _Prepared]:
    """Return zeros for the leaves in `names`, which are None on this rank. Leaves that are None on every rank are left
    out.

    The sums are later converted to arrays of the framework of this rank's other leaves. If all leaves of this rank are
    None, the sums become arrays of the framework of the first rank that has a leaf. If this rank cannot load that
    framework, the sums become NumPy arrays.
    """
    first = next(iter(prepared.values()), None)
    others = [one[FRAMEWORK] for one in each if one[FRAMEWORK] is not None]
    zeros = {}
    for name in names:
        form = next((one[_called(name)] for one in each if one[_called(name)] is not None), None)
        if form is None:
            continue
        kind, dtype, shape = form[:3]
        if kind == "dense":
            host = HostLeaf([np.zeros(math.prod(shape), host_dtype(dtype))])
        else:
            host = sparse_leaf(np.zeros((0, *shape[1:]), host_dtype(dtype)), np.zeros(0, form[4]), shape[0])
        B = first.B if first else named_backend(others[0])[0] or get_backend("numpy")
        zeros[name] = _Prepared(B, first and first.like, host, form, lambda B, x, like: B.asarray(x, like), to_native)
    return zeros


def _on_host(B: Backend, x: Array) -> Host:
    """Return x as a host array, with uint16 in place of bfloat16. The caller must not write to the result."""
    views = modes.host_views(B, (x,))
    found = B.to_numpy(x) if views is None else views[0]
    found = native_order(found)
    return np.ascontiguousarray(found).reshape(found.shape)  # ascontiguousarray makes 0-d arrays 1-d


def _given(B: Backend, out: Host, like: Array) -> Array:
    """Convert a host array to an array of the framework on the device of `like`. No other object may use the memory of
    `out`."""
    return B.asarray(out, like) if B.host_view(like) is None else B.from_host(out, like)
