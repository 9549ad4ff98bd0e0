"""Embedding: keras.layers.Embedding, whose gradient is row-sparse on every backend of Keras.

May import: `keras`, the core, this folder.
"""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import keras

from islices.backends.keras.native import BACKEND, native
from islices.registry import describe

__all__ = ["Embedding"]


@keras.saving.register_keras_serializable("islices")
class Embedding(keras.layers.Embedding):  # type: ignore[misc]
    """keras.layers.Embedding with a row-sparse gradient, on TensorFlow, torch and JAX.

    Parameters
    ----------
    input_dim, output_dim, embeddings_initializer, mask_zero, weights, **kwargs
        Those of keras.layers.Embedding. ``activity_regularizer`` penalises the rows that a batch looks up,
        ``embeddings_regularizer`` the whole table: the gradient is an array then, as in Keras, and every row moves.

    Warns
    -----
    UserWarning
        embeddings_regularizer, with the size of the gradient that it makes at each step.

    Raises
    ------
    ValueError
        embeddings_constraint or lora_rank, each of which rewrites the whole table at each step. On JAX, under `fit`: a
        keras.distribution.
    IndexError, tf.errors.InvalidArgumentError
        An id out of range, where the backend looks: torch, and TensorFlow on CPU. On JAX its rows are NaN, as Keras'
        are, and so is the loss.

    Notes
    -----
    An id is from 0 to input_dim - 1; on TensorFlow negative ones count from the end, as Keras has it. Weights, names
    and configuration are those of keras.layers.Embedding: weights that one saved the other loads.
    Keras quantizes its own class alone, no subclass.

    On TensorFlow it is Keras' own lookup, whose gradient is sparse already. On torch and JAX `fit` needs an optimizer
    of this package, and on JAX a `Model`, `Sequential` or `RowSparse` of it.

    Other reads of the weights in a forward pass, such as tied output layers, are right: the gradient is dense then.

    Examples
    --------
    >>> import keras, numpy as np
    >>> from islices import optim
    >>> from islices.backends import keras as islices_keras
    >>> layer = islices_keras.Embedding(1000, 4)
    >>> model = islices_keras.Sequential([layer, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
    >>> model.compile(islices_keras.Stepped(optim.adam(1e-2)), loss="mse")
    >>> ids = np.array([[5, 7], [5, 9]])
    >>> layer.build()
    >>> before = layer.get_weights()[0]
    >>> history = model.fit(ids, np.ones((2, 1)), verbose=0)
    >>> np.flatnonzero((layer.get_weights()[0] != before).any(1)).tolist()
    [5, 7, 9]
    """

    def __init__(self, input_dim: int, output_dim: int, **kwargs: Any) -> None:
        for name, instead in WHOLE.items():
            if kwargs.get(name) is not None:
                raise ValueError(f"{name}: got {describe(kwargs[name])}; accepted is None: {instead}")
        super().__init__(input_dim, output_dim, **kwargs)
        if self.embeddings_regularizer is not None:
            warnings.warn(
                f"embeddings_regularizer: got {describe(self.embeddings_regularizer)}, which moves all rows at each "
                f"step, as in Keras: the gradient is an array of {input_dim:,} x {output_dim:,}, and a step costs what "
                "the table costs; activity_regularizer penalises the rows of the batch alone",
                stacklevel=2,
            )

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        super().build(input_shape)
        if not self.quantization_mode:
            native.watch(self._embeddings)

    def call(self, inputs: Any) -> Any:
        ids = inputs
        if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
            ids = keras.ops.cast(ids, "int32")
        rows = native.look_up(super().call, self, ids)
        return keras.ops.cast(rows, self.compute_dtype)

    def enable_lora(self, rank: int, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(f"rank: got {rank!r}; accepted by Embedding is no LoRA: {WHOLE['lora_rank']}")


if BACKEND == "tensorflow":  # Keras' own lookup has a sparse gradient there, and is what `islices.capture` hooks
    Embedding.call = keras.layers.Embedding.call  # type: ignore[method-assign]

#: What keras.layers.Embedding has that rewrites the whole table at each step -> why not, and what to take.
WHOLE = {
    "embeddings_constraint": "it rewrites every row at each step; islices.renorm_rows after steps takes some",
    "lora_rank": "its table is a product of the table's size; keras.layers.Embedding has it",
}
