"""The frameworks' clipping formulas, stored as data. Ports that must reproduce an old training run use these formulas.

A formula maps (E, norm, max_norm) to steps ("mul" | "div", factor). A factor is a number, or an array with one factor
per norm. The steps are applied to the values in order, and each step rounds. Formulas use primitives, so they run on
NumPy arrays and under a trace. For `raw` formulas, duplicates are not summed before the norm is computed, as in the
framework. SPEC clause 11.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from islices.backend import Array, Backend
from islices.core.arguments import show

#: The name of a formula for clipping or for an optimizer: "islices" or another library. No function accepts all names.
Semantics: TypeAlias = Literal["islices", "fbgemm", "keras", "mxnet", "optax", "tensorflow", "torch"]
Steps = list[tuple[str, Any]]


class ClipFormula(NamedTuple):
    """A clipping formula. The field `steps` is a function of (E, norm, max_norm) that returns `Steps`.

    If `raw` is True, duplicates are not summed. If `wide` is True, the norm is float64. Apart from rounding, every
    formula multiplies by max_norm / (norm + slack) or by 1. Exceptions are norms and limits that are not finite, and
    norms below 1e-6 in optax's adaptive formula. Where the quotient is exactly 1, the derivative is the quotient's
    derivative. The formula of islices (`wide`) is an exception: where norm equals max_norm, its factor is the constant
    1.
    """

    steps: Callable[[Backend, Array, float], Steps]
    raw: bool = False
    wide: bool = False
    slack: float = 0.0

    def decided(self, E: Backend, norm: Array, max_norm: Any, finite: Array | None, dtype: str) -> Array:
        """Return a code for each factor, as an array of `dtype`: 1 for the quotient, 0 for the factor 1, -1 for zeros.

        Where `finite` is given and False, values become zeros.
        """
        zero = E.zeros_like(norm)
        if self.wide:
            over = E.where(E.less_equal(norm, max_norm), zero, 1.0)
        else:
            over = E.where(E.less_equal(max_norm, norm + self.slack), 1.0, zero)
        return E.astype(over if finite is None else E.where(finite, over, -1.0), dtype)


def ones(E: Backend, norms: Array) -> Array:
    """Return an array of ones with the shape of `norms`, and with NaN where the norm is NaN."""
    return E.minimum(E.maximum(norms, 1.0), 1.0)


def islices_formula(E: Backend, norm: Array, max_norm: float) -> Steps:
    """Return one step that multiplies by max_norm / norm if norm exceeds max_norm, else by 1 (SPEC clause 10).

    The factor has the dtype of norm, and is NaN if norm is NaN or infinite.
    """
    within = E.less_equal(norm, max_norm)
    # an unused quotient must be finite too, so there norm is divided by 1
    factor = E.div(E.minimum(norm, max_norm), E.where(within, 1.0, norm))
    return [("mul", E.where(within, 1.0, factor) + (norm - norm))]


def _torch(E: Backend, norm: Array, max_norm: float) -> Steps:
    # torch computes number / tensor as the tensor's reciprocal times the number
    return [("mul", E.minimum(E.div(1.0, norm + 1e-6) * max_norm, 1.0))]


def _mxnet(E: Backend, norm: Array, max_norm: float) -> Steps:
    return [("mul", E.minimum(E.div(max_norm, norm + 1e-8), 1.0))]


def _tensorflow_global(E: Backend, norm: Array, max_norm: float) -> Steps:
    # TensorFlow uses the smaller of two reciprocals; the last term makes every value NaN when the norm is not finite
    return [("mul", E.div(1.0, E.maximum(norm, max_norm)) * max_norm + (norm - norm))]


def _tensorflow_norm(E: Backend, norm: Array, max_norm: float) -> Steps:
    return [("mul", max_norm), ("div", E.maximum(norm, max_norm))]


def _optax(E: Backend, norm: Array, max_norm: float) -> Steps:
    one = ones(E, norm)
    # optax tests "norm < max_norm", which is not the negation of "max_norm <= norm" if the norm is NaN
    over = E.less_equal(max_norm, norm)
    return [("div", E.where(over, norm, one + (norm - norm))), ("mul", E.where(over, one * max_norm, one))]


def _optax_rms(E: Backend, rms: Array, threshold: float) -> Steps:
    return [("div", E.maximum(E.div(rms, threshold), 1.0))]


def _optax_adaptive(E: Backend, norm: Array, max_norm: Any) -> Steps:
    factor = E.div(max_norm, E.maximum(norm, 1e-6))
    # optax tests "norm < max_norm", so that a NaN in either of the two gives NaN
    within = E.where(E.less_equal(max_norm, norm), factor, 1.0)
    return [("mul", E.where(E.less_equal(norm, max_norm), within, factor))]


ISLICES = ClipFormula(islices_formula, wide=True)

BY_GLOBAL_NORM: Mapping[str, ClipFormula] = {
    "islices": ISLICES,
    "tensorflow": ClipFormula(_tensorflow_global, raw=True),  # tf.clip_by_global_norm
    "keras": ClipFormula(_tensorflow_global, raw=True),  # keras.optimizers.Optimizer(global_clipnorm=)
    "torch": ClipFormula(_torch, slack=1e-6),  # torch.nn.utils.clip_grad_norm_
    "mxnet": ClipFormula(_mxnet, slack=1e-8),  # mxnet.gluon.utils.clip_global_norm
    "optax": ClipFormula(_optax),  # optax.clip_by_global_norm
}

BY_NORM: Mapping[str, ClipFormula] = {
    "islices": ISLICES,
    "tensorflow": ClipFormula(_tensorflow_norm, raw=True),  # tf.clip_by_norm
    "keras": ClipFormula(_tensorflow_norm, raw=True),  # keras.optimizers.Optimizer(clipnorm=)
}

#: formulas that use the root mean square in place of the norm
BY_BLOCK_RMS: Mapping[str, ClipFormula] = {
    "islices": ISLICES,
    "optax": ClipFormula(_optax_rms),  # optax.clip_by_block_rms
}

#: formulas with one max_norm per unit
ADAPTIVE: Mapping[str, ClipFormula] = {
    "islices": ISLICES,
    "optax": ClipFormula(_optax_adaptive),  # optax.adaptive_grad_clip
}

#: For clip_by_value all semantics have the same formula; True means that duplicates are not summed first.
BY_VALUE: Mapping[str, bool] = {"islices": False, "tensorflow": True, "keras": True, "fbgemm": True}


def lookup_formula(table: Mapping[str, Any], semantics: str, function: str) -> Any:
    """Return the formula with the name `semantics` from a table, or raise ValueError with the names in the table."""
    if not isinstance(semantics, str) or semantics not in table:
        raise ValueError(f"semantics: got {show(semantics)}; {function} has {', '.join(table)}")
    return table[semantics]
