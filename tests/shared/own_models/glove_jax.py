"""GloVe (Pennington et al. 2014) in plain JAX, after its description: python glove_jax.py FOLDER [fault] records it.

The sum over pairs of f(x) (w . c + b + d - log x)^2, x how often they occur together, f(x) = min(1, (x / 10)^0.75),
with Adagrad by hand, from 1e-8. The text is the Zen of Python.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np

from islices.backends.jax.recorder import Recorder

WINDOW, WIDTH, BATCH, STEPS, RATE = 4, 8, 64, 30, 0.05


def pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """((n, 2) words, (n,) counts, number of words)."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    words = codecs.decode(this.s, "rot13").lower().split()
    ids = {word: k for k, word in enumerate(dict.fromkeys(words))}
    counts: Counter[tuple[int, int]] = Counter()
    for k, word in enumerate(words):
        for away in range(1, WINDOW + 1):
            if k + away < len(words):
                counts[ids[word], ids[words[k + away]]] += 1
    return np.array(list(counts)), np.array(list(counts.values()), np.float32), len(ids)


def loss(tables: dict[str, jax.Array], words: jax.Array, x: jax.Array) -> jax.Array:
    left, right = words[:, 0], words[:, 1]
    score = (tables["w"][left] * tables["c"][right]).sum(1) + tables["b"][left] + tables["d"][right]
    return (jnp.minimum(1.0, (x / 10) ** 0.75) * (score - jnp.log(x)) ** 2).sum()


def main(folder: str, fault: str = "") -> None:
    words, counts, size = pairs()
    r = np.random.default_rng(0)
    tables = {k: jnp.asarray(r.uniform(-0.5, 0.5, (size, WIDTH)) / WIDTH, jnp.float32) for k in "wc"}
    tables |= {k: jnp.zeros(size, jnp.float32) for k in "bd"}
    state = {k: {"accumulator": jnp.full(t.shape, 1e-8, t.dtype)} for k, t in tables.items()}
    recorder = Recorder(folder, metadata={"batch_size": str(BATCH)})

    @jax.jit
    def step(tables, state, words, x):
        value, grads = jax.value_and_grad(lambda *given: loss(*given) / (BATCH if fault == "mean" else 1))(
            tables, words, x
        )
        recorder.add(batch={"words": words, "x": x}, tables=tables, state=state, loss=value, gradients=grads)
        sums = {k: state[k]["accumulator"] + g**2 for k, g in grads.items()}
        rate = RATE * (1.01 if fault == "lr" else 1)
        tables = {k: t - rate * grads[k] / jnp.sqrt(sums[k]) for k, t in tables.items()}
        state = {k: {"accumulator": x} for k, x in sums.items()}
        recorder.step(tables_after=tables, state_after=state)
        return tables, state

    for _ in range(STEPS):
        some = r.choice(len(words), BATCH, replace=False)
        tables, state = step(tables, state, jnp.asarray(words[some]), jnp.asarray(counts[some]))
    jax.effects_barrier()
    print(jax.__version__)


main(*sys.argv[1:])
