"""Import MXNet with a current NumPy, which no longer has some names that MXNet uses, such as np.int, np.PZERO and
np.mirr.

MXNet's modules get special builtins, whose ``__import__`` returns a stand-in for NumPy. The stand-in has all names of
NumPy and the missing names. Functions of MXNet can also read these names later. No other module sees the stand-in:
``sys.modules["numpy"]`` stays the real module for other threads, and for packages that MXNet imports. NumPy itself does
not change. May import: `mxnet`, `numpy`, `islices.core.locks`.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

import numpy as np

from islices.core.locks import Lock

PACKAGE = "mxnet"
_lock = Lock()


def import_mxnet() -> Any:
    """Return the module ``mxnet``. If MXNet has not been imported yet, import it with the stand-in and without
    warnings.

    Raises
    ------
    ImportError
        MXNet is not installed. If MXNet cannot be loaded on this machine, its error passes through, for example
        OSError. After an error, no module of MXNet stays in sys.modules.
    """
    with _lock:
        if PACKAGE in sys.modules:
            return importlib.import_module(PACKAGE)  # this call waits if another thread is importing it
        _forget_modules()  # these modules remain from an import without the stand-in, which failed
        finder = _Finder()
        sys.meta_path.insert(0, finder)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about MXNet's old syntax and distutils
                return importlib.import_module(PACKAGE)
        except BaseException:
            # After a failure, the finder is removed. After a success, the finder stays, because some parts of MXNet are
            # imported only when they are used.
            sys.meta_path.remove(finder)
            _forget_modules()
            raise


def _forget_modules() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


# ---------------------------------------------------------------------- what MXNet's modules see
def _function(name: str, successor: str = "") -> Callable[..., Any]:
    """Return a replacement for a function that NumPy no longer has. The replacement calls `successor` or, if there is
    none, raises AttributeError.

    Each call returns a different function, because MXNet uses NumPy's functions as keys of dicts.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if not successor:
            raise AttributeError(f"numpy.{name}: NumPy {np.__version__} has no such function any more")
        return getattr(np, successor)(*args, **kwargs)

    call.__name__ = name
    return call


#: The names that MXNet 1.9.1 uses and that some or all current versions of NumPy lack. MXNet contains some of these
#: names as strings in lists.
LOST: dict[str, Any] = {
    **dict.fromkeys(("PINF", "Inf"), np.inf),
    **dict.fromkeys(("NaN", "NAN"), np.nan),
    "NINF": -np.inf,
    "PZERO": 0.0,
    "NZERO": -0.0,
    "bool": bool,
    "int": int,
    **{
        old: _function(old, new)
        for old, new in {
            "alltrue": "all",
            "sometrue": "any",
            "in1d": "isin",
            "row_stack": "vstack",
            "product": "prod",
            "round_": "round",
            "trapz": "trapezoid",
        }.items()
    },
    **{name: _function(name) for name in ("mirr", "msort", "npv", "pmt", "ppmt", "pv", "rate")},
}


class _StandIn(types.ModuleType):
    """A module that has all names of the installed NumPy and, in addition, the names in `LOST`."""

    def __getattr__(self, name: str) -> Any:
        # LOST is searched before getattr, because NumPy's __getattr__ warns for some names
        found = vars(np).get(name, LOST.get(name))
        return getattr(np, name) if found is None else found


_stand_in = _StandIn("numpy", np.__doc__)


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
) -> Any:
    module = builtins.__import__(name, globals, locals, fromlist or (), level)
    return _stand_in if module is np and level == 0 else module


class _Finder(MetaPathFinder):
    """A finder that loads MXNet's Python source files with `_Loader`. The other finders find these files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        for finder in sys.meta_path:
            spec = None if isinstance(finder, _Finder) else finder.find_spec(fullname, path, target)
            if spec is not None:
                if type(spec.loader) is SourceFileLoader:
                    spec.loader = _Loader(spec.loader.name, spec.loader.path)
                return spec
        return None


class _Loader(SourceFileLoader):
    """A loader that runs a module with special builtins, so that ``import numpy`` returns the stand-in."""

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)
