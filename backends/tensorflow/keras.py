"""The former place of `islices.backends.keras`, which has all of this on every backend of Keras. docs/stability.md.

May import: `islices.backends.keras`, the core.
"""

from islices.backends import keras as current
from islices.backends.keras import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Coalesced,
    Ftrl,
    Lamb,
    Lion,
    Nadam,
    RMSprop,
    Stepped,
)
from islices.deprecation import warn_renamed

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

warn_renamed(__name__, current.__name__)
