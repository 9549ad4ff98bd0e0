"""The formulas of Adam and AdamW in each semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from islices.backend import Host
from islices.core import modes
from islices.norms.clip_formulas import Semantics
from islices.optim.factory import Duplicates, Rows, make
from islices.optim.formulas import Formula, State
from islices.optim.hyperparameters import Hyper, Setting, decays, is_on, refuse_scheduled
from islices.optim.numbers import Keras, Numbers, Singles, single
from islices.optim.operators import div, maximum, mul, sqrt
from islices.optim.optimizer import Optimizer
from islices.optim.record import ALL, Preset, Record, raw
from islices.optim.rules import gradient_mean, square_mean

#: Defaults of most semantics for the running means and eps.
MOMENTS: Hyper = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
#: Defaults of most semantics that have all of these hyperparameters.
DEFAULTS: Hyper = {**MOMENTS, "weight_decay": 0.0, "amsgrad": False}


# ---------------------------------------------------------------------- the rule
def adam_rule(
    g, w, m, v, gain1, gain2, rate, eps, q=None, v_max=None, beta1=None, beta2=None, half=None, one=None, root=None,
    correction1=None, correction2=None, weight_decay=None, early=False,
):  # fmt: skip
    """Apply Adam (Kingma and Ba 2015, algorithm 1). `gain1` and `gain2` are 1 - beta1 and 1 - beta2.

    `rate` is the learning rate, divided by the bias correction of m unless `correction1` is given. If neither `root`
    nor `correction2` is given, `rate` also contains the bias correction of the root. If `v_max` is given (amsgrad,
    Reddi et al. 2018), the rule divides by the root of the largest mean square so far. If `early` is True, the mean is
    multiplied by the rate before the division. If `early` is False and `weight_decay` is given, weight_decay times the
    weight is added to the quotient before the multiplication by the rate.
    """
    m = gradient_mean(m, g, gain1, beta1, half, one)
    v = square_mean(v, g, q, gain2, beta2)
    square = v if correction2 is None else div(v, correction2)
    if v_max is not None:
        square = v_max = maximum(v_max, square)
    spread = (sqrt(square) if root is None else div(sqrt(square), root)) + eps
    if early:
        step = div(mul(rate, m), spread)
    else:
        step = div(m if correction1 is None else div(m, correction1), spread)
        step = mul(rate, step if weight_decay is None else step + mul(weight_decay, w))
    return w - step, m, v, v_max


# ---------------------------------------------------------------------- numbers
class IslicesAdam(Numbers):
    def rate(self):
        """Return lr / (1 - beta1^t)."""
        return self.E.div(self.exact_lr, self.correction("beta1"))

    def root(self):
        """Return sqrt(1 - beta2^t)."""
        return self.E.sqrt(self.correction("beta2"))


class TorchAdam(IslicesAdam):
    def correction(self, beta: str) -> Any:
        return self.number(1.0) - self.library_power(self.h[beta])

    def root(self):
        rest = self.correction2()
        return self.number(float(rest[0]) ** 0.5) if self.E is modes.HOST else self.E.sqrt(rest)


class TorchSparse(TorchAdam):
    def rate(self):
        """Return lr * sqrt(1 - beta2^t) / (1 - beta1^t). With this rate, eps is added to the uncorrected root."""
        E = self.E
        return E.div(E.round_product(self.exact_lr, E.sqrt(self.correction2())), self.correction1())


class KerasAdam(Keras):
    def correction(self, beta: str) -> Any:
        """Return 1 - beta^t in the dtype of `narrow`.

        In most cases, TensorFlow's float32 pow equals the rounded float64 pow.
        """
        return self.narrow(self.one) - self.narrow(self.library_power(self.single(beta)))

    def rate(self):
        """Return lr sqrt(1 - beta2^t) / (1 - beta1^t), computed in the dtype of `narrow`."""
        E = self.E
        return E.div(E.round_product(self.narrow(self.lr()), E.sqrt(self.correction2())), self.correction1())


class TensorFlowAdam(KerasAdam, Singles):
    def correction(self, beta: str) -> Any:
        return self.narrow(self.one) - self.narrow(_tensorflow_power(self, self.h[beta]))


class MXNet(Singles):
    def rate(self):
        """Return lr sqrt(1 - beta2^t) / (1 - beta1^t), which MXNet computes in float64 and then rounds to float32."""
        E = self.E
        correction = E.div(E.sqrt(self.correction2()), self.correction1())
        return E.astype(E.round_product(self.exact_lr, correction), "float32")


class OptaxAdam(Numbers):
    def rate(self):
        return self.exact_lr

    def correction(self, beta: str) -> Any:
        """Return 1 - beta^t as JAX without x64 computes it, with each result rounded to float32.

        The difference loses digits: with beta 0.999, its relative error at the first step is about 1e-5.
        """
        power = self.E.astype(self.power(self.single(beta)), "float32")
        return self.number(1.0, "float32") - power


@lru_cache(maxsize=64)
def _running_products(base: float, count: int) -> Host:
    return np.multiply.accumulate(np.full(count, base, np.float32))


def _tensorflow_power(n: Numbers, base: float) -> Any:
    """Return base^t as TensorFlow computes its variable beta_power, by a running product that each step rounds to
    float32.

    A power too small to change 1 - power is replaced by 0. Traced code gets the rounded power, because the running
    product has no closed form.
    """
    if n.E is not modes.HOST:
        return n.E.astype(n.power(single(base)), "float32")
    t, base = int(n.t[0]), single(base)
    if base == 1.0 or base ** float(t) < 2.0**-60:  # 1 - power is 0 in the first case, else 1
        return n.number(float(base == 1.0))
    products = _running_products(base, 1 << max(10, (t - 1).bit_length()))
    return n.number(float(products[t - 1]))


# ---------------------------------------------------------------------- formulas
def adam_state(h: Hyper) -> tuple[State, ...]:
    """Describe the arrays of the state: the two running means and, with amsgrad, the largest mean square so far."""
    return (State("m"), State("v", positive=True), *[State("v_max", positive=True)] * bool(h["amsgrad"]))


def _islices(h: Hyper) -> Formula:
    return Formula(adam_rule, IslicesAdam, adam_state(h), "element", decays(h), options=("root",))


def _torch_dense(h: Hyper) -> Formula:
    options = ("beta2", "half", "one", "root", "early")
    return Formula(adam_rule, TorchAdam, adam_state(h), decay=decays(h), rows=ALL, options=options)


def _torch(h: Hyper) -> Formula:
    if h["amsgrad"] or is_on(h["weight_decay"]):  # torch's SparseAdam supports neither
        return _torch_dense(h)
    if h["rows"] == "all":
        return replace(_torch_dense(h), rows=("touched", "all"))
    return Formula(adam_rule, TorchSparse, adam_state(h), "element")


def _keras(h: Hyper) -> Formula:
    return Formula(adam_rule, KerasAdam, adam_state(h), "element", "shrunk", ALL, raw(h), options=("early",))


def _tensorflow(h: Hyper) -> Formula:
    # TensorFlow's power is a running product of the betas of all steps so far, so a scheduled beta does not fit
    refuse_scheduled(h, 'adam with semantics="tensorflow"', "beta1", "beta2")
    state = (State("m"), State("v"))
    return Formula(adam_rule, TensorFlowAdam, state, "element", options=("beta1", "beta2", "early"))


def _mxnet(h: Hyper) -> Formula:
    """Return MXNet's formula. With rows="all", like MXNet's lazy_update=False, v gets gain2 (g g), not (gain2 g) g."""
    squares = "" if h["rows"] == "touched" else "element"
    state, options = (State("m"), State("v")), ("beta1", "beta2", "early")
    return Formula(adam_rule, MXNet, state, squares, "coupled", options=options)


def _optax(h: Hyper) -> Formula:
    options = ("beta1", "beta2", "correction1", "correction2")
    return Formula(adam_rule, OptaxAdam, adam_state(h), "element", rows=ALL, options=options)


def _adamw_optax(h: Hyper) -> Formula:
    own = _optax({**h, "amsgrad": False})  # optax has no amsgrad with decoupled weight decay
    return replace(own, options=(*own.options, "weight_decay")) if is_on(h["weight_decay"]) else own


# ---------------------------------------------------------------------- the record
ARGUMENTS = ("lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad")
STORED = {"m": "exp_avg", "v": "exp_avg_sq", "v_max": "max_exp_avg_sq"}
ADAM = Record(
    "adam",
    "Adam",
    ARGUMENTS,
    {
        "islices": Preset(DEFAULTS, _islices),
        "keras": Preset({"lr": 1e-3, **DEFAULTS, "eps": 1e-7}, _keras, "keras.optimizers.Adam"),
        "mxnet": Preset({"lr": 0.001, **MOMENTS, "weight_decay": 0.0}, _mxnet, "mx.optimizer.Adam"),
        "optax": Preset(
            {**MOMENTS, "amsgrad": False},
            _optax,
            "optax.adam, optax.amsgrad",
            terms={"v_max": 1.0},
        ),
        "tensorflow": Preset(
            {"lr": 1e-3, **MOMENTS},
            _tensorflow,
            "tf.contrib.opt.LazyAdamOptimizer, tf.compat.v1.train.AdamOptimizer",
        ),
        "torch": Preset({"lr": 1e-3, **DEFAULTS}, _torch, "torch.optim.SparseAdam, torch.optim.Adam"),
    },
    decoupled=False,
    stored=STORED,
    added=("v_max",),
)
ADAMW = Record(
    "adamw",
    "AdamW",
    ARGUMENTS,
    {
        "islices": Preset(
            {**DEFAULTS, "weight_decay": 1e-2},
            lambda h: replace(_islices(h), decay=decays(h, "decoupled")),
        ),
        "keras": Preset({"lr": 1e-3, **DEFAULTS, "eps": 1e-7, "weight_decay": 4e-3}, _keras, "keras.optimizers.AdamW"),
        "optax": Preset({**MOMENTS, "weight_decay": 1e-4}, _adamw_optax, "optax.adamw"),
        "torch": Preset(
            {"lr": 1e-3, **DEFAULTS, "weight_decay": 1e-2},
            lambda h: replace(_torch_dense(h), decay=decays(h, "decoupled")),
            "torch.optim.AdamW",
        ),
    },
    decoupled=True,
    variant_of="adam",
    stored=STORED,
    added=("v_max",),
)


def adam(
    lr: Setting = None,
    *,
    beta1: Setting = None,
    beta2: Setting = None,
    eps: Setting = None,
    weight_decay: Setting = None,
    amsgrad: bool | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make an Adam optimizer (Kingma and Ba 2015, algorithm 1). With rows="touched", this is lazy Adam.

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    beta1, beta2 : float, array of one, or function of the step, default 0.9 and 0.999
        The decay rates of the running means of gradients and of squared gradients. With a schedule, the bias
        correction of step t is 1 - beta^t with the beta of step t.
    eps : float, array of one, or function of the step, default 1e-8
        A small number that is added to the root of the corrected mean square.
    weight_decay : float, array of one, or function of the step, default 0
        weight_decay * w is added to the gradient of the updated rows; see `adamw` for decoupled weight decay.
    amsgrad : bool, default False
        If True, divide by the root of the largest mean square so far (Reddi et al. 2018). The state stores this mean
        square as "v_max". Only the semantics islices, keras, optax and torch support this.
    rows : {"touched", "all"}, optional
        With "touched", a step updates only the rows that a sparse gradient contains. With "all", a step updates every
        row, like the dense formula. The default is "touched", or "all" if the semantics supports only "all".
    semantics : {"islices", "keras", "mxnet", "optax", "tensorflow", "torch"}
        The library whose arithmetic and defaults the optimizer uses; see docs/optimizers.md.
    maximize : bool
        If True, maximize the loss instead of minimizing it.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that no step changes. Weight decay does not change them either.
    duplicates : {"sum", "raw"}
        With "sum", duplicate rows are summed before the update. With "raw", the step applies Keras's update to unsummed
        duplicates; docs/optimizers.md lists where this is supported.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid, or this semantics does not support it.

    Notes
    -----
    The defaults above and this formula are those of semantics="islices": ``m = m + (1 - beta1) (g - m)``,
    ``v = v + (1 - beta2) (g g - v)``, then
    ``w - (lr / (1 - beta1^t)) (m / (sqrt(v) / sqrt(1 - beta2^t) + eps))``. t counts the table's steps from 1.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

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
    return make("adam", **locals())


def adamw(
    lr: Setting = None,
    *,
    beta1: Setting = None,
    beta2: Setting = None,
    eps: Setting = None,
    weight_decay: Setting = None,
    amsgrad: bool | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make an Adam optimizer with decoupled weight decay (Loshchilov and Hutter 2019).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    beta1, beta2 : float, array of one, or function of the step, default 0.9 and 0.999
        The decay rates of the running means of gradients and of squared gradients. With a schedule, the bias
        correction of step t is 1 - beta^t with the beta of step t.
    eps : float, array of one, or function of the step, default 1e-8
        A small number that is added to the root of the corrected mean square.
    weight_decay : float, array of one, or function of the step, default 0.01
        The updated rows are first multiplied by 1 - lr * weight_decay.
    amsgrad : bool, default False
        If True, divide by the root of the largest mean square so far (Reddi et al. 2018). The state stores this mean
        square as "v_max". Only the semantics islices, keras and torch support this.
    rows : {"touched", "all"}, optional
        With "touched", a step updates only the rows that a sparse gradient contains. With "all", a step updates every
        row, like the dense formula. The default is "touched", or "all" if the semantics supports only "all".
    semantics : {"islices", "keras", "optax", "torch"}
        The library whose arithmetic and defaults the optimizer uses; see docs/optimizers.md.
    maximize : bool
        If True, maximize the loss instead of minimizing it.
    frozen : 1-D integer array or sequence, or boolean mask, optional
        Rows that no step changes. Weight decay does not change them either.
    duplicates : {"sum", "raw"}
        With "sum", duplicate rows are summed before the update. With "raw", the step applies Keras's update to unsummed
        duplicates; docs/optimizers.md lists where this is supported.

    Returns
    -------
    Optimizer
        ``.init(table) -> state`` and ``.step(table, grad, state) -> (table, state)``.

    Raises
    ------
    TypeError, ValueError, IndexError
        An argument is invalid, or this semantics does not support it.

    Notes
    -----
    The defaults above and this formula are those of semantics="islices": ``w = (1 - lr weight_decay) w``, then the step
    of `adam`.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

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
    return make("adamw", **locals())
