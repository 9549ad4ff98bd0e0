"""Use optax with sparse gradients. `on_rows`, `from_optim` and the clipping transformations accept
`islices.IndexedSlices` as leaves of updates.

optax applies its functions to all leaves of a tree. For JAX, the indices of slices are leaves like the values, so
optax's functions would compute with both. `on_rows` sums the duplicates of a gradient, and passes its rows to a
transformation of optax. `from_optim` makes a transformation from an optimizer of `islices.optim`. Use the clipping
functions and `apply_updates` in place of optax's functions of the same names. Except for `from_optim`, states are the
same as in optax, so optax and this package can load each other's checkpoints. docs/jax.md lists the combinations that
work.
"""

from __future__ import annotations

from typing import Any

import jax

try:
    import optax
except ImportError as missing:
    raise ImportError('islices.backends.jax.optax needs optax: pip install "islices[optax]"') from missing

from islices.backends.jax.optax.named_rows import add_to_rows, checked, is_leaf
from islices.backends.jax.optax.named_state import start_from, state_of
from islices.backends.jax.optax.recorded_steps import recorded
from islices.backends.jax.optax.transforms import (
    adaptive_grad_clip,
    clip_by_block_rms,
    clip_by_global_norm,
    from_optim,
    on_rows,
)
from islices.core.slices import IndexedSlices
from islices.embedding.table import Table

__all__ = [
    "adaptive_grad_clip",
    "apply_updates",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "from_optim",
    "on_rows",
    "recorded",
    "start_from",
    "state_of",
]


def apply_updates(params: Any, updates: Any) -> Any:
    """Add updates to the parameters like `optax.apply_updates`. A sparse update changes only the rows that it contains.

    Parameters
    ----------
    params : tree of arrays, `islices.Table` and None
        The parameters. None stays None with any update.
    updates : tree of arrays, `IndexedSlices` and None
        The updates, in a tree of the same structure. None leaves a parameter unchanged.

    Returns
    -------
    tree
        The new parameters, with the same structure and dtypes as `params`.

    Raises
    ------
    TypeError, ValueError
        The structures of the two trees differ, or the shape of an update does not fit its parameter. Or `updates`
        contains a Table, slices of another framework or, in eager code, slices whose indices a transformation of optax
        has changed.

    Notes
    -----
    Duplicates are summed first. Then the rows that an update contains have the same bits as in ``p + to_dense(u)``, and
    all other rows keep their bits. `optax.apply_updates` adds dense leaves. 16-bit rows are added in float32, and the
    sum is rounded once. SPEC clauses 3, 5 and 15.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices, Table
    >>> params = {"table": Table(jnp.zeros((3, 1))), "w": jnp.ones(2)}
    >>> update = IndexedSlices(jnp.array([[0.5], [0.25]]), jnp.array([2, 2]), (3, 1))
    >>> new = apply_updates(params, {"table": update, "w": jnp.ones(2)})
    >>> new["table"].weights.tolist(), new["w"].tolist()
    ([[0.0], [0.0], [0.75]], [2.0, 2.0])
    """

    def one(p: Any, u: Any) -> Any:
        if p is None or u is None:
            return p
        if isinstance(p, Table):
            return p.replace(one(p.weights, u))
        if not isinstance(u, IndexedSlices):
            return optax.apply_updates(p, u)
        if u.dense_shape != jax.numpy.shape(p):
            raise ValueError(f"updates: got {u!r} for a parameter of shape {jax.numpy.shape(p)}; accepted is one shape")
        return add_to_rows(jax.numpy.asarray(p), u)

    return jax.tree.map(one, params, checked(updates), is_leaf=lambda x: x is None or is_leaf(x))
