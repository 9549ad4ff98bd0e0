"""Keras' dynamic loss scale around optimizers whose gradients are row-sparse.

May import: `keras`, this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from islices.backends.keras.branches import taking
from islices.backends.keras.gradients import divided
from islices.backends.keras.native import BACKEND, native

__all__ = ["LossScaleOptimizer"]

ops = keras.ops


@keras.saving.register_keras_serializable("islices")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
    """keras.optimizers.LossScaleOptimizer that takes sparse gradients, on torch and JAX too.

    Parameters
    ----------
    inner_optimizer, initial_scale, dynamic_growth_steps, name
        Those of Keras' class.

    Notes
    -----
    Where a gradient is not finite, duplicates summed, no step is taken, and the scale is halved. In a compiled step of
    JAX that is no branch, which would copy tables: `Stepped` writes nothing then, and all other variables are put back.

    Examples
    --------
    >>> from islices import optim
    >>> from islices.backends import keras as islices_keras
    >>> islices_keras.LossScaleOptimizer(islices_keras.Stepped(optim.adam(1e-3)), initial_scale=1024.0).initial_scale
    1024.0
    """

    @classmethod
    def around(cls, stock: Any) -> LossScaleOptimizer:
        """Keras' own, become one of these: what it has built it keeps."""
        stock.__class__ = cls
        return stock  # type: ignore[no-any-return]

    def check_finite(self, grads: Sequence[Any]) -> Any:
        """Whether all gradients are finite: of sparse ones the sums of duplicates, which a step writes."""
        return super().check_finite([_sums(g) for g in grads])

    def _common_apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        if BACKEND == "tensorflow":
            super()._common_apply(grads, trainable_variables)
            return
        if self.check_finite(grads):
            self._stateful_handle_finite_grads(grads, trainable_variables)
        else:
            self._stateful_handle_non_finite_grads()

    def _stateful_handle_finite_grads(self, grads: Sequence[Any], trainable_variables: Any) -> None:
        self.inner_optimizer.apply(self._unscaled(grads, trainable_variables), trainable_variables)
        counted, scaled = self._grown()
        self.step_counter.assign(counted)
        self.dynamic_scale.assign(scaled)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """The variables after a step, or after none."""
        if BACKEND != "jax":
            return super().stateless_apply(optimizer_variables, grads, trainable_variables)
        finite = self.check_finite(grads)
        before = [*trainable_variables, *optimizer_variables]
        variables = [*self._trainable_variables, *self.variables]
        with keras.StatelessScope(list(zip(variables, before, strict=True))) as scope, taking(finite) as kept:
            counted, scaled = self._grown()
            self.inner_optimizer.apply(self._unscaled(grads, None), self._trainable_variables)
            self.step_counter.assign(ops.where(finite, counted, 0))
            own = {id(v) for v in self._variables}
            for variable, value in zip(variables, before, strict=True):
                if id(variable) not in kept and id(variable) not in own:
                    variable.assign(ops.where(finite, variable.value, value))
            self.dynamic_scale.assign(ops.where(finite, scaled, self.dynamic_scale * 0.5))
        after = [scope.get_current_value(v) for v in variables]
        return after[: len(trainable_variables)], after[len(trainable_variables) :]

    def _unscaled(self, grads: Sequence[Any], trainable_variables: Any) -> list[Any]:
        variables, scale = trainable_variables or self._trainable_variables, ops.convert_to_tensor(self.dynamic_scale)
        return [
            g if g is None or self._overwrite_variable_with_gradient(v) else _over(g, v, scale)
            for g, v in zip(grads, variables, strict=True)
        ]

    def _grown(self) -> tuple[Any, Any]:
        """The count and the scale after a finite step."""
        count, scale = (ops.convert_to_tensor(x) for x in (self.step_counter, self.dynamic_scale))
        full = ops.equal(count, self.dynamic_growth_steps - 1)
        return ops.where(full, 0, count + 1), ops.where(full, scale * 2.0, scale)


def _sums(grad: Any) -> Any:
    return grad if grad is None or not native.is_sparse(grad) else native.summed(grad).values


def _over(grad: Any, variable: Any, scale: Any) -> Any:
    if not native.is_sparse(grad):
        return ops.divide(grad, scale)
    if BACKEND == "tensorflow":
        return native.divisible(grad, variable) / scale
    return divided(native.adopted(grad, variable, validate=False), scale)
