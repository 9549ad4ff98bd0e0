"""The models in JAX: the losses in its own functions, and training without islices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["OwnTraining", "skipgram", "translation"]


def skipgram(centre: jax.Array, context: jax.Array, sign: jax.Array) -> jax.Array:
    score = (centre[:, None] * context).sum(-1)
    return jax.nn.softplus(-sign * score).sum() / len(centre)


def translation(
    bag: jax.Array, bridge: jax.Array, target: jax.Array, negative: jax.Array, share: jax.Array
) -> jax.Array:
    hidden = jnp.tanh(bag @ bridge)
    own, other = (hidden[:, None] * target).sum(-1, keepdims=True), hidden @ negative.T
    logits = jnp.concatenate([own, jnp.repeat(other[:, None], own.shape[1], 1)], -1)
    return -(share * jax.nn.log_softmax(logits)[..., 0]).sum()


class OwnTraining:
    """Dense gradients of table[ids], and optax: a chain of clip_by_global_norm and an optimizer, jitted.

    There is no padding index: the padding's row is trained like any other, and read wherever a line has ended.
    """

    def __init__(self, model: Any, start: Mapping[str, Any], optimizer: str, lr: float, max_norm: float) -> None:
        import optax

        of_rows = {"skipgram": skipgram, "translation": translation}[model.name]
        chain = optax.chain(optax.clip_by_global_norm(max_norm), getattr(optax, optimizer)(lr))
        self.parameters: Any = {name: jnp.array(x) for name, x in start.items()}
        self.state: Any = chain.init(self.parameters)

        def step(parameters: Any, state: Any, batch: Any) -> Any:
            loss, gradients = jax.value_and_grad(lambda p: model.loss(of_rows, _lookup, p, batch))(parameters)
            updates, state = chain.update(gradients, state, parameters)
            return loss, optax.apply_updates(parameters, updates), state

        self._step = jax.jit(step)

    def step(self, batch: Mapping[str, Any]) -> float:
        loss, self.parameters, self.state = self._step(self.parameters, self.state, dict(batch))
        return float(loss)

    def tables(self) -> dict[str, Any]:
        return {name: np.asarray(x) for name, x in self.parameters.items()}


def _lookup(table: jax.Array, ids: jax.Array, mean: bool = False) -> jax.Array:
    if not mean:
        return table[ids]
    words = (ids != 0).astype(table.dtype)[..., None]
    return (table[ids] * words).sum(1) / words.sum(1)
