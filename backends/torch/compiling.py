"""torch.compile runs calls into islices uncompiled: it inserts a graph break at each, then resumes.

Dynamo would trace the library's Python, registry and execution modes included, and its guards on that do not end. It
keeps a list of folders whose frames it leaves alone; the library's are put there, at once where Dynamo is loaded
already, else when it is: importing it here would cost every user of torch a second. The compiler of the kernels, whose
frames are called from the library's, is put there too: the first call from compiled code took twenty times as long.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["compiled", "forget", "shield"]

RULES = "torch._dynamo.trace_rules"
PACKAGES = ("islices", "islices.backends", "numba", "llvmlite")


def compiled(fn: FunctionType) -> Callable[..., Any]:
    """fn by torch.compile, under a code object of its own: Dynamo counts recompilations of each, and gives up on one
    that it had to compile for several forms of input."""
    import torch

    own = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    return torch.compile(own)


def forget() -> None:
    """Let go of what Dynamo has compiled."""
    if RULES in sys.modules:
        import torch

        torch._dynamo.reset()


def shield() -> None:
    """Have Dynamo leave the library's frames alone, once."""
    if RULES in sys.modules:
        _leave_alone(sys.modules[RULES])
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def _leave_alone(rules: ModuleType) -> None:
    add = getattr(rules, "add", None)  # Dynamo's own, not a public name
    for package in PACKAGES:
        if add is not None and find_spec(package) is not None:
            add(package)


class _WhenImported(MetaPathFinder):
    """Sees Dynamo's rules being imported, and adds to them behind their own loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != RULES:
            return None
        if self in sys.meta_path:  # another thread may import it too
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenShield(spec.loader)
        return spec


class _ThenShield(Loader):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _leave_alone(module)
