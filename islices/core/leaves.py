"""Leaves of nested gradients, for libraries that are built on islices. SPEC clause 1.

May import: `islices.core.conversion`, `islices.core.registry`, `islices.core.slices`, `islices.core.trees`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from islices.core.conversion import backend_of_leaf
from islices.core.registry import find_backend
from islices.core.slices import IndexedSlices
from islices.core.trees import flatten, rebuild

T = TypeVar("T")


def is_sparse(x: object) -> bool:
    """Return whether x is a row-sparse gradient: an IndexedSlices or a framework's own sparse type.

    Parameters
    ----------
    x : object

    Returns
    -------
    bool
        False for dense arrays, None, containers and everything else.

    Notes
    -----
    SPEC clause 1.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> is_sparse(IndexedSlices(np.ones((1, 2)), np.array([0]), (3, 2))), is_sparse(np.ones(3))
    (True, False)
    """
    if isinstance(x, IndexedSlices):
        return True
    backend = find_backend(x)
    return backend is not None and backend.is_native(x)


def leaves(tree: Any) -> list[Any]:
    """Return the sparse gradients and dense arrays of a nested structure, in order.

    Parameters
    ----------
    tree : sparse gradient, dense array, None, or a list, tuple or dict of them
        Also named tuples, and JAX's registered pytrees.

    Returns
    -------
    list
        The caller's own objects. None is left out.

    Raises
    ------
    TypeError
        The structure holds something else: a generator, a dataclass, a string.

    Notes
    -----
    SPEC clause 1.

    Examples
    --------
    >>> import numpy as np
    >>> leaves({"a": np.ones(1), "b": [None, np.zeros(1)]})
    [array([1.]), array([0.])]
    """
    return [x for x in _checked(tree) if x is not None]


def map_leaves(fn: Callable[[Any], Any], tree: T) -> T:
    """Return the structure with fn applied to each sparse gradient and dense array.

    Parameters
    ----------
    fn : callable
        Takes a leaf as the caller gave it. What it returns takes the leaf's place.
    tree : sparse gradient, dense array, None, or a list, tuple or dict of them
        Also named tuples, and JAX's registered pytrees.

    Returns
    -------
    structure of tree
        None stays None.

    Raises
    ------
    TypeError
        The structure holds something else: a generator, a dataclass, a string.

    Notes
    -----
    SPEC clause 1.

    Examples
    --------
    >>> import numpy as np
    >>> map_leaves(np.negative, {"a": np.ones(1), "b": None})
    {'a': array([-1.]), 'b': None}
    """
    return rebuild(tree, iter([None if x is None else fn(x) for x in _checked(tree)]))  # type: ignore[no-any-return]


def _checked(tree: Any) -> list[Any]:
    found = flatten(tree, "tree")
    for x in found:
        if x is not None:
            backend_of_leaf(x, "tree")
    return found
