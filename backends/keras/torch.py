"""Run Keras on torch. `RowReads` replaces reads of rows by operations whose gradients are sparse COO tensors.

See `islices.backends.keras.native`. May import: `keras`, `torch`, `islices.backends.torch`, the core, this folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from islices.backend import Host
from islices.backends.keras.sparse_gradients import ArrayHooks, cast, divisible  # noqa: F401  # of `native`
from islices.backends.torch.sparse_reads import RowReads
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices
from islices.core.warn import warn_caller

summed = coalesce


# ---------------------------------------------------------------------- models
def _is_table(x: Any) -> bool:
    return isinstance(x, torch.nn.Parameter) and x.requires_grad and x.ndim >= 2


def methods(model: Any) -> dict[str, Any]:
    """Return the methods that replace a model's methods. The new methods make the gradients of looked-up tables sparse,
    and switch off jit_compile."""

    def by_rows(method: Any, *args: Any, **kwargs: Any) -> Any:
        with RowReads(_is_table):
            return method(*args, **kwargs)

    def make_train_function(method: Any, *args: Any, **kwargs: Any) -> Any:
        if model.jit_compile:  # models saved on JAX have True
            warn_caller(
                "jit_compile: got True; torch.compile refuses the backward pass of sparse embeddings. Proceeding with "
                "jit_compile=False"
            )
            model.jit_compile = False
        return method(*args, **kwargs)

    # `RowReads` does not cover all of train_step, because it adds microseconds to each call of a torch function, and an
    # optimizer makes many calls.
    return {"call": by_rows, "compute_loss": by_rows, "make_train_function": make_train_function}


# ---------------------------------------------------------------------- steps
class TorchHooks(ArrayHooks):
    """A base class of optimizers that updates variables with sparse gradients one by one, because Keras's update of all
    variables together accepts only arrays."""

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        pairs = list(zip(grads, trainable_variables, strict=True))
        for grad, variable in pairs:
            if isinstance(grad, IndexedSlices):
                self.update_step(grad, variable, learning_rate)
        arrays = [(g, v) for g, v in pairs if not isinstance(g, IndexedSlices)]
        if arrays:
            super()._backend_update_step(*map(list, zip(*arrays, strict=True)), learning_rate)


Hooks = TorchHooks


def replicas(model: Any = None) -> int:
    return 1


def take_if(flag: Any, variables: Sequence[Any], step: Callable[[], None]) -> None:
    """Call `step`, which changes the variables, if the flag is true."""
    if flag:
        step()


def writable(variable: Any) -> Any:
    """Return the tensor in a variable. Optimizers of `islices.optim` can change this tensor in place."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def stock(kind: Any) -> Any:
    """Return the class of the objects that ``kind()`` makes, where `kind` is a class in keras.optimizers. On torch,
    the class may be a subclass of `kind`."""
    return type(kind())


class Cell:
    """A variable whose length may change, with the methods of tf.Variable that this package uses."""

    def __init__(self, x: torch.Tensor) -> None:
        self.tensor = x

    def assign(self, x: Any) -> None:
        self.tensor = x if isinstance(x, torch.Tensor) else torch.from_numpy(x).to(self.tensor.device)

    def read_value(self) -> torch.Tensor:
        return self.tensor


def cell(values: Host, variable: Any) -> Cell:
    """Make a `Cell` that contains `values`, on the device of `variable`."""
    return Cell(torch.from_numpy(values).to(writable(variable).device))
