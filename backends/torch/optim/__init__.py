"""Optimizers for models with sparse gradients: the classes of torch.optim, with steps on the rows of a gradient.

``from islices.backends.torch import optim`` and ``optim.Adam(model.parameters(), lr=1e-3)`` replace torch.optim.Adam
and torch.optim.SparseAdam. The formulas are those of `islices.optim`, with the same bits on every framework;
semantics="torch" selects the formulas of torch.optim. A hyperparameter that is None gets the default of the semantics.
Each record of an optimizer (`islices.optim.record`) has a class here, whose arguments have torch's names and order.
SPEC clause 16.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeAlias, Unpack

import torch
from torch.optim import Optimizer as Optimizer  # a name of torch.optim, so that scripts only change the import of optim
from torch.optim import lr_scheduler as lr_scheduler
from torch.optim import swa_utils as swa_utils

from islices.backends.torch.optim.base import Options, RowOptimizer
from islices.backends.torch.optim.hyperparameters import check_decoupled

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lion",
    "NAdam",
    "RMSprop",
    "RowwiseAdagrad",
    "SparseAdam",
]

#: The type of hyperparameters; None means the default of the semantics.
Number: TypeAlias = float | torch.Tensor | None
Betas: TypeAlias = tuple[float | torch.Tensor, float | torch.Tensor] | None


class Adagrad(RowOptimizer):
    """Adagrad, which divides each element's step by the root of the sum of the element's squared gradients (Duchi et
    al. 2011).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 0.01
    lr_decay : float or Tensor of one, default 0.0
        The learning rate of step t is lr / (1 + (t - 1) lr_decay).
    weight_decay : float or Tensor of one, default 0.0
        weight_decay * w is added to the gradient of the rows that the step updates.
    initial_accumulator_value : float, default 0.0
        Initial value of the sums of squares.
    eps : float or Tensor of one, default 1e-10
        Added to the root in the denominator.
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.adagrad` defines the formula. The state has "step" and "sum". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = Adagrad(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "adagrad"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        lr_decay: Number = None,
        weight_decay: Number = None,
        initial_accumulator_value: Number = None,
        eps: Number = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, (lr, lr_decay, weight_decay, initial_accumulator_value, eps), **options)


class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator per row, so the state of a large table is a column.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one
    weight_decay : float or Tensor of one, default 0.0
        weight_decay * w is added to the gradient of the rows that the step updates.
    initial_accumulator_value : float, default 0.0
        Initial value of the sums of squares.
    eps : float or Tensor of one, default 1e-08
        Added to the root in the denominator.
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.rowwise_adagrad` defines the formula. The state has "step" and "sum". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = RowwiseAdagrad(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "rowwise_adagrad"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        weight_decay: Number = None,
        initial_accumulator_value: Number = None,
        eps: Number = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, (lr, weight_decay, initial_accumulator_value, eps), **options)


class Adam(RowOptimizer):
    """Adam (Kingma and Ba 2015, algorithm 1); rows="touched" selects lazy Adam.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 0.001
    betas : two floats or Tensors of one, default (0.9, 0.999)
        Decay of the running means of gradients and of their squares. The bias correction of step t is 1 - beta^t with
        the beta of step t.
    eps : float or Tensor of one, default 1e-08
        Added to the root of the corrected mean square.
    weight_decay : float or Tensor of one, default 0.0
        weight_decay * w is added to the gradient of the rows that the step updates; `AdamW` decouples the decay.
    amsgrad : bool, default False
        Divide by the root of the largest mean square so far (Reddi et al. 2018).
    decoupled_weight_decay : bool, optional
        A flag of torch's class; only False is accepted.
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.adam` defines the formula. The state has "step", "exp_avg" and "exp_avg_sq"; options add
    "max_exp_avg_sq". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = Adam(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "adam"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        betas: Betas = None,
        eps: Number = None,
        weight_decay: Number = None,
        amsgrad: bool | None = None,
        *,
        decoupled_weight_decay: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_decoupled(self.rule, decoupled_weight_decay)
        super().__init__(params, (lr, betas, eps, weight_decay, amsgrad), **options)


class AdamW(Adam):
    """AdamW, which is Adam with decoupled weight decay (Loshchilov and Hutter 2019).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 0.001
    betas : two floats or Tensors of one, default (0.9, 0.999)
        Decay of the running means of gradients and of their squares. The bias correction of step t is 1 - beta^t with
        the beta of step t.
    eps : float or Tensor of one, default 1e-08
        Added to the root of the corrected mean square.
    weight_decay : float or Tensor of one, default 0.01
        Before the update, the updated rows are multiplied by 1 - lr * weight_decay.
    amsgrad : bool, default False
        Divide by the root of the largest mean square so far (Reddi et al. 2018).
    decoupled_weight_decay : bool, optional
        A flag of torch's class; only True is accepted.
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.adamw` defines the formula. The state has "step", "exp_avg" and "exp_avg_sq"; options add
    "max_exp_avg_sq". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = AdamW(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "adamw"


class Adamax(RowOptimizer):
    """Adamax, which is Adam with the largest absolute gradient instead of the mean square (Kingma and Ba 2015,
    algorithm 2).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 0.002
    betas : two floats or Tensors of one, default (0.9, 0.999)
        Decay of the running mean of gradients, and of the largest absolute gradient so far.
    eps : float or Tensor of one, default 1e-08
        Added to the largest absolute gradient.
    weight_decay : float or Tensor of one, default 0.0
        weight_decay * w is added to the gradient of the rows that the step updates.
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.adamax` defines the formula. The state has "step", "exp_avg" and "exp_inf". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = Adamax(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "adamax"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        betas: Betas = None,
        eps: Number = None,
        weight_decay: Number = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, (lr, betas, eps, weight_decay), **options)


class Ftrl(RowOptimizer):
    """FTRL-Proximal, whose l1 penalty makes weights exactly zero (McMahan et al. 2013, algorithm 1).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one
    l1 : float or Tensor of one, default 0.0
        Strength of the l1 penalty.
    l2 : float or Tensor of one, default 0.0
        Strength of the l2 penalty.
    beta : float or Tensor of one, default 0.0
        Added to the root in the denominator.
    lr_power : float, default -0.5
        The learning rate falls with this power of the sum of squares.
    initial_accumulator_value : float, default 0.1
        Initial value of the sums of squares.
    l2_shrinkage : float or Tensor of one, default 0.0
        l2_shrinkage * w is added to the gradient in z, not to the gradient whose square is summed. TensorFlow calls
        this number l2_shrinkage_regularization_strength. The formulas of TensorFlow and Keras double both l2_shrinkage
        and l2.
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.ftrl` defines the formula. The state has "step", "z" and "n". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = Ftrl(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "ftrl"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        l1: Number = None,
        l2: Number = None,
        beta: Number = None,
        lr_power: Number = None,
        initial_accumulator_value: Number = None,
        l2_shrinkage: Number = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, (lr, l1, l2, beta, lr_power, initial_accumulator_value, l2_shrinkage), **options)


class Lion(RowOptimizer):
    """Lion, which changes each element by the learning rate, against the sign of a mean of gradients (Chen et al.
    2023).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one
    betas : two floats or Tensors of one, default (0.9, 0.99)
        Decay of the mean whose sign is the direction of the step, and decay of the running mean that the state stores.
    weight_decay : float or Tensor of one, default 0.0
        Before the update, the updated rows are multiplied by 1 - lr * weight_decay.
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.lion` defines the formula. The state has "step" and "exp_avg". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = Lion(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "lion"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        betas: Betas = None,
        weight_decay: Number = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, (lr, betas, weight_decay), **options)


class NAdam(RowOptimizer):
    """Nadam, which is Adam with Nesterov's momentum; the momentum grows with the step count (Dozat 2016).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 0.002
    betas : two floats or Tensors of one, default (0.9, 0.999)
        Decay of the running means of gradients and of their squares. The corrections of step t use the betas of step t.
    eps : float or Tensor of one, default 1e-08
        Added to the root of the corrected mean square.
    weight_decay : float or Tensor of one, default 0.0
        weight_decay * w is added to the gradient of the rows that the step updates.
    momentum_decay : float, default 0.004
        Growth of the momentum: mu at step t is beta1 (1 - 0.96^(t momentum_decay) / 2). Keras's formula has
        momentum_decay 1; in optax's formula the momentum does not grow.
    decoupled_weight_decay : bool, default False
        True decouples the decay: before the update, the updated rows are multiplied by 1 - lr * weight_decay.
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.nadam` defines the formula. The state has "step", "exp_avg" and "exp_avg_sq". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = NAdam(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "nadam"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        betas: Betas = None,
        eps: Number = None,
        weight_decay: Number = None,
        momentum_decay: Number = None,
        decoupled_weight_decay: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, (lr, betas, eps, weight_decay, momentum_decay, decoupled_weight_decay), **options)


class RMSprop(RowOptimizer):
    """RMSprop, which divides the gradient by the root of a running mean of squared gradients (Tieleman and Hinton
    2012).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 0.01
    alpha : float or Tensor of one, default 0.99
        Decay of the running means.
    eps : float or Tensor of one, default 1e-08
        Added to the root in the denominator.
    weight_decay : float or Tensor of one, default 0.0
        weight_decay * w is added to the gradient of the rows that the step updates.
    momentum : float or Tensor of one, default 0.0
        Decay rate of a buffer of steps; 0 means no momentum.
    centered : bool, default False
        Use the variance instead of the mean square (Graves 2013).
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.rmsprop` defines the formula. The state has "step" and "square_avg"; options add "momentum_buffer"
    and "grad_avg". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = RMSprop(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "rmsprop"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        alpha: Number = None,
        eps: Number = None,
        weight_decay: Number = None,
        momentum: Number = None,
        centered: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, (lr, alpha, eps, weight_decay, momentum, centered), **options)


class SGD(RowOptimizer):
    """Gradient descent, with or without momentum.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 0.001
    momentum : float or Tensor of one, default 0.0
        Momentum coefficient; 0 disables it.
    dampening : float or Tensor of one, default 0.0
        The gradient is multiplied by 1 - dampening before it is added to the buffer; with semantics="torch" only from
        the second step on.
    weight_decay : float or Tensor of one, default 0.0
        weight_decay * w is added to the gradient of the rows that the step updates.
    nesterov : bool, default False
        Step by gradient + momentum * buffer instead of by the buffer (Sutskever et al. 2013).
    **options
        See `RowOptimizer`: rows, semantics, maximize, frozen, master and others.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.sgd` defines the formula. The state has "step"; options add "momentum_buffer". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = SGD(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight[:2].flatten().tolist()
    [1.0, 1.0]
    """

    rule = "sgd"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        momentum: Number = None,
        dampening: Number = None,
        weight_decay: Number = None,
        nesterov: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(params, (lr, momentum, dampening, weight_decay, nesterov), **options)


class SparseAdam(RowOptimizer):
    """Lazy Adam with the arithmetic of torch.optim.SparseAdam; dense gradients raise an error.

    ``Adam(params, semantics="torch")`` takes the same steps, and also accepts dense gradients, for which it takes the
    steps of torch.optim.Adam.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 0.001
    betas : two floats or Tensors of one, default (0.9, 0.999)
    eps : float or Tensor of one, default 1e-08
    maximize : bool
        True maximizes the objective: steps follow the gradient upwards.
    **options
        See `RowOptimizer`: frozen, master, max_norm and others. By default rows is "touched", and semantics "torch".

    Raises
    ------
    TypeError, ValueError, IndexError
        An option or a gradient is invalid. The call changes nothing.

    Notes
    -----
    SPEC clauses 16 and 24.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = SparseAdam(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight.flatten()
    tensor([1.0000, 1.0000, 0.5000], grad_fn=<ViewBackward0>)
    """

    rule = "adam"

    def __init__(
        self,
        params: Any,
        lr: Number = None,
        betas: Betas = None,
        eps: Number = None,
        maximize: bool = False,
        **options: Any,
    ) -> None:
        options = {"rows": "touched", "semantics": "torch", **options}
        super().__init__(params, (lr, betas, eps, None, None), maximize=maximize, **options)


def __getattr__(name: str) -> NoReturn:
    if name in torch.optim.__all__:
        raise AttributeError(
            f"optim.{name}: got a name of torch.optim that has no rule for rows; accepted are {', '.join(__all__)} "
            f"here, and torch.optim.{name} for parameters with dense gradients"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
