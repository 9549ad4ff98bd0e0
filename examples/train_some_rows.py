"""Train only the new words of a pre-trained table. Every other row keeps its bits.

The optimizer freezes the other rows: it drops their gradients, and applies no weight decay to them.
"""

import jax
import jax.numpy as jnp
import numpy as np

import islices

PRETRAINED, NEW, WIDTH = 1000, 8, 16
OPTIMIZER = islices.optim.adagrad(0.5, weight_decay=1e-4, frozen=np.arange(PRETRAINED))


def loss(table: islices.Table, w: jax.Array, ids: jax.Array, labels: jax.Array) -> jax.Array:
    sentences = islices.lookup(table, ids, combiner="mean")
    return jnp.mean((sentences @ w - labels) ** 2)


@jax.jit
def step(table: islices.Table, state: dict, w: jax.Array, ids: jax.Array, labels: jax.Array) -> tuple:
    value, gradient = islices.value_and_grad(loss)(table, w, ids, labels)
    (gradient,), _ = islices.clip_by_global_norm([gradient], 1.0)
    return value, *OPTIMIZER.step(table, gradient, state)


def main() -> tuple[np.ndarray, np.ndarray, list[float]]:
    rng = np.random.default_rng(0)
    start = rng.normal(size=(PRETRAINED + NEW, WIDTH)).astype(np.float32)
    table, w = islices.Table(jnp.asarray(start)), jnp.asarray(rng.normal(size=WIDTH).astype(np.float32))
    ids = jnp.asarray(rng.integers(PRETRAINED - 20, PRETRAINED + NEW, (64, 10)).astype(np.int32))
    labels = jnp.asarray(rng.normal(size=64).astype(np.float32))
    losses, state = [], OPTIMIZER.init(table)
    for _ in range(50):
        value, table, state = step(table, state, w, ids, labels)
        losses.append(float(value))
    end = np.asarray(table.weights)
    changed = np.flatnonzero((end != start).any(axis=1))
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; rows changed: {changed.tolist()}")
    return start, end, losses


if __name__ == "__main__":
    main()
