"""Record the steps of `model.fit` for `islices.parity`, for Keras on TensorFlow, torch and JAX.

May import: `keras`, `numpy`, the core, this folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from islices.backends.keras.coalesced import Coalesced
from islices.backends.keras.methods import around
from islices.backends.keras.named_states import state_of
from islices.backends.keras.native import BACKEND
from islices.backends.keras.stepped import Stepped
from islices.core.registry import find_backend
from islices.core.slices import IndexedSlices
from islices.embedding.capture import replaced
from islices.optim.record import RECORDS
from islices.porting.trajectory import Recorder

#: Keras's optimizers that change only the rows of a sparse gradient, if there is neither momentum nor weight decay.
BY_ROWS = ("sgd", "adagrad")


class KerasRecorder(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that records steps of `model.fit`.

    For each recorded step, the callback stores the batch, outputs, loss, gradients before and after clipping, tables,
    state and hyperparameters.

    Parameters
    ----------
    folder : str or path
        The folder for the recorded steps; see `islices.Recorder`.
    **options
        The options of `islices.Recorder`: every, overwrite, metadata.

    Raises
    ------
    TypeError, ValueError, OSError
        `islices.Recorder` raises these errors.

    Notes
    -----
    The recorder cannot see the values in a compiled step. So all steps of `fit` run eagerly (``run_eagerly``), and
    round in the same way as eager code. In the recording, weights are named by their paths. On JAX, outputs and loss
    are not recorded, because JAX traces the forward pass to differentiate it. After `fit`, the recorder restores the
    model. SPEC clause 23.

    Examples
    --------
    >>> import tempfile, keras, numpy as np, islices
    >>> from islices.backends.keras import KerasRecorder
    >>> model = keras.Sequential([keras.layers.Embedding(9, 2), keras.layers.Flatten(), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = model.fit(np.array([[1, 2]]), np.ones((1, 1)), callbacks=[KerasRecorder(folder)], verbose=0)
    ...     found = islices.parity(folder, folder)
    >>> len(found.steps), found.same_bits, len(found.pairs)
    (1, 1, 3)
    """

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self.recorder = Recorder(folder, **options)
        self.recorder.framework = "keras"
        self._replaced = contextlib.ExitStack()

    def add(self, **positions: Any) -> None:
        """Store further positions of the current step. See `islices.Recorder.add`.

        Parameters
        ----------
        **positions
            The same positions as for `islices.Recorder.step`.
        """
        self.recorder.add(**positions)

    def set_model(self, model: Any) -> None:
        """Wrap methods of the model and of its optimizer. Keras calls `set_model` before it builds the function that
        trains a step."""
        super().set_model(model)
        self._replaced.close()
        self._optimizer = model.optimizer  # not `self.model`: on JAX, a read of it syncs Keras's state
        eagerly = model.run_eagerly
        model.run_eagerly = True
        model.train_function = None

        def back() -> None:
            model.run_eagerly = eagerly
            model.train_function = model.test_function = model.predict_function = None

        # On TensorFlow, `Coalesced` clips after Keras's hook, because the gradients of replicas are added up only then.
        behind = BACKEND == "tensorflow" and isinstance(model.optimizer, Coalesced)
        self._replaced.callback(back)
        for owner, name, call in (
            (model, "train_step", self._train_step),
            (model, "compute_loss", self._compute_loss),
            (model.optimizer, "apply", self._apply),
            (model.optimizer, "_clip" if behind else "_clip_gradients", self._clip),
        ):
            self._replaced.enter_context(replaced(owner, name, around(owner, name, call)))

    def on_train_end(self, logs: Any = None) -> None:
        """Restore the model."""
        self._replaced.close()

    # ------------------------------------------------------------------ around Keras's methods
    def _train_step(self, method: Any, *args: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(args[-1])  # on JAX, the state comes before the data
        reported = {"x": _arrays(x), "y": _arrays(y), "sample_weight": _arrays(weights)}
        self.recorder.add(batch={name: part for name, part in reported.items() if part is not None})
        return method(*args)

    def _compute_loss(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        loss = method(*args, **kwargs)
        outputs = kwargs.get("y_pred", args[2] if len(args) > 2 else None)
        B = find_backend(loss)
        training = kwargs.get("training", True)  # fit also calls this method for validation_data
        if training and outputs is not None and (B is None or not B.is_traced(loss)):
            self.recorder.add(outputs=_arrays(outputs), loss=_array(loss))
        return loss

    def _apply(self, method: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        optimizer = self._optimizer
        variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        grads = list(grads)
        named = {v.path: v for v in variables}
        if self.recorder.wanted:
            if not optimizer.built:
                optimizer.build(variables)
            self._given = {v.path: g for v, g in zip(variables, grads, strict=True) if g is not None}
            self.recorder._found = {
                v.path: found for v, g in zip(variables, grads, strict=True) if (found := _described(optimizer, g))
            }
            self.recorder.add(tables=_values(named), state=_state(optimizer), gradients=self._given)
        result = method(grads, trainable_variables)
        after = {"tables_after": _values(named), "state_after": _state(optimizer)} if self.recorder.wanted else {}
        self.recorder.step(**after)
        return result

    def _clip(self, method: Any, grads: Sequence[Any]) -> Any:
        clipped = method(grads)
        if not self.recorder.wanted:
            return clipped
        # without clipping, a loss scale or micro-batches may also change gradients
        if any(x is not g for x, g in zip(clipped, self._given.values(), strict=True)):
            self.recorder.add(clipped=dict(zip(self._given, clipped, strict=True)))
        return clipped


def _arrays(tree: Any) -> Any:
    return None if tree is None else keras.tree.map_structure(_array, tree)


def _array(x: Any) -> Any:
    return None if x is None else np.array(keras.ops.convert_to_numpy(x))


def _values(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _array(v) for name, v in named.items()}


def _state(optimizer: Any) -> dict[str, Any]:
    try:
        return state_of(optimizer)
    except TypeError:  # without names, parity compares steps without states
        return {}


def _described(optimizer: Any, gradient: Any) -> dict[str, Any] | None:
    """Describe the optimizer of a variable with the names that `islices.optim` uses.

    If `islices.optim` does not have Keras's class, or if use_ema is set, the result is {"class": name}. Otherwise, the
    result is None for `Stepped`, with a loss scale or micro-batches, and for any other unknown formula.
    """
    config, name = optimizer.get_config(), type(optimizer).__name__.lower()
    record = RECORDS.get(name)
    preset = None if record is None else record.presets.get("keras")
    if record is None and type(optimizer).__module__.startswith("keras."):
        return {"class": f"keras.optimizers.{type(optimizer).__name__}"}
    if config.get("use_ema"):
        return {"class": f"{type(optimizer).__name__}(use_ema=True)"}
    if record is None or preset is None or isinstance(optimizer, Stepped):
        return None
    if config.get("loss_scale_factor") or config.get("gradient_accumulation_steps"):
        return None
    statement: dict[str, Any] = {"name": name, "semantics": "keras"}
    for ours, theirs in record.spelled("keras").items():
        x = float(optimizer.learning_rate) if ours == "lr" else config.get(theirs)
        if isinstance(x, (bool, int, float)) and x is not False and ours in preset.defaults:
            statement[ours] = x
    B = find_backend(gradient)
    sparse = isinstance(gradient, IndexedSlices) or (B is not None and B.is_native(gradient))
    plain = type(optimizer).__module__.startswith("keras")
    lazy = sparse and name in BY_ROWS and not statement.get("momentum") and not statement.get("weight_decay")
    statement["rows"] = "touched" if lazy else "all"
    return {**statement, "duplicates": "raw"} if sparse and plain and name not in ("adamax", "lion") else statement
