"""Test that imports are lazy: islices imports only NumPy, and a backend imports only its framework.

Sums of rows import numba only if numba is installed, kernels are on, and the work is large or ISLICES_KERNELS is 1. The
tests run fresh interpreters, because they check which modules are loaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from suite_runs import run_code

#: backend -> modules that islices may not import for another backend
FRAMEWORKS = {
    "numpy": (),
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "keras"),
    "jax": ("jax", "jaxlib"),
    "mxnet": ("mxnet",),
}
HEAVY = ("torch", "tensorflow", "keras", "jax", "jaxlib", "mxnet", "rich", "pytest", "hypothesis", "ml_dtypes", "numba")


def loaded(code: str, **environment: str) -> set[str]:
    (modules,) = loaded_after(code, **environment)
    return modules


def loaded_after(*steps: str, **environment: str) -> list[set[str]]:
    """Run `steps` in one fresh interpreter, and return the names in sys.modules after each step."""
    shown = "\nimport json, sys\nprint('loaded', json.dumps(sorted(sys.modules)))\n"
    script = "".join(textwrap.dedent(step) + shown for step in steps)
    env = {**{k: v for k, v in os.environ.items() if k != "ISLICES_KERNELS"}, **environment}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    found = [
        json.loads(rest)
        for word, _, rest in (line.partition(" ") for line in done.stdout.splitlines())
        if word == "loaded"
    ]
    assert len(found) == len(steps), done.stdout
    return [set(names) for names in found]


def roots(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_import_islices_imports_no_framework() -> None:
    modules = loaded("import islices")
    assert roots(modules) & set(HEAVY) == set()
    late = tuple(f"islices.{x}" for x in ("backends", "conformance", "compare", "distributed", "files", "io"))
    assert {m for m in modules if m.startswith(late)} == set(), "adapters, the suite and what few use load when used"


WORK = """
import islices, numpy as np
s = islices.IndexedSlices(np.ones((3, 2), np.float32), np.array([1, 4, 1]), (6, 2))
islices.clip_by_global_norm([s, np.ones(4)], 1.0)
islices.to_dense(islices.coalesce(s) + s * 2)
islices.to_native(s)
table = islices.scatter(np.ones((6, 2), np.float32), s)
optimizer = islices.optim.adam(0.1)
optimizer.step(table, s, optimizer.init(table))
large = np.ones((2_500_000, 2), np.float32)
optimizer.step(large, s.replace(dense_shape=large.shape), optimizer.init(large))
"""
LARGE = """
optimizer = islices.optim.adam(0.1, rows="all")
optimizer.step(large, s.replace(dense_shape=large.shape), optimizer.init(large))
"""


def test_working_in_numpy_imports_only_the_numpy_backend() -> None:
    wanted = {"numba"} if importlib.util.find_spec("numba") else set()
    assert roots(loaded(WORK)) & set(HEAVY) == set(), "so little is not worth numba's import"
    assert roots(loaded(WORK + LARGE)) & set(HEAVY) == wanted
    modules = loaded(WORK, ISLICES_KERNELS="1")
    assert roots(modules) & set(HEAVY) == wanted
    adapters = {m.split(".")[2] for m in modules if m.startswith("islices.backends.")}
    assert adapters == {"numpy"}


def test_without_kernels_numba_is_not_imported() -> None:
    switched_off = "import islices\nwith islices.config.use_kernels(False):\n" + textwrap.indent(WORK, "    ")
    for modules in (loaded(WORK, ISLICES_KERNELS="0"), loaded(switched_off)):
        assert roots(modules) & set(HEAVY) == set()
        early = {m for m in modules if m.startswith("islices.kernels.")}
        assert early == {"islices.kernels.expanding", "islices.kernels.threads"}, "kernels load when used"


def test_what_sums_nothing_does_not_import_numba() -> None:
    modules = loaded(
        """
        import islices, numpy as np
        for index in (np.int32, np.int64):
            s = islices.IndexedSlices(np.ones((3, 2), np.float32), np.array([1, 4, 1], index), (6, 2))
            s.shape, s.dtype, s.backend, repr(s), s.replace(values=s.values)
            islices.to_native(islices.from_native(s))
            islices.concat([s, s])
        large = islices.IndexedSlices(np.zeros((100_000, 1)), np.arange(100_000), (100_000, 1))
        islices.config.set_num_threads(islices.config.get_num_threads())
        with islices.config.use_kernels(True):
            islices.IndexedSlices(np.ones((3, 2)), np.array([1, 4, 1]), (6, 2))
        """
    )
    assert roots(modules) & set(HEAVY) == set()


@pytest.mark.outside
@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if name != "numpy"])
def test_a_backend_imports_only_its_own_framework(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    # the framework itself may import other packages of the list (TensorFlow imports Keras, and JAX imports ml_dtypes)
    alone = "import numpy" if name == "mxnet" else f"import {name}"  # MXNet needs the stand-in
    before, after = loaded_after(alone, f"import islices\nB = islices.get_backend({name!r})\nassert B.name == {name!r}")
    others = {m for other, own in FRAMEWORKS.items() if other != name for m in own}
    assert roots(after) & (others | {"pytest", "hypothesis", "rich", "numba"}) <= roots(before)
    adapters = {m.split(".")[2] for m in after if m.startswith("islices.backends.")}
    assert adapters - {"numpy"} == {name}, "the adapter imports no other adapter"


def test_numpy_is_left_untouched() -> None:
    loaded(
        """
        import types
        import numpy as np
        before = {k: v for k, v in vars(np).items() if not isinstance(v, types.ModuleType)}
        errors, options = np.geterr(), np.get_printoptions()
        import islices
        s = islices.IndexedSlices(np.ones((2, 1)), np.array([0, 0]), (2, 1))
        islices.clip_by_norm(s * float("inf"), 1.0)
        after = {k: v for k, v in vars(np).items() if not isinstance(v, types.ModuleType)}
        assert after.keys() == before.keys(), after.keys() ^ before.keys()
        assert all(after[k] is before[k] for k in before)
        assert np.geterr() == errors and np.get_printoptions() == options
        """
    )


def test_pytest_imports_nothing_of_islices_until_it_is_used(tmp_path: Path) -> None:
    """Check that the plugin makes `pytest --help` import neither islices nor NumPy. The options of the plugin begin
    with --islices-."""
    code = "import sys, pytest; pytest.main(['-q', '-p', 'islices_pytest', *sys.argv[1:]]); print(*sys.modules)"
    shown = run_code(code, "-p", "no:cacheprovider", "--help", cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert not {"islices", "numpy"} & set(shown.splitlines()[-1].split())
    options = shown.partition("\nislices conformance suite:\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"(?m)^  (-.{9})", options)) == {"--islices-"}
