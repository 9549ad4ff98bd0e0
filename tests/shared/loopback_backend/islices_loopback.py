"""The adapter of `loopback`, whose primitives compute with the host's primitives and return boxed arrays.

The adapter computes with the object ``arithmetic``, which tests of broken backends replace.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from loopback import LoopbackArray, LoopbackRows, box, unbox

from islices.backend import Backend, NativeParts, not_implemented
from islices.core.host import HostBackend


class Arithmetic(HostBackend):
    """The host's primitives. Methods that combine several primitives come from `Backend`, so that each primitive
    runs."""

    sum_duplicates = Backend.sum_duplicates
    sum_rows = Backend.sum_rows
    dense_rows = Backend.dense_rows
    scaled = Backend.scaled


arithmetic = Arithmetic()


class LoopbackBackend(Backend):
    name = module = "loopback"
    protocol = 3
    native_name = "loopback.LoopbackRows"

    def version(self) -> str:
        return "1.0"

    def is_array(self, x: object) -> bool:
        return isinstance(x, LoopbackArray)

    def is_native(self, x: object) -> bool:
        return isinstance(x, LoopbackRows)

    def dtype(self, x: Any) -> str:
        return arithmetic.dtype(unbox(x))

    def shape(self, x: Any) -> tuple[int, ...]:
        return unbox(x).shape

    def host_view(self, x: Any) -> np.ndarray:
        return unbox(x)

    to_numpy = host_view

    def from_host(self, array: np.ndarray, like: Any) -> Any:
        return box(array)

    def asarray(self, array: np.ndarray, like: Any = None) -> Any:
        array = np.array(array)
        if array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        if array.dtype.kind in "OUS":
            raise TypeError("loopback has no such dtype")
        return box(array)

    def from_native(self, x: LoopbackRows) -> NativeParts:
        return NativeParts(*unbox(x))

    def to_native(self, values: Any, indices: Any, dense_shape: Any, *, coalesced: bool, **options: Any) -> Any:
        return box((values, indices, dense_shape, coalesced), LoopbackRows)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return arithmetic.scope()

    def custom_gradient(self, forward: Any, backward: Any) -> Any:
        return forward

    differentiate = not_implemented("loopback records no gradients")


def _boxed(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(map(_boxed, x))
    return box(x) if isinstance(x, (np.ndarray, np.generic)) else x


def _unboxed(x: Any) -> Any:
    if isinstance(x, (tuple, list)):
        return type(x)(map(_unboxed, x))
    return unbox(x) if isinstance(x, LoopbackArray) else x


def _lifted(name: str) -> Any:
    def primitive(self: LoopbackBackend, *args: Any, **options: Any) -> Any:
        return _boxed(getattr(arithmetic, name)(*_unboxed(args), **options))

    return primitive


for _name, _member in (*vars(HostBackend).items(), ("columns", Backend.columns)):
    if callable(_member) and _name not in {*vars(LoopbackBackend), *vars(Arithmetic)}:
        setattr(LoopbackBackend, _name, _lifted(_name))

backend = LoopbackBackend()
