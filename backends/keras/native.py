"""Select the module for Keras's backend: tensorflow.py, torch.py or jax.py in this folder.

All three modules define the following names. `Hooks` is a base class that receives the gradients of a Keras optimizer.
`methods` returns the methods with which `row_sparse` replaces the methods of a model. `cast` and `divisible` convert
gradients, and `summed` sums duplicates. `replicas` returns the number of replicas that take a step together, and
`stock` returns the class of one of Keras's optimizers.

On TensorFlow and torch, variables change in place. So tensorflow.py and torch.py also define `writable`, and `cell`,
which makes a variable whose length may change. torch.py and jax.py define `take_if`. tensorflow.py also defines
`check_step`. jax.py also defines `taken`, `keep`, `DenseSum` and `accumulate`.

This module does not import the modules of the other backends. May import: `keras`, this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

__all__ = ["BACKEND", "MULTI_OPTIMIZER", "native"]

#: Keras's backend in this process.
BACKEND: str = keras.backend.backend()

#: `Coalesced` and `Stepped` need these methods of Keras's optimizers.
HOOKS = ("_clip_gradients", "_backend_apply_gradients", "_filter_empty_gradients")
if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 10) or not all(
    hasattr(keras.optimizers.Optimizer, name) for name in HOOKS
):
    raise ImportError(
        f"islices.backends.keras: got Keras {keras.__version__}; accepted is Keras 3.10 or later whose optimizers have "
        f"{' and '.join(HOOKS)}"
    )

#: keras.optimizers.MultiOptimizer, or an empty tuple if Keras does not have this class.
MULTI_OPTIMIZER: Any = getattr(keras.optimizers, "MultiOptimizer", ())

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
