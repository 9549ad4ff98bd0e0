"""Test the sample adapter, which is installed like an external adapter. islices must find and list the adapter, run its
cases, and report them like those of a built-in adapter."""

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


@pytest.mark.parametrize(("protocol", "who"), [(2, "the adapter"), (4, "islices")])
def test_one_of_another_protocol_is_refused(protocol: int, who: str, site: Path, tmp_path: Path) -> None:
    path = shutil.copytree(site, tmp_path / "site")
    adapter = path / "islices_sample.py"
    edit = (f"protocol = {islices.backend.PROTOCOL}  #", f"protocol = {protocol}  #")
    adapter.write_text(replaced(adapter.read_text("utf-8"), [edit]), "utf-8")
    done = python("-c", "import islices, sample; islices.get_backend(sample.Tensor([1.0]))", path=path)
    assert f"written for protocol {protocol}, islices has {islices.backend.PROTOCOL}: upgrade {who}" in done.stderr
