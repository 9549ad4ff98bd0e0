"""Compute gradients by the tape of each framework, as users do without islices.value_and_grad."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import islices
from islices.config import execution
from islices.core.host import bfloat16_to_float32

__all__ = ["FRAMEWORKS", "MODES", "Tape", "read"]

FRAMEWORKS = [name for name in ("torch", "tensorflow", "jax", "mxnet") if name in islices.list_backends()]
#: (framework, mode): eager (the library may choose the host), eager in mode framework, compiled.
MODES = [
    *((name, mode) for name in FRAMEWORKS for mode in ("eager", "framework")),
    *((name, "compiled") for name in FRAMEWORKS if name in ("tensorflow", "jax")),
]

#: A function from arrays of the framework to a scalar of the framework.
Loss = Callable[..., Any]


def read(backend: Any, x: Any) -> np.ndarray:
    """Convert an array of the framework to a float64 NumPy array."""
    host = backend.to_numpy(x)
    return (bfloat16_to_float32(host) if backend.dtype(x) == "bfloat16" else host).astype(np.float64)


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
        """Return the sum of all x * weight in `pairs`, computed by the framework's operations in the dtype of the
        weights."""
        total = None
        for x, weight in pairs:
            if self.framework == "torch":
                one = (x.to(weight.dtype) * weight).sum()
            elif self.framework == "tensorflow":
                one = self.module.reduce_sum(self.module.cast(x, weight.dtype) * weight)
            else:
                one = (x.astype(weight.dtype) * weight).sum()
            if self.framework == "mxnet" and total is not None:
                one = one.astype(total.dtype)
            elif self.framework == "tensorflow" and total is not None:
                one = self.module.cast(one, total.dtype)
            total = one if total is None else total + one
        return total

    def gradients(self, loss: Loss, *given: np.ndarray) -> list[np.ndarray | None]:
        """Return the float64 gradients of a loss with respect to each argument, and None for arguments that are not
        floats."""
        floats = [k for k, x in enumerate(given) if x.dtype.kind not in "iub"]
        with self.running():
            arrays = [self.array(x) for x in given]
            found = dict(zip(floats, getattr(self, f"_{self.framework}")(loss, arrays, floats), strict=True))
            # zeros if the loss does not depend on the argument
            return [
                None if k not in found else np.zeros(x.shape) if found[k] is None else read(self.backend, found[k])
                for k, x in enumerate(given)
            ]

    def _torch(self, loss: Loss, arrays: list[Any], floats: list[int]) -> list[Any]:
        for k in floats:
            arrays[k].requires_grad_()
        value = loss(*arrays)
        return list(self.module.autograd.grad(value, [arrays[k] for k in floats], allow_unused=True))

    def _tensorflow(self, loss: Loss, arrays: list[Any], floats: list[int]) -> list[Any]:
        tf = self.module

        def take(*arrays: Any) -> list[Any]:
            watched = [arrays[k] for k in floats]
            with tf.GradientTape() as tape:
                tape.watch(watched)
                value = loss(*arrays)
            return tape.gradient(value, watched, unconnected_gradients="zero")  # type: ignore[no-any-return]

        return (tf.function(take, autograph=False) if self.mode == "compiled" else take)(*arrays)

    def _jax(self, loss: Loss, arrays: list[Any], floats: list[int]) -> list[Any]:
        take = self.module.grad(loss, argnums=tuple(floats))
        return list((self.module.jit(take) if self.mode == "compiled" else take)(*arrays))

    def _mxnet(self, loss: Loss, arrays: list[Any], floats: list[int]) -> list[Any]:
        mx = self.module
        for k in floats:
            arrays[k].attach_grad()
        with mx.autograd.record():
            value = loss(*arrays)
        value.backward()
        return [arrays[k].grad for k in floats]
