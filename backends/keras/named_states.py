"""The state of an optimizer of Keras, read by name: to compare runs, and to go on in another framework.

May import: `keras`, `numpy`, the core, this folder.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from islices.backends.keras.stepped import Stepped
from islices.core.registry import describe

__all__ = ["state_of"]

#: Keras' class -> its own name of a variable: that of the state of the function of `islices.optim`.
NAMES: dict[Any, dict[str, str]] = {
    keras.optimizers.SGD: {"momentum": "momentum"},
    keras.optimizers.RMSprop: {"velocity": "mean_square", "momentum": "momentum", "average_gradient": "mean"},
    keras.optimizers.Adagrad: {"accumulator": "accumulator"},
    keras.optimizers.Adam: {"momentum": "m", "velocity": "v", "velocity_hat": "v_max"},
    keras.optimizers.Adamax: {"momentum": "m", "norm": "u"},
    keras.optimizers.Nadam: {"momentum": "m", "velocity": "v"},
    keras.optimizers.Ftrl: {"accumulator": "n", "linear": "z"},
    keras.optimizers.Lion: {"momentum": "m"},
    keras.optimizers.Lamb: {"momentum": "m", "velocity": "v"},
    keras.optimizers.Adadelta: {x: x for x in ("accumulated_grad", "accumulated_delta_var")},
}


def state_of(optimizer: Any) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    """The state of each variable that an optimizer of Keras steps on, under the names of `islices.optim`.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        SGD, RMSprop, Adagrad, Adadelta, Adam, AdamW, Adamax, Nadam, Ftrl, Lion, Lamb, or what of this package is made
        from them; `Stepped`; and in LossScaleOptimizer and MultiOptimizer the ones within. On any backend of Keras.

    Returns
    -------
    dict of str to dict of str to array
        By the variable's path: "step", int32 of shape (1,), the steps taken, and the arrays, as NumPy copies. What the
        function of `islices.optim` of the same name takes as its state, with semantics="keras", where it has one.
        Empty for an optimizer that is not built yet.

    Raises
    ------
    TypeError
        No optimizer of Keras, or one whose variables have no such names (Adafactor's are factors).

    Notes
    -----
    With gradient_accumulation_steps "step" counts the steps that were taken, not the micro-batches. Nadam's product of
    its momenta belongs to no variable, and is not here.

    Examples
    --------
    >>> import keras, numpy as np
    >>> from islices import optim
    >>> from islices.backends.keras import state_of
    >>> optimizer, weight = keras.optimizers.Adam(0.5), keras.Variable(np.zeros((2, 1), "float32"), name="weight")
    >>> optimizer.apply([keras.ops.ones((2, 1))], [weight])
    >>> state = state_of(optimizer)["weight"]
    >>> sorted(state), state["step"].tolist(), round(float(state["m"][0, 0]), 6)
    (['m', 'step', 'v'], [1], 0.1)
    >>> table, rule = np.array(weight), optim.adam(0.5, rows="all", semantics="keras")
    >>> table, state = rule.step(table, np.ones((2, 1), "float32"), state)
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return state_of(optimizer.inner_optimizer)
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        return {path: state for one in optimizer.optimizers for path, state in state_of(one).items()}
    names = None if isinstance(optimizer, Stepped) else _names(optimizer)
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for k, variable in enumerate(optimizer._trainable_variables):
        path = getattr(variable, "path", variable.name)
        held = optimizer._states[k] if names is None else _held(optimizer, path, names)
        state = {name: np.array(keras.ops.convert_to_numpy(x)) for name, x in held.items()}
        found[path] = {"step": _steps(optimizer), **state}
    return found


def _names(optimizer: Any) -> dict[str, str]:
    names = next((NAMES[kind] for kind in type(optimizer).__mro__ if kind in NAMES), None)
    if names is None:
        raise TypeError(
            f"optimizer: got {describe(optimizer)}; accepted are Stepped, and of keras.optimizers "
            f"{', '.join(kind.__name__ for kind in NAMES)} and what is made from them"
        )
    return names


def _held(optimizer: Any, path: str, names: dict[str, str]) -> dict[str, Any]:
    """The optimizer's variables that belong to one of the model's: Keras joins the two names."""
    prefix = path.replace("/", "_").replace(":", "_")
    own = {variable.name: variable for variable in optimizer.variables}
    return {new: own[f"{prefix}_{old}"] for old, new in names.items() if f"{prefix}_{old}" in own}


def _steps(optimizer: Any) -> np.ndarray[Any, Any]:
    return np.array([int(optimizer.iterations)], np.int32)
