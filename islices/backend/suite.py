"""For the suite: what conformance asks of a framework, and islices itself does not.

May import: `numpy`, `islices.backend.arrays`, `islices.backend.contract`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np

from islices.backend.arrays import Arrays
from islices.backend.contract import Array, optional

__all__ = ["ForTheSuite", "OwnCalls"]


class OwnCalls(Protocol):
    """What the module named by `Backend.own_calls` has: what the framework's users write without islices.

    It imports nothing of islices. The conformance suite makes real gradients with it, and has such a module of its own
    for each built-in framework.
    """

    def weighted_sum(self, rows: Array, weights: Array) -> Array:
        """sum(rows * weights) of its own arrays: a loss whose gradient at rows is weights, to the bit."""

    def trainable(self, array: np.ndarray[Any, Any]) -> Array:
        """A NumPy array as its users hold weights: what changes in place, where the framework has that."""

    def block(self, x: Any) -> None:
        """Wait until x is computed."""

    def invalid_gradients(self) -> dict[str, tuple[Callable[[], Any], str]]:  # pyright: ignore[reportReturnType]
        """label -> (call that builds a native object that contradicts itself, name of islices' error)."""

    @optional("the framework has no layer: the gradient is `embedding_grad`'s")
    def embedding_gradient(
        self, ids: np.ndarray[Any, Any], upstream: np.ndarray[Any, Any], num_rows: int, padding_idx: int
    ) -> Any:
        """The sparse gradient of its own layer, of num_rows rows, under the loss sum(layer(ids) * upstream)."""


class ForTheSuite(Arrays):
    """For the suite: what conformance asks of a framework, and islices itself does not.

    Attributes
    ----------
    own_calls : str
        For a plug-in: the name of its module of the framework's own calls, the functions of `OwnCalls`, with which the
        suite makes real gradients. Optional. Without it: cases that need the framework's own layers are unsupported.
    """

    own_calls: ClassVar[str] = ""

    # ------------------------------------------------------------------ devices and modes
    @optional("the CPU alone")
    def devices(self) -> tuple[str, ...]:
        """Names of the devices the framework can compute on here, CPU first."""
        return ("cpu",)

    @optional("there is no device beside the CPU")
    def on_device(self, x: Array, device: str) -> Array:
        """x on a device, one of `devices`: for the conformance suite."""
        raise self.lacks("on_device")

    @optional("host and framework, and traced where there is a `trace`")
    def modes(self) -> list[str]:
        """The execution modes there are: "host", "framework" unless they are the same, "traced" with a compiler."""
        modes = ["host"] if self.host_only else ["host", "framework"]
        return modes if type(self).trace is ForTheSuite.trace else [*modes, "traced"]

    @optional("64-bit types are always there")
    def wide_types(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which the framework's users have 64-bit types (JAX's x64 mode): for the conformance suite."""
        return contextlib.nullcontext()

    # ------------------------------------------------------------------ traced code
    @optional("no mode traced")
    def trace(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """fn compiled by the framework (jax.jit, tf.function): used by the conformance suite."""
        raise self.lacks("trace", "the framework has no tracing compiler")

    @optional("nothing is compiled that could be let go of")
    def forget_compiled(self) -> None:
        """Let go of what `trace` and the framework itself have compiled: for the conformance suite, whose thousands of
        programs would exceed what a process may map."""
