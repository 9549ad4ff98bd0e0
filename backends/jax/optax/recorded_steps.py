"""Record the steps of an optax transformation for `islices.parity`.

May import: `jax`, the core, `islices.backends.jax.recorder`, this folder.
"""

from __future__ import annotations

from typing import Any

import jax

from islices.backends.jax.optax.named_rows import check_transformation, is_leaf
from islices.backends.jax.optax.named_state import path_name, state_of
from islices.backends.jax.optax.transforms import OPTIMIZER, Transformation
from islices.backends.jax.recorder import JaxRecorder
from islices.core.registry import describe
from islices.porting.trajectory.descriptions import as_description


def recorded(tx: Any, recorder: JaxRecorder, *, clip: Any = None) -> Transformation:
    """Return a transformation that does the same as `tx`, after `clip` if given, and also records each step.

    Parameters
    ----------
    tx : optax.GradientTransformation
        A transformation of optax or of `islices.backends.jax.optax`. For sparse gradients, wrap a transformation of
        optax in `on_rows`.
    recorder : islices.backends.jax.recorder.JaxRecorder
    clip : optax.GradientTransformation, optional
        A clipping transformation that runs before `tx`, as in ``optax.chain(clip, tx)``. The clipped gradients are
        recorded separately.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        A transformation with the same state as `tx` or, with `clip`, as ``optax.chain(clip, tx)``. Each call of
        `update` records the gradients. The call also records the optimizer if `tx` comes from `from_optim`, and no
        hyperparameter is a function or an array. If you pass the parameters to `update`, it also records the
        parameters, and the state before and after the step. To record more, call
        ``recorder.add(batch=..., loss=...)`` before the update. The tables after a step are recorded in the next step,
        so call ``recorder.step(tables=params)`` after the last step.

    Raises
    ------
    TypeError
        `tx` or `clip` is not a transformation, or `recorder` is not a JaxRecorder. Only a JaxRecorder works in traced
        code.

    Examples
    --------
    >>> import tempfile, jax.numpy as jnp, optax, islices
    >>> from islices.backends.jax.optax import recorded
    >>> from islices.backends.jax.recorder import JaxRecorder
    >>> params = {"w": jnp.zeros((3, 1))}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tx = recorded(optax.sgd(0.1), JaxRecorder(folder))
    ...     updates, state = tx.update({"w": jnp.ones((3, 1))}, tx.init(params), params)
    ...     islices.parity(folder, folder).equal
    True
    """
    inner = check_transformation(tx, "tx")
    first = None if clip is None else check_transformation(clip, "clip")
    if not isinstance(recorder, JaxRecorder):
        raise TypeError(f"recorder: got {describe(recorder)}; accepted is an islices.backends.jax.recorder.JaxRecorder")
    try:
        statement = as_description(getattr(inner.update, OPTIMIZER, None))
    except TypeError:  # tx does not come from from_optim, or a hyperparameter is no number
        statement = None

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        before, reported = state, {"gradients": _flat(updates)}
        if first is None:
            updates, state = inner.update(updates, state, params, **extra)
        else:
            clipped, clips = first.update(updates, state[0], params, **extra)
            reported["clipped"] = _flat(clipped)
            updates, steps = inner.update(clipped, state[1], params, **extra)
            state = clips, steps
        if params is not None:
            reported |= {
                "tables": _flat(params), "state": state_of(before, params), "state_after": state_of(state, params)
            }  # fmt: skip
        recorder.step(**reported, optimizer=statement)
        return updates, state

    if first is None:
        return Transformation(inner.init, update)
    return Transformation(lambda params: (first.init(params), inner.init(params)), update)


def _flat(tree: Any) -> dict[str, Any]:
    """Return a dict that maps the names of a pytree's leaves to the leaves. Slices, tables and None count as single
    leaves."""
    paths = jax.tree.leaves_with_path(tree, is_leaf=lambda x: x is None or is_leaf(x))
    return {path_name(path): x for path, x in paths}
