"""Pair the tensors of two or more trees by name, else by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from islices.core.arguments import show
from islices.core.registry import describe
from islices.core.trees import named_leaves
from islices.porting.compare.stored import Stored, read

#: Names in a and in b.
Pairs: TypeAlias = Sequence[tuple[str, str]]


class Both(NamedTuple):
    """The paired tensors of two trees, and the tensors that only one tree has."""

    pairs: list[tuple[str, str]]
    stored: list[tuple[Stored, Stored]]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notes: tuple[str, ...]


def read_both(a: Any, b: Any, pair: Mapping[str, str] | None = None) -> Both:
    """Read two trees and pair their tensors by name, by `pair`, or by position. Skip leaves that are None."""
    pair = checked_pair(pair)
    left, right = ({n: x for n, x in named_leaves(t, s).items() if x is not None} for t, s in ((a, "a"), (b, "b")))
    for p, q in pair.items():
        check_tensor(p, left, "pair", "a")
        check_tensor(q, right, "pair", "b")
    taken = set(pair.values())
    pairs = [(p, pair.get(p, p)) for p in left if pair.get(p, p) in right and (p in pair or p not in taken)]
    notes: tuple[str, ...] = ()
    if not pairs and len(left) == len(right) and left and not pair:
        pairs = list(zip(left, right, strict=True))
        if any(p and q for p, q in pairs):
            notes = ("no name is common to both sides: tensors are paired by their position",)
    stored = [(read(left[p], p, f"a[{p!r}]"), read(right[q], q, f"b[{q!r}]")) for p, q in pairs]
    only_a, only_b = (tuple(n for n in s if all(n != pq[k] for pq in pairs)) for k, s in enumerate((left, right)))
    return Both(pairs, stored, only_a, only_b, notes)


def checked_pair(pair: Any) -> Mapping[str, str]:
    """Return the mapping of an argument ``pair=``; raise TypeError if it is not a mapping."""
    if pair is not None and not isinstance(pair, Mapping):
        raise TypeError(f"pair: got {describe(pair)}; accepted is a dict of names in a to names in b")
    return pair or {}


def check_tensor(name: Any, leaves: Mapping[str, Any], argument: str, side: str) -> None:
    """Raise ValueError for a name that no tensor of a side has."""
    if not isinstance(name, str) or name not in leaves:
        known = ", ".join(map(repr, list(leaves)[:10])) + (", ..." if len(leaves) > 10 else "")
        raise ValueError(f"{argument}: got {show(name)}; accepted are the names in {side}: {known}")


def leaves_beside(tree: Any, pairs: Pairs, argument: str) -> list[Stored | None] | None:
    """Return the leaf of a third tree that belongs to each pair."""
    if tree is None:
        return None
    found = _beside(named_leaves(tree, argument), pairs, argument)
    return [None if x is None else read(x, p, f"{argument}[{p!r}]") for x, (p, _) in zip(found, pairs, strict=True)]


def states_beside(tree: Any, pairs: Pairs, argument: str) -> list[Any]:
    """Return each pair's state."""
    if tree is None:
        return [None] * len(pairs)
    if not isinstance(tree, Mapping):
        raise TypeError(f"{argument}: got {describe(tree)}; accepted is a dict of a state for each table")
    if len(pairs) == 1 and tree and not any(isinstance(x, Mapping) for x in tree.values()):
        return [tree]  # the state of the one table there is
    return _beside(tree, pairs, argument)


def _beside(leaves: Mapping[str, Any], pairs: Pairs, argument: str) -> list[Any]:
    """Return the leaf with each pair's name in a, else with its name in b, else the only leaf."""
    found = [next((leaves[n] for n in names if n in leaves), None) for names in pairs]
    if len(leaves) == len(pairs) == 1:
        return list(leaves.values())
    if leaves and pairs and all(x is None for x in found):
        known = ", ".join(map(repr, list(leaves)[:5]))
        raise ValueError(f"{argument}: got tensors named {known}; accepted is a tree with the names of a or b")
    return found
