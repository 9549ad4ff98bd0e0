"""Define `Way`, an implementation that the bench measures, and load the bench's module for each framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from islices.conformance.tools.bench.rounds import Call


class Way(NamedTuple):
    """An implementation of an optimizer's step or of a whole training step, which the bench measures. Each
    implementation has separate tables."""

    step: Call
    """A function that takes the next step; the returned result may still be pending."""
    tables: Callable[[], list[Any]]

    def timed(self) -> Any:
        """Take a step and return (result, tables). Both may still be pending, so the caller must wait for both."""
        return self.step(), self.tables()


#: A function that makes an implementation with new tables.
Ready = Callable[[], Way]


def framework_of(name: str) -> Any:
    return importlib.import_module(f"islices.conformance.tools.bench.frameworks.{name}")


def block_of(name: str) -> Callable[[Any], None]:
    """Return the function that waits until a framework's arrays are computed."""
    block: Callable[[Any], None] = importlib.import_module(f"islices.conformance.own_calls.{name}").block
    return block


def index_dtype(name: str) -> str:
    """Return the usual index dtype of a framework. JAX without x64 has no int64."""
    return "int32" if name == "jax" else "int64"


def our_variant(step: Callable[..., Any], tables: Any, states: Any, feed: Iterator[Any]) -> Way:
    """Return an implementation that calls `step(tables, states, *batch)` with each batch of `feed`. `step` returns
    (tables, states, result)."""
    held = [tables, states]

    def call() -> Any:
        held[0], held[1], result = step(*held, *next(feed))
        return result

    def now() -> list[Any]:
        return [getattr(x, "weights", x) for x in (held[0] if isinstance(held[0], list) else [held[0]])]

    return Way(call, now)
