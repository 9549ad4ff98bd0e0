"""Compute one norm over the leaves of many ranks, for `global_norm` and `clip_by_global_norm` with ``group=``.

Between processes and for order 1 or 2, each rank sends two sums (about 1 kB each) if compiled kernels support every
rank's leaves. The sums may lack a few low bits of terms. One sum covers the terms of replicated leaves, and counts
once; the other sum covers the terms of all other leaves. Every rank then adds these sums.

In all other cases, and if these sums do not determine the rounded norm, each term of the norm is split at certain bits.
The largest term and the number of terms determine these bits (`islices.norms.exact`). So two small collectives usually
suffice, for gradients of any size. In the first, each rank sends its largest term and the number of its terms. In the
second, each rank sends the sums of the parts of its terms. The order inf needs only the first collective. All these
sums are exact, except the last and smallest one, whose error is bounded. If the result is still undecided, one more
collective is needed for every further `islices.norms.exact.DIGIT` bits. Because of this, the result depends neither on
the number of ranks nor on how the leaves are distributed over ranks. Traced replicas of TensorFlow are the exception:
they cannot run the further collectives, so an undecided result may be rounded up or down. All ranks see the same
numbers, so they run the same collectives. SPEC clause 25.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from islices import kernels
from islices.backend import Array, Backend
from islices.core import modes
from islices.core.arguments import check_flag
from islices.core.slices import parts
from islices.distributed.agree import Facts, Preflight, together
from islices.distributed.engines import find_group
from islices.distributed.group import ArrayGroup, Group
from islices.distributed.reduce import form_of
from islices.embedding.marking import prefix_flags
from islices.norms.clip import clip_leaves
from islices.norms.clip_formulas import BY_GLOBAL_NORM, ClipFormula, Semantics, lookup_formula
from islices.norms.exact import Extent, Part, Sums, backend_of_norms, extent_of, norms_of_sums, sums_of
from islices.norms.limits import Limit, check_max_norm
from islices.norms.nonfinite import Nonfinite, check_nonfinite
from islices.norms.norm import (
    Leaf,
    Total,
    accept_leaves,
    as_matrices,
    check_float,
    check_order,
    exact_sum,
    look_at,
    norm_dtype,
    norm_out,
    of_one_framework,
)


class RankLeaves(NamedTuple):
    """The gradients of one rank."""

    leaves: list[Leaf | None]  # the leaves of the tree, in order
    own: list[Any]  # the checked leaves that only this rank has
    shared: list[Any]  # the checked leaves that every rank has
    facts: Facts  # values that must be the same on every rank
    ord: float = 2.0
    raw: bool = False

    @property
    def accepted(self) -> list[Any]:
        return [leaf.accepted for leaf in self.leaves if leaf is not None]


#: The numbers that a rank sends, as float64 arrays of shape (1,).
Numbers = list[Array]
#: A function that sends this rank's numbers to all ranks, and returns all ranks' numbers in the order of ranks. The
#: function's arguments are the backend, the values that must be the same on every rank, and a function that computes
#: this rank's numbers.
Tell = Callable[[Backend, Facts, Callable[[], Numbers]], list[Numbers]]


class Question(NamedTuple):
    """The arguments of a norm over many ranks."""

    tree: Any
    replicated: Any = False
    ord: float = 2.0
    raw: bool = False
    #: name -> value, for values that must be the same on every rank. Error messages contain the names.
    facts: Mapping[str, Any] = {}


def global_norm_over(tree: Any, ord: Any, group: Any, replicated: Any) -> Any:
    def request() -> Question:
        order = check_order(ord, "ord")
        return Question(tree, replicated, order, facts={"ord": order})

    return measure_over("global_norm", request, group)[1].given


def clip_over(
    tree: Any, max_norm: Any, semantics: Semantics, nonfinite: str, group: Any, replicated: Any
) -> tuple[Any, Any]:
    """Clip by the global norm over the ranks of a group. Return (tree, norm), as `islices.clip_by_global_norm` does."""
    checked: list[tuple[ClipFormula, float, Nonfinite]] = []

    def request() -> Question:
        formula: ClipFormula = lookup_formula(BY_GLOBAL_NORM, semantics, "clip_by_global_norm")
        limit, does = check_max_norm(max_norm), check_nonfinite(nonfinite)
        checked.append((formula, limit, does))
        facts = {"max_norm": limit, "semantics": semantics, "nonfinite": does}
        return Question(tree, replicated, raw=formula.raw, facts=facts)

    leaves, total = measure_over("clip_by_global_norm", request, group)
    ((formula, limit, does),) = checked
    return clip_leaves(tree, leaves, total, Limit(limit), formula, does), total.given


# ---------------------------------------------------------------------- a rank's leaves
def _held(requested: Question) -> RankLeaves:
    leaves = accept_leaves(requested.tree, "tree")
    everywhere = _spread(requested.replicated, requested.tree)
    for leaf in of_one_framework(leaves):
        check_float(*parts(leaf))
    own: list[Any] = []
    shared: list[Any] = []
    for leaf, every in zip(leaves, everywhere, strict=True):
        if leaf is not None:
            (shared if every else own).append(leaf.accepted)
    facts = {**requested.facts, "replicated": [form_of(leaf) for leaf in shared] or "no leaves"}
    return RankLeaves(leaves, own, shared, facts, requested.ord, requested.raw)


def _spread(replicated: Any, tree: Any) -> list[bool]:
    """Return one flag per leaf of a tree. In `replicated`, a flag may stand in the place of a container, and then
    applies to all its leaves."""
    try:
        flags = prefix_flags(replicated, tree)
    except ValueError as error:
        raise ValueError(
            f"replicated: got {error} than the tree's; accepted is its structure, or an upper part of it, of bools"
        ) from None
    return [check_flag(flag, "replicated") for flag in flags]


# ---------------------------------------------------------------------- the two collectives
def measure_over(call: str, request: Callable[[], Question], group: Any) -> tuple[list[Leaf | None], Total]:
    """Return (the leaves of this rank's tree in their order, the norm over the leaves of all ranks of a group). If
    `group` is None, the norm is over this rank's leaves.

    If `request` raises an error, this rank first reports the error to the other processes of a `Group`, and then raises
    it.
    """
    held, error = RankLeaves([], [], [], {}), None
    try:
        held = _held(request())
    except Exception as raised:
        error = raised
    arrays = list(map(parts, held.accepted))
    ranks: Group | ArrayGroup | None = None
    if group is not None:
        ranks = find_group(group, [x for _, x in arrays], error)
    if isinstance(ranks, Group):
        if error is None and any(modes.is_traced(B, x) for B, x in arrays):
            error = ValueError(
                f"group: got {ranks!r} for traced arrays; accepted is what names ranks within the program"
            )
        return held.leaves, _by_kernels(held, ranks, call, error) or _total(held, partial(_tell, ranks, call))
    if error is not None:
        raise error
    # all ranks of a program have the same leaves, so if this rank has none, no rank has numbers to send
    if ranks is None or not arrays:
        return held.leaves, _total(held, lambda E, facts, make: [make()])
    return held.leaves, _total(held, partial(_tell_within, ranks, held), in_loops=ranks.in_loops)


def _tell(group: Group, call: str, E: Backend, facts: Facts, make: Callable[[], Numbers]) -> list[Numbers]:
    """Send this rank's numbers to all ranks, which are processes. See `Tell`."""
    _, agreed = together(group, call, lambda: (None, facts, np.concatenate(make()).view(np.int64)))
    return [list(one.view(np.float64).reshape(-1, 1)) for one in agreed.counts]


def _tell_within(
    group: ArrayGroup, held: RankLeaves, E: Backend, facts: Facts, make: Callable[[], Numbers]
) -> list[Numbers]:
    """Send this rank's numbers to all ranks of a program. See `Tell`. All ranks run the same program, so their
    ``facts`` are the same."""
    B, like = _first(held)
    numbers = make()
    k, mine = len(numbers), E.concat(numbers)
    with B.scope():
        joined = group.all_gather(B.asarray(mine, like) if E is modes.HOST else mine)
        if E is modes.HOST:  # the program is not being traced
            joined = B.to_numpy(joined)
    joined = E.reshape(joined, (1, group.size * k))
    # Each row_sum has only one element to add. The calls are needed because adapters keep compilers from reordering
    # additions of results of row_sum, but not of reshaped arrays.
    columns = [E.row_sum(E.columns(joined, j, j + 1)) for j in range(group.size * k)]
    return [columns[rank * k : (rank + 1) * k] for rank in range(group.size)]


# ---------------------------------------------------------------------- the norm
def _by_kernels(held: RankLeaves, group: Group, call: str, error: Exception | None) -> Total | None:
    """Compute the norm from the sums that each rank's kernels compute, or return None if these do not suffice.

    For a norm, the order must be 1 or 2, kernels must compute the sums of every rank, and the sums must determine the
    rounded norm. `error` is an earlier error of this rank.
    """
    if error is None and held.ord not in (1.0, 2.0):
        return None

    def prepare() -> Preflight[None]:
        own, shared = (exact_sum(leaves, held.ord, raw=held.raw) for leaves in (held.own, held.shared))
        if own is None or shared is None:
            return None, held.facts, [0, 0]
        wide = norm_dtype(held.accepted) == "float64"
        return None, held.facts, [1, wide, *own[0].tolist(), shared[1], *shared[0].tolist()]

    counts = together(group, call, prepare, error=error)[1].counts
    if not all(one[0] for one in counts):
        return None
    compiled = kernels.active()
    assert compiled is not None, "this rank told so"
    size = len(counts[0]) // 2 - 1
    _check_same([one[2 + size :] for one in counts])
    limbs = counts[0][3 + size :] + np.sum([one[2 : 2 + size] for one in counts], axis=0)
    number = compiled.rounded(limbs, int(held.ord))
    if number is None:  # on every rank
        return None
    exact, dtype = np.array((number,)), "float64" if any(one[1] for one in counts) else "float32"
    return _as_total(held, modes.HOST, exact, dtype)


def _total(held: RankLeaves, tell: Tell, *, in_loops: bool = True) -> Total:
    ranks = _Joined(held, tell)
    E = backend_of_norms([*ranks.own, *ranks.shared])
    with E.scope():
        extent = ranks.extent(E)
        sums = partial(ranks.sums, E, extent.top)
        exact = norms_of_sums(E, extent, sums, held.ord, loops=in_loops or E is modes.HOST)
    return _as_total(held, E, exact, "float64" if extent.wide else "float32")


def _as_total(held: RankLeaves, E: Backend, exact: Array, dtype: str) -> Total:
    return Total(E, exact, dtype, norm_out(E, exact, dtype, *(_first(held) if held.accepted else ())))


class _Joined:
    """This rank's leaves, with the function that sends this rank's numbers and returns those of all ranks.

    Each rank sends sums over its leaves that are not replicated, and sums over the replicated leaves.
    """

    def __init__(self, held: RankLeaves, tell: Tell) -> None:
        self.held, self.tell = held, tell
        found, own = as_matrices([look_at(leaf) for leaf in (*held.own, *held.shared)], raw=held.raw), len(held.own)
        self.own, self.shared = found[:own], found[own:]

    def extent(self, E: Backend) -> Extent:
        """Return the `Extent` of all ranks' leaves together."""
        held = self.held

        def extents() -> Numbers:
            none = Extent(_constant(E, held, 0.0), 0.0, False)
            own, shared = (extent_of(E, leaves) if leaves else none for leaves in (self.own, self.shared))
            known = (own.count, shared.count, float(own.wide or shared.wide))
            return [own.top, shared.top, *(_constant(E, held, number) for number in known)]

        ranks = self.tell(E, held.facts, extents)
        _, top, _, count, _ = ranks[0]
        for own_top, _, own_count, *_ in ranks:
            top, count = E.maximum(top, own_top), count + own_count
        if E is modes.HOST:  # in traced code the numbers are unknown, so replicated leaves cannot be compared
            _check_same([one[1:4:2] for one in ranks])
            return Extent(top, count, any(one[4][0] for one in ranks))
        return Extent(top, count, any(B.dtype(x) == "float64" for B, x, _ in [*self.own, *self.shared]))

    def sums(self, E: Backend, top: Array, fn: Part, units: Sequence[Array], number: int) -> Sums:
        """Return the result of `sums_of` for all ranks' leaves together. For replicated leaves, only the sums of rank 0
        count.

        `top` contains the largest absolute value of all leaves, in an array of shape (1,).
        """
        zero = _constant(E, self.held, 0.0)

        def parts() -> Numbers:
            sums: Numbers = []
            for leaves in (self.own, self.shared):
                sums += sums_of(E, leaves, fn, units, number) if leaves else [zero] * number
            return sums

        ranks = self.tell(E, {}, parts)
        if E is modes.HOST and np.isfinite(top).all():
            _check_same([one[number:-1] for one in ranks])  # without the last sum, which is not exact
        total = ranks[0][number:]
        for one in ranks:
            total = [x + y for x, y in zip(total, one[:number], strict=True)]
        return tuple(total)


def _check_same(counts: Sequence[Any]) -> None:
    """Raise ValueError on every rank if the ranks' numbers for replicated leaves differ."""
    others = [rank for rank, one in enumerate(counts) if not np.array_equal(one, counts[0], equal_nan=True)]
    if others:
        raise ValueError(
            f"replicated: got leaves that are not the same on rank {others[0]} as on rank 0; accepted are leaves of "
            "which every rank holds the same, as all_reduce gives them"
        )


def _first(held: RankLeaves) -> tuple[Backend, Array]:
    """Return the backend and the values of the first leaf. New arrays are made on the device of these values."""
    return parts(held.accepted[0])


def _constant(E: Backend, held: RankLeaves, number: Any) -> Array:
    """Convert a float to a float64 array of E with the shape (1,). Return an array unchanged."""
    if not isinstance(number, float):
        return number
    array = np.array((number,))
    return array if E is modes.HOST else E.asarray(array, _first(held)[1])
