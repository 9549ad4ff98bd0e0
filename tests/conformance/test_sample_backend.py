"""Test the sample adapter, installed like an external one: islices finds, lists, runs and reports it like a built-in
adapter.

For each of six mistakes in an adapter, a case of the violated clause fails.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from suite_runs import ROOT, conform, install, python, replaced

import islices

SAMPLE = ROOT / "conformance" / "sample_backend"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(SAMPLE, tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("sample"))


# ---------------------------------------------------------------------- a sound adapter


def test_what_is_installed_is_the_two_modules_and_an_entry_point(site: Path) -> None:
    assert {path.name for path in site.iterdir()} == {"sample.py", "islices_sample.py", "islices_sample-1.0.dist-info"}
    points = (site / "islices_sample-1.0.dist-info" / "entry_points.txt").read_text("utf-8")
    assert points.split() == ["[islices.backends]", "sample", "=", "islices_sample:backend"]


@pytest.mark.outside
def test_it_conforms_and_stands_in_the_matrix(site: Path, tmp_path: Path) -> None:
    run = conform(tmp_path, "-b", "sample", path=site)
    assert run.status == 0, run.output[-3000:]
    assert set(run.counts) == {"pass", "unsupported"}
    assert run.reasons("unsupported") == {
        "sample has no bfloat16", "the sample.RowGradient has no bfloat16",
        "the suite does not know sample's own layers",
    }  # fmt: skip
    passed = {(case["mode"], case["clause"]) for case in run.cases if case["outcome"] == "pass"}
    clauses = {str(k) for k in range(1, 17)}
    assert passed >= {(mode, clause) for mode in ("host", "framework") for clause in clauses}
    assert (run.lines[0]["backend"], run.lines[0]["version"]) == ("sample", "1.0")


def test_a_user_needs_nothing_but_the_two(site: Path) -> None:
    code = """
import sys, islices
assert "sample" in islices.list_backends() and "sample" not in sys.modules
import sample
gradient = sample.RowGradient(sample.Tensor([[3.0], [3.0], [8.0]]), sample.Tensor([1, 1, 0]), (4, 1))
(clipped,), norm = islices.clip_by_global_norm([gradient], 5.0)
print(type(clipped).__name__, clipped.values, clipped.rows, norm)
"""
    done = python("-c", code, path=site)
    expected = "RowGradient Tensor([[1.5], [1.5], [4.0]], 'f64') Tensor([1, 1, 0], 'i64') Tensor(10.0, 'f64')"
    assert done.stdout.strip() == expected, done.stdout + done.stderr


def of_protocol(site: Path, folder: Path, protocol: int) -> Path:
    """Return a copy of the adapter that declares another version of the protocol."""
    other = shutil.copytree(site, folder / "site")
    adapter = other / "islices_sample.py"
    edit = (f"protocol = {islices.backend.PROTOCOL}  #", f"protocol = {protocol}  #")
    adapter.write_text(replaced(adapter.read_text("utf-8"), [edit]), "utf-8")
    return other


@pytest.mark.parametrize(("protocol", "who"), [(2, "the adapter"), (4, "islices")])
def test_one_of_another_protocol_is_refused(protocol: int, who: str, site: Path, tmp_path: Path) -> None:
    path = of_protocol(site, tmp_path, protocol)
    done = python("-c", "import islices, sample; islices.get_backend(sample.Tensor([1.0]))", path=path)
    assert f"written for protocol {protocol}, islices has {islices.backend.PROTOCOL}: upgrade {who}" in done.stderr
