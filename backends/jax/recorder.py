"""Record the steps of a JAX training for `islices.parity`, even inside of `jax.jit`.

May import: `jax`, the core, this folder.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import io_callback

from islices.backends.jax.host_views import Tracer
from islices.embedding.table import Table
from islices.porting.trajectory import Recorder

__all__ = ["JaxRecorder"]


class JaxRecorder(Recorder):
    """An `islices.Recorder` whose methods `add` and `step` may be called in functions that JAX compiles.

    Parameters
    ----------
    folder, every, overwrite, metadata
        The options of `islices.Recorder`.

    Raises
    ------
    TypeError, ValueError, OSError
        `islices.Recorder` raises these errors.

    Notes
    -----
    An ordered callback (`jax.experimental.io_callback`) copies traced values to the host. So each run of a compiled
    step is recorded, in the right order. `jax.effects_barrier()` waits for the last record. You can pass a state of
    `islices.optim` unchanged, but must convert a state of optax with `islices.backends.jax.optax.state_of`.
    SPEC clause 23.

    Examples
    --------
    >>> import tempfile, jax, jax.numpy as jnp, islices
    >>> from islices.backends.jax.recorder import JaxRecorder
    >>> folder = tempfile.TemporaryDirectory()
    >>> recorder = JaxRecorder(folder.name)
    >>> @jax.jit
    ... def step(table, ids):
    ...     grad = jax.grad(lambda t: t[ids].sum())(table)
    ...     recorder.step(batch=ids, tables={"t": table}, gradients={"t": grad})
    ...     return table - 0.1 * grad
    >>> table = step(step(jnp.zeros((4, 1)), jnp.array([1])), jnp.array([2]))
    >>> jax.effects_barrier()
    >>> islices.parity(folder.name, folder.name).same_bits
    2
    """

    framework = "jax"

    def add(self, **positions: Any) -> None:
        """Store some positions of the current step. The values may be traced. See `islices.Recorder.add`.

        Parameters
        ----------
        **positions
            The same positions as for `islices.Recorder.step`, such as ``batch`` and ``gradients``.
        """
        self._on_host(positions, super().add)

    def step(self, **positions: Any) -> None:
        """Record these positions, and end the step. The values may be traced. See `islices.Recorder.step`.

        Parameters
        ----------
        **positions
            The same positions as for `islices.Recorder.step`, such as ``batch`` and ``gradients``.
        """
        self._on_host(positions, super().step)

    def _on_host(self, positions: dict[str, Any], write: Any) -> None:
        reported = positions.pop("optimizer", None)
        extra = {} if reported is None else {"optimizer": reported}
        plain = jax.tree.map(_plain, positions, is_leaf=lambda x: isinstance(x, Table))
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(plain)):
            io_callback(lambda tree: write(**tree, **extra), None, plain, ordered=True)
        else:
            write(**plain, **extra)


def _plain(x: Any) -> Any:
    return x.weights if isinstance(x, Table) else x
