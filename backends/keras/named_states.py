"""Read the state of a Keras optimizer as named arrays, to compare runs or to continue in another framework.

May import: `keras`, `numpy`, the core, this folder.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from islices.backend import Host
from islices.backends.keras.native import MULTI_OPTIMIZER
from islices.backends.keras.stepped import Stepped
from islices.core.registry import describe

#: Keras's class -> Keras's name of a variable -> the name in a state of `islices.optim`
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


def state_of(optimizer: Any) -> dict[str, dict[str, Host]]:
    """Return the state of each variable of a Keras optimizer, with the names that `islices.optim` uses.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        SGD, RMSprop, Adagrad, Adadelta, Adam, AdamW, Adamax, Nadam, Ftrl, Lion, Lamb, a class derived from one of
        these, or `Stepped`. For LossScaleOptimizer and MultiOptimizer, the result contains the states of the optimizers
        inside them.

    Returns
    -------
    dict of str to dict of str to array
        A dict that maps the path of each variable to its state. A state contains the arrays as NumPy copies, and
        "step", the number of completed steps, as int32 of shape (1,). If `islices.optim` has an optimizer with the same
        name, the same options and semantics="keras", this optimizer accepts the state. For an optimizer that is not
        built yet, the result is empty.

    Raises
    ------
    TypeError
        The argument is not a Keras optimizer, or this module has no names for its variables, as for Adafactor's
        factors.

    Notes
    -----
    With gradient_accumulation_steps, "step" counts steps, not micro-batches. The result does not contain Nadam's
    product of momenta, because this product does not belong to a variable.

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
    if isinstance(optimizer, MULTI_OPTIMIZER):
        return {path: state for one in optimizer.optimizers for path, state in state_of(one).items()}
    names = None if isinstance(optimizer, Stepped) else _names(optimizer)
    own = {variable.name: variable for variable in optimizer.variables}
    found: dict[str, dict[str, Host]] = {}
    for k, variable in enumerate(optimizer._trainable_variables):
        path = getattr(variable, "path", variable.name)
        if names is None:
            held = optimizer._states[k]
        else:  # Keras joins the path of the variable and the name of the array
            joined = {new: f"{path}_{old}".replace("/", "_").replace(":", "_") for old, new in names.items()}
            held = {new: own[name] for new, name in joined.items() if name in own}
        state = {name: np.array(keras.ops.convert_to_numpy(x)) for name, x in held.items()}
        found[path] = {"step": np.array([int(optimizer.iterations)], np.int32), **state}
    return found


def _names(optimizer: Any) -> dict[str, str]:
    names = next((NAMES[kind] for kind in type(optimizer).__mro__ if kind in NAMES), None)
    if names is None:
        raise TypeError(
            f"optimizer: got {describe(optimizer)}; accepted are Stepped, and of keras.optimizers "
            f"{', '.join(kind.__name__ for kind in NAMES)} and what is made from them"
        )
    return names
