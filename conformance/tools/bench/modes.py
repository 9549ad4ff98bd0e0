"""The ways that islices runs, one beside the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import islices
from islices.backend import Backend
from islices.kernels import active

__all__ = ["modes_of", "running"]


def modes_of(B: Backend) -> list[str]:
    """The ways islices runs: "islices" as it does by default, and what can be told apart from it."""
    modes = ["islices"]
    if active() is not None:  # else there is nothing to switch off
        modes.append("kernels off")
    return modes if B.host_only else [*modes, "framework"]


@contextlib.contextmanager
def running(mode: str) -> Iterator[None]:
    """A context in which islices runs in one of `modes_of`."""
    with islices.execution("framework" if mode == "framework" else "host"), islices.use_kernels(mode != "kernels off"):
        yield
