"""Test that MXNet is imported with a stand-in for NumPy, and that no other module sees the stand-in.

Each test runs in a fresh interpreter, because the test checks the state after an import. The first tests use a toy
package named mxnet, and so need no MXNet. The other tests need MXNet.
"""

from __future__ import annotations

import importlib.util
import subprocess
import textwrap
from pathlib import Path

import pytest
from suite_runs import python

needs_mxnet = pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")

#: Code that loads only the stand-in (its package would import MXNet) and stores the names in the NumPy module.
SETUP = """
import importlib.util, sys, types
import numpy as np
folder = importlib.util.find_spec("islices.backends").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("stand_in", folder + "/mxnet/stand_in.py")
stand_in = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stand_in)
before, finders = dict(vars(np)), list(sys.meta_path)

def check_numpy():
    assert sys.modules["numpy"] is np
    after = {k: v for k, v in vars(np).items() if not isinstance(v, types.ModuleType)}
    was = {k: v for k, v in before.items() if not isinstance(v, types.ModuleType)}
    assert after.keys() == was.keys(), after.keys() ^ was.keys()
    assert all(after[k] is was[k] for k in was)
    for name, value in vars(np).items():  # a part of NumPy that was imported for the first time, nothing else
        assert name in before or sys.modules["numpy." + name] is value, name
"""


def run(code: str, *flags: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = python(*flags, "-c", textwrap.dedent(code), path=path or "")
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Write a toy package mxnet, and a module that the package imports. During its import and afterwards, the package
    reads names that NumPy has removed."""
    (tmp_path / "bystander.py").write_text("import numpy\n")
    package = tmp_path / "mxnet"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import sys\nimport numpy as np\nimport numpy.random as rnd\nfrom numpy import linalg\nimport bystander\n"
        "seen = np\nwhile_importing = sys.modules['numpy']\n"
        "constants = (np.PZERO, np.NINF, np.bool, np.alltrue([True]), np.float64)\nfrom . import part\n"
    )
    (package / "part.py").write_text(
        "import numpy as np\ndef later():\n    import numpy\n    return np.PINF, numpy.NaN\n"
    )
    (package / "unused.py").write_text("import numpy as np\nlost = np.NZERO\n")
    return tmp_path


def test_only_the_package_sees_the_stand_in(toy: Path) -> None:
    run(
        SETUP
        + """
mx = stand_in.import_mxnet()
assert mx.seen is not np and mx.while_importing is np
assert mx.constants[:2] == (0.0, float("-inf")) and mx.constants[3] and mx.constants[4] is np.float64
assert mx.rnd is np.random and mx.linalg is np.linalg
assert mx.part.later()[0] == float("inf")
import bystander
assert bystander.numpy is np
import mxnet, mxnet.unused
assert mxnet is mx and mxnet.unused.lost == 0
check_numpy()
""",
        path=toy,
    )


def test_a_failed_import_leaves_nothing(toy: Path) -> None:
    with (toy / "mxnet" / "__init__.py").open("a") as file:
        file.write("raise OSError('libmxnet.so: no such file')\n")
    run(
        SETUP
        + """
try:
    stand_in.import_mxnet()
except OSError as error:
    assert "libmxnet" in str(error)
else:
    raise AssertionError("imported")
assert sys.meta_path == finders
assert not [name for name in sys.modules if name.partition(".")[0] == "mxnet"]
check_numpy()
""",
        path=toy,
    )


def test_the_users_own_import_is_used(toy: Path) -> None:
    run(
        SETUP
        + """
mine = sys.modules["mxnet"] = types.ModuleType("mxnet")
assert stand_in.import_mxnet() is mine and sys.meta_path == finders
""",
        path=toy,
    )


@needs_mxnet
def test_mxnet_imports_quietly_and_numpy_stays_as_it_was() -> None:
    done = run(SETUP + "mx = stand_in.import_mxnet()\ncheck_numpy()\n", "-W", "error")
    assert (done.stdout, done.stderr) == ("", "")


@needs_mxnet
@pytest.mark.outside
def test_the_backend_loads_after_a_plain_import_that_failed() -> None:
    run(
        """
        try:
            import mxnet
        except AttributeError:  # a NumPy that has lost the names
            pass
        import islices
        islices.get_backend("mxnet")
        import mxnet as mx
        assert mx.nd.ones((2,)).asnumpy().sum() == 2
        assert (mx.np.array([1.0, 2.0]) == 1.0).dtype == bool  # reads np.bool when called
        """
    )
