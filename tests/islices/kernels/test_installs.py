"""Test compiled kernels in installations with kernels on disk, with a changed source, without numba, or with a failing
numba. Each test uses a fresh interpreter, and if necessary a changed copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import islices
import islices.backends

pytest.importorskip("numba")

#: Code that checks three operations, and prints "kernels" or "NumPy" and the numbers of loaded and compiled kernels.
WORK = """
import gc, sys, warnings
import numpy as np
import islices
from islices import IndexedSlices, kernels

s = IndexedSlices(np.ones((4, 2), np.float32), np.array([3, 1, 3, 3]), (5, 2))
with islices.config.use_kernels(False):
    expected = islices.coalesce(s).values, islices.norm(s), islices.clip_by_norm(s, 0.5).values
for _ in range(2):
    for g, e in zip((islices.coalesce(s).values, islices.norm(s), islices.clip_by_norm(s, 0.5).values), expected):
        np.testing.assert_array_equal(g, e)
found = compiled = 0
for x in gc.get_objects():
    if type(x).__name__ == "CPUDispatcher" and x.py_func.__module__.startswith("islices.kernels") and x.signatures:
        found += sum(x.stats.cache_hits.values())
        compiled += sum(x.stats.cache_misses.values())
print("kernels" if kernels.active() else "NumPy", found, compiled)
"""


def run(code: str = "", **env: str | None) -> tuple[str, int, int, str]:
    """Run `code` and WORK in a fresh interpreter. Return "kernels" or "NumPy", the numbers of loaded and compiled
    kernels, and stderr."""
    changed = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": None, **env}
    given = {name: value for name, value in changed.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(code) + WORK],
        capture_output=True, text=True, timeout=120, env=given, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    subject, found, compiled = done.stdout.split()
    return subject, int(found), int(compiled), done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    site = tmp_path / "site"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(islices.__file__).parent, site / "islices", ignore=skip)
    yield site
    for path in tmp_path.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)


def test_kernels_are_kept_on_disk(tmp_path: Path) -> None:
    first, second = (run(NUMBA_CACHE_DIR=str(tmp_path))[:3] for _ in range(2))
    assert first[1] == 0, first
    assert first[2] >= 3, first
    assert second == ("kernels", first[2], 0)


@pytest.mark.outside
def test_a_changed_source_is_compiled_again(copy: Path) -> None:
    """Check that the next process compiles all kernels that use a changed file, although older kernels are on disk."""
    assert run(PYTHONPATH=str(copy))[0] == "kernels"
    folding = copy / "islices" / "kernels" / "folding.py"
    folding.write_text(folding.read_text() + "\n# changed\n")
    subject, found, compiled, _ = run(PYTHONPATH=str(copy))
    assert (subject, found) == ("kernels", 0)
    assert compiled >= 3


def test_without_numba() -> None:
    hide = """
        import sys
        class Finder:
            def __init__(self, own):
                self.own = own
            def find_spec(self, name, path=None, target=None):
                hidden = name.partition(".")[0] in ("numba", "llvmlite")
                return None if hidden else self.own.find_spec(name, path, target)
        sys.meta_path[:] = [Finder(x) for x in sys.meta_path]
        """
    subject, *_, err = run(hide)
    assert subject == "NumPy"
    assert not err, err
    subject, *_, err = run("import sys; sys.modules['numba'] = None")
    assert subject == "NumPy"
    assert not err, err


@pytest.mark.outside
@pytest.mark.parametrize("failure", ["ImportError('Numba needs NumPy 9')", "SystemError('initialization failed')"])
def test_a_numba_that_fails(failure: str, tmp_path: Path) -> None:
    """Check that one warning gives the reason if numba cannot be imported. NumPy then computes everything."""
    (tmp_path / "numba.py").write_text(f"raise {failure}\n")
    subject, *_, err = run(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert subject == "NumPy"
    assert err.count("Warning") == 1, err
    assert "numba failed to load" in err
    assert failure.split("'")[1] in err
