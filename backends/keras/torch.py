"""Keras on torch: an embedding's gradient is a sparse COO tensor, out of torch's own backward pass.

See `islices.backends.keras.native`. May import: `keras`, `numpy`, `torch`, `islices.backends.torch`, the core,
this folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch

from islices.backends.keras.sparse_gradients import ArrayHooks, Slices
from islices.backends.torch import backend
from islices.backends.torch.sparse_reads import RowReads
from islices.core.conversion import from_native
from islices.core.rows import coalesce
from islices.core.slices import IndexedSlices

__all__ = ["Hooks", "adopted", "applying", "cast", "divisible"]
__all__ += ["cell", "held", "is_sparse", "methods", "replicas", "stock", "summed", "writable"]

applying = contextlib.nullcontext


# ---------------------------------------------------------------------- models
def _is_table(x: Any) -> bool:
    return isinstance(x, torch.nn.Parameter) and x.requires_grad and x.ndim >= 2


def methods(model: Any) -> dict[str, Any]:
    """Those of a model that take another course."""

    def by_rows(method: Any, *args: Any, **kwargs: Any) -> Any:
        with RowReads(_is_table):
            return method(*args, **kwargs)

    def make_train_function(method: Any, *args: Any, **kwargs: Any) -> Any:
        if model.jit_compile:
            raise ValueError(
                "jit_compile: got True; accepted on torch are False and 'auto', which is False there, since "
                "torch.compile refuses the backward pass of sparse embeddings"
            )
        return method(*args, **kwargs)

    # not the whole train_step: a mode costs microseconds per call of torch, of which an optimizer has many
    return {"call": by_rows, "compute_loss": by_rows, "make_train_function": make_train_function}


# ---------------------------------------------------------------------- gradients
def is_sparse(grad: Any) -> bool:
    """Whether a gradient is sparse."""
    return isinstance(grad, IndexedSlices) or (isinstance(grad, torch.Tensor) and grad.layout is torch.sparse_coo)


def adopted(grad: Any, variable: Any, *, validate: bool) -> Any:
    """A gradient for islices: slices, or the dense tensor."""
    return from_native(grad, validate=validate) if is_sparse(grad) else grad


def summed(grad: Any) -> Any:
    """A sparse gradient with its duplicates summed, which is known of it."""
    return coalesce(from_native(grad))


def divisible(grad: Any, variable: Any) -> Any:
    """The gradient, with a division by numbers."""
    return Slices(adopted(grad, variable, validate=False)) if is_sparse(grad) else grad


def cast(grad: Any, dtype: str) -> Any:
    """A gradient of the type of that name."""
    if isinstance(grad, IndexedSlices):
        return grad if backend.dtype(grad.values) == dtype else grad.replace(values=backend.astype(grad.values, dtype))
    return keras.ops.convert_to_tensor(grad).to(getattr(torch, dtype))


# ---------------------------------------------------------------------- steps
class TorchHooks(ArrayHooks):
    """Steps on slices variable by variable, since Keras's steps on all variables at once take arrays."""

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
    """How many take a step together."""
    return 1


def writable(variable: Any) -> Any:
    """What a rule steps on, in place."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def stock(kind: Any) -> Any:
    """The class of Keras that a name of keras.optimizers makes here: torch has those of its own, by `__new__`."""
    return type(kind())


class Cell:
    """A value that is assigned anew, as a variable is."""

    def __init__(self, x: torch.Tensor) -> None:
        self.value = x

    def assign(self, x: Any) -> None:
        """Take another value."""
        self.value = x if isinstance(x, torch.Tensor) else torch.from_numpy(x).to(self.value.device)


def held(x: Cell) -> torch.Tensor:
    """Return the value of a `cell`."""
    return x.value


def cell(values: np.ndarray[Any, Any], variable: Any) -> Cell:
    """Return a holder of arrays of any length, on the variable's device."""
    return Cell(torch.from_numpy(values).to(writable(variable).device))
