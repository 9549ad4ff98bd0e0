"""Make torch.compile turn calls of islices into nodes of the compiled graph, or run the calls eagerly.

Dynamo would trace the library's Python code, registry and execution modes included, with very many guards. Dynamo has a
list of folders whose code it skips. This module adds the library to the list, except the modules of `TRACED`. The list
also gets the packages that compile kernels, numba and llvmlite. `islices.backends.torch.in_graphs` defines the calls
that become nodes of a graph. The list is extended at once if Dynamo has been imported already, and otherwise when
Dynamo is imported. An import of Dynamo here would cost every user of torch a second.
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
#: The modules of the library that Dynamo traces.
TRACED = ("islices.backends.torch.in_graphs", "islices.embedding.transformed", "islices.conformance")
COMPILERS = ("numba", "llvmlite")


def compiled(fn: Any) -> Callable[..., Any]:
    """Return a copy of `fn`, compiled by torch.compile. The copy has a separate code object.

    Dynamo counts recompilations per code object, and stops compiling a code object after inputs of several shapes or
    types.
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
    """Make Dynamo skip the library's code, except the modules of `TRACED`. If torch has the required hooks, calls of
    the library also become graph nodes.

    If Dynamo is not imported yet, both changes take effect when Dynamo is imported. Further calls change nothing.
    """
    if hasattr(sys.modules.get(DYNAMO), "reset"):  # if not, Dynamo is still being imported
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
    """Yield the names of a package's modules and packages, except the modules that Dynamo traces. In place of a package
    that contains a traced module, yield the package's other modules."""
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if any(name.startswith(f"{found.name}.") for name in TRACED):
            yield from _modules(found.name)
        elif found.name not in TRACED:
            yield found.name


class _WhenImported(MetaPathFinder, Loader):
    """An import hook that lets the other finders import Dynamo, and then adds the library's rules to Dynamo."""

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
