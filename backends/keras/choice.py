"""An optimizer for each part of a model, which says where a pattern has named none.

May import: `keras`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import keras

__all__ = ["MultiOptimizer"]


@keras.saving.register_keras_serializable("islices")
class MultiOptimizer(keras.optimizers.MultiOptimizer):  # type: ignore[misc]
    r"""keras.optimizers.MultiOptimizer that warns of each pattern which matches no variable.

    Parameters
    ----------
    optimizer_map : keras.optimizers.OptimizerMap or callable
        Keras compares whole paths (`re.fullmatch`): "embedding.*" does not match "sequential/embedding/embeddings",
        whose variable would go to the default optimizer in silence; ".*embeddings" matches it in every model.
    loss_scale_factor, name
        As keras.optimizers.MultiOptimizer has them.

    Warns
    -----
    UserWarning
        When it is built: a pattern of the map that matches no variable.

    Examples
    --------
    >>> import keras
    >>> from islices import optim
    >>> from islices.backends import keras as islices_keras
    >>> choice = keras.optimizers.OptimizerMap(islices_keras.Adam(1e-3))
    >>> choice[".*embeddings"] = islices_keras.Stepped(optim.rowwise_adagrad(0.05))
    >>> islices_keras.MultiOptimizer(choice).optimizers[0].rule.name
    'rowwise_adagrad'
    """

    def build(self, var_list: Sequence[Any]) -> None:
        if self.built:
            return
        paths = [v.path for v in var_list]
        for pattern in getattr(self._optimizer_map, "keys", tuple)():
            if not any(pattern == path or re.fullmatch(pattern, path) for path in paths):
                warnings.warn(
                    f"OptimizerMap: {pattern!r} matches no variable, and its optimizer steps on none; patterns match "
                    f"whole paths, which are {', '.join(map(repr, paths[:8]))}{' ...' if len(paths) > 8 else ''}",
                    stacklevel=2,
                )
        super().build(var_list)
