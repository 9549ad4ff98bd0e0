"""Methods for the conformance suite and the command line; the functions of islices do not call them.

May import: `islices.backend.arrays`, `islices.backend.contract`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

from islices.backend.arrays import Arrays
from islices.backend.contract import Array, optional


class ForTheSuite(Arrays):
    """The methods for the conformance suite and the command line; the functions of islices do not call them.

    Attributes
    ----------
    own_calls : str
        The name of a module with calls of the framework. Only plug-ins use this attribute, and it is optional. The
        suite makes real gradients with these calls, which docs/adapter_author.md lists. If a plug-in has no such
        module, cases that need the framework's layers are unsupported.
    """

    own_calls: ClassVar[str] = ""

    # ------------------------------------------------------------------ devices and modes
    @optional("only the CPU")
    def devices(self) -> tuple[str, ...]:
        """Return the names of the devices on which the framework can compute here, CPU first."""
        return ("cpu",)

    @optional("the CPU is the only device")
    def on_device(self, x: Array, device: str) -> Array:
        """Return x on a device, which is one of `devices`. Only the conformance suite calls this method."""
        raise self.lacks("on_device")

    @optional("host and framework, and traced where there is a `trace`")
    def modes(self) -> list[str]:
        """Return the execution modes: "host", then "framework" unless it is the same as "host", and then "traced" if
        there is a compiler."""
        modes = ["host"] if self.host_only else ["host", "framework"]
        return modes if type(self).trace is ForTheSuite.trace else [*modes, "traced"]

    @optional("64-bit types are always there")
    def wide_types(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context with 64-bit types as the framework's users enable them (JAX's x64 mode), for the suite."""
        return contextlib.nullcontext()

    # ------------------------------------------------------------------ traced code
    @optional("no mode traced")
    def trace(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return fn compiled by the framework (jax.jit, tf.function), for the conformance suite."""
        raise self.lacks("trace", "the framework has no tracing compiler")

    @optional("no compiled program is kept")
    def forget_compiled(self) -> None:
        """Release the programs that `trace` and the framework have compiled, for the conformance suite.

        Without this method, the suite's thousands of programs would need more memory mappings than a process may have.
        """
