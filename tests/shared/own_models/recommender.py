"""keras.io's "Collaborative Filtering for Movie Recommendations" (RecommenderNet), rewritten from its description.

sigmoid(user . item + user's bias + item's bias), binary cross-entropy with ratings, l2 of both embeddings, Adam 1e-3.
Here are what both frameworks' programs share: ratings, the start, the batches. (The original contracts the whole batch,
`tensordot(u, v, 2)`; the product of a user and an item is what its text says.)
"""

from __future__ import annotations

import numpy as np

USERS, ITEMS, WIDTH, BATCH, STEPS, L2 = 60, 40, 6, 32, 20, 1e-3


def start() -> dict[str, np.ndarray]:
    r = np.random.default_rng(1)
    shapes = {"user": (USERS, WIDTH), "user_bias": (USERS, 1), "item": (ITEMS, WIDTH), "item_bias": (ITEMS, 1)}
    return {name: (r.standard_normal(shape) / 10).astype(np.float32) for name, shape in shapes.items()}


def batches() -> tuple[np.ndarray, np.ndarray]:
    """((steps * batch, 2) pairs, (steps * batch, 1) ratings from 0 to 1)."""
    r = np.random.default_rng(2)
    u, v = r.standard_normal((USERS, 2)), r.standard_normal((ITEMS, 2))
    pairs = np.stack([r.integers(0, USERS, STEPS * BATCH), r.integers(0, ITEMS, STEPS * BATCH)], axis=1)
    scores = (u[pairs[:, 0]] * v[pairs[:, 1]]).sum(1, keepdims=True)
    return pairs, (1 / (1 + np.exp(-scores))).astype(np.float32)
