"""What makes an optimizer of Keras see row-sparse gradients as they are meant: summed, then clipped, then its own step.

Everything happens where the gradients of all replicas have just been added up: behind the loss scale and the
accumulation of micro-batches, before the rule of the optimizer. May import: `keras`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from islices.backends.keras.native import native
from islices.backends.keras.sparse_gradients import adopted, as_array
from islices.core.arguments import is_real
from islices.core.registry import describe
from islices.norms.clip import clip_by_norm, clip_by_value
from islices.norms.clip_formulas import BY_GLOBAL_NORM, BY_NORM, BY_VALUE, Semantics, lookup_formula
from islices.norms.global_norms import clip_by_global_norm
from islices.norms.limits import Nonfinite, check_nonfinite

__all__ = ["Coalesced", "check_replicas"]

#: The clip that each argument of Keras asks for, with the semantics it has.
CLIPS = {"clipnorm": BY_NORM, "global_clipnorm": BY_GLOBAL_NORM, "clipvalue": BY_VALUE}


class Coalesced(native.Hooks, keras.optimizers.Optimizer):  # type: ignore[misc]
    """Mixin that sums duplicates before a Keras optimizer clips or steps; it stands before the optimizer's class.

    Parameters
    ----------
    *args, **kwargs
        Those of the optimizer. ``clipnorm`` is the norm that each variable's gradient is clipped to by
        `islices.clip_by_norm`, ``global_clipnorm`` that of all by `islices.clip_by_global_norm`, ``clipvalue`` the
        bound of each element by `islices.clip_by_value`; at most one of them, None or above 0.
    semantics : str
        Whose factor clips: "islices", or another that the function of islices has, such as "keras". Duplicates are
        summed first in any case. SPEC clause 11.
    nonfinite : {"propagate", "zero"}
        What a NaN or infinite norm does where one is clipped: every stored value NaN, or a step with zeros, by which
        momentum and Adam's moments still move rows. SPEC clause 10.

    Raises
    ------
    TypeError, ValueError
        A bound that is none, a semantics that the function has not; what the optimizer itself refuses;
        gradient_accumulation_steps under a strategy of several replicas, of TensorFlow or Keras.

    Notes
    -----
    The optimizer has the variables, in the order and under the names, of the class of Keras it is made from: what
    one saved the other loads. On TensorFlow, under a strategy with several replicas, the norm is that of the sum of
    their gradients (Keras clips each replica's share); compiled by XLA, duplicates stay as slots of zeros there.

    On torch and JAX, Keras's optimizers step on arrays: the rule gets the clipped gradient as an array as large as the
    table. SGD without momentum and Adagrad of this package step on its rows there. `Stepped` always does.

    Examples
    --------
    An optimizer of one's own, and a bound on two duplicates of a row, whose norm is 2:

    >>> import keras, tensorflow as tf
    >>> from islices.backends.keras import Coalesced
    >>> @keras.saving.register_keras_serializable("mine")
    ... class SGD(Coalesced, keras.optimizers.SGD):
    ...     pass
    >>> table = tf.Variable([[0.0], [0.0], [0.0]])
    >>> gradient = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1]), tf.constant([3, 1]))
    >>> SGD(1.0, global_clipnorm=0.5).apply([gradient], [table])
    >>> table.numpy().ravel().tolist()
    [0.0, -0.5, 0.0]
    """

    def __init__(
        self, *args: Any, semantics: Semantics = "islices", nonfinite: Nonfinite = "propagate", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        check_replicas(self, native.replicas())
        self._set(semantics, nonfinite)

    @classmethod
    def around(cls, stock: Any) -> Any:
        """Change the class of Keras's optimizer to this one, with Keras's clips; it keeps all that it has built."""
        stock.__class__ = cls
        stock._set("keras", "propagate")
        return stock

    def _set(self, semantics: Semantics, nonfinite: Nonfinite) -> None:
        for name, formulas in CLIPS.items():
            bound = getattr(self, name)
            if bound is not None:
                _check_bound(name, bound)
                lookup_formula(formulas, semantics, name)
        lookup_formula({**BY_GLOBAL_NORM, **BY_NORM, **BY_VALUE}, semantics, "clipping")
        self.semantics: Semantics = semantics
        self.nonfinite: Nonfinite = check_nonfinite(nonfinite, ("propagate", "zero"))  # a graph cannot raise

    def build(self, variables: Sequence[Any]) -> None:
        check_replicas(self, native.replicas())
        super().build(variables)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "semantics": self.semantics, "nonfinite": self.nonfinite}

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Apply gradients as Keras does, all of them checked before any variable changes."""
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        grads, variables = list(grads), trainable_variables or self._trainable_variables
        for grad, variable in zip(grads, variables, strict=False):  # Keras says what is missing
            adopted(grad, variable, validate=True)
        pairs = zip(grads, variables, strict=False)
        super().apply([native.divisible(g, v) for g, v in pairs] + grads[len(variables) :], trainable_variables)

    def _for_rule(self, grad: Any) -> Any:
        return as_array(grad)

    def _clip(self, grads: list[Any]) -> list[Any]:
        semantics, nonfinite = self.semantics, self.nonfinite
        if self.clipnorm is not None:
            return clip_by_norm(grads, self.clipnorm, semantics=semantics, nonfinite=nonfinite)
        if self.global_clipnorm is not None:
            limit = self.global_clipnorm
            return clip_by_global_norm(grads, limit, semantics=semantics, nonfinite=nonfinite)[0]
        if self.clipvalue is not None:
            return clip_by_value(grads, -self.clipvalue, self.clipvalue, semantics=self.semantics)
        return grads


def check_replicas(optimizer: Any, replicas: int) -> None:
    """ValueError for micro-batches under several replicas, where Keras has none."""
    steps = getattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_accumulation_steps", None)
    if steps and replicas > 1:
        raise ValueError(
            f"gradient_accumulation_steps: got {steps} under a strategy of {replicas} replicas; accepted there is "
            "None, since Keras adds micro-batches up on one replica"
        )


def _check_bound(name: str, bound: Any) -> None:
    if not is_real(bound):
        raise TypeError(f"{name}: got {describe(bound)}; accepted are None and a number above 0")
    if not bound > 0:
        raise ValueError(f"{name}: got {bound}; accepted are None, which does not clip, and a number above 0")
