"""Collect every `Cause` in the modules of this folder, and sort the causes so that the most specific one is first."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from islices.porting.compare.cause import Cause

_modules = [import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
#: name -> cause
CAUSES = {
    cause.name: cause
    for cause in sorted(
        {x for module in _modules for x in vars(module).values() if isinstance(x, Cause)},
        key=lambda c: (c.rank, c.name),
    )
}
