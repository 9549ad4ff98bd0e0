"""Nested structures of gradients: lists, tuples, named tuples and dicts in one another, as their leaves and back.

None is a leaf like any other. May import: the standard library.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["DEEPEST", "aligned", "flatten", "named_leaves", "rebuild", "structure"]

#: Levels of lists, tuples and dicts that may lie in one another.
DEEPEST = 100


def flatten(tree: Any, argument: str = "x") -> list[Any]:
    """The leaves of nested lists, tuples and dicts, in order; None is a leaf too. ValueError beyond `DEEPEST`."""
    if not isinstance(tree, (list, tuple, dict)):
        return [tree]
    leaves: list[Any] = []
    _collect(tree, leaves, DEEPEST, argument)
    return leaves


def _collect(tree: Any, leaves: list[Any], depth: int, argument: str) -> None:
    if not depth:
        raise ValueError(f"{argument}: got a structure of more than {DEEPEST} levels, or one within itself")
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, (list, tuple, dict)):
            _collect(item, leaves, depth - 1, argument)
        else:
            leaves.append(item)


def named_leaves(tree: Any, argument: str, into: dict[str, Any] | None = None) -> dict[str, Any]:
    """name -> leaf, None included: keys and positions joined by dots; a tree that is one leaf has the name "".

    ValueError where two leaves come to the same name, or a structure does not end; what is in ``into`` by then are the
    leaves before that.
    """
    found: dict[str, Any] = {} if into is None else into
    _name(tree, "", found, DEEPEST, argument)
    return found


def _name(tree: Any, path: str, found: dict[str, Any], depth: int, argument: str) -> None:
    items: Iterable[tuple[Any, Any]]
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, (list, tuple)):
        items = enumerate(tree)
    else:
        if path in found:
            raise ValueError(f"{argument}: got two leaves of the name {path!r}; accepted is one")
        found[path] = tree
        return
    if not depth:
        raise ValueError(f"{argument}: got a structure of more than {DEEPEST} levels, or one within itself")
    for key, item in items:
        _name(item, f"{path}.{key}" if path else f"{key}", found, depth - 1, argument)


def aligned(first: Any, tree: Any) -> list[Any]:
    """The leaves of tree in the order of first, whose structure it shares: equal dicts may differ in order.

    TypeError, KeyError or ValueError where it does not.
    """
    if isinstance(first, dict):
        if not isinstance(tree, dict) or tree.keys() != first.keys():
            raise KeyError("another dict")
        return [leaf for key, item in first.items() for leaf in aligned(item, tree[key])]
    if isinstance(first, (list, tuple)):
        if not isinstance(tree, (list, tuple)):  # an array would be taken apart by rows
            raise TypeError("no list or tuple")
        return [leaf for item, other in zip(first, tree, strict=True) for leaf in aligned(item, other)]
    return [tree]


def structure(tree: Any) -> Any:
    """What two nested structures must share to be combined leaf by leaf."""
    if isinstance(tree, dict):
        return {key: structure(item) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [structure(item) for item in tree]
    return None


def rebuild(tree: Any, leaves: Iterator[Any]) -> Any:
    """A structure like tree, of the same container types, with its leaves taken from an iterator."""
    if not isinstance(tree, (list, tuple, dict)):
        return next(leaves)
    made = []
    for item in tree.values() if isinstance(tree, dict) else tree:
        made.append(rebuild(item, leaves) if isinstance(item, (list, tuple, dict)) else next(leaves))
    if isinstance(tree, list):
        return made
    if isinstance(tree, tuple):
        return tree._make(made) if hasattr(tree, "_make") else tuple(made)  # pyright: ignore[reportAttributeAccessIssue]
    items = dict(zip(tree, made, strict=True))
    if type(tree) is dict:
        return items
    out = copy.copy(tree)
    out.update(items)
    return out
