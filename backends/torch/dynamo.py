"""Make calls into islices under torch.compile become nodes of its graph, or run eagerly.

Dynamo would trace the library's Python, registry and execution modes included, with endless guards. Dynamo skips the
frames of a list of folders. This module adds the library to the list, without the modules of `TRACED`, and the kernels'
compiler, which the library calls. `islices.backends.torch.in_graphs` defines the calls that become nodes of a graph.
Both happen at once if Dynamo is loaded already, or else when it is loaded. Importing Dynamo here would cost every user
of torch a second.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

DYNAMO = "torch._dynamo"
#: Modules that Dynamo traces.
TRACED = ("islices.backends.torch.in_graphs", "islices.embedding.transformed", "islices.conformance")
COMPILERS = ("numba", "llvmlite")


def compiled(fn: Any) -> Callable[..., Any]:
    """Return fn by torch.compile, under a separate code object.

    Dynamo counts recompilations of each code object, and gives up after several forms of input.
    """
    import torch

    own = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    return torch.compile(own)


def forget() -> None:
    """Forget the code that Dynamo has compiled."""
    if DYNAMO in sys.modules:
        import torch

        torch._dynamo.reset()


def shield() -> None:
    """Make Dynamo turn the library's calls into graph nodes and skip all other code of the library. Do this once."""
    if hasattr(sys.modules.get(DYNAMO), "reset"):  # otherwise it is about to be imported
        _teach()
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def _teach() -> None:
    rules = importlib.import_module(f"{DYNAMO}.trace_rules")
    add = getattr(rules, "add", None)  # internal to Dynamo, not a public name
    for name in (*_modules("islices"), *_modules("islices.backends"), *COMPILERS):
        if add is not None and find_spec(name) is not None:
            add(name)
    import torch

    needed = (
        (torch._dynamo, "nonstrict_trace"),
        (torch._dynamo.config, "trace_autograd_ops"),
        (torch._dynamo.decorators, "_allowed_config_patches"),
    )
    if add is not None and all(hasattr(owner, name) for owner, name in needed):
        importlib.import_module(TRACED[0]).substitute()


def _modules(package: str) -> Iterator[str]:
    """Yield the modules and packages in a package, except traced ones; search packages that contain traced ones."""
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if any(name.startswith(f"{found.name}.") for name in TRACED):
            yield from _modules(found.name)
        elif found.name not in TRACED:
            yield found.name


class _WhenImported(MetaPathFinder, Loader):
    """An import hook that lets the other finders import Dynamo, and then adds the library's rules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != DYNAMO or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(DYNAMO)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
        _teach()
