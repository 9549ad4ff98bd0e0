"""What makes an optimizer of Keras see row-sparse gradients as they are meant: summed, then clipped, then its own step.

Everything happens where the gradients of all replicas have just been added up: behind the loss scale and the
accumulation of micro-batches, before the rule of the optimizer. May import: `keras`, `tensorflow`, the core, this
folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from islices.arguments import is_real
from islices.backends.tensorflow.host_calls import compiled_by_xla
from islices.backends.tensorflow.segments import sums_in_place
from islices.clip import clip_by_norm, clip_by_value
from islices.clip_formulas import BY_GLOBAL_NORM, BY_NORM, BY_VALUE, Semantics, lookup_formula
from islices.conversion import from_native, to_native
from islices.global_norms import clip_by_global_norm
from islices.nonfinite import Nonfinite, check_nonfinite
from islices.registry import describe
from islices.rows import coalesce
from islices.slices import IndexedSlices

__all__ = ["Coalesced", "adopted"]

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"islices.backends.tensorflow.keras: got Keras on the backend {keras.backend.backend()!r}; accepted is "
        "'tensorflow', the only one on which Keras has sparse gradients (the environment variable KERAS_BACKEND sets "
        "it before Keras is imported)"
    )

#: What Keras calls between the gradients and its own rule, and `Coalesced` stands in for.
HOOKS = ("_all_reduce_sum_gradients", "_clip_gradients")
if not all(hasattr(keras.optimizers.Optimizer, name) for name in HOOKS):
    raise ImportError(
        f"islices.backends.tensorflow.keras: got Keras {keras.__version__}, whose optimizers have no "
        f"{' and '.join(HOOKS)}; accepted is Keras 3 as it is up to 3.15"
    )

#: The clip that each argument of Keras asks for, with the semantics it has.
CLIPS = {"clipnorm": BY_NORM, "global_clipnorm": BY_GLOBAL_NORM, "clipvalue": BY_VALUE}

#: Whether this thread is within `Coalesced.apply`, where clipping waits for the shares of other replicas.
_applying = ContextVar("applying", default=False)


class Coalesced(keras.optimizers.Optimizer):  # type: ignore[misc]
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
        A bound that is none, a semantics that the function has not; what the optimizer itself refuses.

    Notes
    -----
    The optimizer has the variables, in the order and under the names, of the class of Keras it is made from: what
    one saved the other loads. Under a strategy with several replicas the norm is that of the sum of their gradients
    (Keras clips each replica's share).

    Compiled by XLA, duplicates stay as slots of zeros, since shapes are fixed there.

    Examples
    --------
    An optimizer of one's own, and a bound on two duplicates of a row, whose norm is 2:

    >>> import keras, tensorflow as tf
    >>> from islices.backends.tensorflow.keras import Coalesced
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
        for name, formulas in CLIPS.items():
            bound = getattr(self, name)
            if bound is not None:
                _check_bound(name, bound)
                lookup_formula(formulas, semantics, name)
        lookup_formula({**BY_GLOBAL_NORM, **BY_NORM, **BY_VALUE}, semantics, "clipping")
        self.semantics: Semantics = semantics
        self.nonfinite: Nonfinite = check_nonfinite(nonfinite, ("propagate", "zero"))  # a graph cannot raise

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "semantics": self.semantics, "nonfinite": self.nonfinite}

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Apply gradients as Keras does, all of them checked before any variable changes."""
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        grads, variables = list(grads), trainable_variables or self._trainable_variables
        for grad, variable in zip(grads, variables, strict=False):  # Keras says what is missing
            adopted(grad, variable, validate=True)
        token = _applying.set(True)
        try:
            super().apply([_divisible(g) for g in grads], trainable_variables)
        finally:
            _applying.reset(token)

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        """Keras' hook ahead of the sum over replicas, which is too early; called by itself, it clips."""
        return grads if _applying.get() else self._clip(coalesce(grads))

    def _all_reduce_sum_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        pairs = list(super()._all_reduce_sum_gradients(grads_and_vars))
        grads = self._clip([_sum_duplicates(g, v) for g, v in pairs])
        natives = [to_native(g) if isinstance(g, IndexedSlices) else g for g in grads]
        return [(g, v) for g, (_, v) in zip(natives, pairs, strict=True)]

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


def _check_bound(name: str, bound: Any) -> None:
    if isinstance(bound, bool) or not is_real(bound):
        raise TypeError(f"{name}: got {describe(bound)}; accepted are None and a number above 0")
    if not bound > 0:
        raise ValueError(f"{name}: got {bound}; accepted are None, which does not clip, and a number above 0")


# ---------------------------------------------------------------------- gradients on their way through Keras
class DivisibleSlices(tf.IndexedSlices):  # type: ignore[misc]
    """tf.IndexedSlices that may be divided by a number, as Keras does by its loss_scale_factor."""

    def __truediv__(self, c: float) -> DivisibleSlices:
        return DivisibleSlices(self.values / c, self.indices, self.dense_shape)


def _divisible(grad: Any) -> Any:
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    return DivisibleSlices(grad.values, grad.indices, grad.dense_shape)


def adopted(grad: Any, variable: Any, *, validate: bool) -> Any:
    """A gradient for islices: slices of the variable's shape, or the dense tensor."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    return from_native(grad, dense_shape=tuple(variable.shape), validate=validate)


def _sum_duplicates(grad: Any, variable: Any) -> Any:
    leaf = adopted(grad, variable, validate=False)
    if not isinstance(leaf, IndexedSlices):
        return leaf
    if not compiled_by_xla():
        return coalesce(leaf)
    sums, ids = sums_in_place(leaf.values, leaf.indices, leaf.dense_shape[0])
    return IndexedSlices(sums, ids, leaf.dense_shape, coalesced=True, validate=False)
