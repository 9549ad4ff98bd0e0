"""Compute gradients with the tape of each framework, as users do without islices.value_and_grad."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from comparing import host

import islices
from islices.config import execution

__all__ = ["FRAMEWORKS", "MODES", "Tape"]

FRAMEWORKS = [name for name in ("torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]
#: (framework, mode). "eager" and "compiled" run in islices's mode host, and "framework" is eager in mode framework.
MODES = [
    *((name, mode) for name in FRAMEWORKS for mode in ("eager", "framework")),
    *((name, "compiled") for name in FRAMEWORKS if name in ("tensorflow", "jax")),
]

#: A function from arrays of the framework to a scalar of the framework.
Loss = Callable[..., Any]


class Tape:
    """A tape that computes gradients in one framework and mode."""

    def __init__(self, framework: str, mode: str = "eager") -> None:
        self.framework, self.mode = framework, mode
        self.backend = islices.get_backend(framework)
        self.module = importlib.import_module(framework)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        # MXNet accepts empty arrays only in this context
        shapes = self.module.util.np_shape(True) if self.framework == "mxnet" else contextlib.nullcontext()
        with (
            execution("framework" if self.mode == "framework" else "host"),
            self.backend.wide_types(),
            shapes,
        ):
            yield

    def array(self, x: np.ndarray) -> Any:
        return self.backend.asarray(x)

    def weighted(self, pairs: Sequence[tuple[Any, Any]]) -> Any:
        """Return the sum of the products of all `pairs`, computed by the framework's operations."""
        total: Any = 0
        for x, weight in pairs:
            one = self.module.reduce_sum(x * weight) if self.framework == "tensorflow" else (x * weight).sum()
            total = total + one  # MXNet cannot record an addition in place
        return total

    def gradients(self, loss: Loss, *given: np.ndarray) -> list[np.ndarray]:
        with self.running():
            found = getattr(self, f"_{self.framework}")(loss, [self.array(x) for x in given])
            return [host(x) for x in found]

    def _torch(self, loss: Loss, arrays: list[Any]) -> Any:
        leaves = [x.requires_grad_() for x in arrays]
        return self.module.autograd.grad(loss(*leaves), leaves)

    def _tensorflow(self, loss: Loss, arrays: list[Any]) -> Any:
        tf = self.module

        def take(*arrays: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(arrays)
                value = loss(*arrays)
            return tape.gradient(value, arrays)

        return (tf.function(take, autograph=False) if self.mode == "compiled" else take)(*arrays)

    def _jax(self, loss: Loss, arrays: list[Any]) -> Any:
        take = self.module.grad(loss, argnums=tuple(range(len(arrays))))
        return (self.module.jit(take) if self.mode == "compiled" else take)(*arrays)

    def _mxnet(self, loss: Loss, arrays: list[Any]) -> Any:
        for x in arrays:
            x.attach_grad()
        with self.module.autograd.record():
            value = loss(*arrays)
        value.backward()
        return [x.grad for x in arrays]
