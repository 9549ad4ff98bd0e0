"""Decide whether compiled kernels run on host memory. Kernels compute the same bits as NumPy, but faster.

The user chooses with `use_kernels`, and the core calls `active`. By default, islices imports numba (the extra ``fast``)
only for traced code, or when there is enough work to make up for the time of the import. Without numba, NumPy computes
everything. SPEC clause 20.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType

from islices.core.arguments import check_flag
from islices.core.locks import Lock, load_module
from islices.kernels.threads import get_num_threads, set_num_threads

__all__ = ["active", "get_num_threads", "loaded", "set_num_threads", "use_kernels"]

_wanted: ContextVar[bool] = ContextVar("islices_kernels", default=os.environ.get("ISLICES_KERNELS", "1") != "0")
#: the module `islices.kernels.operations` once it is loaded; None before that, and without numba
_operations: ModuleType | None = None
_looked = False
_lock = Lock()
#: the number of elements that NumPy computes on, with the same bits, before numba's slow import is worth its time
WORTH = 1 << 22
#: the number of elements that NumPy still computes on before islices imports numba; 0 if ISLICES_KERNELS is set, and
#: after ``use_kernels(True)``
_unpaid: float = 0 if "ISLICES_KERNELS" in os.environ else WORTH


@contextlib.contextmanager
def use_kernels(on: bool) -> Iterator[None]:
    """Choose, for a ``with`` block, whether the host computes with compiled kernels or with NumPy.

    Parameters
    ----------
    on : bool
        True chooses compiled kernels, which need numba (``pip install "islices[fast]"``). With False, or without numba,
        NumPy computes the same bits, but more slowly. Outside of a block, kernels are on unless the environment
        variable ISLICES_KERNELS is 0. Importing numba takes most of a second. By default islices imports numba for the
        first traced call, or once NumPy has computed on 4 million numbers. With ``use_kernels(True)`` or
        ISLICES_KERNELS=1, islices imports numba for the first call that could use a kernel.

    Raises
    ------
    TypeError
        on is not a bool.

    Notes
    -----
    The choice is local to the current context (`contextvars`), like the choice of `execution`. SPEC clause 20.

    Examples
    --------
    >>> import islices
    >>> with islices.config.use_kernels(False):
    ...     pass
    """
    global _unpaid
    token = _wanted.set(check_flag(on, "on"))
    if on:
        _unpaid = 0
    try:
        yield
    finally:
        _wanted.reset(token)


def active(work: float = math.inf) -> ModuleType | None:
    """Return `islices.kernels.operations` if kernels should run now on `work` elements, else None.

    While kernels are on, and until islices tries to import numba, each call subtracts `work` from a budget. Once the
    budget is used up, islices tries to import numba.
    """
    global _unpaid
    if not _wanted.get():
        return None
    if _looked:
        return _operations
    _unpaid -= work
    return None if _unpaid > 0 else _load()


def loaded() -> ModuleType | None:
    """Return `islices.kernels.operations` if kernels are in use and already loaded, else None.

    This function never imports numba, so cheap checks, such as that of indices, call it instead of `active`.
    """
    return _operations if _wanted.get() else None


def _load() -> ModuleType | None:
    global _operations, _looked
    with _lock:
        if not _looked and importlib.util.find_spec("numba") is not None:
            try:
                if not load_module("numba").config.DISABLE_JIT:  # then numba would return plain Python functions
                    _operations = load_module("islices.kernels.operations")
            except Exception as error:  # for example if numba does not support this NumPy, or LLVM is missing
                warnings.warn(
                    f"islices computes without compiled kernels: numba failed to load ({error})", stacklevel=2
                )
        _looked = True
    return _operations
