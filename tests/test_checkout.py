"""Test that all parts of islices come from the same checkout, for several installations and working directories.

The tests use two copies of the checkout, and an environment with an editable install of one copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = (
    "islices, islices.optim.rules, islices.backends, islices.backends.numpy, islices.conformance, "
    "islices.conformance.data"
)
WHERE = f"import {NAMES}, pathlib\nfor m in ({NAMES}): print(pathlib.Path(m.__file__).resolve())"

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(not (ROOT / "backends/__init__.py").exists(), reason="islices is not a checkout here"),
]


def run(*command: object, cwd: Path, code: int = 0, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**environment, **variables}, text=True, capture_output=True, timeout=200
    )
    assert done.returncode == code, f"exit {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}"
    return done.stdout + (done.stderr if code else "")


def copied(to: Path) -> Path:
    """Copy the packages and the files that an installation needs, with uncommitted changes, and return the folder."""
    for part in ("islices", "backends", "conformance", "tests"):
        shutil.copytree(ROOT / part, to / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    for name in ("pyproject.toml", "setup.py", "islices_pytest.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, to)
    return to


@pytest.fixture(scope="module")
def clones(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Make two copies of the checkout, and an environment with an editable install of one. Return the installed copy,
    the other copy, and the environment's python."""
    folder = tmp_path_factory.mktemp("clones")
    installed, other = copied(folder / "installed"), copied(folder / "other")
    environment = folder / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    build = "import sys, setuptools.build_meta as b; print(b.build_editable(sys.argv[1]))"
    run(sys.executable, "-c", build, folder, cwd=installed)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(packages)
    # NumPy and the tools of the tests; as entries of sys.path, their folders do not run .pth files
    here = [entry for entry in sys.path if entry.endswith("site-packages")]
    (packages / "here.pth").write_text("\n".join(here))
    return installed, other, environment / "bin/python"


def roots(out: str) -> set[Path]:
    found = [Path(line) for line in out.splitlines()]
    assert len(found) == 6
    return {Path(*path.parts[: len(path.parts) - len(inside.split("/"))]) for path, inside in zip(found, (
        "islices/__init__.py", "islices/optim/rules.py", "backends/__init__.py", "backends/numpy/__init__.py",
        "conformance/__init__.py", "conformance/data.py"), strict=True)}  # fmt: skip


def test_the_working_directory_is_another_clone(clones: tuple[Path, Path, Path], tmp_path: Path) -> None:
    installed, other, python = clones
    assert roots(run(python, "-c", WHERE, cwd=other)) == {other}
    assert roots(run(python, "-c", WHERE, cwd=tmp_path)) == {installed}
    assert roots(run(python, "-c", WHERE, cwd=tmp_path, PYTHONPATH=str(other))) == {other}


def test_a_plain_checkout_with_nothing_installed(clones: tuple[Path, Path, Path]) -> None:
    _, other, _ = clones
    numpy = next(entry for entry in sys.path if (Path(entry) / "numpy").is_dir())
    code = f"import sys; sys.path.append({numpy!r})\n{WHERE}"
    assert roots(run(sys.executable, "-S", "-c", code, cwd=other)) == {other}
    command = f"import sys; sys.path.append({numpy!r}); from islices.cli import main; sys.exit(main())"
    listed = run(sys.executable, "-S", "-c", command, "--help", cwd=other)
    for name in ("audit", "bench", "conform", "diff", "new-backend", "parity", "report"):
        assert f"\n    {name}" in listed
        assert "failed to load" not in listed
        assert "example" in run(sys.executable, "-S", "-c", command, name, "--help", cwd=other)


def test_what_the_checkout_lacks_is_not_taken_from_elsewhere(clones: tuple[Path, Path, Path], tmp_path: Path) -> None:
    installed, other, python = clones
    (installed / "islices/newer.py").write_text("")
    (installed / "backends/newer.py").write_text("")
    run(python, "-c", "import islices.newer, islices.backends.newer", cwd=tmp_path)
    for name in ("islices.newer", "islices.backends.newer"):
        statement = run(python, "-c", f"import {name}", cwd=other, code=1)
        assert f"ModuleNotFoundError: No module named '{name}'" in statement
    # a copy of islices/ without the rest, and links as git writes them on systems without links
    alone = copied(tmp_path / "alone")
    (alone / "backends").rename(alone / "elsewhere")
    statement = run(python, "-c", "import islices", cwd=alone, code=1)
    assert (
        f"ImportError: islices: {alone}/islices/backends leads nowhere; accepted is a checkout with its links"
        in statement
    )
    (alone / "islices/backends").unlink()
    (alone / "islices/backends").write_text("../backends")
    assert "git config core.symlinks true" in run(python, "-c", "import islices", cwd=alone, code=1)


def test_an_installed_islices_is_left_alone(clones: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Check that islices runs from a zip file with all packages in one folder, as in a wheel."""
    installed, _, python = clones
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        for part in ("islices", "backends", "conformance"):
            for file in (installed / part).rglob("*.py"):
                inside = "" if part == "islices" else "islices/"
                archive.write(file, inside + str(file.relative_to(installed)))
    code = f"import {NAMES}; print(islices.backends.__file__)"
    statement = run(python, "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "whole.zip"))
    assert statement == f"{tmp_path / 'whole.zip/islices/backends/__init__.py'}\n"
