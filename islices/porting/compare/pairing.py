"""Which tensor of one tree stands beside which of another, and of further trees: by name, else by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from islices.core.arguments import show
from islices.core.registry import describe
from islices.core.trees import named_leaves
from islices.porting.compare.stored import Stored, read

__all__ = ["Both", "check_tensor", "leaves_beside", "read_both", "states_beside"]


class Both(NamedTuple):
    """All that two trees hold, tensor beside tensor."""

    pairs: list[tuple[str, str]]
    stored: list[tuple[Stored, Stored]]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notes: tuple[str, ...]


def read_both(a: Any, b: Any, pair: Mapping[str, str] | None, only: str | None) -> Both:
    left, right = named_leaves(a, "a"), named_leaves(b, "b")
    if pair is not None and not isinstance(pair, Mapping):
        raise TypeError(f"pair: got {describe(pair)}; accepted is a dict of names in a to names in b")
    pairs, only_a, only_b, notes = _paired(left, right, pair or {}, only)
    stored = [(read(left[p], p, f"a[{p!r}]"), read(right[q], q, f"b[{q!r}]")) for p, q in pairs]
    return Both(pairs, stored, only_a, only_b, notes)


def _paired(
    left: dict[str, Any], right: dict[str, Any], pair: Mapping[str, str], only: str | None
) -> tuple[list[tuple[str, str]], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(names paired, only in a, only in b, notes); a leaf that is None is on no side."""
    for p, q in pair.items():
        check_tensor(p, left, "pair", "a")
        check_tensor(q, right, "pair", "b")
    a = [p for p, x in left.items() if x is not None]
    b = [q for q, x in right.items() if x is not None]
    if only is not None:
        check_tensor(only, left, "only", "a")
        a = [p for p in a if p == only]
        b = [q for q in b if q == pair.get(only, only)]
    taken = set(pair.values())
    pairs = [(p, pair.get(p, p)) for p in a if pair.get(p, p) in b and (p in pair or p not in taken)]
    notes: tuple[str, ...] = ()
    if not pairs and len(a) == len(b) and a and not pair and (len(a) == 1 or only is None):
        pairs = list(zip(a, b, strict=True))
        if any(p and q for p, q in pairs):
            notes = ("no name is common to both sides: tensors are paired by their position",)
    beside_a, beside_b = {p for p, _ in pairs}, {q for _, q in pairs}
    return pairs, tuple(p for p in a if p not in beside_a), tuple(q for q in b if q not in beside_b), notes


def check_tensor(name: Any, leaves: Mapping[str, Any], argument: str, side: str) -> None:
    """ValueError for a name that no tensor of a side has."""
    if not isinstance(name, str) or name not in leaves:
        known = ", ".join(map(repr, list(leaves)[:10])) + (", ..." if len(leaves) > 10 else "")
        raise ValueError(f"{argument}: got {show(name)}; accepted are the names in {side}: {known}")


def leaves_beside(tree: Any, pairs: Sequence[tuple[str, str]], argument: str) -> list[Stored | None] | None:
    """The leaf of a third tree beside each pair: of a's name, else of b's, else the only one there is."""
    if tree is None:
        return None
    leaves = named_leaves(tree, argument)
    out: list[Stored | None] = []
    for p, q in pairs:
        name = next((n for n in (p, q) if n in leaves), None)
        if name is None and len(leaves) == len(pairs) == 1:
            (name,) = leaves
        leaf = None if name is None else leaves[name]
        out.append(None if leaf is None else read(leaf, p, f"{argument}[{name!r}]"))
    if pairs and all(x is None for x in out):
        raise ValueError(f"{argument}: got {_short(leaves)}; accepted is a tree with the names of a or b")
    return out


def states_beside(tree: Any, pairs: Sequence[tuple[str, str]], argument: str) -> list[Any]:
    """Each pair's state: of a's name, else of b's, else the only one there is."""
    if tree is None:
        return [None] * len(pairs)
    if not isinstance(tree, Mapping):
        raise TypeError(f"{argument}: got {describe(tree)}; accepted is a dict of a state for each table")
    found = [next((tree[n] for n in names if n in tree), None) for names in pairs]
    if len(pairs) == 1 and found == [None] and tree and not any(isinstance(x, Mapping) for x in tree.values()):
        return [tree]  # the state of the one table there is
    if pairs and tree and all(x is None for x in found):  # some optimizers keep none
        known = ", ".join(map(repr, list(tree)[:5]))
        raise ValueError(f"{argument}: got states of {known}; accepted is a dict with the names of a or b")
    return found


def _short(leaves: dict[str, Any]) -> str:
    return f"leaves named {', '.join(map(repr, list(leaves)[:5]))}" if leaves else "no leaves"
