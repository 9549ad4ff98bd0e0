"""Pair the tensors of two trees by name, or by position if no pairs are given and no names are equal.

The tensors of a third tree can be assigned to the pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from islices.core.arguments import show
from islices.core.registry import describe
from islices.core.trees import named_leaves
from islices.porting.compare.stored import Stored, read


class Both(NamedTuple):
    """The paired tensors of two trees, and the tensors that only one tree has."""

    stored: list[tuple[Stored, Stored]]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_both(a: Any, b: Any, pair: Mapping[str, str] | None = None) -> Both:
    """Read two trees and pair their tensors, first by the names in `pair`, then by equal names. If `pair` is empty and
    the trees have equally many leaves but no common name, pair the leaves by position. Skip leaves that are None."""
    left, right = ({n: x for n, x in named_leaves(t, s).items() if x is not None} for t, s in ((a, "a"), (b, "b")))
    names, notes = pair_names(left, right, pair), tuple[str, ...]()
    if not names and len(left) == len(right) and not pair:
        names = dict(zip(left, right, strict=True))
        if any(p and q for p, q in names.items()):
            notes = ("no name is common to both sides: tensors are paired by their position",)
    stored = [(read(left[p], p, f"a[{p!r}]"), read(right[q], q, f"b[{q!r}]")) for p, q in names.items()]
    only_a, only_b = (tuple(n for n in s if n not in paired) for s, paired in ((left, names), (right, names.values())))
    return Both(stored, only_a, only_b, notes)


def pair_names(left: Mapping[str, Any], right: Mapping[str, Any], pair: Any) -> dict[str, str]:
    """Pair names by the argument ``pair``, then by equal names. Return {name in a: name in b}.

    Raise TypeError if ``pair`` is neither None nor a mapping. Raise ValueError if a key is not a name in a, or a value
    is not a name in b.
    """
    if pair is not None and not isinstance(pair, Mapping):
        raise TypeError(f"pair: got {describe(pair)}; accepted is a dict of names in a to names in b")
    pair = pair or {}
    for names, leaves, side in ((pair.keys(), left, "a"), (pair.values(), right, "b")):
        for name in names:
            if not isinstance(name, str) or name not in leaves:
                known = ", ".join(map(repr, list(leaves)[:10])) + (", ..." if len(leaves) > 10 else "")
                raise ValueError(f"pair: got {show(name)}; accepted are the names in {side}: {known}")
    taken = set(pair.values())
    names = {p: pair.get(p, p) for p in left if p in pair or p not in taken}
    return {p: q for p, q in names.items() if q in right}


def leaves_beside(tree: Any, both: Both, argument: str) -> list[Stored | None]:
    """Find the leaf of a third tree that belongs to each pair of tensors. The leaf has the pair's name in a or, if no
    leaf has this name, the pair's name in b. If there is only one pair and one leaf, they belong together. For a pair
    without a leaf, the result contains None. Raise ValueError if the tree has leaves, but none for any pair."""
    pairs = [(x.name, y.name) for x, y in both.stored]
    leaves = {} if tree is None else named_leaves(tree, argument)
    found = [leaves.get(p, leaves.get(q)) for p, q in pairs]
    if len(leaves) == len(pairs) == 1:
        found = list(leaves.values())
    elif leaves and pairs and all(x is None for x in found):
        known = ", ".join(map(repr, list(leaves)[:5]))
        raise ValueError(f"{argument}: got tensors named {known}; accepted is a tree with the names of a or b")
    return [None if x is None else read(x, p, f"{argument}[{p!r}]") for x, (p, _) in zip(found, pairs, strict=True)]
