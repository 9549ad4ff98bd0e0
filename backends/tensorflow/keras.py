"""Keras' optimizers on row-sparse gradients: duplicates are summed, then clipped, then Keras takes its own step.

Keras 3 hands an optimizer the `tf.IndexedSlices` of an embedding as they come from the tape, and no optimizer of its
own sums the duplicates in them. The classes here are Keras' optimizers, state and arithmetic included, which see the
gradient itself (`Coalesced`), and one that takes the steps of `islices.optim` in Keras' place (`Stepped`).

May import: `keras`, this folder. Importing the adapter does not import this module.
"""

from __future__ import annotations

import keras

from islices.backends.tensorflow.keras_coalesced import Coalesced
from islices.backends.tensorflow.keras_stepped import Stepped

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Coalesced",
    "Ftrl",
    "Lamb",
    "Lion",
    "Nadam",
    "RMSprop",
    "Stepped",
]

#: A saved model names its optimizer's class: this module is imported before one is loaded.
_saved = keras.saving.register_keras_serializable("islices")


@_saved
class SGD(Coalesced, keras.optimizers.SGD):  # type: ignore[misc]
    """keras.optimizers.SGD on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class RMSprop(Coalesced, keras.optimizers.RMSprop):  # type: ignore[misc]
    """keras.optimizers.RMSprop on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adagrad(Coalesced, keras.optimizers.Adagrad):  # type: ignore[misc]
    """keras.optimizers.Adagrad on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adadelta(Coalesced, keras.optimizers.Adadelta):  # type: ignore[misc]
    """keras.optimizers.Adadelta on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adam(Coalesced, keras.optimizers.Adam):  # type: ignore[misc]
    """keras.optimizers.Adam on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class AdamW(Coalesced, keras.optimizers.AdamW):  # type: ignore[misc]
    """keras.optimizers.AdamW on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adamax(Coalesced, keras.optimizers.Adamax):  # type: ignore[misc]
    """keras.optimizers.Adamax on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Nadam(Coalesced, keras.optimizers.Nadam):  # type: ignore[misc]
    """keras.optimizers.Nadam on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adafactor(Coalesced, keras.optimizers.Adafactor):  # type: ignore[misc]
    """keras.optimizers.Adafactor on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Ftrl(Coalesced, keras.optimizers.Ftrl):  # type: ignore[misc]
    """keras.optimizers.Ftrl on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Lion(Coalesced, keras.optimizers.Lion):  # type: ignore[misc]
    """keras.optimizers.Lion on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Lamb(Coalesced, keras.optimizers.Lamb):  # type: ignore[misc]
    """keras.optimizers.Lamb on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""
