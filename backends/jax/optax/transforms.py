"""Define transformations that clip sparse updates, or run optax or `islices.optim` on the rows of sparse updates.

SPEC clauses 7 to 10 and 16.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import optax

from islices.backends.jax.optax.named_rows import (
    check_transformation,
    checked,
    is_leaf,
    leaves_of,
    map_slices,
    on_named_rows,
    step_rows,
    weights_of,
)
from islices.backends.jax.optax.probing import check_rows
from islices.core.arguments import check_name
from islices.core.registry import describe
from islices.core.rows import to_dense
from islices.core.slices import IndexedSlices
from islices.norms import global_norms, unitwise
from islices.norms.clip_formulas import BY_GLOBAL_NORM, Semantics, lookup_formula
from islices.norms.limits import limit_of
from islices.norms.nonfinite import Nonfinite, check_nonfinite
from islices.optim.hyperparameters import is_on
from islices.optim.optimizer import Optimizer
from islices.optim.record import RECORDS

ROWS = ("touched", "all")
#: The classes of states that store gradients for a later step.
WAITING = (optax.MultiStepsState, optax.ApplyEvery)
#: The attribute of `from_optim`'s update function that contains the optimizer.
OPTIMIZER = "islices_optimizer"
#: Chains pass extra arguments, such as `value`, only to transformations of this type.
Transformation: TypeAlias = optax.GradientTransformationExtraArgs


# ---------------------------------------------------------------------- clips
def clip_by_global_norm(
    max_norm: float,
    *,
    semantics: Semantics = "islices",
    nonfinite: Nonfinite = "propagate",
    group: Any = None,
    replicated: Any = False,
) -> optax.GradientTransformation:
    """Return a transformation that clips by the global norm like `optax.clip_by_global_norm`, but leaves indices
    unchanged. The norm is computed from the sums of duplicate rows, except with semantics="tensorflow" or "keras".

    Parameters
    ----------
    max_norm : float
        A number that is not negative.
    semantics : {"islices", "optax", "tensorflow", "keras", "torch", "mxnet"}
        The library whose formula computes the factor (SPEC clause 11).
    nonfinite : {"propagate", "raise", "zero"}
        Defines what happens if the norm is NaN or infinite. "propagate" applies the formula; with semantics="islices",
        all updates become NaN. "raise" raises FloatingPointError, or ValueError in jit. "zero" makes all updates 0.
    group : str, tuple of str, Group or an engine's group object, optional
        The ranks over which one gradient is distributed. Within shard_map, pass the name of the mapped axis; between
        processes, pass the name of an engine, such as "jax". Each rank passes its updates. See
        `islices.distributed.get_group`.
    replicated : bool, or a tree of bools with the structure of the updates or a prefix of it
        True for leaves that are the same on every rank, such as dense gradients after a psum. These leaves count only
        once in the norm.

    Returns
    -------
    optax.GradientTransformation

    Raises
    ------
    TypeError, ValueError
        An argument is invalid. `group` and `replicated` are checked only when `update` is called.

    Notes
    -----
    The transformation uses `islices.clip_by_global_norm` for sparse and dense leaves. SPEC clauses 7, 8 and 10, and
    clause 25 for a group.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> grad = IndexedSlices(jnp.array([[3.0], [3.0]]), jnp.array([1, 1]), (4, 1))
    >>> tx = clip_by_global_norm(3.0)
    >>> clipped, _ = tx.update({"table": grad}, tx.init(None))
    >>> clipped["table"].values.tolist()
    [[1.5], [1.5]]
    """
    lookup_formula(BY_GLOBAL_NORM, semantics, "clip_by_global_norm")
    limit_of(max_norm)
    options: Any = {"semantics": semantics, "nonfinite": check_nonfinite(nonfinite)}

    def clipped(updates: Any, params: Any) -> Any:
        return global_norms.clip_by_global_norm(updates, max_norm, **options, group=group, replicated=replicated)[0]

    return optax.stateless(clipped)


def clip_by_block_rms(
    threshold: float, *, semantics: Semantics = "islices", nonfinite: Nonfinite = "propagate"
) -> optax.GradientTransformation:
    """Return a transformation that limits the root mean square of each leaf, like `optax.clip_by_block_rms`. The mean
    includes rows that a sparse leaf does not contain.

    Parameters
    ----------
    threshold : float
        A number that is not negative.
    semantics : {"islices", "optax"}
        The library whose formula computes the factor (SPEC clause 11).
    nonfinite : {"propagate", "raise", "zero"}
        Defines what happens to the leaf if its norm is NaN or infinite; see `clip_by_global_norm`.

    Returns
    -------
    optax.GradientTransformation

    Raises
    ------
    TypeError, ValueError
        An argument is invalid.

    Notes
    -----
    The transformation uses `islices.norms.clip_by_block_rms`. SPEC clause 10.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> grad = IndexedSlices(jnp.array([[3.0], [1.0]]), jnp.array([1, 1]), (4, 1))
    >>> tx = clip_by_block_rms(1.0)
    >>> tx.update(grad, tx.init(None))[0].values.tolist()
    [[2.0]]
    """
    options: Any = {"semantics": semantics, "nonfinite": check_nonfinite(nonfinite)}
    unitwise.clip_by_block_rms(None, threshold, **options)  # checks the arguments
    return optax.stateless(lambda updates, params: unitwise.clip_by_block_rms(updates, threshold, **options))


def adaptive_grad_clip(
    clipping: float,
    eps: float = 1e-3,
    axis: Any = None,
    *,
    semantics: Semantics = "islices",
    nonfinite: Nonfinite = "propagate",
) -> optax.GradientTransformation:
    """Return a transformation that limits the norm of each unit to `clipping` times the norm of the same unit of the
    parameters, like `optax.adaptive_grad_clip`.

    Parameters
    ----------
    clipping, eps : float
        Two numbers that are not negative. A norm of parameters that is less than eps counts as eps.
    axis : int, or tuple of ints, optional
        The axes over which norms are computed. The default is the same as in optax: each *column* of a table is a unit,
        and the whole table is read. With -1, each row is a unit, and only the rows of the gradient are read.
    semantics : {"islices", "optax"}
        The library whose formula computes the factor (SPEC clause 11).
    nonfinite : {"propagate", "raise", "zero"}
        Defines what happens to the unit if its norm is NaN or infinite; see `clip_by_global_norm`.

    Returns
    -------
    optax.GradientTransformation

    Raises
    ------
    TypeError, ValueError
        An argument is invalid. `update` raises if the parameters are missing, or if their structure is not the same as
        that of the updates.

    Notes
    -----
    The transformation uses `islices.norms.adaptive_grad_clip`. SPEC clause 10.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> grad = IndexedSlices(jnp.array([[3.0], [-4.0]]), jnp.array([1, 3]), (4, 1))
    >>> tx, params = adaptive_grad_clip(0.5), jnp.ones((4, 1))
    >>> [round(x, 3) for x in tx.update(grad, tx.init(params), params)[0].values.ravel().tolist()]
    [0.6, -0.8]
    """
    options: Any = {"eps": eps, "axes": axis, "semantics": semantics, "nonfinite": check_nonfinite(nonfinite)}
    unitwise.adaptive_grad_clip(None, None, clipping, **options)  # checks the arguments

    def clipped(updates: Any, params: Any) -> Any:
        if params is None:
            raise ValueError("params: got None; accepted are the parameters, whose norms limit those of the updates")
        return unitwise.adaptive_grad_clip(updates, params, clipping, **options)

    return optax.stateless(clipped)


# ---------------------------------------------------------------------- optax itself, on rows
def on_rows(inner: Any, *, rows: Literal["touched", "all"] = "touched") -> Transformation:
    """Wrap a transformation of optax, so that it accepts sparse updates. By default, the transformation gets only the
    rows of each gradient, as arrays.

    Parameters
    ----------
    inner : optax.GradientTransformation
        A transformation in which rows of zeros in the gradient do not affect other rows. Examples are adam, lion,
        nadam, adabelief, trace, and clipping by a gradient's norm. With rows="touched", the first update rejects
        transformations that use norms of parameters or moments (lamb, lars), means over rows, factored moments
        (adafactor), or noise.
    rows : {"touched", "all"}
        With "touched", only the rows of the gradient are updated. All other rows of the parameters and of the state
        keep their bits. With "all", gradients become dense, every row is updated as in optax, and the update is dense.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        A transformation with the same state as `inner`, in which arrays replace tables. Both transformations can load
        each other's state.

    Raises
    ------
    TypeError, ValueError, IndexError
        `inner` is not a transformation, updates do not fit the parameters or, in eager code, another transformation has
        changed the indices of updates. With rows="touched", `init` raises for optax.MultiSteps and optax.apply_every.
        For each structure of updates with sparse leaves, the first update then probes `inner` on small arrays. The
        update raises if steps on rows differ from steps on the dense gradient.

    Notes
    -----
    All rows share one step count. A row gets no later update for the steps whose gradients did not contain it. If a
    gradient contains every row, "touched" computes the same bits as "all", and as optax does for the dense gradient.
    (In jit, XLA may merge products and sums.) If JAX differentiates an update, the rows that the update reads are
    constants. SPEC clause 16.

    Examples
    --------
    >>> import jax.numpy as jnp, optax
    >>> from islices import IndexedSlices
    >>> tx = on_rows(optax.lion(0.5))
    >>> params = jnp.zeros((4, 1))
    >>> grad = IndexedSlices(jnp.array([[3.0], [-1.0]]), jnp.array([1, 3]), (4, 1))
    >>> updates, state = tx.update(grad, tx.init(params), params)
    >>> updates.indices.tolist(), updates.values.tolist()
    ([1, 3], [[-0.5], [0.5]])
    """
    check_name(rows, ROWS, "rows")
    inner = check_transformation(inner, "inner")
    seen: set[Any] = set()  # the structures of updates with which `inner` has passed the probe

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if not any(isinstance(x, IndexedSlices) for x in leaves_of(checked(updates))):
            return inner.update(updates, state, weights_of(params), **extra)  # type: ignore[no-any-return]
        if rows == "all":
            return inner.update(map_slices(to_dense, updates), state, weights_of(params), **extra)  # type: ignore[no-any-return]
        key = jax.tree.structure(map_slices(lambda s: (s.values,), updates))
        if key not in seen:
            check_rows(inner, updates, params, extra)
            seen.add(key)
        return on_named_rows(inner, updates, state, params, extra)

    def init(params: Any) -> Any:
        state = inner.init(weights_of(params))
        nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, WAITING))
        if rows == "touched" and any(isinstance(x, WAITING) for x in nodes):
            raise ValueError(
                "inner: got optax.MultiSteps or apply_every, which would not step rows that its last micro-step does "
                'not name; accepted is rows="all", or a step on islices.add(...) of the micro-batches\' gradients'
            )
        return state

    return Transformation(init, update)


# ---------------------------------------------------------------------- islices.optim
def from_optim(optimizer: Optimizer) -> Transformation:
    """Convert an optimizer of `islices.optim` to a transformation. In eager code and in jit, steps of the
    transformation have the same bits as steps of the optimizer.

    Parameters
    ----------
    optimizer : islices.optim.Optimizer
        An optimizer whose rule ends in one addition to the weight. FTRL, nadam with semantics="torch", and all
        optimizers of `optim.custom` are not accepted. Frozen rows, duplicates="raw" and weight decay are not accepted
        either. For weight decay, chain ``on_rows(optax.add_decayed_weights(...))`` instead.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        A transformation whose state is a tree that contains the result of ``optimizer.init`` for each parameter. The
        same rule computes the updates of dense leaves.

    Raises
    ------
    TypeError, ValueError
        The argument is not an optimizer, or one of its options or its rule is not accepted.

    Notes
    -----
    After `apply_updates`, parameters and state have the same bits as after ``optimizer.step(table, grad, state)``. The
    update of 16-bit parameters is float32, and the sum is rounded once. SPEC clause 16.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices, optim
    >>> tx = from_optim(optim.adagrad(0.5))
    >>> grad = IndexedSlices(jnp.ones((2, 1)), jnp.array([3, 3]), (4, 1))
    >>> update, state = tx.update(grad, tx.init(jnp.zeros((4, 1))))
    >>> update.indices.tolist(), update.values.tolist(), state["accumulator"].ravel().tolist()
    ([3], [[-0.5]], [0.0, 0.0, 0.0, 4.0])
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer: got {describe(optimizer)}; accepted is one of islices.optim")
    unfit = _unfit(optimizer)
    if unfit:
        raise ValueError(f"optimizer: got {optimizer!r}; accepted are those without {unfit}")

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        structure: Any
        leaves, structure = jax.tree.flatten(checked(updates), is_leaf=is_leaf)
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, IndexedSlices):
                optimizer._warn_of_all(f"updates: leaf {number}")
            else:
                optimizer._check_dense("islices.value_and_grad returns one for a Table")
        pairs = [step_rows(optimizer, *leaf) for leaf in zip(leaves, structure.flatten_up_to(state), strict=True)]
        return structure.unflatten([u for u, _ in pairs]), structure.unflatten([s for _, s in pairs])

    def init(params: Any) -> Any:
        return jax.tree.map(lambda x: optimizer.init(jnp.atleast_1d(x)), weights_of(params))

    setattr(update, OPTIMIZER, optimizer)  # for `recorded`, because a transformation has no field for it
    return Transformation(init, update)


def _unfit(optimizer: Optimizer) -> str:
    """Return a description of the first option or rule that `from_optim` does not support, or "" if it supports all."""
    if optimizer.name not in RECORDS:
        return f"a rule of optim.custom ({optimizer.name}), which optimizer.step(table, grad, state) runs in jax.jit"
    if not optimizer._formula.additive:
        return f"a rule that subtracts twice or computes weights anew ({optimizer.name})"
    if is_on(optimizer.hyper.get("weight_decay", 0)):
        return "weight_decay; chain on_rows(optax.add_decayed_weights(...)) before it, or after it for adamw's"
    if optimizer._formula.raw:
        return 'duplicates="raw"'
    if optimizer._frozen[0] is not None:
        return "frozen rows; drop_rows(grad, rows) or optax.masked do that"
    return ""
