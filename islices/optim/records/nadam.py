"""The formulas of Nadam in each semantics. SPEC clauses 11 and 16."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from islices.backend import Array, Host
from islices.core import modes
from islices.norms.clip_formulas import Semantics
from islices.optim.factory import Duplicates, Rows, make
from islices.optim.formulas import Formula, State
from islices.optim.hyperparameters import Accepted, Hyper, Setting, decays, refuse_scheduled
from islices.optim.numbers import Numbers, power_of, single
from islices.optim.operators import div, mul, sqrt
from islices.optim.optimizer import Optimizer
from islices.optim.record import ALL, Preset, Record, raw
from islices.optim.records import adam
from islices.optim.row_steps import array_power
from islices.optim.rules import gradient_mean, square_mean

STATE = (State("m"), State("v", positive=True))


# ---------------------------------------------------------------------- the schedule of momentum
# mu_t = beta1 (1 - 0.5 c^t) with c = 0.96^momentum_decay (Dozat 2016). torch and Keras store the product mu_1 ... mu_t
# as a state. This module computes the product as beta1^t, with the current beta1, times the product of 1 - 0.5 c^k for
# k = 1 ... t. The second product is a function of t that soon becomes constant, so it needs no state, and steps read it
# from a table. Outside traced code, the semantics of torch instead repeats torch's float32 product.
@lru_cache(maxsize=64)
def _fading(momentum_decay: float) -> float:
    """Return c = 0.96^momentum_decay."""
    one = np.ones(1)
    with modes.HOST.scope():
        return float(array_power(modes.HOST, np.array((0.96,)), np.array((float(momentum_decay),)), one)[0])


@lru_cache(maxsize=64)
def _products(c: float) -> Host:
    """Return the products of 1 - 0.5 c^k over k = 1 ... t, for t = 1, 2 and so on until the products stay constant.

    Products of at most 1e-290 become 0.
    """
    products: list[float] = []
    product, factor = 1.0, 0.0
    while product and factor != 1.0:
        factor = 1.0 - 0.5 * power_of(c, len(products) + 1)
        product = product * factor
        product = product if product > 1e-290 else 0.0
        products.append(product)
    return np.array(products)


def _momenta(n: Numbers, beta1: Any, c: float) -> tuple[Array, Array]:
    """Return mu_t and mu_(t+1), the momentum coefficients of this step and of the next step."""
    E, one, half = n.E, n.number(1.0), n.number(0.5)
    now = n.power(c)
    after = E.round_product(now, n.number(c))
    first, second = (E.round_product(n.array_of(beta1), one - E.round_product(half, x)) for x in (now, after))
    return first, second


def _product(n: Numbers, beta1: Any, c: float) -> Array:
    """Return mu_1 ... mu_t, the product of the momentum coefficients so far."""
    products = _products(c)
    last = n.array(np.full(1, len(products) - 1, np.int32))
    place = n.E.where(n.E.in_range(n.count, len(products)), n.count, last)
    return n.E.round_product(n.power(beta1), n.E.take(n.array(products), place))


# ---------------------------------------------------------------------- rules
def islices_nadam(g, w, m, v, gain1, gain2, head, rate, eps, q=None, beta2=None, half=None, one=None, root=None,
                  correction2=None, apart=False):  # fmt: skip
    """Apply Nadam (Dozat 2016). `gain1` and `gain2` are 1 - beta1 and 1 - beta2.

    `head` multiplies the gradient, and `rate` the running mean; both contain the learning rate and a bias correction.
    `root` is sqrt(1 - beta2^t), or None if `correction2`, 1 - beta2^t, is given. If `apart` is True, the gradient and
    the running mean are divided separately, as in torch.
    """
    m = gradient_mean(m, g, gain1, None, half, one)
    v = square_mean(v, g, q, gain2, beta2)
    spread = (div(sqrt(v), root) if correction2 is None else sqrt(div(v, correction2))) + eps
    if apart:
        w = w - div(mul(head, g), spread) - div(mul(rate, m), spread)
    else:
        w = w - div(mul(head, g) + mul(rate, m), spread)
    return w, m, v


def keras_nadam(g, q, w, m, v, gain1, gain2, head, left, after, after1, correction2, lr, eps, beta1=None, beta2=None):
    """Apply Keras's Nadam. `after1` is the bias correction of the running mean, and `left` that of the gradient.

    If `beta1` is given, use optax's order of operations.
    """
    m = gradient_mean(m, g, gain1, beta1, None, None)
    v = square_mean(v, g, q, gain2, beta2)
    spread = sqrt(div(v, correction2)) + eps
    if beta1 is None:
        step = div(mul(div(mul(after, m), after1) + div(mul(head, g), left), lr), spread)
    else:
        step = mul(lr, div(mul(after, div(m, after1)) + mul(head, div(g, left)), spread))
    return w - step, m, v


# ---------------------------------------------------------------------- numbers
class IslicesNadam(adam.IslicesAdam):
    def momenta(self) -> tuple[Array, Array, Array]:
        """Return mu_t, mu_(t+1) and the product mu_1 ... mu_t."""
        beta1, c = self.h["beta1"], _fading(self.h["momentum_decay"])
        return (*_momenta(self, beta1, c), _product(self, beta1, c))

    def head(self):
        """Return the factor that multiplies the gradient."""
        (mu, _, product), one = self.momenta(), self.number(1.0)
        return self.E.div(self.E.round_product(self.exact_lr, one - mu), one - product)

    def rate(self):
        """Return the factor that multiplies the running mean."""
        _, after, product = self.momenta()
        rest = self.number(1.0) - self.E.round_product(product, after)
        return self.E.div(self.E.round_product(self.exact_lr, after), rest)


def _mu_product(h: Hyper, t: int) -> float:
    """Return the entry mu_product of torch's state after t steps."""
    return (
        float(_torch_products(h["beta1"], h["momentum_decay"], 1 << max(10, (t - 1).bit_length()))[t - 1]) if t else 1.0
    )


@lru_cache(maxsize=64)
def _torch_products(beta1: float, momentum_decay: float, count: int) -> Host:
    """Return torch's float32 mu_product after each of the first `count` steps.

    Products below 2^-60 become 0, because 1 minus a product of this size rounds to 1.
    """
    products = np.zeros(count, np.float32)
    product = np.float32(1.0)
    for k in range(count):
        product = product * np.float32(beta1 * (1.0 - 0.5 * 0.96 ** ((k + 1.0) * momentum_decay)))
        if product < 2.0**-60:
            break
        products[k] = product
    return products


class TorchNadam(IslicesNadam, adam.TorchAdam):
    def momenta(self) -> tuple[Array, Array, Array]:
        """Return mu_t, mu_(t+1) and torch's mu_1 ... mu_t.

        Traced code gets one product, rounded once to float32, because a product of rounded factors has no closed form.
        """
        if self.E is not modes.HOST:
            mu, after, product = super().momenta()
            return mu, after, self.E.astype(self.E.astype(product, "float32"), "float64")
        t, beta1, psi = float(self.t[0]), self.h["beta1"], self.h["momentum_decay"]
        mu, after = (self.number(beta1 * (1.0 - 0.5 * 0.96 ** (k * psi))) for k in (t, t + 1.0))
        return mu, after, self.number(_mu_product(self.h, int(t)))


class KerasNadam(adam.KerasAdam):
    """The numbers of Keras's Nadam: the betas and 0.96 are rounded to float32, except in the product of the momenta.

    Corrections are computed in the dtype of `narrow`.
    """

    def hyper(self, name: str) -> Any:
        return self.single(name) if name.startswith("beta") else self.h[name]

    def momenta(self) -> list[Array]:
        mu, after = _momenta(self, self.single("beta1"), single(0.96))
        return [self.narrow(x) for x in (mu, after, _product(self, self.h["beta1"], 0.96))]

    def head(self):
        return self.narrow(self.one) - self.momenta()[0]

    def left(self):
        return self.narrow(self.one) - self.momenta()[2]

    def after(self):
        return self.momenta()[1]

    def after1(self):
        _, after, product = self.momenta()
        return self.narrow(self.one) - self.E.round_product(product, after)


class OptaxNadam(adam.OptaxAdam):
    def head(self):
        return self.complement("beta1")

    def left(self):
        return self.correction1()

    def after(self):
        return self.h["beta1"]

    def after1(self):
        """Return the bias correction of the running mean at the next step."""
        count = self.count + self.array(np.ones(1, np.int32))
        return OptaxNadam(self.E, count, self.h, self.wide).correction1()


# ---------------------------------------------------------------------- formulas
def _decay(h: Hyper) -> str:
    return decays(h, "decoupled" if h["decoupled_weight_decay"] else "coupled")


def _torch(h: Hyper) -> Formula:
    # mu_product contains beta1 of each step so far, so a scheduled beta1 does not fit
    refuse_scheduled(h, 'nadam with semantics="torch"', "beta1")
    options = ("beta2", "half", "one", "correction2", "apart")
    return Formula(islices_nadam, TorchNadam, STATE, "", _decay(h), ALL, additive=False, options=options)


# ---------------------------------------------------------------------- the record
SCHEDULE: Hyper = {"weight_decay": 0.0, "momentum_decay": 4e-3, "decoupled_weight_decay": False}
NADAM = Record(
    "nadam",
    "NAdam",
    ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay"),
    {
        "islices": Preset(
            {**adam.MOMENTS, **SCHEDULE},
            lambda h: Formula(islices_nadam, IslicesNadam, STATE, "element", _decay(h), options=("root",)),
        ),
        "keras": Preset(
            {"lr": 1e-3, **adam.MOMENTS, "eps": 1e-7, "weight_decay": 0.0},
            lambda h: Formula(keras_nadam, KerasNadam, STATE, "element", "shrunk", ALL, raw(h)),
            "keras.optimizers.Nadam",
        ),
        "optax": Preset(  # Nesterov's Adam without a schedule of the momentum
            adam.MOMENTS,
            lambda h: Formula(keras_nadam, OptaxNadam, STATE, "element", rows=ALL, options=("beta1", "beta2")),
            "optax.nadam",
        ),
        "torch": Preset({"lr": 2e-3, **adam.MOMENTS, **SCHEDULE}, _torch, "torch.optim.NAdam"),
    },
    stored={"m": "exp_avg", "v": "exp_avg_sq"},
    recomputed={"mu_product": _mu_product},
    fixed=("momentum_decay",),
    limits={"momentum_decay": Accepted("0 <= momentum_decay < 256", lambda x: 0 <= x < 256)},
)


def nadam(
    lr: Setting = None,
    *,
    beta1: Setting = None,
    beta2: Setting = None,
    eps: Setting = None,
    weight_decay: Setting = None,
    momentum_decay: float | None = None,
    decoupled_weight_decay: bool | None = None,
    rows: Rows = None,
    semantics: Semantics = "islices",
    maximize: bool = False,
    frozen: Any = None,
    duplicates: Duplicates = "sum",
) -> Optimizer:
    """Make a Nadam optimizer, which is Adam with a Nesterov momentum that grows with the step count (Dozat 2016).

    Parameters
    ----------
    lr : float, array of one, or function of the step
        The learning rate. A function gets the number of completed steps, as an int or, in traced code, an int32 array.
    beta1, beta2 : float, array of one, or function of the step, default 0.9 and 0.999
        The decay rates of the running means of gradients and of squared gradients. With schedules, the
        bias corrections of step t use the betas of step t.
    eps : float, array of one, or function of the step, default 1e-8
        A small number that is added to the root of the corrected mean square.
    weight_decay : float, array of one, or function of the step, default 0
        weight_decay * w is added to the gradient of the updated rows, unless decoupled_weight_decay is True.
    momentum_decay : float, 0 <= momentum_decay < 256, default 4e-3
        The growth of the momentum: mu at step t is ``beta1 (1 - 0.96^(t momentum_decay) / 2)``. Keras uses 1. In
        optax, the momentum does not grow.
    decoupled_weight_decay : bool, default False
        If True, weight decay is decoupled: the updated rows are first multiplied by 1 - lr * weight_decay.
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
    The defaults above and this formula are those of semantics="islices": ``m = m + (1 - beta1) (g - m)``,
    ``v = v + (1 - beta2) (g g - v)``, then ``w - (lr (1 - mu) / (1 - P) g + lr mu' / (1 - P mu') m) /
    (sqrt(v) / sqrt(1 - beta2^t) + eps)``. P is the product of mu over the steps up to t, and mu' is mu of the next
    step. t counts the table's steps from 1.
    The operations are carried out in this order, and each rounds once. g is the coalesced gradient. SPEC clause 16.

    Examples
    --------
    >>> import numpy as np
    >>> from islices import IndexedSlices
    >>> table = np.ones((3, 1))
    >>> optimizer = nadam(0.5)
    >>> grad = IndexedSlices(np.array([[0.25], [0.25]]), np.array([2, 2]), (3, 1))
    >>> table, state = optimizer.step(table, grad, optimizer.init(table))
    >>> table[:2].tolist()
    [[1.0], [1.0]]
    """
    return make("nadam", **locals())
