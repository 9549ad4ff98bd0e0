"""The core asks an array nothing but what the protocol allows: on arrays that raise when anything else is asked of them
the suite passes whole, and every public function gives such arrays back.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite_runs import LOOPBACK, python, run_suite

import islices


def _framework() -> Any:
    """The module alone: with its folder on sys.path this process would find its adapter, too."""
    spec = importlib.util.spec_from_file_location("loopback", LOOPBACK / "loopback.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


loopback = _framework()

#: What takes no arrays, or has none to give: no gradient is recorded, there are no models.
NO_ARRAYS = {
    "PROTOCOL", "Backend", "Capture", "Difference", "NativeParts", "Parity", "Recorder", "Semantics", "__version__",
    "capture", "execution", "get_backend", "get_num_threads", "list_backends", "parity",
    "not_implemented", "set_num_threads", "use_kernels", "value_and_grad",
}  # fmt: skip
#: Of islices.distributed.
OVER_RANKS = {"ShardedTable", "all_reduce"}

TOUCHES: dict[str, Callable[[Any], Any]] = {
    "np.asarray": np.asarray, "len": len, "bool": bool, "iter": iter, "float": float, "int": int, "hash": hash,
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps, "index": operator.index, "str": str,
    "shape": lambda x: x.shape, "default": lambda x: getattr(x, "dtype", None), "hasattr": lambda x: hasattr(x, "ndim"),
    "dict": lambda x: vars(x), "set": lambda x: setattr(x, "device", 1), "item": lambda x: x[0], "in": lambda x: 1 in x,
    "put": lambda x: operator.setitem(x, 0, 1), "==": lambda x: x == x, "<": lambda x: x < 1, ">=": lambda x: x >= x,
    "/": lambda x: x / 2, "1 /": lambda x: 1 / x, "1 -": lambda x: 1 - x, "@": lambda x: x @ x, "**": lambda x: x**2,
    "abs": abs, "~": lambda x: ~x, "+ numpy": lambda x: x + np.ones(2), "numpy *": lambda x: np.ones(2) * x,
    "numpy scalar *": lambda x: np.float32(2) * x, "+=": lambda x: operator.iadd(x, x), "ufunc": lambda x: np.sqrt(x),
    "+ another dtype": lambda x: x + loopback.box(np.ones(2, np.float64)), "+ tuple": lambda x: x + (1, 1),  # noqa: RUF005
}  # fmt: skip


@pytest.mark.parametrize("touch", TOUCHES)
def test_whatever_looks_at_an_array_raises(touch: str) -> None:
    x = loopback.box(np.ones(2, np.float32))
    # NumPy's functions refuse before they look, the class having no __array_ufunc__
    with pytest.raises(TypeError if touch == "ufunc" else loopback.TouchedError):
        TOUCHES[touch](x)


def test_arithmetic_does_not() -> None:
    x = loopback.box(np.array([1.0, 2.0], np.float32))
    out = -(2 * x + x * x - 0.5)
    assert isinstance(out, loopback.LoopbackArray)
    assert loopback.unbox(out).tolist() == [-2.5, -7.5]
    assert loopback.unbox(out).dtype == np.float32
    assert repr(out) == "<LoopbackArray>"


@pytest.mark.outside
def test_the_default_profile_passes_on_the_host(tmp_path: Path) -> None:
    """In mode framework too: `test_suite_catches`, whose sound backend this is."""
    run = run_suite(tmp_path, "loopback", "--islices-modes", "host", path=LOOPBACK)
    assert run.status == 0, run.output[-3000:]
    assert set(run.counts) == {"pass", "unsupported"}
    assert run.counts["pass"] > 800
    assert run.reasons("unsupported") == {"the suite does not know loopback's own layers"}


def test_every_public_function_gives_loopback_arrays_back() -> None:
    done = python(LOOPBACK / "every_call.py", path=LOOPBACK)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    own = {"LoopbackArray", "LoopbackRows"}
    for mode in ("host", "framework"):
        assert set(found[mode]) == (set(islices.__all__) | OVER_RANKS) - NO_ARRAYS, "every function is called"
        leaks = {name: kinds for name, kinds in found[mode].items() if not set(kinds) <= own or not kinds}
        assert not leaks, (mode, leaks)
    natives = {name for name, kinds in found["host"].items() if "LoopbackRows" in kinds}
    assert natives >= {"clip_by_global_norm", "coalesce", "drop_rows", "scale", "to_native"}, "type in, type out"
