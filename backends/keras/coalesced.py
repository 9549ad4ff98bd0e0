"""Sum the duplicates of row-sparse gradients, and clip the sums, before a Keras optimizer uses them.

Before duplicates are summed, Keras removes the loss scale, and adds up the gradients of micro-batches and of all
replicas. May import: `keras`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from islices.backends.keras.native import native
from islices.backends.keras.sparse_gradients import accepted, as_array
from islices.core.arguments import is_real
from islices.core.registry import describe
from islices.norms.clip import clip_by_norm, clip_by_value
from islices.norms.clip_formulas import BY_GLOBAL_NORM, BY_NORM, BY_VALUE, Semantics, lookup_formula
from islices.norms.global_norms import clip_by_global_norm
from islices.norms.nonfinite import Nonfinite, check_nonfinite

#: Keras's argument for clipping -> the formulas by semantics
CLIPS = {"clipnorm": BY_NORM, "global_clipnorm": BY_GLOBAL_NORM, "clipvalue": BY_VALUE}


class Coalesced(native.Hooks, keras.optimizers.Optimizer):  # type: ignore[misc]
    """A mixin that sums duplicates before a Keras optimizer clips gradients or takes a step. Put the mixin before the
    optimizer's class among the base classes.

    Parameters
    ----------
    *args, **kwargs
        Arguments of the optimizer. ``clipnorm`` limits the norm of each variable's gradient (`islices.clip_by_norm`),
        ``global_clipnorm`` limits the norm of all gradients together (`islices.clip_by_global_norm`), and ``clipvalue``
        limits each element (`islices.clip_by_value`). You may set only one of the limits, to a number above 0.
    semantics : str
        The library whose formula computes the clipping factor: "islices", or another library that islices's clipping
        function accepts, such as "keras". With every semantics, duplicates are summed before clipping. SPEC clause 11.
    nonfinite : {"propagate", "zero"}
        Defines what clipping by norm does if the norm is NaN or infinite. "propagate" applies the formula; with
        "islices", every stored value then becomes NaN. "zero" replaces the gradient by zeros, but momentum and Adam's
        moments still change rows. SPEC clause 10.

    Raises
    ------
    TypeError, ValueError, IndexError
        A limit, the semantics or nonfinite is invalid, or the optimizer's class raises an error. `build` raises if
        gradient_accumulation_steps is set and the strategy has several replicas. `apply` raises if a sparse gradient
        does not fit its variable.

    Notes
    -----
    The optimizer's variables have the same order and names as in Keras's class, so both classes can load each other's
    files. If a TensorFlow strategy has several replicas, the sum of the replicas' gradients is clipped. (Keras clips
    the gradient of each replica.) Under XLA on TensorFlow, the summed gradient keeps the slots of duplicates, filled
    with zeros.

    On torch and JAX, most optimizers get the clipped gradient as an array of the table's size. On both backends, this
    package's Adagrad, and its SGD without momentum, update only the rows of the gradient. The exceptions are 16-bit
    variables, micro-batches and Keras's weight_decay. `Stepped` with a lazy optimizer updates only the rows of a sparse
    gradient on every backend.

    Examples
    --------
    This custom optimizer clips the sum of two duplicates of a row. The norm of the sum is 2:

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
        self._set(semantics, nonfinite)

    @classmethod
    def around(cls, stock: Any) -> Any:
        """Change the class of an optimizer of Keras to this class, with Keras's formulas for clipping. The optimizer
        keeps its variables."""
        stock.__class__ = cls
        stock._set("keras", "propagate")
        return stock

    def _set(self, semantics: Semantics, nonfinite: Nonfinite) -> None:
        for name, formulas in CLIPS.items():
            bound = getattr(self, name)
            if bound is not None:
                if not is_real(bound):
                    raise TypeError(f"{name}: got {describe(bound)}; accepted are None and a number above 0")
                if not bound > 0:
                    raise ValueError(
                        f"{name}: got {bound}; accepted are None, which does not clip, and a number above 0"
                    )
                lookup_formula(formulas, semantics, name)
        lookup_formula({**BY_GLOBAL_NORM, **BY_NORM, **BY_VALUE}, semantics, "clipping")
        self.semantics: Semantics = semantics
        self.nonfinite: Nonfinite = check_nonfinite(nonfinite, ("propagate", "zero"))  # a graph cannot "raise"

    def build(self, variables: Sequence[Any]) -> None:
        check_replicas(self, native.replicas())
        super().build(variables)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "semantics": self.semantics, "nonfinite": self.nonfinite}

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Apply gradients as Keras does, but check all gradients before any variable changes."""
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        pairs = zip(grads, trainable_variables or self._trainable_variables, strict=False)  # Keras checks the lengths
        checked = [self._checked(g, v) for g, v in pairs]
        super().apply(checked + grads[len(checked) :], trainable_variables)

    def _checked(self, grad: Any, variable: Any) -> Any:
        """Convert a gradient to a form that Keras can divide by numbers. Raise an error if the gradient is invalid."""
        accepted(grad, variable, validate=True)
        return native.divisible(grad, variable)

    def _for_rule(self, grad: Any) -> Any:
        return as_array(grad)

    def _clip(self, grads: list[Any]) -> list[Any]:
        options: Any = {"semantics": self.semantics, "nonfinite": self.nonfinite}
        if self.clipnorm is not None:
            return clip_by_norm(grads, self.clipnorm, **options)
        if self.global_clipnorm is not None:
            return clip_by_global_norm(grads, self.global_clipnorm, **options)[0]
        if self.clipvalue is not None:
            return clip_by_value(grads, -self.clipvalue, self.clipvalue, semantics=self.semantics)
        return grads


def check_replicas(optimizer: Any, replicas: int) -> None:
    """Raise ValueError if the optimizer uses micro-batches and there are several replicas, because Keras does not
    support this."""
    steps = getattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_accumulation_steps", None)
    if steps and replicas > 1:
        raise ValueError(
            f"gradient_accumulation_steps: got {steps} under a strategy of {replicas} replicas; accepted there is "
            "None, since Keras adds micro-batches up on one replica"
        )
