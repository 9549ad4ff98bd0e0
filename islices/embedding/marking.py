"""Choose the leaves that get row-sparse gradients, given the argument sparse= of `value_and_grad`.

SPEC clause 12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from islices.backend import Backend
from islices.core.arguments import show
from islices.core.registry import describe
from islices.core.trees import DEEPEST, flatten, opened

#: the values of sparse= that mark arrays which the function reads only by rows
AUTO, ALWAYS = "auto", "always"


def marked(
    sparse: Any, names: Sequence[str], leaves: Sequence[Any], prefix: Callable[[Any], list[Any]], floats: Sequence[int]
) -> set[int]:
    """Return the positions of the leaves that `sparse` marks. For "auto" and "always", return the positions of all
    candidates: the float arrays of two dimensions or more.

    `names` are the leaves' paths; `floats` are the positions of the float arrays, which may have row-sparse gradients.
    `prefix` converts a pytree of flags to one flag per leaf, or raises ValueError. Raise TypeError or ValueError if
    `sparse` is not accepted.
    """
    if isinstance(sparse, str):
        if sparse not in (AUTO, ALWAYS):
            accepted = '"auto", "always", a function of a path, or a pytree of bools'
            raise ValueError(f"sparse: got {sparse!r}; accepted is {accepted}")
        return {k for k in floats if len(leaves[k].shape) >= 2}
    if callable(sparse):
        flags = [sparse(name) for name in names]
    else:
        try:
            flags = prefix(sparse)
        except ValueError as error:
            raise ValueError(
                f"sparse: got {describe(sparse)} of another structure than the differentiated arguments; accepted are "
                f"bools for their leaves {show(names)} or for containers of them"
            ) from error
    for name, flag in zip(names, flags, strict=True):
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(f"sparse: got {describe(flag)} for the leaf {name!r}; accepted is a bool")
    found = {k for k, flag in enumerate(flags) if flag}
    if callable(sparse) and not found:
        raise ValueError(f"sparse: got a function that marks none of the leaves {show(names)}; accepted is one or more")
    for k in sorted(found):
        if k not in floats or not leaves[k].shape:
            raise TypeError(
                f"sparse: got the leaf {names[k]!r}, {describe(leaves[k])}; accepted is a float array of one or more "
                "dimensions"
            )
    return found


def pays(sparse: str, reads: int, rows: int) -> bool:
    """Return True if `sparse`, "auto" or "always", marks an array that is read only by rows.

    "always" requires at least one read. "auto" also requires that fewer rows are read than the array has.
    """
    return reads > 0 and (sparse == ALWAYS or reads < rows)


def marked_leaves(backend: Backend, tree: Any, sparse: Any) -> tuple[list[Any], list[str], list[int], set[int]]:
    """Return the leaves of nested containers, their paths, and the positions of float arrays and of marked leaves."""
    leaves, names = flatten(tree), path_names(tree)
    floats = [k for k, x in enumerate(leaves) if backend.is_array(x) and backend.dtype(x) in backend.float_dtypes]
    return leaves, names, floats, marked(sparse, names, leaves, lambda flags: prefix_flags(flags, tree), floats)


def path_names(tree: Any) -> list[str]:
    """Return the path of each leaf of nested containers, in the notation of `jax.tree_util.keystr`."""
    found = opened(tree)
    if found is None:
        return [""]
    if isinstance(tree, dict):
        parts = [f"[{key!r}]" for key in tree]
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        parts = [f".{name}" for name in tree._fields]  # pyright: ignore[reportAttributeAccessIssue]
    else:
        parts = [f"[{k}]" for k in range(len(found[0]))]
    return [part + name for part, item in zip(parts, found[0], strict=True) for name in path_names(item)]


def prefix_flags(flags: Any, tree: Any, depth: int = DEEPEST) -> list[Any]:
    """Return one flag per leaf of `tree`.

    `flags` has the same containers as `tree`, but may have one flag in place of a container. Raise ValueError if the
    containers differ in another way.
    """
    if not depth:
        raise ValueError("too deep")
    if isinstance(flags, dict):
        if not isinstance(tree, dict) or flags.keys() != tree.keys():
            raise ValueError("another dict")
        pairs = [(flags[key], item) for key, item in tree.items()]
    elif isinstance(flags, (list, tuple)):
        if not isinstance(tree, (list, tuple)) or len(flags) != len(tree):
            raise ValueError("another sequence")
        pairs = list(zip(flags, tree, strict=True))
    else:
        return [flags] * len(path_names(tree))
    return [flag for part, item in pairs for flag in prefix_flags(part, item, depth - 1)]
