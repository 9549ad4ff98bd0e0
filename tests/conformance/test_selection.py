"""Test which cases the quick profile selects. The command selects cases before it imports a framework or starts a
process."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite_runs import python, read_lines

from islices.cli import main
from islices.conformance.data import entries, quick_ids
from islices.conformance.report.runs import MODES
from islices.conformance.selection import Selection

QUICK, FULL = Selection("quick"), Selection("full")
FLOATS = {"float16", "bfloat16", "float32", "float64"}


def words(text: str) -> set[str]:
    return set(text.replace("@", "/").split("/"))


# ---------------------------------------------------------------------- the quick profile
@pytest.mark.parametrize("mode", MODES)
def test_the_quick_profile_is_a_part_of_the_full_one(mode: str) -> None:
    assert quick_ids(mode) <= {entry.id for entry in entries()}, "quick.json lists what is no case"
    for kind in ("golden", "checks", "ranks"):
        quick, full = ({item.name for item in getattr(s, kind)([mode])} for s in (QUICK, FULL))
        assert quick <= full


@pytest.mark.parametrize("mode", MODES)
def test_every_clause_group_and_type_stands_in_it(mode: str) -> None:
    quick, full = ([*s.golden([mode]), *s.checks([mode])] for s in (QUICK, FULL))
    assert {item.clause for item in quick} == {item.clause for item in full}
    assert {item.group for item in quick} == {item.group for item in full}
    compiled = {"gradients", "optimizers"} | ({"clipping", "norms"} if mode == "traced" else set())  # slow
    for group in {item.group for item in full} - compiled:
        some, every = (
            {x for item in items if item.group == group for x in words(item.id) & FLOATS} for items in (quick, full)
        )
        assert some == every, group


def test_every_operation_stands_in_it() -> None:
    some, every = ({tuple(i.id.split("/")[:2]) for i in s.golden(list(MODES))} for s in (QUICK, FULL))
    assert some == every - {tuple(id.split("/")) for id in SLOW}


#: Cases of bad input that must import a second framework or trace a model.
SLOW = {
    "errors/indices-of-another-framework", "errors/lookup-ids-framework",
    "errors/samples-influence", "errors/samples-loss-short", "errors/samples-time-major",
}  # fmt: skip


# ---------------------------------------------------------------------- selected cases


@pytest.mark.parametrize(
    ("options", "statement"),
    [
        (["--clause", "99"], "--clause: got '99'; accepted are 1, 2"),
        (["--group", "norm"], "--group: got 'norm'; accepted are densify"),
        (["-k", "norms and"], "-k: got 'norms and'"),
        (["-k", "(norms"], "-k: got '(norms'"),
        (["--clause", "25"], "no case of the quick profile matches --clause 25; --profile full has such"),
    ],
)
def test_a_wrong_choice_names_what_is_accepted(
    options: list[str], statement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conform", "-b", "numpy", *options]) == 2
    assert statement in capsys.readouterr().err


def test_what_matches_nothing_is_answered_with_the_nearest_before_anything_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from islices.cli import main; code = main(sys.argv[1:])\n"
        "print([name for name in ('torch', 'tensorflow', 'jax', 'mxnet', 'numba') if name in sys.modules])\n"
        "sys.exit(code)"
    )
    done = python("-X", "importtime", "-c", code, "conform", "-k", "norm2/rank1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    statement = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert statement == [
        "islices conform: nothing ran: no case matches -k 'norm2/rank1'; the nearest are norms/norm1, norms/rows, "
        "norms/rows/one"
    ]


# ---------------------------------------------------------------------- several variants in one process
CRASHES = """
import os
from islices.conformance.variants import VARIANTS

VARIANTS["read-only"] = VARIANTS["read-only"]._replace(arrange=lambda *given: os._exit(9))
"""


def test_a_crash_in_one_variant_leaves_those_before_it_whole(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CRASHES)
    report = tmp_path / "report.jsonl"
    command = ("conform", "-b", "numpy", "--variant", "standard", "--variant", "read-only", "-k", "algebra/scale")
    done = python("-m", "islices", *command, "--json", report, path=tmp_path, cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    lines = read_lines(report)
    kinds = [(line["type"], line.get("variant")) for line in lines if line["type"] in ("header", "footer", "error")]
    assert kinds == [("header", ""), ("footer", None), ("header", "read-only"), ("error", None)]
    assert "the process ended in algebra/scale" in next(line["reason"] for line in lines if line["type"] == "error")
