"""Define your own optimizer, a row-wise Adagrad that limits the step of each row. Three frameworks compute the same
bits."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import islices
from islices import IndexedSlices, optim
from islices.optim.operators import div, minimum, mul, row_mean, sqrt


def capped_adagrad(g: Any, w: Any, accumulator: Any, lr: Any, eps: Any, cap: Any, one: Any) -> Any:
    """Apply Adagrad with one accumulator per row. The root mean square of a row's step is at most `lr` times `cap`."""
    accumulator = accumulator + row_mean(mul(g, g))
    step = div(g, sqrt(accumulator) + eps)
    size = sqrt(row_mean(mul(step, step)))
    return w - mul(lr, mul(step, minimum(one, div(cap, size + eps)))), accumulator


def main() -> dict[str, Any]:
    """Return a dict from each framework to the table after three steps."""
    optimizer = optim.custom(capped_adagrad, 0.1, row_state={"accumulator": 0.0}, eps=1e-8, cap=0.5)
    values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    grad = IndexedSlices(values, np.array([5, 2, 5]), (8, 4))
    tables = {}
    for name in ("numpy", "torch", "jax"):
        table, slices = islices.convert(np.ones((8, 4), np.float32), name), islices.convert(grad, name)
        state = optimizer.init(table)
        for _ in range(3):
            table, state = optimizer.step(table, slices, state)
        tables[name] = islices.convert(table, "numpy")
    return tables


if __name__ == "__main__":
    for name, table in main().items():
        sys.stdout.write(f"{name:6} {table[5]}\n")
