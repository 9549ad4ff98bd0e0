"""Replace classes of torch.optim with optimizers that by default update only the rows of a sparse gradient.

Change the import to ``from islices.backends.torch import optim``. Then ``optim.Adam(model.parameters(), lr=1e-3)``
replaces torch.optim.Adam and torch.optim.SparseAdam. The classes use the formulas of `islices.optim`.
semantics="torch" selects the formulas of torch.optim. If a hyperparameter is None, it gets the default of the
semantics. There is one class per record in `islices.optim.records`, and also `SparseAdam`. If torch has a class of the
same name, the hyperparameters have its names and order. SPEC clause 16.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeAlias, Unpack

import torch
from torch.optim import Optimizer as Optimizer  # torch.optim also has this name
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
    lr : float or one-element Tensor, default 0.01
    lr_decay : float or one-element Tensor, default 0.0
        The learning rate of step t is lr / (1 + (t - 1) lr_decay).
    weight_decay : float or one-element Tensor, default 0.0
        The step adds ``weight_decay * w`` to the gradient of the rows that it updates.
    initial_accumulator_value : float, default 0.0
        The initial value of the sums of squares.
    eps : float or one-element Tensor, default 1e-10
        A small number that is added to the root in the denominator.
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.adagrad` defines the formula. The state contains "step" and "sum". SPEC clause 16.

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
    """Adagrad with one accumulator per row. So the state of a table contains only one number per row, and the step
    count.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or one-element Tensor
    weight_decay : float or one-element Tensor, default 0.0
        The step adds ``weight_decay * w`` to the gradient of the rows that it updates.
    initial_accumulator_value : float, default 0.0
        The initial value of the sums of squares.
    eps : float or one-element Tensor, default 1e-08
        A small number that is added to the root in the denominator.
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.rowwise_adagrad` defines the formula. The state contains "step" and "sum". SPEC clause 16.

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
    """Adam (Kingma and Ba 2015, algorithm 1). With ``rows="touched"``, the steps are those of lazy Adam.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or one-element Tensor, default 0.001
    betas : two floats or one-element Tensors, default (0.9, 0.999)
        The decay rates of the running means of the gradients and of their squares. The bias correction of step t is
        1 - beta^t, where beta is the value at step t.
    eps : float or one-element Tensor, default 1e-08
        A small number that is added to the root of the corrected mean square.
    weight_decay : float or one-element Tensor, default 0.0
        The step adds ``weight_decay * w`` to the gradient of the rows that it updates (with semantics="keras", the
        decay is decoupled). Use `AdamW` for decoupled decay.
    amsgrad : bool, default False
        If True, the step divides by the root of the largest mean square so far (Reddi et al. 2018).
    decoupled_weight_decay : bool, optional
        A flag that torch's class has. If you pass this flag, it must be False.
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.adam` defines the formula. The state contains "step", "exp_avg" and "exp_avg_sq", and with
    ``amsgrad=True`` also "max_exp_avg_sq". SPEC clause 16.

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
    lr : float or one-element Tensor, default 0.001
    betas : two floats or one-element Tensors, default (0.9, 0.999)
        The decay rates of the running means of the gradients and of their squares. The bias correction of step t is
        1 - beta^t, where beta is the value at step t.
    eps : float or one-element Tensor, default 1e-08
        A small number that is added to the root of the corrected mean square.
    weight_decay : float or one-element Tensor, default 0.01
        The step first multiplies the rows that it updates by ``1 - lr * weight_decay``.
    amsgrad : bool, default False
        If True, the step divides by the root of the largest mean square so far (Reddi et al. 2018).
    decoupled_weight_decay : bool, optional
        A flag that torch's class has. If you pass this flag, it must be True.
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.adamw` defines the formula. The state contains "step", "exp_avg" and "exp_avg_sq", and with
    ``amsgrad=True`` also "max_exp_avg_sq". SPEC clause 16.

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
    """Adamax, which divides by the decayed maximum of absolute gradients where Adam divides by a root mean square
    (Kingma and Ba 2015, algorithm 2).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or one-element Tensor, default 0.002
    betas : two floats or one-element Tensors, default (0.9, 0.999)
        The decay rates of the running mean of the gradients, and of the largest absolute gradient so far.
    eps : float or one-element Tensor, default 1e-08
        A small number that is added to the largest absolute gradient.
    weight_decay : float or one-element Tensor, default 0.0
        The step adds ``weight_decay * w`` to the gradient of the rows that it updates.
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.adamax` defines the formula. The state contains "step", "exp_avg" and "exp_inf". SPEC clause 16.

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
    """FTRL-Proximal, whose l1 penalty can make weights exactly zero (McMahan et al. 2013, algorithm 1).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or one-element Tensor
    l1 : float or one-element Tensor, default 0.0
        The strength of the l1 penalty.
    l2 : float or one-element Tensor, default 0.0
        The strength of the l2 penalty.
    beta : float or one-element Tensor, default 0.0
        A number that is added to the root in the denominator.
    lr_power : float, default -0.5
        The learning rate is multiplied by this power of the sum of squares.
    initial_accumulator_value : float, default 0.1
        The initial value of the sums of squares.
    l2_shrinkage : float or one-element Tensor, default 0.0
        The step adds ``l2_shrinkage * w`` to the gradient in z, but not to the gradient whose square is summed.
        TensorFlow calls this number l2_shrinkage_regularization_strength. The formulas of TensorFlow and Keras double
        both l2_shrinkage and l2.
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.ftrl` defines the formula. The state contains "step", "z" and "n". SPEC clause 16.

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
    """Lion, which changes each element by the learning rate, in the direction opposite to the sign of a mean of
    gradients (Chen et al. 2023).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or one-element Tensor
    betas : two floats or one-element Tensors, default (0.9, 0.99)
        The decay rates of the mean whose sign gives the direction of the step, and of the running mean in the state.
    weight_decay : float or one-element Tensor, default 0.0
        The step first multiplies the rows that it updates by ``1 - lr * weight_decay``.
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.lion` defines the formula. The state contains "step" and "exp_avg". SPEC clause 16.

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
    """Nadam, which is Adam with a Nesterov momentum that grows with the step count (Dozat 2016).

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or one-element Tensor, default 0.002
    betas : two floats or one-element Tensors, default (0.9, 0.999)
        The decay rates of the running means of the gradients and of their squares. The corrections of step t use the
        betas of step t.
    eps : float or one-element Tensor, default 1e-08
        A small number that is added to the root of the corrected mean square.
    weight_decay : float or one-element Tensor, default 0.0
        The step adds ``weight_decay * w`` to the gradient of the rows that it updates.
    momentum_decay : float, default 0.004
        Defines how fast the momentum grows: at step t it is beta1 (1 - 0.96^(t momentum_decay) / 2). Keras's formula
        has momentum_decay 1. In optax's formula, the momentum does not grow.
    decoupled_weight_decay : bool, default False
        If True, the decay is decoupled: the step first multiplies the rows that it updates by
        ``1 - lr * weight_decay``.
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.nadam` defines the formula. The state contains "step", "exp_avg" and "exp_avg_sq". SPEC clause 16.

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
    lr : float or one-element Tensor, default 0.01
    alpha : float or one-element Tensor, default 0.99
        The decay rate of the running means.
    eps : float or one-element Tensor, default 1e-08
        A small number that is added to the root in the denominator.
    weight_decay : float or one-element Tensor, default 0.0
        The step adds ``weight_decay * w`` to the gradient of the rows that it updates.
    momentum : float or one-element Tensor, default 0.0
        The decay rate of a buffer that sums steps. 0 means no momentum.
    centered : bool, default False
        If True, the variance replaces the mean square (Graves 2013).
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.rmsprop` defines the formula. The state contains "step" and "square_avg". With momentum it also
    contains "momentum_buffer", and with ``centered=True`` also "grad_avg". SPEC clause 16.

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
    lr : float or one-element Tensor, default 0.001
    momentum : float or one-element Tensor, default 0.0
        The momentum coefficient. 0 disables momentum.
    dampening : float or one-element Tensor, default 0.0
        The step multiplies the gradient by 1 - dampening before it adds the gradient to the buffer. With
        semantics="torch", the first step does not multiply.
    weight_decay : float or one-element Tensor, default 0.0
        The step adds ``weight_decay * w`` to the gradient of the rows that it updates.
    nesterov : bool, default False
        If True, the direction of the step is ``gradient + momentum * buffer`` instead of ``buffer`` (Sutskever et al.
        2013).
    **options
        The options rows, semantics, maximize, frozen, master and others, which `RowOptimizer` describes.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

    Notes
    -----
    `islices.optim.sgd` defines the formula. The state contains "step", and with momentum also
    "momentum_buffer". SPEC clause 16.

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
    """Lazy Adam with the arithmetic of torch.optim.SparseAdam. By default, a step raises an error for a dense
    gradient.

    For sparse gradients, ``Adam(params, semantics="torch")`` computes the same steps; for dense gradients, it computes
    the steps of torch.optim.Adam.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or one-element Tensor, default 0.001
    betas : two floats or one-element Tensors, default (0.9, 0.999)
    eps : float or one-element Tensor, default 1e-08
    maximize : bool
        If True, the optimizer maximizes the objective: it uses the negative of each gradient.
    **options
        The options frozen, master, max_norm and others, which `RowOptimizer` describes. By default, rows is "touched"
        and semantics is "torch".

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid. The call changes nothing.

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
