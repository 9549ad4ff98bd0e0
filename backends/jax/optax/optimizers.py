"""optax's optimizers for updates with sparse leaves, with optax's names, arguments, state and arithmetic, on rows.

What the arguments mean is in optax's documentation; rows= and its bits in `on_rows`. SPEC clause 16.
"""

from __future__ import annotations

from typing import Any, Literal

import optax

from islices.backends.jax.optax.transforms import Transformation, with_rows

__all__ = ["adagrad", "adam", "adamw", "amsgrad", "rmsprop", "sgd"]


def sgd(
    learning_rate: Any,
    momentum: Any = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
    *,
    rows: Literal["touched", "all"] = "touched",
) -> Transformation:
    """`optax.sgd`: gradient descent, with momentum or without.

    Parameters
    ----------
    learning_rate and the others : as `optax.sgd` has them
    rows : {"touched", "all"}
        Which rows a sparse gradient moves: those it names, or all, as optax on the densified gradient does.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        With the state of `optax.sgd`.

    Notes
    -----
    With momentum and rows="touched" the buffer of a row that is away neither decays nor moves the row.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> params = {"table": jnp.zeros((4, 1))}
    >>> tx = sgd(0.5)
    >>> grads = {"table": IndexedSlices(jnp.ones((2, 1)), jnp.array([3, 3]), (4, 1))}
    >>> updates, state = tx.update(grads, tx.init(params), params)
    >>> updates["table"].indices.tolist(), round(updates["table"].values.item(), 3)
    ([3], -1.0)
    """
    return with_rows(optax.sgd(learning_rate, momentum, nesterov, accumulator_dtype), rows)


def adagrad(
    learning_rate: Any,
    initial_accumulator_value: Any = 0.1,
    eps: Any = 1e-7,
    *,
    rows: Literal["touched", "all"] = "touched",
) -> Transformation:
    """`optax.adagrad`: each element has a learning rate that falls with the squares it has seen.

    Parameters
    ----------
    learning_rate and the others : as `optax.adagrad` has them
    rows : {"touched", "all"}
        Which rows a sparse gradient moves: those it names, or all, as optax on the densified gradient does.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        With the state of `optax.adagrad`.

    Notes
    -----
    A row that is away has a gradient of zero, so that rows="touched" has the bits of rows="all".

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> params = {"table": jnp.zeros((4, 1))}
    >>> tx = adagrad(0.5)
    >>> grads = {"table": IndexedSlices(jnp.ones((2, 1)), jnp.array([3, 3]), (4, 1))}
    >>> updates, state = tx.update(grads, tx.init(params), params)
    >>> updates["table"].indices.tolist(), round(updates["table"].values.item(), 3)
    ([3], -0.494)
    """
    return with_rows(optax.adagrad(learning_rate, initial_accumulator_value, eps), rows)


def rmsprop(
    learning_rate: Any,
    decay: Any = 0.9,
    eps: Any = 1e-8,
    initial_scale: Any = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: Any = None,
    nesterov: bool = False,
    bias_correction: bool = False,
    *,
    rows: Literal["touched", "all"] = "touched",
) -> Transformation:
    """`optax.rmsprop`: the gradient over the root of a running mean of its squares.

    Parameters
    ----------
    learning_rate and the others : as `optax.rmsprop` has them
    rows : {"touched", "all"}
        Which rows a sparse gradient moves: those it names, or all, as optax on the densified gradient does.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        With the state of `optax.rmsprop`.

    Notes
    -----
    rows="touched": the mean of a row that is away does not decay.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> params = {"table": jnp.zeros((4, 1))}
    >>> tx = rmsprop(0.5)
    >>> grads = {"table": IndexedSlices(jnp.ones((2, 1)), jnp.array([3, 3]), (4, 1))}
    >>> updates, state = tx.update(grads, tx.init(params), params)
    >>> updates["table"].indices.tolist(), round(updates["table"].values.item(), 3)
    ([3], -1.581)
    """
    return with_rows(
        optax.rmsprop(
            learning_rate, decay, eps, initial_scale, eps_in_sqrt, centered, momentum, nesterov, bias_correction
        ),
        rows=rows,
    )


def adam(
    learning_rate: Any,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    rows: Literal["touched", "all"] = "touched",
) -> Transformation:
    """`optax.adam`: rows="touched" is lazy Adam: rows that no gradient names keep their moments and bits.

    Parameters
    ----------
    learning_rate and the others : as `optax.adam` has them
    rows : {"touched", "all"}
        Which rows a sparse gradient moves: those it names, or all, as optax on the densified gradient does.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        With the state of `optax.adam`.

    Notes
    -----
    There is one step count: bias corrections are those of the table, whatever rows have seen.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> params = {"table": jnp.zeros((4, 1))}
    >>> tx = adam(0.5)
    >>> grads = {"table": IndexedSlices(jnp.ones((2, 1)), jnp.array([3, 3]), (4, 1))}
    >>> updates, state = tx.update(grads, tx.init(params), params)
    >>> updates["table"].indices.tolist(), round(updates["table"].values.item(), 3)
    ([3], -0.5)
    """
    return with_rows(optax.adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov), rows)


def adamw(
    learning_rate: Any,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    weight_decay: Any = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
    rows: Literal["touched", "all"] = "touched",
) -> Transformation:
    """`optax.adamw`: as `adam`, and weights decay, with rows="touched" those of the rows that the gradient names.

    Parameters
    ----------
    learning_rate and the others : as `optax.adamw` has them
    rows : {"touched", "all"}
        Which rows a sparse gradient moves: those it names, or all, as optax on the densified gradient does.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        With the state of `optax.adamw`.

    Notes
    -----
    The parameters must be given to update. Decay enters after the moments, times the learning rate.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> params = {"table": jnp.zeros((4, 1))}
    >>> tx = adamw(0.5)
    >>> grads = {"table": IndexedSlices(jnp.ones((2, 1)), jnp.array([3, 3]), (4, 1))}
    >>> updates, state = tx.update(grads, tx.init(params), params)
    >>> updates["table"].indices.tolist(), round(updates["table"].values.item(), 3)
    ([3], -0.5)
    """
    return with_rows(
        optax.adamw(learning_rate, b1, b2, eps, eps_root, mu_dtype, weight_decay, mask, nesterov=nesterov), rows=rows
    )


def amsgrad(
    learning_rate: Any,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    eps_root: Any = 0.0,
    mu_dtype: Any = None,
    *,
    rows: Literal["touched", "all"] = "touched",
    **options: Any,
) -> Transformation:
    """`optax.amsgrad`: as `adam`, divided by the root of the largest mean of squares so far.

    Parameters
    ----------
    learning_rate and the others : as `optax.amsgrad` has them
    rows : {"touched", "all"}
        Which rows a sparse gradient moves: those it names, or all, as optax on the densified gradient does.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        With the state of `optax.amsgrad`.

    Notes
    -----
    optax corrects the mean before it takes the largest; `islices.optim.adam` with amsgrad=True, as torch and Keras,
    after it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from islices import IndexedSlices
    >>> params = {"table": jnp.zeros((4, 1))}
    >>> tx = amsgrad(0.5)
    >>> grads = {"table": IndexedSlices(jnp.ones((2, 1)), jnp.array([3, 3]), (4, 1))}
    >>> updates, state = tx.update(grads, tx.init(params), params)
    >>> updates["table"].indices.tolist(), round(updates["table"].values.item(), 3)
    ([3], -0.5)
    """
    return with_rows(optax.amsgrad(learning_rate, b1, b2, eps, eps_root, mu_dtype, **options), rows)
