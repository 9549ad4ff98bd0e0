"""Build the wheel and the sdist, and test the wheel in an empty environment away from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from islices.conformance.data import vectors_hash

pytestmark = pytest.mark.outside

ROOT = Path(__file__).parent.parent
#: Code that imports every module of the installed package, and prints the missing package for each module that cannot
#: be imported.
EVERY = """
import importlib, json, pathlib, islices
folder = pathlib.Path(islices.__file__).parent
imported, lacking = [], {}
for path in sorted(folder.rglob("*.py")):
    name = ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
        imported.append(name)
    except ModuleNotFoundError as error:
        lacking[name] = error.name.partition(".")[0]
print(json.dumps([str(folder), imported, lacking]))
"""
#: frameworks, dependencies of extras, and libraries that the judge runs in separate environments
OPTIONAL = {
    "fbgemm_gpu", "flax", "hypothesis", "jax", "keras", "llvmlite", "mxnet", "numba", "optax", "pytest", "rich",
    "tensorflow", "torch",
    "bitsandbytes", "paddle", "torchrec",
}  # fmt: skip


def run(*command: object, cwd: Path, code: int = 0, **settings: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")} | settings
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=environment, text=True, capture_output=True, check=False, timeout=600
    )
    assert done.returncode == code, f"exit {done.returncode}, expected {code}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from the sdist, and return the folder."""
    return build(tmp_path_factory.mktemp("dist"))


def build(folder: Path) -> Path:
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    run(*command, cwd=folder, SOURCE_DATE_EPOCH="1700000000")
    return folder


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment that has only the wheel and NumPy."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=True)
    (wheel,) = built.glob("*.whl")
    run(folder / "bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    return folder / "bin"


def test_files(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "islices/py.typed", "islices/backends/mxnet/stand_in.py", "islices/conformance/SPEC.md",
        "islices/conformance/soak.toml", "islices/conformance/vectors.xz",
        "islices/conformance/own_calls/torch.py",
    } <= names  # fmt: skip
    assert wheel.stat().st_size < 1_500_000, "of which the packed vectors are a quarter"
    tops = {name.split("/")[0] for name in names if "dist-info" not in name}
    assert tops == {"islices", "islices_pytest.py"}, "nothing else may land in site-packages"
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "islices/core/slices.py"} <= inside
    assert {"islices/backends/torch/__init__.py", "islices/conformance/vectors/errors.json", "setup.py"} <= inside


def test_the_same_files_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    again = build(tmp_path)
    assert {file.name: file.read_bytes() == (built / file.name).read_bytes() for file in again.iterdir()} == {
        file.name: True for file in built.iterdir()
    }


def test_every_part_imports(environment: Path, tmp_path: Path) -> None:
    out = run(environment / "python", "-c", EVERY, cwd=tmp_path)
    where, imported, lacking = json.loads(out.splitlines()[-1])
    assert Path(where) == next(environment.parent.glob("lib/python*/site-packages/islices"))
    assert {
        "islices.optim.records.adam", "islices.backends.numpy", "islices.conformance.oracle_optim",
        "islices.conformance.report.html", "islices.conformance.tools.audit.command", "islices.conformance.tools.diff",
        "islices.conformance.properties.hostile_files", "islices.conformance.tools.bench.measuring",
    } <= set(imported)  # fmt: skip
    assert {name: module for name, module in lacking.items() if module not in OPTIONAL} == {}


def test_backends_command(environment: Path, tmp_path: Path) -> None:
    listed = run(environment / "islices", "--help", cwd=tmp_path)
    for command in ("audit", "bench", "conform", "diff", "new-backend", "parity", "report"):
        assert f"\n    {command} " in listed or f"\n    {command}\n" in listed
        assert "example" in run(environment / "islices", command, "--help", cwd=tmp_path)
    table = run(environment / "islices", "backends", cwd=tmp_path)
    assert "numpy" in table
    assert 'pip install "islices[torch]"' in table
    found = json.loads(run(environment / "islices", "backends", "--json", cwd=tmp_path))
    assert [b["name"] for b in found["backends"]] == ["numpy"]
    assert set(found["missing"]) == {"torch", "tensorflow", "jax", "mxnet"}


def test_conform_with_numpy_alone(environment: Path, tmp_path: Path) -> None:
    """Check the output of `islices conform` with NumPy. Without pytest and rich, the command prints how to install the
    suite; with these packages, the command shows one column and how to add others."""
    out = run(environment / "islices", "conform", cwd=tmp_path, code=2)
    assert 'pip install "islices[conformance]"' in out
    run(environment / "python", "-m", "pip", "install", "-q", "pytest>=8", "rich>=13", cwd=tmp_path)
    out = " ".join(run(environment / "islices", "conform", cwd=tmp_path).split())  # on one line, for any width
    assert "0 fail, 0 harness error (1 runs" in out
    for extra in ("torch", "tensorflow", "jax", "mxnet"):
        assert f'pip install "islices[{extra}]"' in out
    options = ("conform", "--profile", "full", "-k", "coalesce/one or layout")
    out = " ".join(run(environment / "islices", *options, cwd=tmp_path).split())
    assert "0 fail, 0 harness error, 2 skipped runs (4 runs" in out, "no numba to switch off, no mpi4py"
    request = "from islices.conformance.data import vectors_hash; print(vectors_hash())"
    assert run(environment / "python", "-c", request, cwd=tmp_path).strip() == vectors_hash(), (
        "packed vectors are the same"
    )


def test_the_suite_runs_from_the_wheel_by_pyargs(environment: Path, tmp_path: Path) -> None:
    arguments = ["--pyargs", "islices.conformance", "--islices-backend", "numpy", "-q", "-k", "coalesce"]
    out = run(environment / "python", "-m", "pytest", *arguments, cwd=tmp_path)
    assert " passed" in out
    assert "failed" not in out
