"""torch.optim's classes for models with sparse gradients: one optimizer for a whole model, at the cost of what is used.

``from islices.backends.torch import optim`` and ``optim.Adam(model.parameters(), lr=1e-3)`` stand in the place of
torch.optim.Adam and torch.optim.SparseAdam. The formulas are those of `islices.optim`, with the same bits on every
framework; with semantics="torch" those of torch.optim. SPEC clause 16.
"""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import torch

from islices.backends.torch.optim.base import RowOptimizer
from islices.backends.torch.optim.hyperparameters import check_decoupled
from islices.optim.factory import Rows
from islices.presets import Semantics

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Ftrl", "RMSprop", "RowwiseAdagrad"]

Number = float | torch.Tensor


class Options(TypedDict, total=False):
    """What all classes take, and groups of parameters too; see `RowOptimizer`."""

    rows: Rows
    semantics: Semantics
    maximize: bool
    frozen: Any
    master: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


class SGD(RowOptimizer):
    """Gradient descent, with momentum or without: torch.optim.SGD for sparse and dense gradients.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 1e-3
    momentum, dampening, weight_decay : float or Tensor of one, default 0
    nesterov : bool, default False
    **options
        rows, semantics, maximize, frozen, master ...: see `RowOptimizer`.

    Raises
    ------
    TypeError, ValueError, IndexError
        What does not fit; nothing has been changed then.

    Notes
    -----
    `islices.optim.sgd` has the formula. The state: "step", with momentum "momentum_buffer". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = SGD(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight.flatten().tolist()
    [1.0, 1.0, 0.0]
    """

    rule = "sgd"
    hyper = ("lr", "momentum", "dampening", "weight_decay", "nesterov")

    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        momentum: Number | None = None,
        dampening: Number | None = None,
        weight_decay: Number | None = None,
        nesterov: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        values = (lr, momentum, dampening, weight_decay, nesterov)
        super().__init__(params, dict(zip(self.hyper, values, strict=True)), **options)


class Adagrad(RowOptimizer):
    """Adagrad (Duchi et al. 2011): torch.optim.Adagrad.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 1e-2
    lr_decay, weight_decay, initial_accumulator_value : float, default 0
    eps : float, default 1e-10
    **options
        rows, semantics, maximize, frozen, master ...: see `RowOptimizer`.

    Raises
    ------
    TypeError, ValueError, IndexError
        What does not fit; nothing has been changed then.

    Notes
    -----
    `islices.optim.adagrad` has the formula. The state: "step", "sum". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = Adagrad(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight.flatten().tolist(), optimizer.state[layer.weight]["sum"].flatten().tolist()
    ([1.0, 1.0, 0.5], [0.0, 0.0, 4.0])
    """

    rule = "adagrad"
    hyper = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")

    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        lr_decay: float | None = None,
        weight_decay: float | None = None,
        initial_accumulator_value: float | None = None,
        eps: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        values = (lr, lr_decay, weight_decay, initial_accumulator_value, eps)
        super().__init__(params, dict(zip(self.hyper, values, strict=True)), **options)


class RowwiseAdagrad(RowOptimizer):
    """Adagrad with one accumulator a row, as FBGEMM has it: the state of a large table is a column.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one
        To be given, unless the semantics has a default.
    weight_decay, initial_accumulator_value : float, default 0
    eps : float, default 1e-8
    **options
        rows, semantics, maximize, frozen, master ...: see `RowOptimizer`.

    Raises
    ------
    TypeError, ValueError, IndexError
        What does not fit; nothing has been changed then.

    Notes
    -----
    `islices.optim.rowwise_adagrad` has the formula; the rows of a dense parameter are those of its first dimension, a
    bias has rows of one. The state: "step", and "sum" of shape (rows,). SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 2), freeze=False, sparse=True)
    >>> optimizer = RowwiseAdagrad(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight.tolist(), optimizer.state[layer.weight]["sum"].tolist()
    ([[1.0, 1.0], [1.0, 1.0], [0.5, 0.5]], [0.0, 0.0, 4.0])
    """

    rule = "rowwise_adagrad"
    hyper = ("lr", "weight_decay", "initial_accumulator_value", "eps")

    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        weight_decay: float | None = None,
        initial_accumulator_value: float | None = None,
        eps: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        values = (lr, weight_decay, initial_accumulator_value, eps)
        super().__init__(params, dict(zip(self.hyper, values, strict=True)), **options)


class RMSprop(RowOptimizer):
    """RMSprop (Tieleman and Hinton 2012): torch.optim.RMSprop, which refuses sparse gradients.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 1e-2
    alpha : float, default 0.99
        Decay of the running means.
    eps : float, default 1e-8
    weight_decay, momentum : float, default 0
    centered : bool, default False
    **options
        rows, semantics, maximize, frozen, master ...: see `RowOptimizer`.

    Raises
    ------
    TypeError, ValueError, IndexError
        What does not fit; nothing has been changed then.

    Notes
    -----
    `islices.optim.rmsprop` has the formula. The state: "step", "square_avg", with momentum "momentum_buffer", centered
    "grad_avg". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = RMSprop(layer.parameters(), lr=0.5, alpha=0.75)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight.flatten().tolist(), optimizer.state[layer.weight]["square_avg"].flatten().tolist()
    ([1.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    """

    rule = "rmsprop"
    hyper = ("lr", "alpha", "eps", "weight_decay", "momentum", "centered")

    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        values = (lr, alpha, eps, weight_decay, momentum, centered)
        super().__init__(params, dict(zip(self.hyper, values, strict=True)), **options)


class Adam(RowOptimizer):
    """Adam (Kingma and Ba 2015), lazy on sparse gradients: torch.optim.Adam and torch.optim.SparseAdam in one.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 1e-3
    betas : two floats or Tensors of one, default (0.9, 0.999)
    eps : float, default 1e-8
    weight_decay : float, default 0
        Times the weight added to the gradient; see `AdamW` for the decoupled one.
    amsgrad : bool, default False
        Divide by the root of the largest mean square so far.
    decoupled_weight_decay : bool
        False is accepted: `AdamW` is the one with it.
    **options
        rows, semantics, maximize, frozen, master ...: see `RowOptimizer`.

    Raises
    ------
    TypeError, ValueError, IndexError
        What does not fit; nothing has been changed then.

    Notes
    -----
    `islices.optim.adam` has the formula; with semantics="torch" a sparse gradient is stepped as SparseAdam does it, a
    dense one as Adam. The state: "step", "exp_avg", "exp_avg_sq",
    with amsgrad "max_exp_avg_sq". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = Adam(layer.parameters(), lr=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight.detach().flatten(), optimizer.state[layer.weight]["step"].tolist()
    (tensor([1.0000, 1.0000, 0.5000]), [1])
    """

    rule = "adam"
    hyper = ("lr", "betas", "eps", "weight_decay", "amsgrad")

    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        betas: tuple[Number, Number] | None = None,
        eps: float | None = None,
        weight_decay: Number | None = None,
        amsgrad: bool | None = None,
        *,
        decoupled_weight_decay: bool = False,
        **options: Unpack[Options],
    ) -> None:
        check_decoupled(self.rule, decoupled_weight_decay)
        values = (lr, betas, eps, weight_decay, amsgrad)
        super().__init__(params, dict(zip(self.hyper, values, strict=True)), **options)


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): torch.optim.AdamW, which refuses sparse gradients.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, default 1e-3
    betas : two floats or Tensors of one, default (0.9, 0.999)
    eps : float, default 1e-8
    weight_decay : float, default 1e-2
        With rows="touched" the rows that move are shrunk, all others keep their bits.
    amsgrad : bool, default False
        As of `Adam`.
    **options
        rows, semantics, maximize, frozen, master ...: see `RowOptimizer`.

    Raises
    ------
    TypeError, ValueError, IndexError
        What does not fit; nothing has been changed then.

    Notes
    -----
    `islices.optim.adamw` has the formula. The state: "step", "exp_avg", "exp_avg_sq",
    with amsgrad "max_exp_avg_sq". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = AdamW(layer.parameters(), lr=0.5, weight_decay=0.5)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight.detach().flatten()
    tensor([1.0000, 1.0000, 0.2500])
    """

    rule = "adamw"


class Ftrl(RowOptimizer):
    """FTRL-Proximal (McMahan et al. 2013), which torch.optim does not have: l1 makes rows exactly zero.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
    lr : float or Tensor of one, above 0
        To be given, unless the semantics has a default. The formula divides by it.
    l1, l2, beta : float, default 0
        The penalties; what is added to the root in the denominator.
    lr_power : float, -256 < lr_power <= 0, default -0.5
    initial_accumulator_value : float, default 0.1
    l2_shrinkage : float, default 0
        Times the weight added to the gradient, not to its square.
    **options
        rows, semantics, maximize, frozen, master ...: see `RowOptimizer`.

    Raises
    ------
    TypeError, ValueError, IndexError
        What does not fit; nothing has been changed then.

    Notes
    -----
    `islices.optim.ftrl` has the formula. The state: "step", "z", "n". SPEC clause 16.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Embedding.from_pretrained(torch.ones(3, 1), freeze=False, sparse=True)
    >>> optimizer = Ftrl(layer.parameters(), lr=0.5, l1=10.0)
    >>> layer(torch.tensor([2, 2])).sum().backward()
    >>> optimizer.step()
    >>> layer.weight.flatten().tolist()
    [1.0, 1.0, 0.0]
    """

    rule = "ftrl"
    hyper = ("lr", "l1", "l2", "beta", "lr_power", "initial_accumulator_value", "l2_shrinkage")

    def __init__(
        self,
        params: Any,
        lr: Number | None = None,
        l1: float | None = None,
        l2: float | None = None,
        beta: float | None = None,
        lr_power: float | None = None,
        initial_accumulator_value: float | None = None,
        l2_shrinkage: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        values = (lr, l1, l2, beta, lr_power, initial_accumulator_value, l2_shrinkage)
        super().__init__(params, dict(zip(self.hyper, values, strict=True)), **options)
