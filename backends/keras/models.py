"""Models whose `fit` trains with row-sparse gradients on every backend of Keras: a mixin, and Keras' classes with it.

May import: `keras`, the core, this folder.
"""

from __future__ import annotations

from typing import Any

import keras

from islices.backends.keras.coalesced import Coalesced, check_replicas
from islices.backends.keras.layers import Embedding
from islices.backends.keras.native import BACKEND, native
from islices.backends.keras.scaling import LossScaleOptimizer
from islices.registry import describe

__all__ = ["Model", "RowSparse", "Sequential"]

_saved = keras.saving.register_keras_serializable("islices")
_input = keras.Input((1,))
#: The class that keras.Model makes of inputs and outputs.
KERAS_FUNCTIONAL: Any = type(keras.Model(_input, _input))


class RowSparse(native.Training):  # type: ignore[misc]
    """Mixin of a keras.Model of one's own: it stands before keras.Model, and `fit` trains by rows.

    Notes
    -----
    On JAX its `train_step` takes the gradients, with tables in the place of the variables of each `Embedding`; a
    `train_step` of one's own stays in the place of that. On torch and TensorFlow the step is Keras' own.

    `compile` puts `LossScaleOptimizer` of this package around the optimizer where Keras puts its own (mixed_float16).

    Raises
    ------
    ValueError
        On torch jit_compile=True, and on JAX a keras.distribution, both by `fit`. By `compile`: an optimizer with
        gradient_accumulation_steps under a strategy of several replicas.

    Examples
    --------
    >>> import keras
    >>> from islices.backends import keras as islices_keras
    >>> class Recommender(islices_keras.RowSparse, keras.Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.users = islices_keras.Embedding(1000, 8)
    ...         self.films = islices_keras.Embedding(500, 8)
    ...
    ...     def call(self, pairs):
    ...         return keras.ops.sum(self.users(pairs[:, 0]) * self.films(pairs[:, 1]), 1)
    >>> Recommender.__mro__[1].__name__
    'RowSparse'
    """

    optimizer: Any

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As keras.Model has it.

        Parameters
        ----------
        *args, **kwargs
            Those of keras.Model.compile.
        """
        super().compile(*args, **kwargs)
        outer = self.optimizer
        if type(outer) is keras.optimizers.LossScaleOptimizer:
            self.optimizer = LossScaleOptimizer.around(outer)
        if self.optimizer is not None:
            check_replicas(self.optimizer, native.replicas(self))

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """As Keras loads a model: it asks this of a class whose `compile` is its own.

        Parameters
        ----------
        config : dict
            What `get_compile_config` gave.
        """
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def make_train_function(self, force: bool = False) -> Any:
        """As Keras makes it, once every sparse gradient has an optimizer that takes it.

        Parameters
        ----------
        force : bool
            Make it anew.

        Returns
        -------
        callable
            What Keras calls for each batch.
        """
        if BACKEND != "tensorflow":
            for layer in self._flatten_layers():
                if isinstance(layer, Embedding) and layer.built and layer._embeddings.trainable:
                    _check_optimizer(self.optimizer, layer._embeddings)
        return super().make_train_function(force)


def _check_optimizer(optimizer: Any, variable: Any) -> None:
    """TypeError for an optimizer of Keras itself, which takes arrays."""
    if isinstance(optimizer, LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        optimizer = optimizer._optimizer_map(variable)
    if not isinstance(optimizer, Coalesced):
        raise TypeError(
            f"optimizer: got {describe(optimizer)} for {variable.path!r}, whose gradient is sparse; accepted are those "
            "of islices.backends.keras, which take the same arguments, and Stepped"
        )


@_saved
class Functional(RowSparse, KERAS_FUNCTIONAL):  # type: ignore[misc]
    """What `Model(inputs, outputs)` makes."""


@_saved
class Model(RowSparse, keras.Model):  # type: ignore[misc]
    """keras.Model that trains by rows: of inputs and outputs, or subclassed. See `RowSparse`.

    Examples
    --------
    >>> import keras
    >>> from islices.backends import keras as islices_keras
    >>> ids = keras.Input((None,), dtype="int32")
    >>> model = islices_keras.Model(ids, islices_keras.Embedding(1000, 8)(ids))
    >>> isinstance(model, islices_keras.RowSparse)
    True
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Model and (args or "inputs" in kwargs):
            return Functional(*args, **kwargs)
        return super().__new__(cls, *args, **kwargs)


@_saved
class Sequential(RowSparse, keras.Sequential):  # type: ignore[misc]
    """keras.Sequential that trains by rows. See `RowSparse`."""
