"""Keras on torch: an embedding's gradient is a sparse COO tensor, out of torch's own backward pass.

See `islices.backends.keras.native`. May import: `keras`, `torch`, `islices.backends.torch`, the core, this folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import torch
from torch.nn import functional

from islices.backend import OtherUse, Use
from islices.backends.keras.gradients import Hooks, Slices
from islices.backends.keras.listeners import READ, arrived, noting, uses_of
from islices.backends.torch import backend
from islices.conversion import from_native
from islices.linear import add, concat
from islices.rows import coalesce
from islices.slices import IndexedSlices

__all__ = ["Hooks", "Sum", "Training", "adopted", "applying", "cast", "check_build", "check_step", "divisible"]
__all__ += ["IN_PLACE", "is_sparse", "listening", "look_up", "replicas", "stock", "summed", "watch", "writable"]

#: Whether a rule writes what it steps on.
IN_PLACE = True

applying = contextlib.nullcontext


# ---------------------------------------------------------------------- models and layers
class Training:
    """A model of Keras whose step torch differentiates eagerly: it refuses sparse gradients in a graph."""

    def make_train_function(self, force: bool = False) -> Any:
        if self.jit_compile:  # type: ignore[attr-defined]
            raise ValueError(
                "jit_compile: got True; accepted on torch are False and 'auto', which is False there, since "
                "torch.compile refuses the backward pass of sparse embeddings"
            )
        return super().make_train_function(force)  # type: ignore[misc]


def look_up(own: Any, layer: Any, ids: Any) -> Any:
    """Rows whose gradient is sparse where the table is trained."""
    table = layer._embeddings.value
    if not table.requires_grad:
        return own(ids)
    rows = functional.embedding(ids, table, sparse=True)
    for use in uses_of(layer, ids) if rows.requires_grad else ():
        rows.register_hook(lambda upstream, use=use: arrived(use, upstream.detach()))
    return rows


@contextlib.contextmanager
def listening(layer: Any, name: str, uses: list[Use]) -> Iterator[None]:
    """See `listeners`. A gradient of the weights that is not sparse came from elsewhere, too."""

    def look(table: torch.Tensor) -> None:
        if table.grad is not None and table.grad.layout is not torch.sparse_coo:
            uses.append(OtherUse(name, READ))

    hook = layer._embeddings.value.register_post_accumulate_grad_hook(look)
    try:
        with noting(layer, name, uses):
            yield
    finally:
        hook.remove()


def watch(variable: Any) -> None:
    """Nothing to do: autograd adds up all uses of a parameter."""


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
def check_build(optimizer: Any) -> None:
    """Nothing is refused."""


def check_step() -> None:
    """Nothing is refused."""


def replicas(model: Any = None) -> int:
    """How many take a step together."""
    return 1


def writable(variable: Any) -> Any:
    """What a rule steps on, in place."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def stock(kind: Any) -> Any:
    """The class of Keras that a name of keras.optimizers makes here: torch has those of its own, by `__new__`."""
    return type(kind())


class Sum:
    """The sum of some gradients of a variable: coalesced slices, or a tensor once one of them is dense."""

    def __init__(self, variable: Any, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
        self.device = writable(variable).device
        self.in_use = False
        self.stored: Any = self.no_rows().slices

    def plus(self, gradient: Any) -> Any:
        """What is stored and a gradient behind it."""
        self.in_use = True
        gradient = gradient.slices if isinstance(gradient, Slices) else gradient
        gradient = cast(gradient, self.dtype)
        if isinstance(gradient, IndexedSlices):
            if isinstance(self.stored, IndexedSlices):
                return coalesce(concat([self.stored, gradient]))
            return add(self.stored, gradient)
        gradient = gradient.reshape(self.shape)
        return add(self.stored, gradient) if isinstance(self.stored, IndexedSlices) else self.stored + gradient

    def assign(self, gradient: Any) -> None:
        """Store what `plus` gave."""
        self.stored = gradient

    def no_rows(self) -> Slices:
        values = torch.zeros((0, *self.shape[1:]), dtype=getattr(torch, self.dtype), device=self.device)
        indices = torch.zeros(0, dtype=torch.int64, device=self.device)
        return Slices(IndexedSlices(values, indices, self.shape, coalesced=True, validate=False))

    def clear(self) -> None:
        self.stored = self.no_rows().slices

    values = indices = None  # no variables of the optimizer hold them

    def save(self) -> tuple[Any, Any]:
        """Values and indices, as NumPy arrays."""
        if isinstance(self.stored, IndexedSlices):
            return self.stored.values.cpu().numpy(), self.stored.indices.cpu().numpy()
        return self.stored.cpu().numpy(), torch.arange(self.shape[0]).numpy()

    def load(self, values: Any, indices: Any) -> None:
        """What `save` gave."""
        values, indices = (torch.from_numpy(x).to(self.device) for x in (values, indices))
        self.stored = IndexedSlices(values, indices.long(), self.shape, coalesced=True)
        self.in_use = True
