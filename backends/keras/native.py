"""The module that does what is particular to Keras's backend in this process: tensorflow.py, torch.py or jax.py here.

Each has the same names: `Hooks`, where an optimizer of Keras sees its gradients; `methods`, those of a model that
`row_sparse` replaces; `cast`, `summed` and `divisible`, gradients in that framework's types; `replicas`, how many take
a step together. Where variables change in place: `writable`, and `cell` and `held`, arrays of any length in a variable.
On JAX: `Sum`, `accumulate` and `take_if`, steps that a compiled program may not take.

No module of another framework is imported. May import: `keras`, this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

__all__ = ["BACKEND", "native"]

#: Of Keras, for this process.
BACKEND: str = keras.backend.backend()

#: What `Coalesced` stands in for, and `Stepped` puts its own course on.
HOOKS = ("_clip_gradients", "_backend_apply_gradients", "_filter_empty_gradients")
if not all(hasattr(keras.optimizers.Optimizer, name) for name in HOOKS):
    raise ImportError(
        f"islices.backends.keras: got Keras {keras.__version__}, whose optimizers have no {' and '.join(HOOKS)}; "
        "accepted is Keras 3 as it is up to 3.15"
    )

if TYPE_CHECKING:
    native: Any
elif BACKEND == "tensorflow":
    from islices.backends.keras import tensorflow as native
elif BACKEND == "torch":
    from islices.backends.keras import torch as native
elif BACKEND == "jax":
    from islices.backends.keras import jax as native
else:
    raise ImportError(
        f"islices.backends.keras: got Keras on the backend {BACKEND!r}; accepted are 'tensorflow', 'torch' and 'jax' "
        "(the environment variable KERAS_BACKEND sets it before Keras is imported)"
    )
