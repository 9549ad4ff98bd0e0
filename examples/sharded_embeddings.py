"""Train an embedding whose rows are spread over the ranks. In each step, a rank fetches the rows that it needs.

    mpiexec -n 4 python -m mpi4py examples/sharded_embeddings.py  # one process: python examples/sharded_embeddings.py

The program trains in NumPy. Words of one sentence become similar to each other, and different from a word of another
sentence. The losses depend on the number of ranks only in their last bits.
"""

from __future__ import annotations

import numpy as np

import islices
from islices import optim
from islices.distributed import ShardedTable, all_reduce, get_group

WORDS, DIM, SENTENCES, STEPS = 1_000_000, 16, 64, 30


def rows(start: int, stop: int) -> np.ndarray:
    """Return the initial values of rows `start` to `stop - 1`. A row's values depend only on its number."""
    k = np.arange(start * DIM, stop * DIM, dtype=np.float32).reshape(-1, DIM)
    return np.sin(k) / DIM


def sentences(step: int) -> np.ndarray:
    """Return an array of shape (sentences, 3). Each row has two words of one sentence, and one word of another
    sentence. All ranks compute the same array, and each rank uses a part of the array."""
    draw = np.random.default_rng(step)
    topics = draw.integers(0, 10, SENTENCES)
    pairs = topics[:, None] + 10 * draw.zipf(1.3, (SENTENCES, 2)) % WORDS
    return np.concatenate([pairs, np.roll(pairs[:, 1:], 1, axis=0)], axis=1)


def main() -> list[float]:
    group = get_group("mpi")
    table = ShardedTable.create(WORDS, (DIM,), rows, group=group)
    optimizer = optim.adagrad(0.1)
    state = table.init(optimizer)
    losses = []
    for step in range(STEPS):
        batch = table.fetch(sentences(step)[group.rank :: group.size])
        word, near, far = np.moveaxis(islices.lookup(batch.table, batch.ids), 1, 0)
        gap = ((near - far) * word).sum(1, keepdims=True)
        pull = -1 / (1 + np.exp(gap)) / SENTENCES  # the derivative of log(1 + exp(-gap)) / SENTENCES
        upstream = np.stack([pull * (near - far), pull * word, -pull * word], axis=1)
        gradient = islices.embedding_grad(upstream, batch.ids, batch.table.shape[0])
        state = table.step(optimizer, table.reduce(batch, gradient), state)
        loss = all_reduce(np.log1p(np.exp(-gap)).sum(dtype=np.float64, keepdims=True) / SENTENCES, "sum", group)
        losses.append(float(loss[0, 0]))
    if group.rank == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; rank 0 of {group.size} holds {table.shard.shape[0]:,} rows")
    return losses


if __name__ == "__main__":
    main()
