"""NumPy's calls as a NumPy user writes them by hand. Nothing here imports islices.

NumPy has no embedding layer, no autodiff and no sparse type, so a gradient is the pair (upstream rows, ids).
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: A layer is a step of a Python loop.
MOST_LAYERS = 256


def trainable(array: np.ndarray) -> Any:
    return np.array(array)


def block(x: Any) -> None:
    """Return at once, because NumPy computes synchronously."""
