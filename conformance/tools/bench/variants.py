"""The implementations that the bench runs side by side, and those of islices for a step."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from islices.conformance.tools.bench.rounds import Call


class Way(NamedTuple):
    """An implementation of a training, from its start."""

    step: Call
    """Take the next step; what it returns is not computed yet, perhaps."""
    tables: Callable[[], list[Any]]
    """The tables as they are now."""

    def timed(self) -> Any:
        """Take a step and return all results that a caller waits for."""
        return self.step(), self.tables()


#: A function that makes an implementation with separate tables.
Ready = Callable[[], Way]


def framework_of(name: str) -> Any:
    """Return the module with the code that users of a framework write."""
    return importlib.import_module(f"islices.conformance.tools.bench.frameworks.{name}")


def block_of(name: str) -> Callable[[Any], None]:
    """Return the function that waits until a framework's arrays are computed."""
    block: Callable[[Any], None] = importlib.import_module(f"islices.conformance.own_calls.{name}").block
    return block


def index_dtype(name: str) -> str:
    """Return the index type of a framework's users. JAX without x64 has no int64."""
    return "int32" if name == "jax" else "int64"


def our_variant(step: Callable[..., Any], tables: Any, states: Any, feed: Iterator[Any]) -> Way:
    """Return the implementation that calls step(tables, states, *batch) -> (tables, states, result) for each batch of
    feed."""
    held = [tables, states]

    def call() -> Any:
        held[0], held[1], result = step(*held, *next(feed))
        return result

    def now() -> list[Any]:
        return [getattr(x, "weights", x) for x in (held[0] if isinstance(held[0], list) else [held[0]])]

    return Way(call, now)
