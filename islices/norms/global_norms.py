"""Compute the norm of all gradients of a tree, and clip by this norm, in one process or over a group of ranks.

`islices.norms.norm` computes the norm, and `islices.norms.clip` scales the gradients. Calls with ``group=`` or
``replicated=`` use `islices.distributed.norms`, which the first of these calls imports. SPEC clauses 8, 10, 11 and 25.
May import: the core.
"""

from __future__ import annotations

from typing import Any, TypeVar

from islices.norms.clip import clip_leaves
from islices.norms.clip_formulas import BY_GLOBAL_NORM, Semantics, lookup_formula
from islices.norms.limits import limit_of
from islices.norms.nonfinite import Nonfinite, check_nonfinite
from islices.norms.norm import accept_leaves, check_order, of_one_framework, total_norm

T = TypeVar("T")


def global_norm(tree: Any, ord: float = 2, *, group: Any = None, replicated: Any = False) -> Any:
    """Return the norm of all gradients of a tree together, or of the trees on all ranks of a group.

    Parameters
    ----------
    tree : list, tuple or dict, nested, of sparse gradients and dense arrays; None is skipped
    ord : float
        The order of the norm: 1, 2 or inf. All ranks of a group must pass the same order.
    group : str, Group or an engine's group object, optional
        The ranks over which the leaves of one gradient are distributed (see `islices.distributed.get_group`). Each rank
        has a tree, and the trees' structures may differ. In traced JAX code, the name of a mapped axis is also a group.
        None means that this tree is the whole gradient.
    replicated : bool, or a structure of bools like the tree, or like an upper part of the tree
        True for leaves that are the same on every rank, for example dense gradients after an all-reduce. A replicated
        leaf counts once.

    Returns
    -------
    0-d array of the leaves' framework
        The dtype is that of the widest leaf on any rank, at least float32. For MXNet, the shape is (1,). If the tree
        has no leaves, the result is a NumPy array. With a group, every rank gets the bits that one process with all
        leaves would get. Traced replicas of TensorFlow are an exception: the last bit may differ. SPEC clauses 8 and
        25.

    Raises
    ------
    TypeError
        A leaf contains integers or belongs to no framework, or the leaves belong to different frameworks. Or ord is not
        a real number, or replicated contains an object that is not a bool.
    ValueError
        ord is not 1, 2 or inf, or replicated does not fit the tree's structure. Or ord or replicated leaves differ
        between ranks; then every rank raises the error, but traced leaves are not compared. Or the ranks are processes,
        and a leaf is traced.
    RankError, RankTimeout
        The norm of another rank's tree cannot be computed, or another rank did not take part in time.

    Examples
    --------
    >>> import numpy as np
    >>> tree = {"w": np.array([3.0]), "b": [np.array([4.0]), None]}
    >>> float(global_norm(tree)), float(global_norm(tree, 1))
    (5.0, 7.0)
    """
    if group is not None or replicated is not False:
        from islices.distributed.norms import global_norm_over

        return global_norm_over(tree, ord, group, replicated)
    order = check_order(ord, "ord")
    return total_norm(of_one_framework(accept_leaves(tree, "tree")), order).given


def clip_by_global_norm(
    tree: T,
    max_norm: float,
    *,
    semantics: Semantics = "islices",
    nonfinite: Nonfinite = "propagate",
    group: Any = None,
    replicated: Any = False,
) -> tuple[T, Any]:
    """Scale all gradients of a tree down together to a global norm of at most max_norm.

    Parameters
    ----------
    tree : list, tuple or dict, nested, of sparse gradients and dense arrays; None is kept
    max_norm : float, or 0-d array of the framework (only without group and replicated)
        With semantics "islices" and a finite norm, 0 makes all values zero, and inf changes nothing.
    semantics : {"islices", "tensorflow", "keras", "torch", "mxnet", "optax"}
        The library whose arithmetic the function uses. SPEC clause 11.
    nonfinite : {"propagate", "raise", "zero"}
        The effect of a NaN or infinite norm: "propagate" makes every stored value NaN, "raise" raises
        FloatingPointError, and "zero" makes all values zero. With "propagate" and semantics "torch", "mxnet" or
        "optax", an infinite norm makes finite values zero. Even after "zero", an optimizer's step can change rows,
        because of momentum or Adam's moments. To skip a step, pass ``apply=isfinite(norm)`` to `Optimizer.step`.
    group, replicated
        The same as for `global_norm`: the norm is over the leaves of all ranks, and every rank scales its leaves.

    Returns
    -------
    (tree, norm)
        The clipped tree, whose leaves have the types that were passed, and the norm before clipping, in the form that
        `global_norm` returns. With semantics "tensorflow" or "keras", duplicates are not summed for the norm.
        Leaves may share memory with the leaves of the argument (SPEC clause 1), so copy a leaf before you change it in
        place.

    Raises
    ------
    TypeError, ValueError
        max_norm is neither a number >= 0 nor a 0-d array of the framework, semantics or nonfinite is unknown, or
        nonfinite is "raise" in traced code.
    FloatingPointError
        nonfinite is "raise", and the norm is NaN or infinite. In a group, every rank raises this error.

    Notes
    -----
    SPEC clauses 10 and 11; clause 25 for a group. The function also raises the errors of `global_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> s = IndexedSlices(np.array([[3.0], [3.0]]), np.array([1, 1]), (4, 1))
    >>> (clipped, dense), norm = clip_by_global_norm([s, np.array([8.0])], 5.0)
    >>> float(norm), clipped.values.tolist(), dense.tolist()
    (10.0, [[1.5], [1.5]], [4.0])
    """
    if group is not None or replicated is not False:
        from islices.distributed.norms import clip_over

        return clip_over(tree, max_norm, semantics, nonfinite, group, replicated)
    formula = lookup_formula(BY_GLOBAL_NORM, semantics, "clip_by_global_norm")
    limit = limit_of(max_norm)
    nonfinite = check_nonfinite(nonfinite)
    leaves = accept_leaves(tree, "tree")
    accepted = of_one_framework(leaves)
    if limit.number is None:
        leaves = [leaf and leaf._replace(accepted=limit.lift(leaf.accepted)) for leaf in leaves]
        accepted = of_one_framework(leaves)
    total = total_norm(accepted, raw=formula.raw)
    return clip_leaves(tree, leaves, total, limit, formula, nonfinite), total.given
