"""Keras' optimizers on row-sparse gradients: duplicates are summed, then clipped, then Keras takes its own step.

May import: `keras`, this folder.
"""

from __future__ import annotations

from typing import Any

import keras

from islices.backends.keras.coalesced import Coalesced
from islices.backends.keras.native import native

__all__ = ["SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"]
__all__ += ["Ftrl", "Lamb", "Lion", "Nadam", "RMSprop", "STOCK"]

#: A saved model names its optimizer's class: this module is imported before one is loaded.
_saved = keras.saving.register_keras_serializable("islices")


@_saved
class SGD(Coalesced, native.stock(keras.optimizers.SGD)):  # type: ignore[misc]
    """keras.optimizers.SGD on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class RMSprop(Coalesced, native.stock(keras.optimizers.RMSprop)):  # type: ignore[misc]
    """keras.optimizers.RMSprop on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adagrad(Coalesced, native.stock(keras.optimizers.Adagrad)):  # type: ignore[misc]
    """keras.optimizers.Adagrad on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adadelta(Coalesced, native.stock(keras.optimizers.Adadelta)):  # type: ignore[misc]
    """keras.optimizers.Adadelta on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adam(Coalesced, native.stock(keras.optimizers.Adam)):  # type: ignore[misc]
    """keras.optimizers.Adam on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class AdamW(Coalesced, native.stock(keras.optimizers.AdamW)):  # type: ignore[misc]
    """keras.optimizers.AdamW on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adamax(Coalesced, native.stock(keras.optimizers.Adamax)):  # type: ignore[misc]
    """keras.optimizers.Adamax on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Nadam(Coalesced, native.stock(keras.optimizers.Nadam)):  # type: ignore[misc]
    """keras.optimizers.Nadam on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Adafactor(Coalesced, native.stock(keras.optimizers.Adafactor)):  # type: ignore[misc]
    """keras.optimizers.Adafactor on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Ftrl(Coalesced, native.stock(keras.optimizers.Ftrl)):  # type: ignore[misc]
    """keras.optimizers.Ftrl on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Lion(Coalesced, native.stock(keras.optimizers.Lion)):  # type: ignore[misc]
    """keras.optimizers.Lion on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


@_saved
class Lamb(Coalesced, native.stock(keras.optimizers.Lamb)):  # type: ignore[misc]
    """keras.optimizers.Lamb on coalesced gradients; see `Coalesced` for the arguments it has beside its own."""


#: Keras's class, as it is on this backend -> the one here.
STOCK: dict[type, Any] = {
    kind.__bases__[1]: kind
    for kind in (SGD, RMSprop, Adagrad, Adadelta, Adam, AdamW, Adamax, Nadam, Adafactor, Ftrl, Lion, Lamb)
}
