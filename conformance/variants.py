"""Define the variants: the settings under which the suite runs its cases.

Each variant is defined for all or some backends and modes. If a variant cannot run on this machine, the report lists
the variant as skipped and shows the reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

import islices
from islices.backend import Backend
from islices.conformance.data import Case, leaves_of
from islices.conformance.ranks.launch import absent
from islices.distributed.engines import engine_of


class Variant(NamedTuple):
    """A setting under which the suite runs its cases.

    Attributes
    ----------
    name : str
        The name in the matrix.
    says : str
        A short description.
    backends : tuple of str
        The backends that have this variant. An empty tuple means all backends.
    modes : tuple of str
        The modes in which the variant runs. An empty tuple means all modes of the backend.
    environment : mapping of str to str
        Environment variables that are set when the process starts. A variant with such variables has a separate
        process; all other variants of a backend share one process.
    around : callable -> context manager
        A function that returns the context manager in which each case runs.
    arrange : callable of (case, arguments, keyword arguments), or None
        A function that changes the arguments of a golden case before the call.
    device : callable of Backend -> str, or None
        A function that returns the device on which the backend puts arrays. None means the framework's default device.
    group : str
        The only group of cases that the variant runs; no other variant runs this group. An empty text means all groups
        without such a variant.
    absent : callable of Backend -> str
        A function that returns why the variant cannot run on this machine, or "" if it can.
    """

    name: str
    says: str
    backends: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    environment: Mapping[str, str] = MappingProxyType({})
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    arrange: Callable[[Case, list[Any], dict[str, Any]], None] | None = None
    device: Callable[[Backend], str] | None = None
    group: str = ""
    absent: Callable[[Backend], str] = lambda backend: ""

    @property
    def label(self) -> str:
        """Return the label of the variant in reports; "" for the standard variant."""
        return "" if self.name == "standard" else self.name

    @property
    def golden_only(self) -> bool:
        """Return True if the variant runs no checks. Checks create their arrays in code, where a variant cannot change
        them."""
        return self.arrange is not None or self.device is not None

    def applies(self, backend: str) -> bool:
        return not self.backends or backend in self.backends

    def modes_of(self, backend: Backend) -> list[str]:
        return [mode for mode in backend.modes() if not self.modes or mode in self.modes]


#: operation -> position of the argument that the call writes to, which therefore stays writable
WRITTEN = {"optimizer_steps": 2, "renorm_rows": 0}


def freeze(case: Case, arguments: list[Any], options: dict[str, Any]) -> None:
    """Make the NumPy arrays among the arguments read-only, except the table and the state that the call writes to."""
    written = 0 if case.op.startswith("scatter_") else WRITTEN.get(case.op)
    _freeze([x for k, x in enumerate(arguments) if k != written])
    _freeze([x for name, x in options.items() if name != "state"])


def _freeze(x: Any) -> None:
    for leaf in leaves_of(x):
        if isinstance(leaf, islices.IndexedSlices):
            _freeze([leaf.values, leaf.indices])
        elif isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False


def _without_kernels(backend: Backend) -> str:
    return "" if importlib.util.find_spec("numba") else "numba is not installed: the other columns are without kernels"


def _without_engine(backend: Backend) -> str:
    engine = engine_of(backend.name)
    why = absent(engine)
    return f"its ranks are connected by the engine {engine!r}, and {why}" if why else ""


def _cuda_devices(backend: Backend) -> list[str]:
    return [name for name in backend.devices() if name.startswith(("cuda", "gpu"))]


def _without_cuda(backend: Backend) -> str:
    return "" if _cuda_devices(backend) else f"{backend.name} {backend.version()} finds no CUDA device here"


STANDARD = Variant("standard", "as users have it")
VARIANTS = {
    v.name: v
    for v in (
        STANDARD,
        Variant(
            "kernels off", "NumPy in place of compiled kernels: within use_kernels(False)", modes=("host",),
            around=partial(islices.config.use_kernels, False), absent=_without_kernels,
        ),
        Variant("read-only", "arrays that cannot be written to", backends=("numpy",), arrange=freeze),
        Variant("x64", "with JAX_ENABLE_X64=1", backends=("jax",), environment={"JAX_ENABLE_X64": "1"}),
        Variant(
            "cuda", "arrays on a CUDA device", backends=("torch", "tensorflow", "jax"), modes=("framework", "traced"),
            device=lambda backend: _cuda_devices(backend)[0], absent=_without_cuda,
        ),
        Variant(
            "ranks",
            "all_reduce between processes, over the engine of the framework (4 processes in the full profile, else 2)",
            modes=("host",), group="ranks", absent=_without_engine,
        ),
    )
}  # fmt: skip
