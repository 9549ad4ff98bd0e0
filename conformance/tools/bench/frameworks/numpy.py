"""NumPy, which has no call that does the same as one of islices."""

from __future__ import annotations

from typing import Any

import numpy as np

from islices.conformance.tools.bench.rounds import Call


def zeros(shape: tuple[int, ...]) -> Any:
    return np.full(shape, 0.0, np.float32)


def small(values: Any, ids: Any, rows: int, max_norm: float) -> dict[str, dict[str, Call]]:
    return {}
