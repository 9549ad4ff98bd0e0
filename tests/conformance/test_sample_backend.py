"""The sample adapter, installed as any outsider's: found, listed, run and reported like a built-in; and six ways to get
an adapter wrong, each caught by the clause that speaks of it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from suite_runs import ROOT, conform, install, python, replaced

import islices

SAMPLE = ROOT / "conformance" / "sample_backend"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(SAMPLE, tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("sample"))


# ---------------------------------------------------------------------- a sound adapter
def test_an_adapter_is_at_most_150_lines() -> None:
    lines = (SAMPLE / "islices_sample.py").read_text("utf-8").splitlines()
    assert len(lines) <= 150
    assert "islices" not in (SAMPLE / "sample.py").read_text("utf-8").split('"""')[2], "a framework knows no adapter"


def test_what_is_installed_is_the_two_modules_and_an_entry_point(site: Path) -> None:
    assert {path.name for path in site.iterdir()} == {"sample.py", "islices_sample.py", "islices_sample-1.0.dist-info"}
    points = (site / "islices_sample-1.0.dist-info" / "entry_points.txt").read_text("utf-8")
    assert points.split() == ["[islices.backends]", "sample", "=", "islices_sample:backend"]


@pytest.mark.repeats
def test_it_is_listed_beside_the_built_in_ones(site: Path) -> None:
    done = python("-m", "islices", "backends", "--json", path=site)
    found = {backend["name"]: backend for backend in json.loads(done.stdout)["backends"]}
    assert found["sample"] == {"name": "sample", "version": "1.0", "devices": ["cpu"], "modes": ["host", "framework"]}
    assert list(found) == [*islices.list_backends(), "sample"]


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


@pytest.mark.repeats
def test_it_is_a_column_beside_a_built_in_one(site: Path, tmp_path: Path) -> None:
    run = conform(tmp_path, "-b", "numpy", "-b", "sample", "-k", "norms/norm2", path=site)
    assert run.status == 0, run.output[-3000:]
    heading = run.output.splitlines()[0].split()
    assert heading == ["numpy", "sample", "sample"]


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
    """The adapter as somebody wrote it for another version of the protocol."""
    other = shutil.copytree(site, folder / "site")
    adapter = other / "islices_sample.py"
    edit = (f"protocol = {islices.PROTOCOL}  #", f"protocol = {protocol}  #")
    adapter.write_text(replaced(adapter.read_text("utf-8"), [edit]), "utf-8")
    return other


@pytest.mark.parametrize(("protocol", "who"), [(2, "the adapter"), (4, "islices")])
def test_one_of_another_protocol_is_refused(protocol: int, who: str, site: Path, tmp_path: Path) -> None:
    path = of_protocol(site, tmp_path, protocol)
    done = python("-c", "import islices, sample; islices.get_backend(sample.Tensor([1.0]))", path=path)
    assert f"written for protocol {protocol}, islices has {islices.PROTOCOL}: upgrade {who}" in done.stderr


# ---------------------------------------------------------------------- six wrong ones
class Defect(NamedTuple):
    """What somebody could have written instead, the cases it is run on, and what must come of them."""

    edits: list[tuple[str, str]]
    cases: str
    clauses: set[str]  # fail, and speak of it
    rows: list[str]  # of the matrix, where the fails show
    named: str  # a failing case that shows it by hand-checkable numbers
    sound: set[str]  # clauses of other things, which go on passing
    modes: frozenset[str] = frozenset({"framework"})


PLACE = "\n    def scatter_rows"  # where a method more is put

DEFECTS = {
    "last-wins duplicates": Defect(
        [("sample.add_at(out, segments, values)", "sample.put(out, segments, values)")],
        "coalesce or densify",
        {"3", "4", "5"},
        ["sums (3)", "coalesce (4)", "to_dense (5)"],
        "coalesce/left-fold/long-run",
        set(),
    ),
    "uncoalesced norm": Defect(
        # duplicates are left to the scatter of to_dense, which then adds: dense results are right, norms are not
        [
            ("sample.put(out, ids, values)", "sample.add_at(out, ids, values)"),
            (PLACE, "\n    def sum_duplicates(self, values, indices, rows):\n        return values, indices\n" + PLACE),
        ],
        "norms or named-6-1-1-4-8",
        {"7", "8"},
        ["norms (7)", "global_norm (8)"],
        "norms/norm2/duplicates-by-hand",
        {"5"},
    ),
    "wrapping -1": Defect(
        [
            (
                "NativeParts(x.values, x.rows, x.shape)",
                "NativeParts(x.values, sample.choose(sample.at_most(0, x.rows), x.rows, x.rows + x.shape[0]), x.shape)",
            )
        ],
        "conversion and not float64 or errors/index",
        {"2"},
        ["indices (2)"],
        "conversion/native-index/minus-one",
        {"1"},
        frozenset({"host", "framework"}),
    ),
    "epsilon in clip": Defect(
        [
            (
                PLACE,
                "\n    def scaled(self, values, steps):"
                "\n        guarded = [(op, c / (1 + 1e-6 * c) if 0 < c < 1 else c) for op, c in steps]"
                "\n        return super().scaled(values, guarded)\n" + PLACE,
            )
        ],
        "clipping or norms",
        {"10"},
        ["clip by norm (10)"],
        "clipping/by_global_norm/one/float32/int64/rank1",
        {"7", "8", "9"},
    ),
    "padding kept": Defect(
        [
            (
                "return sample.gather(values, kept), sample.gather(indices, kept)",
                "return self.where(self.as_column(keep, values), values, self.zeros_like(values)), indices",
            )
        ],
        "padding or coalesce/unsorted",
        {"12"},
        ["padding (12)"],
        "padding/embedding_grad/pair-padding_idx/float32",
        {"4"},
    ),
    "half accumulation": Defect(
        [
            (
                PLACE,
                "\n    def sum_rows(self, values, indices, rows, *, loose):"
                "\n        return self.sum_duplicates(values, indices, rows)\n" + PLACE,
            )
        ],
        "coalesce and not padded",
        {"3"},
        ["sums (3)"],
        "coalesce/saturation/float16",
        set(),
    ),
}  # fmt: skip


@pytest.mark.repeats_where(lambda label: label not in list(DEFECTS)[:2])
@pytest.mark.parametrize("label", DEFECTS)
@pytest.mark.repeats
@pytest.mark.one_in(2)
def test_a_wrong_adapter_is_caught_by_the_clause_that_speaks_of_it(label: str, site: Path, tmp_path: Path) -> None:
    defect = DEFECTS[label]
    wrong = shutil.copytree(site, tmp_path / "site")
    adapter = wrong / "islices_sample.py"
    adapter.write_text(replaced(adapter.read_text("utf-8"), defect.edits), "utf-8")
    run = conform(tmp_path, "-b", "sample", "--profile", "full", "-k", defect.cases, path=wrong)
    assert run.status == 1, run.output[-3000:]
    assert run.counts["harness error"] == 0
    assert run.clauses("fail") >= defect.clauses, run.clauses("fail")
    assert defect.named in run.ids("fail"), run.ids("fail")
    assert {case["mode"] for case in run.cases if case["outcome"] == "fail"} == defect.modes
    assert defect.sound <= run.clauses("pass") - run.clauses("fail")
    for title in defect.rows:
        assert any(title in line and "✗" in line for line in run.output.splitlines()), run.output[:3000]
    assert f"sample@1.0 framework  {defect.named}" in run.output, "the case is named"
