"""Convert nested structures of gradients to lists of leaves and back.

The structures are lists, tuples, named tuples, dicts, and pytrees. Pytrees are containers whose types are registered
with a framework, such as flax's State and equinox's Module with JAX. None counts as a leaf. May import:
`islices.core.registry`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from islices.core.registry import find_backend, loaded_backends

#: the largest number of nested levels of containers
DEEPEST = 100


#: types whose objects are leaves; `opened` adds the types of arrays and sparse gradients, and classes of islices
_LEAVES = {type(None), str, bytes, bool, int, float, complex}


def opened(x: Any) -> tuple[Sequence[Any], Callable[[Any], Any]] | None:
    """Return (children, rebuild) of a container, or None for a leaf; rebuild(children) makes a similar container."""
    if isinstance(x, dict):
        return list(x.values()), partial(_dict_like, x)
    if isinstance(x, list):
        return x, list
    if isinstance(x, tuple):
        return x, getattr(x, "_make", tuple)
    if type(x) in _LEAVES:
        return None
    if (
        find_backend(x) is not None or type(x).__module__.partition(".")[0] == "islices"
    ):  # JAX would open PerSample and Table as pytrees
        _LEAVES.add(type(x))
        return None
    for B in loaded_backends():
        found = B.flatten_tree(x, lambda item: item is not x)
        if found is not None:
            return found
    return None


def _dict_like(x: dict[Any, Any], items: Sequence[Any]) -> Any:
    new = dict(zip(x, items, strict=True))
    if type(x) is dict:
        return new
    out = copy.copy(x)
    out.update(new)
    return out


def flatten(tree: Any, argument: str = "x") -> list[Any]:
    """Return the leaves of nested containers in order, including None.

    Raise ValueError if containers are nested deeper than `DEEPEST`.
    """
    leaves: list[Any] = []
    _collect(tree, leaves, DEEPEST, argument)
    return leaves


def _collect(tree: Any, leaves: list[Any], depth: int, argument: str) -> None:
    children: Iterable[Any]
    if isinstance(tree, (list, tuple)):
        children = tree
    else:
        found = opened(tree)
        if found is None:
            leaves.append(tree)
            return
        children = found[0]
    if not depth:
        raise ValueError(_ENDLESS.format(argument))
    for item in children:
        if type(item) in _LEAVES:
            leaves.append(item)
        else:
            _collect(item, leaves, depth - 1, argument)


_ENDLESS = f"{{}}: got a structure of more than {DEEPEST} levels, or one within itself"


def named_leaves(tree: Any, argument: str, into: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a dict from names to leaves, including None.

    A name consists of the keys and positions that lead to a leaf, joined with dots. If the tree is a single leaf, its
    name is "". If ``into`` is given, the leaves are added to this dict. Raise ValueError if two leaves have the same
    name, or if containers are nested deeper than `DEEPEST`; ``into`` then contains the leaves found before.
    """
    found: dict[str, Any] = {} if into is None else into
    _name(tree, "", found, DEEPEST, argument)
    return found


def _name(tree: Any, path: str, into: dict[str, Any], depth: int, argument: str) -> None:
    found = opened(tree)
    if found is None:
        if path in into:
            raise ValueError(f"{argument}: got two leaves of the name {path!r}; accepted is one")
        into[path] = tree
        return
    if not depth:
        raise ValueError(_ENDLESS.format(argument))
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(found[0]):
        _name(item, f"{path}.{key}" if path else f"{key}", into, depth - 1, argument)


def aligned(first: Any, tree: Any) -> list[Any]:
    """Return the items of `tree` at the places of the leaves of `first`, in the order of `first`.

    Dicts may have their keys in another order. Raise TypeError, KeyError or ValueError if `tree` lacks the structure of
    `first`.
    """
    if isinstance(first, dict):
        if not isinstance(tree, dict) or tree.keys() != first.keys():
            raise KeyError("another dict")
        return [leaf for key, item in first.items() for leaf in aligned(item, tree[key])]
    found = opened(first)
    if found is None:
        return [tree]
    other, lists = opened(tree), isinstance(first, (list, tuple))
    if other is None or lists != isinstance(tree, (list, tuple)) or not (lists or type(first) is type(tree)):
        raise TypeError("another container")
    return [leaf for item, part in zip(found[0], other[0], strict=True) for leaf in aligned(item, part)]


def rebuild(tree: Any, leaves: Iterator[Any]) -> Any:
    """Return a structure with the containers of `tree`, and with the next items of `leaves` as leaves."""
    found = (tree, None) if isinstance(tree, list) else opened(tree)
    if found is None:
        return next(leaves)
    made = []
    for item in found[0]:
        made.append(next(leaves) if type(item) in _LEAVES else rebuild(item, leaves))
    return made if found[1] is None else found[1](made)
