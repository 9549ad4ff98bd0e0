"""Who listens to the lookups of a layer, on torch and JAX: one capture of one layer in the thread that asked for it.

May import: `islices.backend`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from islices.backend import LayerUse, OtherUse, Use

__all__ = ["READ", "arrived", "note_read", "noting", "uses_of"]

READ = "were read beside the layers that are captured"
#: By the ids of layers, and of their variables: (the name of the weights, where uses go, thread).
_listeners: dict[int, list[tuple[str, list[Use], int]]] = {}


@contextlib.contextmanager
def noting(layer: Any, name: str, uses: list[Use]) -> Iterator[None]:
    """Note the lookups of a layer as uses of the weights of that name."""
    one = (name, uses, threading.get_ident())
    places = (id(layer), id(layer._embeddings))
    for place in places:
        _listeners.setdefault(place, []).append(one)
    try:
        yield
    finally:
        for place in places:
            _listeners[place].remove(one)
            if not _listeners[place]:
                del _listeners[place]


def uses_of(layer: Any, ids: Any) -> list[LayerUse]:
    """A use for each capture that listens to a layer which looks ids up now."""
    found = []
    for name, uses, thread in tuple(_listeners.get(id(layer), ())):
        if thread == threading.get_ident():
            use = LayerUse(name, ids, layer.input_dim)
            uses.append(use)
            found.append(use)
    return found


def note_read(variable: Any) -> None:
    """A variable was read as a whole within a loss."""
    for name, uses, thread in tuple(_listeners.get(id(variable), ())):
        if thread == threading.get_ident():
            uses.append(OtherUse(name, READ))


def arrived(use: LayerUse, upstream: Any) -> None:
    """The gradient of what a use looked up; that of several backward passes adds up."""
    use.upstream = upstream if use.upstream is None else use.upstream + upstream
