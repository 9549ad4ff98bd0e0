"""Train the same model on each installed framework of four, and compare the tables after ten steps.

Only the score uses operations of the framework: a product and a sum. The gradient of the score with respect to `bags`
is `target`. The lookup, its gradient, the clipping and lazy Adam are functions of islices, whose results have the same
bits on each framework.
"""

import numpy as np

import islices

ROWS, WIDTH, STEPS = 100, 8, 10
RNG = np.random.default_rng(0)
START = RNG.integers(-4, 5, (ROWS, WIDTH)).astype(np.float32)
BATCHES = [(RNG.integers(0, ROWS, (16, 5)), RNG.integers(-3, 4, (16, WIDTH)).astype(np.float32)) for _ in range(STEPS)]


def score(name: str) -> object:
    if name == "tensorflow":
        import tensorflow as tf

        return lambda bags, target: tf.reduce_sum(bags * target)
    return lambda bags, target: (bags * target).sum()


def train(name: str) -> np.ndarray:
    backend, dot = islices.get_backend(name), score(name)
    weights, optimizer = backend.asarray(START), islices.optim.adam(0.1)
    state = optimizer.init(weights)
    for ids, target in BATCHES:
        ids, target = backend.asarray(ids.astype(np.int32)), backend.asarray(target)

        def loss(table: islices.Table, ids: object = ids, target: object = target) -> object:
            return dot(islices.lookup(table, ids, combiner="mean", padding_idx=0), target)

        _, gradient = islices.value_and_grad(loss)(islices.Table(weights))
        (gradient,), _ = islices.clip_by_global_norm([gradient], 1.0)
        weights, state = optimizer.step(weights, gradient, state)
    return backend.to_numpy(weights)


def main() -> dict[str, np.ndarray]:
    names = [name for name in islices.list_backends() if name in ("torch", "tensorflow", "jax", "mxnet")]
    tables = {name: train(name) for name in names}
    first = tables[names[0]]
    for name, table in tables.items():
        same = "the same bits" if np.array_equal(table, first) else f"off by {np.abs(table - first).max()}"
        print(f"{name:>12}: {np.abs(table - START).sum():.6f} moved in all, {same} as {names[0]}")
    return tables


if __name__ == "__main__":
    main()
