"""Scale the loss dynamically for optimizers that accept row-sparse gradients.

May import: `keras`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from islices.backends.keras.native import BACKEND, native
from islices.core.conversion import from_native, is_sparse

ops = keras.ops


@keras.saving.register_keras_serializable("islices")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
    """A keras.optimizers.LossScaleOptimizer that sums the duplicates of sparse gradients before it checks them.

    Parameters
    ----------
    inner_optimizer, initial_scale, dynamic_growth_steps, name
        The arguments of keras.optimizers.LossScaleOptimizer.

    Notes
    -----
    The optimizer sums duplicates before it checks whether all numbers are finite. If one number is not finite, the
    optimizer skips the step, and halves the scale. In a compiled step on JAX, `Stepped` then does not write to its
    variables; all other variables get their old values. With Keras's weight_decay, ema_overwrite_frequency or a
    constraint, the variables of `Stepped` get their old values, too.

    Examples
    --------
    >>> from islices import optim
    >>> from islices.backends import keras as islices_keras
    >>> islices_keras.LossScaleOptimizer(islices_keras.Stepped(optim.adam(1e-3)), initial_scale=1024.0).initial_scale
    1024.0
    """

    @classmethod
    def around(cls, stock: Any) -> LossScaleOptimizer:
        """Change the class of a loss-scale optimizer of Keras to this class. The optimizer keeps its variables."""
        stock.__class__ = cls
        return stock  # type: ignore[no-any-return]

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Return True if all gradients are finite. For a sparse gradient, the sums of its duplicates must be finite."""
        return super().check_finite([_sums(g) for g in grads])

    #: In Keras's LossScaleOptimizer, this method uses a branch in XLA, which copies tables. The method of the base
    #: class calls `apply` instead.
    stateless_apply = keras.optimizers.Optimizer.stateless_apply

    def _common_apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        if BACKEND == "tensorflow":
            super()._common_apply(grads, trainable_variables)
            return
        finite = self.check_finite(grads)
        variables = [*(trainable_variables or self._trainable_variables), *self.variables]
        native.take_if(finite, variables, lambda: self._stateful_handle_finite_grads(grads, trainable_variables))
        self.step_counter.assign(self.step_counter * ops.cast(finite, "int32"))
        self.dynamic_scale.assign(self.dynamic_scale * ops.where(finite, 1.0, 0.5))

    def _stateful_handle_finite_grads(self, grads: Sequence[Any], trainable_variables: Any) -> None:
        self.inner_optimizer.apply(self._unscaled(grads, trainable_variables), trainable_variables)
        count, scale = (ops.convert_to_tensor(x) for x in (self.step_counter, self.dynamic_scale))
        full = ops.equal(count, self.dynamic_growth_steps - 1)
        self.step_counter.assign(ops.where(full, 0, count + 1))
        self.dynamic_scale.assign(ops.where(full, scale * 2.0, scale))

    def _unscaled(self, grads: Sequence[Any], trainable_variables: Any) -> list[Any]:
        variables, scale = trainable_variables or self._trainable_variables, ops.convert_to_tensor(self.dynamic_scale)
        return [
            g if g is None or self._overwrite_variable_with_gradient(v) else _over(g, v, scale)
            for g, v in zip(grads, variables, strict=True)
        ]


def _sums(grad: Any) -> Any:
    return grad if grad is None or not is_sparse(grad) else native.summed(from_native(grad)).values


def _over(grad: Any, variable: Any, scale: Any) -> Any:
    return native.divisible(grad, variable) / scale if is_sparse(grad) else ops.divide(grad, scale)
