"""The core asks an array nothing but what the protocol allows: on arrays that raise when anything else is asked of them
the suite passes whole, and every public function gives such arrays back.
"""

from __future__ import annotations

import copy
import importlib.util
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from suite_runs import LOOPBACK


def _framework() -> Any:
    """The module alone: with its folder on sys.path this process would find its adapter, too."""
    spec = importlib.util.spec_from_file_location("loopback", LOOPBACK / "loopback.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


loopback = _framework()


TOUCHES: dict[str, Callable[[Any], Any]] = {
    "np.asarray": np.asarray, "len": len, "bool": bool, "float": float, "copy": copy.copy, "shape": lambda x: x.shape,
    "hasattr": lambda x: hasattr(x, "ndim"), "item": lambda x: x[0], "==": lambda x: x == x, "1 /": lambda x: 1 / x,
    "numpy *": lambda x: np.ones(2) * x, "+=": lambda x: operator.iadd(x, x), "ufunc": lambda x: np.sqrt(x),
}  # fmt: skip


@pytest.mark.parametrize("touch", TOUCHES)
def test_whatever_looks_at_an_array_raises(touch: str) -> None:
    x = loopback.box(np.ones(2, np.float32))
    # NumPy's functions refuse before they look, the class having no __array_ufunc__
    with pytest.raises(TypeError if touch == "ufunc" else loopback.TouchedError):
        TOUCHES[touch](x)
