"""Define `row_sparse`, which makes `fit` train a stock Keras model with row-sparse gradients on TensorFlow, torch and
JAX.

May import: `keras`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras

from islices.backends.keras.coalesced import Coalesced, check_replicas
from islices.backends.keras.loss_scale import LossScaleOptimizer
from islices.backends.keras.methods import around
from islices.backends.keras.native import MULTI_OPTIMIZER, native
from islices.backends.keras.optimizers import STOCK
from islices.backends.keras.sparse_gradients import within
from islices.core.registry import describe

Model = TypeVar("Model", bound=Any)

#: The name of the attribute that `row_sparse` sets to mark a model.
MARK = "_islices_row_sparse"


def row_sparse(model: Model) -> Model:
    """Make a stock Keras model train with row-sparse gradients in `fit` and `train_on_batch`, on TensorFlow, torch and
    JAX.

    If the model reads a trainable weight only by lookups of rows, the gradient of this weight contains only these rows.
    On torch and JAX, the weight must have two dimensions or more.
    An example of a lookup is ``ops.take(weight, ids, axis=0)``, as in keras.layers.Embedding. The model and its layers
    are still ordinary Keras objects.

    Parameters
    ----------
    model : keras.Model
        A sequential, functional or subclassed model. The model need not be built or compiled yet. Pass the model whose
        `fit` you call, not a part of it.

    Returns
    -------
    keras.Model
        The same object. The class, weights, names and configuration of the model do not change. If Keras makes a copy
        of the model (`keras.saving.load_model`, `keras.models.clone_model`), the copy is a stock model, so call
        row_sparse again.

    Raises
    ------
    TypeError
        `model` is not a keras.Model or, on JAX, its class defines a `train_step`. `compile`, or `row_sparse` for
        a compiled model, raises if the optimizer accepts only dense gradients. Such optimizers are Muon,
        ScheduleFreeAdamW, and classes from outside Keras and this package that do not have the mixin `Coalesced`.
    ValueError
        `compile`, or `row_sparse` for a compiled model, raises if gradient_accumulation_steps is set and the strategy
        has several replicas. On JAX, training raises if a keras.distribution is set.
    NotImplementedError
        Keras runs on JAX with NNX enabled.

    Notes
    -----
    `compile` changes the class of a stock optimizer in place: keras.optimizers.Adam becomes the Adam of this package
    with semantics="keras". This Adam computes Keras's step from the sums of duplicate rows. As in Keras, Adam updates
    every row in each step, so the cost of a step grows with the table. The cost of `Stepped` with a lazy optimizer
    grows only with the batch.

    If the model also reads the weight as a whole, as for a tied output layer or an ``embeddings_regularizer``, the
    gradient is dense and correct. Then the cost of a step grows with the table.

    Examples
    --------
    >>> import keras, numpy as np
    >>> from islices import optim
    >>> from islices.backends import keras as islices_keras
    >>> layers = [keras.layers.Embedding(1000, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    >>> model = islices_keras.row_sparse(keras.Sequential(layers))
    >>> model.compile(islices_keras.Stepped(optim.adam(1e-2)), loss="mse")
    >>> ids = np.array([[5, 7], [5, 9]])
    >>> model.build(ids.shape)
    >>> before = model.get_weights()[0]
    >>> history = model.fit(ids, np.ones((2, 1)), verbose=0)
    >>> np.flatnonzero((model.get_weights()[0] != before).any(1)).tolist()
    [5, 7, 9]
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model: got {describe(model)}; accepted is a keras.Model")
    if MARK in vars(model):
        return model

    def compile_(method: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        method(*args, **kwargs)
        _adapt(model)

    for name, call in {"compile": compile_, **native.methods(model)}.items():
        object.__setattr__(model, name, around(model, name, call))
    object.__setattr__(model, MARK, True)
    if model.compiled:
        _adapt(model)
        model.train_function = None
    return model


def _adapt(model: Any) -> None:
    """Make the optimizers of a compiled model accept sparse gradients. Raise TypeError if an optimizer accepts only
    dense gradients, and ValueError if it uses micro-batches with several replicas."""
    held = [x for x in vars(model).values() if isinstance(x, keras.optimizers.Optimizer)]
    for optimizer in (x for one in held for x in within(one)):
        if type(optimizer) is keras.optimizers.LossScaleOptimizer:
            LossScaleOptimizer.around(optimizer)
        elif type(optimizer) in STOCK:
            STOCK[type(optimizer)].around(optimizer)
        elif not isinstance(optimizer, (Coalesced, LossScaleOptimizer, MULTI_OPTIMIZER)):
            raise TypeError(
                f"optimizer: got {describe(optimizer)}, which takes dense gradients; accepted by a row_sparse model "
                f"are {', '.join(sorted(kind.__name__ for kind in STOCK.values()))} of keras.optimizers or of "
                "islices.backends.keras, Stepped, and classes with the mixin Coalesced"
            )
        check_replicas(optimizer, native.replicas(model))
