"""An optimizer of your own: row-wise Adagrad whose step is capped per row, with the same bits on three frameworks."""

import jax.numpy as jnp
import numpy as np
import torch

import islices
from islices import IndexedSlices, optim
from islices.optim.operators import div, minimum, mul, row_mean, sqrt


def capped_adagrad(g, w, accumulator, lr, eps, cap, one):
    """One accumulator per row; no row moves by more than lr * cap, as the root of its mean square."""
    accumulator = accumulator + row_mean(mul(g, g))
    step = div(g, sqrt(accumulator) + eps)
    size = sqrt(row_mean(mul(step, step)))
    return w - mul(lr, mul(step, minimum(one, div(cap, size + eps)))), accumulator


optimizer = optim.custom(capped_adagrad, 0.1, row_state={"accumulator": 0.0}, eps=1e-8, cap=0.5)

values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
grad = IndexedSlices(values, np.array([5, 2, 5]), (8, 4))
start = np.ones((8, 4), np.float32)
results = {}
for name, table in {"numpy": start.copy(), "torch": torch.tensor(start), "jax": jnp.array(start)}.items():
    state, slices = optimizer.init(table), islices.convert(grad, name)
    for _ in range(3):
        table, state = optimizer.step(table, slices, state)
    results[name] = np.asarray(table)
    print(f"{name:6} {np.asarray(table)[5]}")
assert all(np.array_equal(x, results["numpy"]) for x in results.values())
