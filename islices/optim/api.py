"""The optimizers: each function checks its hyperparameters and returns an `Optimizer`.

All share ``rows``, ``semantics``, ``maximize`` and ``frozen``. docs/optimizers.md has the formulas of every semantics.
Every number but lr_power and initial_accumulator may change by the step, as ``lr`` may: a function of the steps taken
before, or an array of one, traced included. SPEC clause 16.
"""

from __future__ import annotations

from typing import Any

from islices.optim.factory import Duplicates, Rows, make
from islices.optim.hyperparameters import Scheduled
from islices.optim.optimizer import Optimizer
from islices.presets import Semantics

__all__ = ["adagrad", "adam", "adamw", "ftrl", "rmsprop", "rowwise_adagrad", "sgd"]


def sgd(
    lr: Scheduled | None = None,
    *,
    momentum: Scheduled | None = None,
    dampening: Scheduled | None = None,
    nesterov: bool | None = None,
    weight_decay: Scheduled | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Gradient descent, with momentum or without.

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate; a function gets the number of steps taken before, from 0: an int, or a traced int32 array.
    momentum : float, default 0
        Decay of the buffer of gradients, at least 0, which keeps none.
    dampening : float, default 0
        The gradient enters the buffer times 1 - dampening.
    nesterov : bool, default False
        Step by the gradient and the buffer's next decay (Sutskever et al. 2013).
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.
    rows : {"touched", "all"}, optional
        Which rows a sparse gradient moves: those it names, all others keeping their bits, or all, as the dense formula
        on its densified form does. Default: "touched", or "all" where the semantics has nothing else.
    semantics : {"islices", "fbgemm", "keras", "mxnet", "optax", "tensorflow", "torch"}
        Whose arithmetic, of another framework with its own defaults; see docs/optimizers.md.
    maximize : bool
        Follow the gradient upwards.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that keep their bits, weight decay included.
    duplicates : {"sum", "raw"}
        "raw", of semantics="keras" only: what Keras makes of slices whose duplicates nobody summed.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        A hyperparameter that is none, or that the semantics does not have.

    Notes
    -----
    Without momentum ``w - lr g``. With it ``b = mu b + (1 - dampening) g`` and ``w - lr b``, nesterov
    ``w - lr (g + mu b)``. b begins with zeros.
    Every operation rounds once, in this order; g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = sgd(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make(
        "sgd",
        {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": weight_decay},
        rows=rows,
        semantics=semantics,
        maximize=maximize,
        frozen=frozen,
        duplicates=duplicates,
    )


def adagrad(
    lr: Scheduled | None = None,
    *,
    eps: Scheduled | None = None,
    initial_accumulator: float | None = None,
    lr_decay: Scheduled | None = None,
    weight_decay: Scheduled | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Adagrad: each element has a learning rate that falls with the squares it has seen (Duchi et al. 2011).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate; a function gets the number of steps taken before, from 0: an int, or a traced int32 array.
    eps : float, default 1e-10
        Added to the root.
    initial_accumulator : float, default 0
        What the sums of squares begin with.
    lr_decay : float, default 0
        The learning rate of step t is lr / (1 + (t - 1) lr_decay).
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.
    rows : {"touched", "all"}, optional
        Which rows a sparse gradient moves: those it names, all others keeping their bits, or all, as the dense formula
        on its densified form does. Default: "touched", or "all" where the semantics has nothing else.
    semantics : {"islices", "fbgemm", "keras", "mxnet", "optax", "tensorflow", "torch"}
        Whose arithmetic, of another framework with its own defaults; see docs/optimizers.md.
    maximize : bool
        Follow the gradient upwards.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that keep their bits, weight decay included.
    duplicates : {"sum", "raw"}
        "raw", of semantics="keras" only: what Keras makes of slices whose duplicates nobody summed.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        A hyperparameter that is none, or that the semantics does not have.

    Notes
    -----
    ``a = a + g g``, then ``w - lr (g / (sqrt(a) + eps))``.
    Every operation rounds once, in this order; g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = adagrad(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make(
        "adagrad",
        {
            "lr": lr,
            "eps": eps,
            "initial_accumulator": initial_accumulator,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
        },
        rows=rows,
        semantics=semantics,
        maximize=maximize,
        frozen=frozen,
        duplicates=duplicates,
    )


def rowwise_adagrad(
    lr: Scheduled | None = None,
    *,
    eps: Scheduled | None = None,
    initial_accumulator: float | None = None,
    weight_decay: Scheduled | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
) -> Optimizer:
    """Adagrad with one accumulator a row: the state of large tables is a column.

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate; a function gets the number of steps taken before, from 0: an int, or a traced int32 array.
    eps : float, default 1e-8
        Added to the root.
    initial_accumulator : float, default 0
        What the sums of squares begin with.
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.
    rows : {"touched", "all"}, optional
        Which rows a sparse gradient moves: those it names, all others keeping their bits, or all, as the dense formula
        on its densified form does. Default: "touched", or "all" where the semantics has nothing else.
    semantics : {"islices", "fbgemm", "mxnet"}
        Whose arithmetic, of another framework with its own defaults; see docs/optimizers.md.
    maximize : bool
        Follow the gradient upwards.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that keep their bits, weight decay included.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        A hyperparameter that is none, or that the semantics does not have.

    Notes
    -----
    ``a = a + mean(g g)`` over the row, summed by halves (SPEC clause 19), then ``w - lr (g / (sqrt(a) + eps))``.
    Every operation rounds once, in this order; g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = rowwise_adagrad(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make(
        "rowwise_adagrad",
        {"lr": lr, "eps": eps, "initial_accumulator": initial_accumulator, "weight_decay": weight_decay},
        rows=rows,
        semantics=semantics,
        maximize=maximize,
        frozen=frozen,
        duplicates="sum",
    )


def rmsprop(
    lr: Scheduled | None = None,
    *,
    rho: Scheduled | None = None,
    eps: Scheduled | None = None,
    momentum: Scheduled | None = None,
    centered: bool | None = None,
    weight_decay: Scheduled | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """RMSprop: the gradient over the root of a running mean of its squares (Tieleman and Hinton 2012).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate; a function gets the number of steps taken before, from 0: an int, or a traced int32 array.
    rho : float, default 0.9
        Decay of the running means.
    eps : float, default 1e-8
        Added to the root.
    momentum : float, default 0
        Decay of a buffer of steps.
    centered : bool, default False
        Use the variance instead of the mean square (Graves 2013).
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move.
    rows : {"touched", "all"}, optional
        Which rows a sparse gradient moves: those it names, all others keeping their bits, or all, as the dense formula
        on its densified form does. Default: "touched", or "all" where the semantics has nothing else.
    semantics : {"islices", "keras", "mxnet", "optax", "tensorflow", "torch"}
        Whose arithmetic, of another framework with its own defaults; see docs/optimizers.md.
    maximize : bool
        Follow the gradient upwards.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that keep their bits, weight decay included.
    duplicates : {"sum", "raw"}
        "raw", of semantics="keras" only: what Keras makes of slices whose duplicates nobody summed.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        A hyperparameter that is none, or that the semantics does not have.

    Notes
    -----
    ``s = rho s + (1 - rho) (g g)``; centered, ``c = rho c + (1 - rho) g`` and ``s - c c``, at least 0, stands for s
    under the root; ``u = g / (sqrt(s) + eps)``; with momentum ``b = mu b + u`` stands for u; ``w - lr u``.
    Every operation rounds once, in this order; g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = rmsprop(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make(
        "rmsprop",
        {"lr": lr, "rho": rho, "eps": eps, "momentum": momentum, "centered": centered, "weight_decay": weight_decay},
        rows=rows,
        semantics=semantics,
        maximize=maximize,
        frozen=frozen,
        duplicates=duplicates,
    )


def adam(
    lr: Scheduled | None = None,
    *,
    beta1: Scheduled | None = None,
    beta2: Scheduled | None = None,
    eps: Scheduled | None = None,
    weight_decay: Scheduled | None = None,
    amsgrad: bool | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Adam (Kingma and Ba 2015, algorithm 1); with rows="touched" the lazy one.

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate; a function gets the number of steps taken before, from 0: an int, or a traced int32 array.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay of the running means of gradients and of their squares; where they change, the bias correction of step t
        is 1 - beta^t with the beta of step t.
    eps : float, default 1e-8
        Added to the root of the corrected mean square.
    weight_decay : float, default 0
        weight_decay * w is added to the gradient of the rows that move; see `adamw` for the decoupled one.
    amsgrad : bool, default False
        Divide by the root of the largest mean square so far (Reddi et al. 2018): a third array of state, "v_max".
        Of semantics islices, keras, optax, torch.
    rows : {"touched", "all"}, optional
        Which rows a sparse gradient moves: those it names, all others keeping their bits, or all, as the dense formula
        on its densified form does. Default: "touched", or "all" where the semantics has nothing else.
    semantics : {"islices", "keras", "mxnet", "optax", "tensorflow", "torch"}
        Whose arithmetic, of another framework with its own defaults; see docs/optimizers.md.
    maximize : bool
        Follow the gradient upwards.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that keep their bits, weight decay included.
    duplicates : {"sum", "raw"}
        "raw", of semantics="keras" only: what Keras makes of slices whose duplicates nobody summed.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        A hyperparameter that is none, or that the semantics does not have.

    Notes
    -----
    ``m = m + (1 - beta1) (g - m)``, ``v = v + (1 - beta2) (g g - v)``, then
    ``w - (lr / (1 - beta1^t)) (m / (sqrt(v) / sqrt(1 - beta2^t) + eps))``. t counts the table's steps from 1.
    Every operation rounds once, in this order; g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = adam(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make(
        "adam",
        {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad},
        rows=rows,
        semantics=semantics,
        maximize=maximize,
        frozen=frozen,
        duplicates=duplicates,
    )


def adamw(
    lr: Scheduled | None = None,
    *,
    beta1: Scheduled | None = None,
    beta2: Scheduled | None = None,
    eps: Scheduled | None = None,
    weight_decay: Scheduled | None = None,
    amsgrad: bool | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate; a function gets the number of steps taken before, from 0: an int, or a traced int32 array.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay of the running means of gradients and of their squares; where they change, the bias correction of step t
        is 1 - beta^t with the beta of step t.
    eps : float, default 1e-8
        Added to the root of the corrected mean square.
    weight_decay : float, default 0.01
        The rows that move are multiplied by 1 - lr * weight_decay first.
    amsgrad : bool, default False
        Divide by the root of the largest mean square so far (Reddi et al. 2018): a third array of state, "v_max".
        Of semantics islices, keras, torch.
    rows : {"touched", "all"}, optional
        Which rows a sparse gradient moves: those it names, all others keeping their bits, or all, as the dense formula
        on its densified form does. Default: "touched", or "all" where the semantics has nothing else.
    semantics : {"islices", "keras", "optax", "torch"}
        Whose arithmetic, of another framework with its own defaults; see docs/optimizers.md.
    maximize : bool
        Follow the gradient upwards.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that keep their bits, weight decay included.
    duplicates : {"sum", "raw"}
        "raw", of semantics="keras" only: what Keras makes of slices whose duplicates nobody summed.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        A hyperparameter that is none, or that the semantics does not have.

    Notes
    -----
    ``w = (1 - lr weight_decay) w``, then the step of `adam`.
    Every operation rounds once, in this order; g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = adamw(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make(
        "adamw",
        {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad},
        rows=rows,
        semantics=semantics,
        maximize=maximize,
        frozen=frozen,
        duplicates=duplicates,
    )


def ftrl(
    lr: Scheduled | None = None,
    *,
    l1: Scheduled | None = None,
    l2: Scheduled | None = None,
    beta: Scheduled | None = None,
    l2_shrinkage: Scheduled | None = None,
    lr_power: float | None = None,
    initial_accumulator: float | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """FTRL-Proximal: rows become exactly zero under l1 (McMahan et al. 2013, algorithm 1).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate; a function gets the number of steps taken before, from 0: an int, or a traced int32 array.
    l1, l2 : float, default 0
        Strength of the penalties.
    beta : float, default 0
        Added to the root in the denominator.
    l2_shrinkage : float, default 0
        l2_shrinkage * w is added to the gradient where z grows by it, not to that whose square is summed
        (TensorFlow's l2_shrinkage_regularization_strength; its formulas and Keras' double it, as they do l2).
    lr_power : float, -256 < lr_power <= 0, default -0.5
        The power of the sum of squares that the learning rate falls with.
    initial_accumulator : float, default 0.1
        What the sums of squares begin with.
    rows : {"touched", "all"}, optional
        Which rows a sparse gradient moves: those it names, all others keeping their bits, or all, as the dense formula
        on its densified form does. Default: "touched", or "all" where the semantics has nothing else.
    semantics : {"islices", "keras", "mxnet", "tensorflow"}
        Whose arithmetic, of another framework with its own defaults; see docs/optimizers.md.
    maximize : bool
        Follow the gradient upwards.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that keep their bits, weight decay included.
    duplicates : {"sum", "raw"}
        "raw", of semantics="keras" only: what Keras makes of slices whose duplicates nobody summed.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        A hyperparameter that is none, or that the semantics does not have.

    Notes
    -----
    ``n' = n + g g``, ``z = (z + (g + l2_shrinkage w)) - ((r(n') - r(n)) / lr) w``, and w is 0 where ``|z| <= l1``, else
    ``(clip(z, -l1, l1) - z) / ((beta + r(n')) / lr + l2)``, where ``r(n) = n^-lr_power``, by default the root.
    Every operation rounds once, in this order; g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = ftrl(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make(
        "ftrl",
        {
            "lr": lr,
            "l1": l1,
            "l2": l2,
            "beta": beta,
            "l2_shrinkage": l2_shrinkage,
            "lr_power": lr_power,
            "initial_accumulator": initial_accumulator,
        },
        rows=rows,
        semantics=semantics,
        maximize=maximize,
        frozen=frozen,
        duplicates=duplicates,
    )
