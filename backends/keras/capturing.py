"""`islices.capture` within `fit`: what each embedding looked up, and the gradients that arrived, step by step.

A model is switched to eager steps for the time of a capture, since a compiled one has no arrays to hand out.
May import: `keras`, the core, this folder.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import keras

from islices.backend import Array, LayerUse, OtherUse, Use
from islices.backends.keras.methods import replace
from islices.backends.keras.native import BACKEND, native
from islices.backends.keras.stock_models import is_row_sparse
from islices.core.registry import describe, get_backend
from islices.embedding import capture as models
from islices.embedding.per_sample import PerSample

__all__ = ["capture"]

READ = "were read beside the layers that are captured"


def capture(model: Any) -> models.Capture:
    """`islices.capture` that works within `model.fit`, on each backend of Keras.

    Parameters
    ----------
    model : keras.Model
        Compiled, and on torch and JAX one that `row_sparse` has got. Its keras.layers.Embedding layers are captured.

    Returns
    -------
    islices.embedding.capture.Capture
        A context manager. Within it run `fit` or `train_on_batch`, and read `gradients` or `per_sample` and `clear` in
        a callback's `on_train_batch_end`. Steps run eagerly meanwhile, and compile anew behind it; on JAX an eager step
        copies the tables.

    Raises
    ------
    TypeError
        No such model. By `gradients`: weights that were read beside the layers (tied weights).
    ValueError
        By `per_sample`: a loss of ``compile`` with another reduction than "sum", which divides by the batch's size.

    Examples
    --------
    >>> import keras, numpy as np
    >>> from islices import optim
    >>> from islices.backends import keras as islices_keras
    >>> layers = [keras.layers.Embedding(9, 2, name="table"), keras.layers.Flatten(), keras.layers.Dense(1)]
    >>> model = islices_keras.row_sparse(keras.Sequential(layers))
    >>> model.compile(islices_keras.Stepped(optim.sgd(0.1)), loss="mse")
    >>> built = model(np.array([[5, 7]]))
    >>> with islices_keras.capture(model) as captured:
    ...     read = lambda batch, logs: print(keras.ops.convert_to_numpy(captured.gradients()["table"].indices))
    ...     show = keras.callbacks.LambdaCallback(on_train_batch_end=read)
    ...     history = model.fit(np.array([[5, 7], [5, 5]]), np.ones((2, 1)), shuffle=False, verbose=0, callbacks=[show])
    [5 7 5 5]
    """
    if not isinstance(model, keras.Model) or not (BACKEND == "tensorflow" or is_row_sparse(model)):
        raise TypeError(
            f"model: got {describe(model)}; accepted are models that islices.backends.keras.row_sparse has got, and on "
            "TensorFlow any keras.Model"
        )
    return _Capture(get_backend(BACKEND), model)


class _Capture(models.Capture):
    """Of a model whose steps are eager meanwhile."""

    def per_sample(self, *, sample_axis: int = 0) -> dict[str, PerSample]:
        """See `islices.embedding.capture.Capture.per_sample`; the losses of ``compile`` must be sums."""
        for one in getattr(getattr(self._model, "_compile_loss", None), "_flat_losses", None) or ():
            reduction = getattr(one.loss, "reduction", "sum")
            if reduction != "sum":
                raise ValueError(
                    f"per_sample: got a model compiled with a loss ({one.name}) of reduction={reduction!r}, which "
                    "divides each sample's gradient by the batch's size; accepted is reduction='sum', as in "
                    "keras.losses.MeanSquaredError(reduction='sum')"
                )
        return super().per_sample(sample_axis=sample_axis)

    def __enter__(self) -> _Capture:
        if self._context is not None:
            raise RuntimeError("capture: entered twice; accepted is one `with` block at a time")
        context = _eagerly(self._model, self._uses)
        self._weights = context.__enter__()
        self._context = context
        return self


@contextlib.contextmanager
def _eagerly(model: Any, uses: list[Use]) -> Iterator[dict[str, Array]]:
    before = model.run_eagerly
    model.run_eagerly, model.train_function = True, None
    try:
        with contextlib.ExitStack() as stack:
            if BACKEND == "tensorflow":
                yield stack.enter_context(get_backend(BACKEND).capture(model, uses))
            else:
                yield _listening(model, uses, stack)
    finally:
        model.run_eagerly, model.train_function = before, None


def _listening(model: Any, uses: list[Use], stack: contextlib.ExitStack) -> dict[str, Array]:
    """The weights by their first layer's path; each layer hands what it looks up to uses until the stack closes."""
    weights: dict[str, Array] = {}
    names: dict[int, str] = {}
    counts: Counter[str] = Counter()

    def check(method: Any, *args: Any) -> Any:
        """Note gradients of more than the lookups: dense ones, and those with more slices."""
        for grad, variable in zip(args[place], model.trainable_variables, strict=True):
            name = names.get(id(variable))
            if name is None or grad is None:
                continue
            sparse = native.is_sparse(grad)
            if not sparse or native.adopted(grad, variable, validate=False).indices.shape[0] > counts[name]:
                uses.append(OtherUse(name, READ))
        counts.clear()
        return method(*args)

    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Embedding):
            if not layer.built:
                raise TypeError(
                    f"model: layer {layer.name!r}: got a layer that has no weights yet; accepted is a built layer: "
                    "call the model once before"
                )
            name = names.setdefault(id(layer._embeddings), layer.path.partition("/")[2] or layer.name)
            weights.setdefault(name, layer._embeddings.value)
            stack.callback(replace(layer, "call", partial(_look_up, layer, name, uses, counts)))
    if not weights:
        raise TypeError(f"model: got {describe(model)} without an Embedding; accepted is one that has some")
    takes_gradients, place = native.TAKES_GRADIENTS
    stack.callback(replace(model.optimizer, takes_gradients, check))
    return weights


def _look_up(
    layer: Any, name: str, uses: list[Use], counts: Counter[str], method: Any, ids: Any, *args: Any, **kwargs: Any
) -> Any:
    rows = method(ids, *args, **kwargs)
    if not native.is_recorded(rows) or tuple(rows.shape) != (*ids.shape, layer.output_dim):
        return rows  # of evaluation, or of a layer that does something else, too
    if keras.backend.standardize_dtype(ids.dtype) not in ("int32", "int64"):
        ids = keras.ops.cast(ids, "int32")
    use = LayerUse(name, ids, layer.input_dim)
    uses.append(use)
    counts[name] += math.prod(ids.shape)
    return native.noted(rows, ids, use)
