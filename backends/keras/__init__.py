"""Train stock Keras 3 models with row-sparse gradients in `fit`, on TensorFlow, torch and JAX. See docs/keras.md.

When Keras is imported, the environment variable KERAS_BACKEND selects its backend. For each of the three backends, this
folder contains a module of the same name, which `islices.backends.keras.native` selects. This package imports Keras and
Keras's backend, but no other framework.
"""

try:
    import keras  # noqa: F401
except ModuleNotFoundError as missing:  # Keras or the framework of its backend is missing
    pip = 'pip install keras "islices[torch]" (or tensorflow, or jax: KERAS_BACKEND picks one)'
    raise ModuleNotFoundError(f"islices.backends.keras needs {missing.name}: {pip}", name=missing.name) from missing

from islices.backends.keras.coalesced import Coalesced
from islices.backends.keras.loss_scale import LossScaleOptimizer
from islices.backends.keras.named_states import state_of
from islices.backends.keras.optimizers import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Ftrl,
    Lamb,
    Lion,
    Nadam,
    RMSprop,
)
from islices.backends.keras.recorder import KerasRecorder
from islices.backends.keras.stepped import Stepped
from islices.backends.keras.stock_models import row_sparse

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
    "KerasRecorder",
    "Lamb",
    "Lion",
    "LossScaleOptimizer",
    "Nadam",
    "RMSprop",
    "Stepped",
    "row_sparse",
    "state_of",
]
