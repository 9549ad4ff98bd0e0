"""Make torch.compile convert calls of islices to nodes of the compiled graph, or run them eagerly.

Without this module, Dynamo would trace all Python code of islices, such as the registry, and make very many guards. But
Dynamo has a list of paths whose code it skips. This module adds the paths of islices's modules to this list, except
those in `TRACED`. The packages numba and llvmlite, which compile the kernels, are added too if they are installed.
`islices.backends.torch.in_graphs` defines which calls become nodes of a graph. If Dynamo has not been imported yet, the
list is extended as soon as Dynamo is imported. This module does not import Dynamo, because the import takes a second.
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
#: The modules of islices that Dynamo traces.
TRACED = ("islices.backends.torch.in_graphs", "islices.embedding.transformed", "islices.conformance")
COMPILERS = ("numba", "llvmlite")


def compiled(fn: Any) -> Callable[..., Any]:
    """Compile a copy of `fn` with torch.compile. The copy has a separate code object.

    Dynamo counts how often it compiles a code object. If the count reaches a limit, for example after inputs with
    several shapes or types, Dynamo no longer compiles this code object.
    """
    import torch

    own = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    return torch.compile(own)


def forget() -> None:
    """See `Backend.forget_compiled`."""
    if DYNAMO in sys.modules:
        import torch

        torch._dynamo.reset()


def shield() -> None:
    """Make Dynamo skip the code of islices, except the modules in `TRACED`. If torch has the required hooks, also make
    Dynamo convert some calls of islices to nodes of graphs.

    If Dynamo has not been imported yet, both changes are made as soon as Dynamo is imported.
    """
    if hasattr(sys.modules.get(DYNAMO), "reset"):  # else Dynamo has not been imported, or is still being imported
        _teach()
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def _teach() -> None:
    rules = importlib.import_module(f"{DYNAMO}.trace_rules")
    add = getattr(rules, "add", None)  # the name is internal to Dynamo, not public
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
    """Yield the names of a package's modules and subpackages, except modules that Dynamo traces. For a subpackage that
    contains a traced module, yield its other modules one by one."""
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if any(name.startswith(f"{found.name}.") for name in TRACED):
            yield from _modules(found.name)
        elif found.name not in TRACED:
            yield found.name


class _WhenImported(MetaPathFinder, Loader):
    """An import hook that lets the other finders import Dynamo, and then adds the rules of islices to Dynamo."""

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
