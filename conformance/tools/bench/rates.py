"""Define the measured optimizers, and the formulas of steps on rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from islices import optim

RATE, BETA1, BETA2, EPS = 0.01, 0.9, 0.999, 1e-8
OPTIMIZERS = {
    "sgd": optim.sgd(RATE),
    "adagrad": optim.adagrad(RATE, eps=EPS),
    "rowwise_adagrad": optim.rowwise_adagrad(RATE, eps=EPS),
    "adam": optim.adam(RATE, beta1=BETA1, beta2=BETA2, eps=EPS),
}
#: optimizer -> (number of state arrays with the shape of the table, number of arrays with one number per row)
STATES = {"sgd": (0, 0), "adagrad": (1, 0), "rowwise_adagrad": (0, 1), "adam": (2, 0)}


def rule(kind: str, root: Callable[[Any], Any], row_mean: Callable[[Any], Any], g: Any, w: Any, *state: Any) -> Any:
    """Return the new rows of the table and of the state. w and `state` are the old rows, and g has their gradients. For
    adam, `state` ends with the two `corrections`."""
    if kind == "sgd":
        return (w - RATE * g,)
    if kind == "adam":
        m, v, rate, correction = state
        m = m + (1 - BETA1) * (g - m)
        v = v + (1 - BETA2) * (g * g - v)
        return w - rate * (m / (root(v) / correction + EPS)), m, v
    total = state[0] + (g * g if kind == "adagrad" else row_mean(g * g))
    return w - RATE * (g / (root(total) + EPS)), total


def corrections(kind: str, t: int) -> list[Any]:
    """Return [adam's corrected learning rate at step t, the root of adam's second bias correction], or [] for other
    optimizers."""
    return [RATE / (1 - BETA1**t), (1 - BETA2**t) ** 0.5] if kind == "adam" else []


def shapes(kind: str, rows: int, dim: int) -> list[tuple[int, int]]:
    """Return the shapes of an optimizer's state arrays for a table of the shape (rows, dim)."""
    wide, narrow = STATES[kind]
    return [(rows, dim)] * wide + [(rows, 1)] * narrow


def bytes_of_rows(kind: str, distinct: float, dim: int) -> dict[str, int]:
    """Return the number of bytes that a step reads and writes in tables and in state, in float32. Each of the
    `distinct` rows is read once and written once."""
    wide, narrow = STATES[kind]
    return {
        "rows of tables": round(2 * distinct * dim * 4),
        "rows of state": round(2 * distinct * (wide * dim + narrow) * 4),
    }
