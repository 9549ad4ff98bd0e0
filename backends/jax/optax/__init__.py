"""optax with sparse gradients: transformations that accept `islices.IndexedSlices` among the leaves of updates.

optax maps its functions over the leaves of a tree. JAX's leaves of slices are their values *and their indices*, so
optax's functions would compute with both. `on_rows` passes the rows of a gradient, with duplicates summed, to optax's
transformations. The other functions replace optax's functions of the same names. Dense leaves go to optax. The state is
optax's, so either side loads the other's checkpoints. docs/jax.md lists the combinations that work.
"""

from __future__ import annotations

from typing import Any

import jax

try:
    import optax
except ImportError as missing:
    raise ImportError('islices.backends.jax.optax needs optax: pip install "islices[optax]"') from missing

from islices.backends.jax.optax.micro_batches import accumulate
from islices.backends.jax.optax.named_rows import (
    WAY_OUT,
    WITNESSES,
    add_to_rows,
    check_transformation,
    checked,
    is_leaf,
    leaves_of,
)
from islices.backends.jax.optax.named_state import start_from, state_of
from islices.backends.jax.optax.recorded_steps import recorded
from islices.backends.jax.optax.transforms import (
    Transformation,
    adaptive_grad_clip,
    clip,
    clip_by_block_rms,
    clip_by_global_norm,
    coalesce,
    from_optim,
    on_rows,
)
from islices.core.arguments import check_flag
from islices.core.registry import get_backend
from islices.core.sharing import check_apart
from islices.core.slices import IndexedSlices
from islices.embedding.table import Table

__all__ = [
    "accumulate",
    "adaptive_grad_clip",
    "apply_updates",
    "chain",
    "clip",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "coalesce",
    "from_optim",
    "on_rows",
    "recorded",
    "start_from",
    "state_of",
]


def chain(*args: optax.GradientTransformation) -> Transformation:
    """Chain transformations as `optax.chain` does; raise if one computes with the indices of slices.

    Parameters
    ----------
    *args : optax.GradientTransformation
        Transformations of this module, and those of optax that do not change sparse leaves: identity, and masked or
        multi_transform around transformations of this module. If your own transformation gives slices new indices, use
        optax.chain.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        A transformation with the state of optax.chain.

    Raises
    ------
    TypeError
        In update, also in traced code: a transformation from outside this module returned other indices. (In
        optax.chain the next transformation of this module raises. After clip(1), scale(-1) and schedules in jit the
        indices are integers, and the result is NaN.)

    Examples
    --------
    >>> import jax.numpy as jnp, optax
    >>> from islices import IndexedSlices
    >>> grad = IndexedSlices(jnp.ones((2, 1)), jnp.array([3, 3]), (4, 1))
    >>> tx = chain(optax.clip(1), on_rows(optax.sgd(0.5)))
    >>> tx.update(grad, tx.init(jnp.zeros((4, 1))))
    Traceback (most recent call last):
    TypeError: args[0]: got clip, which changed the indices of sparse updates as if they were gradients; ...
    """
    return optax.chain(*(_watched(t, k) for k, t in enumerate(args)))


def _watched(given: Any, position: int) -> Transformation:
    """Return a transformation that checks the indices of its updates."""
    inner = check_transformation(given, f"args[{position}]")
    name = getattr(given.update, "__qualname__", "").split(".")[0]

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        before = [x for x in leaves_of(updates) if isinstance(x, IndexedSlices)]
        if not before:
            return inner.update(updates, state, params, **extra)  # type: ignore[no-any-return]
        outer = WITNESSES.get()
        seen: list[str] = []
        token = WITNESSES.set(seen)
        try:
            updates, state = inner.update(updates, state, params, **extra)
        except (TypeError, ValueError) as error:
            if not seen:
                error.add_note(f"args[{position}] of chain, {name}, takes no sparse updates: {WAY_OUT}")
            raise
        finally:
            WITNESSES.reset(token)
            if outer is not None:
                outer.extend(seen)
        known = {id(x._held(1)) for x in before}
        after = [x for x in leaves_of(updates) if isinstance(x, IndexedSlices)]
        if not seen and any(id(x._held(1)) not in known for x in after):
            raise TypeError(
                f"args[{position}]: got {name}, which changed the indices of sparse updates as if they were gradients; "
                f"{WAY_OUT}"
            )
        return updates, state

    return Transformation(inner.init, update)


def apply_updates(params: Any, updates: Any, *, donate: bool = False) -> Any:
    """Add updates to the parameters, as `optax.apply_updates` does; a sparse update only changes its rows.

    Parameters
    ----------
    params : tree of arrays, `islices.Table`, and None, which stays None whatever its update
    updates : the same tree, of arrays, `IndexedSlices` and None, which does not change a parameter
    donate : bool
        Outside of jit, write sparse updates into the arrays of params, which you must not use afterwards. If False, the
        arrays are copied. Inside jit donate has no effect; use donate_argnums.

    Returns
    -------
    params, of the same types

    Raises
    ------
    TypeError, ValueError, IndexError
        The trees differ in structure or shapes. The indices of slices are no longer valid. An array to donate is at two
        places. No array has been written then.

    Notes
    -----
    The result has the bits of ``p + to_dense(u)``: duplicates are summed first, and all other rows keep their bits.
    optax adds dense leaves. 16-bit rows are summed in float32 and rounded once. SPEC clauses 3, 5 and 15.

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
    donate = check_flag(donate, "donate")
    checked(updates, "apply_updates")
    structure: Any
    leaves, structure = jax.tree.flatten(params, is_leaf=lambda x: x is None or is_leaf(x))
    pairs = list(zip(leaves, structure.flatten_up_to(updates), strict=True))
    sparse = [k for k, (p, u) in enumerate(pairs) if p is not None and isinstance(u, IndexedSlices)]
    for k in sparse:
        p, u = pairs[k]
        shape = p.shape if isinstance(p, Table) else jax.numpy.shape(p)
        if u.dense_shape != shape:
            raise ValueError(f"updates: got {u!r} for a parameter of shape {shape}; accepted is one shape")

    new = [p.weights if isinstance(p, Table) else p for p in leaves]
    rows = {k: jax.numpy.asarray(new[k]) for k in sparse}
    if donate:
        B = get_backend("jax")
        check_apart((B, w, True, f"params, leaf {k}") for k, w in rows.items() if not B.is_traced(w))
    # dense leaves first: if that raises, no array has been donated
    for k, (_, u) in enumerate(pairs):
        if u is not None and not isinstance(u, IndexedSlices):
            new[k] = optax.apply_updates(new[k], u)
    for k, w in rows.items():
        new[k] = add_to_rows(w, pairs[k][1], donate=donate)
    return structure.unflatten([p.replace(x) if isinstance(p, Table) else x for p, x in zip(leaves, new, strict=True)])
