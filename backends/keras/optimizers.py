"""Run Keras's optimizers with row-sparse gradients: sum duplicates, clip the sums, and then take Keras's step.

May import: `keras`, the core, this folder.
"""

from __future__ import annotations

from typing import Any, cast

import keras

from islices import optim
from islices.backends.keras.coalesced import Coalesced
from islices.backends.keras.native import native
from islices.backends.keras.sparse_gradients import as_array
from islices.backends.keras.stepped import is_half, take_step
from islices.core.slices import IndexedSlices

#: (an optimizer of `islices.optim`, a dict from names of its state's arrays to lists of Keras's variables, one per
#: weight)
Rule = tuple[optim.Optimizer, dict[str, Any]]


class ByRows(Coalesced):
    """A mixin for optimizers whose step `islices.optim` can also compute. On torch and JAX, `islices.optim` computes
    the step for sparse gradients, unless `_rule` returns None, the variable is 16-bit, or Keras adds up
    micro-batches."""

    def _rule(self, rate: Any) -> Rule | None:
        """Return the `Rule` that computes the same step, or None if Keras must compute the step for these options."""
        raise NotImplementedError

    def _for_rule(self, grad: Any) -> Any:
        return super()._for_rule(grad) if self._rule(1.0) is None else grad

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a variable. `islices.optim` computes the step if the gradient is an `IndexedSlices` and the variable
        is not 16-bit. Keras computes all other steps."""
        if not isinstance(gradient, IndexedSlices) or is_half(keras.backend.standardize_dtype(variable.dtype)):
            super().update_step(as_array(gradient), variable, learning_rate)
            return
        rate = keras.ops.convert_to_tensor(learning_rate)
        rule, state = cast(Rule, self._rule(lambda step: rate))
        index = self._get_variable_index(variable)
        steps = keras.ops.zeros(1, "int32") + keras.ops.cast(self.iterations, "int32")  # on torch the step writes to it
        take_step(self, rule, variable, gradient, {part: held[index] for part, held in state.items()}, steps)


class AdamByRows(ByRows):
    """A mixin for Adam and AdamW, which compute the same step. Keras applies AdamW's weight decay before the step."""

    def _rule(self, rate: Any) -> Rule | None:
        if self.amsgrad:
            return None
        hyper = {"beta1": self.beta_1, "beta2": self.beta_2, "eps": self.epsilon}
        return optim.adam(rate, **hyper, rows="all", semantics="keras"), {"m": self._momentums, "v": self._velocities}


class SGD(ByRows, native.stock(keras.optimizers.SGD)):  # type: ignore[misc]
    """A keras.optimizers.SGD that sums duplicate rows before a step. See `Coalesced` for further arguments."""

    def _rule(self, rate: Any) -> Rule | None:
        return None if self.momentum else (optim.sgd(rate, semantics="keras"), {})


class RMSprop(Coalesced, native.stock(keras.optimizers.RMSprop)):  # type: ignore[misc]
    """A keras.optimizers.RMSprop that sums duplicate rows before a step. See `Coalesced` for further arguments."""


class Adagrad(ByRows, native.stock(keras.optimizers.Adagrad)):  # type: ignore[misc]
    """A keras.optimizers.Adagrad that sums duplicate rows before a step. See `Coalesced` for further arguments."""

    def _rule(self, rate: Any) -> Rule | None:
        return optim.adagrad(rate, eps=self.epsilon, semantics="keras"), {"accumulator": self._accumulators}


class Adadelta(Coalesced, native.stock(keras.optimizers.Adadelta)):  # type: ignore[misc]
    """A keras.optimizers.Adadelta that sums duplicate rows before a step. See `Coalesced` for further arguments."""


class Adam(AdamByRows, native.stock(keras.optimizers.Adam)):  # type: ignore[misc]
    """A keras.optimizers.Adam that sums duplicate rows before a step. See `Coalesced` for further arguments."""


class AdamW(AdamByRows, native.stock(keras.optimizers.AdamW)):  # type: ignore[misc]
    """A keras.optimizers.AdamW that sums duplicate rows before a step. See `Coalesced` for further arguments."""


class Adamax(Coalesced, native.stock(keras.optimizers.Adamax)):  # type: ignore[misc]
    """A keras.optimizers.Adamax that sums duplicate rows before a step. See `Coalesced` for further arguments."""


class Nadam(Coalesced, native.stock(keras.optimizers.Nadam)):  # type: ignore[misc]
    """A keras.optimizers.Nadam that sums duplicate rows before a step. See `Coalesced` for further arguments."""


class Adafactor(Coalesced, native.stock(keras.optimizers.Adafactor)):  # type: ignore[misc]
    """A keras.optimizers.Adafactor that sums duplicate rows before a step. See `Coalesced` for further arguments."""


class Ftrl(Coalesced, native.stock(keras.optimizers.Ftrl)):  # type: ignore[misc]
    """A keras.optimizers.Ftrl that sums duplicate rows before a step. See `Coalesced` for further arguments."""


class Lion(Coalesced, native.stock(keras.optimizers.Lion)):  # type: ignore[misc]
    """A keras.optimizers.Lion that sums duplicate rows before a step. See `Coalesced` for further arguments."""


class Lamb(Coalesced, native.stock(keras.optimizers.Lamb)):  # type: ignore[misc]
    """A keras.optimizers.Lamb that sums duplicate rows before a step. See `Coalesced` for further arguments."""


#: Keras's class on this backend -> the class in this module. To load a saved optimizer by its name, Keras needs this
#: module to be imported.
STOCK: dict[type, Any] = {
    kind.__bases__[1]: keras.saving.register_keras_serializable("islices")(kind)
    for kind in (SGD, RMSprop, Adagrad, Adadelta, Adam, AdamW, Adamax, Nadam, Adafactor, Ftrl, Lion, Lamb)
}
