"""The suite's questions: methods that conformance calls, and islices itself does not.

May import: `islices.backend.arrays`, `islices.backend.contract`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

from islices.backend.arrays import Arrays
from islices.backend.contract import Array, optional


class ForTheSuite(Arrays):
    """The suite's questions: methods that conformance calls, and islices itself does not.

    Attributes
    ----------
    own_calls : str
        For a plug-in: the name of its module of the framework's own calls, with which the suite makes real gradients
        (docs/adapter_author.md lists them). Optional. Without it: cases that need the framework's own layers are
        unsupported.
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
