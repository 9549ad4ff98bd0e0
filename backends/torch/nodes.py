"""Convert calls of some functions of islices to nodes of the graph that torch.compile makes.

While torch makes a graph, a node computes only the form of the call's result: its shapes and dtypes. When the graph
runs, the call runs as in eager code, with the same bits, errors and checks. Dynamo does not trace the code of this
module. `islices.backends.torch.in_graphs` contains the functions that Dynamo traces, and marks the nodes with
`torch._dynamo.nonstrict_trace`. SPEC clause 17. May import: `torch`, the core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from islices.backend import LookedUp, Slots, Source
from islices.core import rows
from islices.core.slices import IndexedSlices
from islices.core.slots import SlotValues, slots_in
from islices.core.trees import flatten, rebuild
from islices.embedding.autodiff import _table_gradient
from islices.embedding.lookup import lookup
from islices.embedding.table import Table
from islices.norms import clip, global_norms
from islices.norms import norm as norms
from islices.norms.clip_formulas import BY_VALUE, lookup_formula
from islices.optim import Optimizer


class Nothing:
    """A constant that represents None among the arguments of a node. The class is not a frozen dataclass, because
    Dynamo does not accept a frozen dataclass as a constant."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nothing)

    def __hash__(self) -> int:
        return 0


NOTHING = Nothing()
pytree.register_constant(Nothing)
#: A tensor of this dtype represents None among results, because Dynamo does not accept constants there. No result of
#: islices has this dtype.
ABSENT = torch.float8_e4m3fnuz


class Count:
    """A size that is unknown until the graph runs."""


class New:
    """The form of a new tensor that a node returns. The tensor gets its device and, by default, its dtype from the
    tensor `like`."""

    def __init__(self, like: Tensor, shape: Sequence[int | Count], dtype: torch.dtype | None = None) -> None:
        self.like, self.shape, self.dtype = like, shape, dtype or like.dtype

    def fake(self, sizes: dict[Count, Any]) -> Tensor:
        """Return a tensor of this form without data. `sizes` maps each `Count` to its size in the graph. If a `Count`
        is not in the dict, this method adds it."""
        shape = []
        for n in self.shape:
            if isinstance(n, Count) and n not in sizes:
                sizes[n] = torch.library.get_ctx().new_dynamic_size()
            shape.append(sizes[n] if isinstance(n, Count) else n)
        return self.like.new_empty(shape, dtype=self.dtype)


class NodeCall(NamedTuple):
    """A call in a graph. The object does not contain the tensors among the call's arguments."""

    name: str
    spec: Any  # structure of (args, kwargs)
    constants: list[Any]  # the leaves of (args, kwargs), with `TENSOR` for each tensor
    written: list[bool]  # one flag per tensor, True if the call writes to it
    places: list[tuple[int, torch.dtype]]  # places of new tensors among the result's `_parts`, and their dtypes

    def arguments(self, read: Sequence[Tensor], written: Sequence[Tensor]) -> Any:
        """Return the args and kwargs of the call, with the given tensors in place of `TENSOR`."""
        own, others = iter(written), iter(read)
        tensors = iter([next(own if w else others) for w in self.written])
        return pytree.tree_unflatten([next(tensors) if x is TENSOR else x for x in self.constants], self.spec)


TENSOR = object()
#: name of a call in a graph -> the call. All graphs share this dict.
_calls: dict[str, NodeCall] = {}
_library = torch.library.Library("islices", "FRAGMENT")


class Node:
    """A function of islices whose calls may become nodes of a graph.

    Parameters
    ----------
    function : callable
        The function that the node calls when the graph runs.
    form : callable
        A function with the same arguments, which returns the form of the result: a `New` replaces each tensor that is
        not an argument.
    writes : sequence of int
        The positions of the arguments whose tensors the function changes in place. A node that writes has no result.
    """

    def __init__(self, function: Callable[..., Any], form: Callable[..., Any], writes: Sequence[int] = ()) -> None:
        self.name, self.function, self.form, self.writes = function.__name__, function, form, writes
        rest = ", Tensor(a!)[] written) -> ()" if writes else ") -> Tensor[]"
        _library.define(f"{self.name}(str call, Tensor[] read{rest}")
        _library.impl(self.name, self._run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"islices::{self.name}", self._fake, lib=_library)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add a call to the graph that torch is making, and return the result in the graph. If the result contains no
        new tensors and the function writes to no argument, no node is added."""
        args, kwargs = pytree.tree_map(lambda x: None if _is_nothing(x) else x, (args, kwargs), is_leaf=_is_nothing)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        form = self.form(*args, **kwargs)
        places = [(k, x.dtype) for k, x in enumerate(_parts(form)) if isinstance(x, New)]
        if not places and not self.writes:
            return _filled(form, iter(()))
        targets = {id(x) for k in self.writes for x in pytree.tree_leaves(args[k])}
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        written = [id(x) in targets for x in tensors]
        constants = [TENSOR if isinstance(x, Tensor) else _known(x) for x in leaves]
        call = _registered(NodeCall(self.name, spec, constants, written, places))
        read, own = ([x for x, w in zip(tensors, written, strict=True) if w is wanted] for wanted in (False, True))
        with torch.no_grad():
            made = getattr(torch.ops.islices, self.name).default(call, read, *[own] * bool(self.writes))
        return _filled(form, iter(made or ()))

    def _run(self, call: str, read: list[Tensor], written: Sequence[Tensor] = ()) -> Any:
        """Compute the results of the node. torch calls this method when a graph runs."""
        args, kwargs = _calls[call].arguments(read, written)
        with torch.no_grad():
            out = self.function(*args, **kwargs)
        if self.writes:
            return None
        found, memory = list(_parts(out)), {x.untyped_storage().data_ptr() for x in read}
        return [_own(found[k], dtype, memory) for k, dtype in _calls[call].places]

    def _fake(self, call: str, read: list[Tensor], written: Sequence[Tensor] = ()) -> Any:
        """Return tensors without data in place of the node's results. torch calls this method while it makes a
        graph."""
        if self.writes:
            return None
        args, kwargs = _calls[call].arguments(read, written)
        form, sizes = list(_parts(self.form(*args, **kwargs))), dict[Count, Any]()
        return [form[k].fake(sizes) for k, _ in _calls[call].places]


def _filled(form: Any, made: Iterator[Tensor]) -> Any:
    """Replace each `New` in a form by the next tensor, and None by a tensor of dtype `ABSENT`."""
    absent = torch.empty(0, dtype=ABSENT)
    return pytree.tree_map(lambda x: next(made) if isinstance(x, New) else absent if x is None else x, form)


def _is_nothing(x: Any) -> bool:
    return isinstance(x, Nothing)


def _parts(tree: Any) -> Iterator[Any]:
    """Yield the parts of all leaves of a tree. Slices have four parts, and every other leaf has one."""
    for leaf in flatten(tree):
        yield from _apart(leaf) if isinstance(leaf, IndexedSlices) else (leaf,)


def _apart(s: IndexedSlices) -> tuple[Any, ...]:
    slots = slots_in(s)
    return (s.values, s.indices, None, None) if slots is None else (slots.values, s.indices, *slots[3:])


def _known(x: Any) -> Any:
    """Make a number a constant of the graph, even if torch would make it dynamic. For a different number, torch then
    makes a new graph."""
    return int(x) if isinstance(x, torch.SymInt) else float(x) if isinstance(x, torch.SymFloat) else x


def _registered(call: NodeCall) -> str:
    """Store a call, and return the name that represents it in graphs. Equal calls have the same name.

    The name contains the constants and the structure of the arguments, because torch's cache on disk identifies graphs
    by their text.
    """
    text, number = f"{call.constants} {call.spec}".replace(repr(TENSOR), "_"), 0
    while _calls.setdefault(name := f"{call.name} {text} {number}", call) != call:
        number += 1
    return name


def _own(x: Tensor | float | None, dtype: torch.dtype, memory: set[int]) -> Tensor:
    """Return a part of the result as a contiguous tensor that does not share memory with the arguments.

    `x` may also be a number. A clipping factor is None if nothing was clipped, and then the tensor contains 1.
    """
    if not isinstance(x, Tensor):
        return torch.full((1,), 1.0 if x is None else x, dtype=dtype)
    shared = x.numel() and x.untyped_storage().data_ptr() in memory
    return x.clone(memory_format=torch.contiguous_format) if shared else x.contiguous()


# ---------------------------------------------------------------------- forms of results
def _each(fn: Callable[[Any], Any], tree: Any) -> Any:
    return rebuild(tree, iter([None if x is None else fn(x) for x in flatten(tree)]))


def _held(leaf: Any) -> Tensor:
    """Return the tensor in which a leaf stores its numbers. Raise TypeError if the leaf stores them in an array of
    another framework."""
    held: Any = leaf._held(0) if isinstance(leaf, IndexedSlices) else leaf
    if not isinstance(held, Tensor):
        raise TypeError(f"a graph of torch has tensors, no {type(held).__name__}")
    return held


def _values(leaf: Any) -> New:
    """Return the form of a new tensor for the values of a leaf."""
    held = _held(leaf)
    return New(held, (leaf.indices.shape[0], *held.shape[1:]) if isinstance(leaf, IndexedSlices) else held.shape)


def _alike(leaf: Any) -> Any:
    """Return the form of a copy of a leaf. The values of the copy are a new tensor."""
    return leaf._like(_values(leaf)) if isinstance(leaf, IndexedSlices) else _values(leaf)


def _scaled(leaf: Any) -> Any:
    """Return the form of a leaf that is multiplied by a clipping factor. If the values of slices are not computed yet
    and have no factor, the slices keep their stored array and also store the factor. See `islices.core.slots.times`."""
    slots = slots_in(leaf) if isinstance(leaf, IndexedSlices) else None
    if slots is None or slots.factor is not None:
        return _alike(leaf)
    wide = torch.float64 if slots.values.dtype == torch.float64 else torch.float32
    slots = slots._replace(factor=New(slots.values, (1,), wide))
    return leaf._like(SlotValues(slots))


def _coalesced(leaf: Any) -> Any:
    if not isinstance(leaf, IndexedSlices) or (leaf.coalesced and not leaf.padded):
        return leaf
    return _slices(leaf.backend, _held(leaf), leaf.indices.dtype, leaf.dense_shape, Count(), coalesced=True)


def _slices(
    B: Any, values: Tensor, index: torch.dtype, shape: Any, count: Any, *, coalesced: bool = False
) -> IndexedSlices:
    """Return the form of new slices with `count` slots and the dense shape `shape`."""
    rows, names = New(values, (count, *shape[1:])), New(values, (count,), index)
    return IndexedSlices._trusted(B, rows, names, shape, coalesced=coalesced)


def _dense(leaf: Any) -> Any:
    shape: Any = leaf.dense_shape if isinstance(leaf, IndexedSlices) else None
    return leaf if shape is None else New(_held(leaf), shape)


def _norm(tree: Any) -> New:
    found = [_held(x) for x in flatten(tree) if x is not None]
    wide = any(x.dtype == torch.float64 for x in found)
    return New(found[0], (), torch.float64 if wide else torch.float32)


def _bags(ids: Tensor, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the result's shape for a lookup with a combiner, without the shape of a row."""
    offsets = options.get("offsets")
    return tuple(ids.shape[:-1]) if offsets is None else (offsets.shape[0],)


def _rows(table: Table, ids: Tensor, **options: Any) -> New:
    weights = table._source.weights
    lead = tuple(ids.shape) if options.get("combiner") is None else _bags(ids, options)
    return New(weights, (*lead, *weights.shape[1:]))


def _gradient(table: Table, reads: Sequence[Read]) -> IndexedSlices:
    weights = table._source.weights
    shape, found = tuple(map(int, weights.shape)), [options for _, _, options in reads]
    if not reads:
        return _slices(table.backend, weights, torch.int64, shape, 0, coalesced=True)
    some = table.padding_idx is not None or any(
        options.get("padding_idx") is not None or options.get("invalid") == "drop" for options in found
    )
    wide = any(ids.dtype in (torch.int64, torch.uint32) for _, ids, _ in reads)
    count = Count() if some else sum(ids.numel() for _, ids, _ in reads)
    made = _slices(table.backend, weights, torch.int64 if wide else torch.int32, shape, count)
    if len(reads) > 1 or found[0].get("combiner") is None or table.scale_by_freq:
        return made
    upstream: Any = New(weights, (math.prod(_bags(reads[0][1], found[0])), *shape[1:]))
    positions: Any = New(weights, (count,), torch.int32)
    return made._like(SlotValues(Slots(upstream, made.indices, shape[0], positions)))


# ---------------------------------------------------------------------- the nodes
#: (a lookup's result or the gradient of this result, ids of the lookup, options of the lookup)
Read = tuple[Tensor, Tensor, Mapping[str, Any]]


def lookup_gradient(table: Table, reads: Sequence[Read]) -> IndexedSlices:
    """Compute the gradient of a table from all lookups in this table."""
    found = []
    for upstream, ids, options in reads:
        recorder = _Replayed(upstream)
        source = Source(table._source.weights, recorder)
        lookup(Table._trusted(table.backend, source, table.padding_idx, table.scale_by_freq), ids, **options)
        found.append(recorder.used)
    return _table_gradient(table.backend, table, found)  # type: ignore[no-any-return]


class _Replayed:
    """A recorder for a lookup whose upstream gradient is already known. This recorder reads no rows."""

    used: LookedUp

    def __init__(self, upstream: Tensor) -> None:
        self.upstream = upstream

    def lookup(self, weights: Any, ids: Any, extras: tuple[Any, ...], static: Any, read: Any = None) -> Tensor:
        self.used = LookedUp(self.upstream, ids, extras, static)
        return self.upstream

    bags = lookup


def expanded(s: IndexedSlices) -> Tensor:
    """Return the values of slices. If the values are not computed yet, compute them."""
    return s.values  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- forms of clips
def _by_value(x: Any, lo: Any, hi: Any, *, semantics: str = "islices") -> Any:
    raw = lookup_formula(BY_VALUE, semantics, "clip_by_value")
    return _each(_alike if raw else _alike_coalesced, x)


def _alike_coalesced(leaf: Any) -> Any:
    found = _coalesced(leaf)
    return _alike(leaf) if found is leaf else found


def _by_norm(tree: Any, max_norm: Any, *, semantics: str = "islices", nonfinite: str = "propagate") -> Any:
    known = semantics == "islices" and nonfinite != "zero" and not isinstance(max_norm, Tensor)
    return _each(_scaled if known else _alike, tree)


#: The nodes of public functions, without the nodes of `lookup` and `Optimizer.step`.
PUBLIC = (
    Node(rows.coalesce, lambda x: _each(_coalesced, x)),
    Node(rows.to_dense, lambda x: _each(_dense, x)),
    Node(norms.norm, lambda x, ord=2: _norm(x)),
    Node(global_norms.global_norm, lambda tree, ord=2: _norm(tree)),
    Node(clip.clip_by_value, _by_value),
    Node(clip.clip_by_norm, _by_norm),
    Node(clip.clip_by_row_norm, lambda x, max_norm, *, nonfinite="propagate": _each(_alike, x)),
    Node(
        global_norms.clip_by_global_norm,
        lambda tree, max_norm, **options: (_by_norm(tree, max_norm, **options), _norm(tree)),
    ),
)
NODES = {
    node.name: node
    for node in (
        *PUBLIC,
        Node(expanded, _values),
        Node(lookup, _rows),
        Node(lookup_gradient, _gradient),
        Node(Optimizer.step, lambda *_, apply: (), writes=(1, 3)),
    )
}
