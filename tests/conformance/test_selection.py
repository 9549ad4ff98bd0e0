"""Which cases run: what the quick profile holds, and that cases are chosen before anything is imported or started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import islices
from islices.cli import main
from islices.conformance import selection
from islices.conformance.data import entries, quick_ids, vector_files
from islices.conformance.report.runs import CLAUSES, MODES
from islices.conformance.selection import Selection, how_many, nearest
from islices.conformance.variants import STANDARD, VARIANTS

QUICK, FULL = Selection("quick"), Selection("full")
FLOATS = {"float16", "bfloat16", "float32", "float64"}


def words(text: str) -> set[str]:
    return set(text.replace("@", "/").split("/"))


# ---------------------------------------------------------------------- the index
def test_the_index_of_the_cases_is_the_files() -> None:
    whole = [case for file in vector_files() for case in json.loads(file.read_text("utf-8"))["cases"]]
    told = {(e.id, e.clause, e.flags): json.loads(e.text) for e in entries()}
    assert told == {(c["id"], c["clause"], tuple(c["flags"])): c for c in whole}


# ---------------------------------------------------------------------- the quick profile
@pytest.mark.parametrize("mode", MODES)
def test_the_quick_profile_is_a_part_of_the_full_one(mode: str) -> None:
    assert quick_ids(mode) <= {entry.id for entry in entries()}, "make quick.json again: islices.conformance.choice"
    for kind in ("golden", "checks", "ranks"):
        quick, full = ({item.name for item in getattr(s, kind)([mode])} for s in (QUICK, FULL))
        assert quick <= full


@pytest.mark.parametrize("mode", MODES)
def test_every_clause_group_and_type_stands_in_it(mode: str) -> None:
    quick, full = ([*s.golden([mode]), *s.checks([mode])] for s in (QUICK, FULL))
    assert {item.clause for item in quick} == {item.clause for item in full}
    assert {item.group for item in quick} == {item.group for item in full}
    for group in {item.group for item in full} - {"gradients", "optimizers"}:  # of which each case compiles anew
        some, every = (
            {x for item in items if item.group == group for x in words(item.id) & FLOATS} for items in (quick, full)
        )
        assert some == every, group


def test_every_operation_stands_in_it() -> None:
    some, every = ({tuple(i.id.split("/")[:2]) for i in s.golden(list(MODES))} for s in (QUICK, FULL))
    assert some == every - {tuple(id.split("/")) for id in SLOW}


#: Of bad input, what has to import a second framework.
SLOW = {"errors/indices-of-another-framework", "errors/lookup-ids-framework"}


def test_all_bad_input_is_in_it() -> None:
    for mode in ("host", "framework"):
        bad = {entry.id for entry in entries() if entry.group == "errors"}
        assert bad - quick_ids(mode) == SLOW


def test_the_quick_profile_has_every_word_of_what_costs_little_on_the_host() -> None:
    def told(ids: Any) -> set[tuple[str, ...]]:
        groups = ("densify", "coalesce", "algebra", "norms", "clipping", "padding", "embedding")
        plain = (id for id in ids if id.startswith(groups) and "gradient" not in id)
        return {(*id.split("/")[:2], word) for id in plain for word in id.split("/")[2:]}

    assert told(quick_ids("host")) >= told(entry.id for entry in entries())


# ---------------------------------------------------------------------- what is chosen
def test_words_clauses_and_groups_choose_together() -> None:
    for item in FULL._replace(expression="float16 and not bfloat16", groups=("norms",)).golden(["host"]):
        assert item.group == "norms"
        assert "float16" in words(item.id)
        assert "bfloat16" not in words(item.id)
    one = FULL._replace(clauses=("7", "13"))
    assert {item.clause for item in [*one.golden(["host"]), *one.checks(["host"])]} == {"7", "13"}
    assert {item.mode for item in FULL._replace(expression="traced").golden(list(MODES))} == {"traced"}
    assert FULL._replace(expression="NORMS").golden(["host"]) == FULL._replace(expression="norms").golden(["host"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--clause", "99"], "--clause: got '99'; accepted are 1, 2"),
        (["--group", "norm"], "--group: got 'norm'; accepted are densify"),
        (["-k", "norms and"], "-k: got 'norms and'"),
        (["-k", "(norms"], "-k: got '(norms'"),
        (["--clause", "25"], "no case of the quick profile matches --clause 25; --profile full has such"),
    ],
)
def test_a_wrong_choice_names_what_is_accepted(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conform", "-b", "numpy", *options]) == 2
    assert said in capsys.readouterr().err


def test_what_matches_nothing_is_answered_with_the_nearest_before_anything_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from islices.cli import main; code = main(sys.argv[1:])\n"
        "print([name for name in ('torch', 'tensorflow', 'jax', 'mxnet', 'numba') if name in sys.modules])\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-X", "importtime", "-c", code, "conform", "-k", "norm2/rank1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert said == [
        "islices conform: nothing ran: no case matches -k 'norm2/rank1'; the nearest are norms/norm1, norms/norm2/one, "
        "norms/norm1/one"
    ]


def test_the_nearest_of_nonsense_is_nothing() -> None:
    assert nearest("zzzzqqqq") == []
    assert nearest("") == []


def test_a_variant_without_a_case_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    real = subprocess.Popen

    class Noted(real):  # type: ignore[misc, valid-type]
        def __init__(self, command: list[str], *args: Any, **options: Any) -> None:
            started.append(command)
            super().__init__(command, *args, **options)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    target = tmp_path / "report.jsonl"
    given = ["--variant", "all", "-b", "numpy", "-k", "densify/to_dense/one/float32 and int32 and rank1"]
    assert main(["conform", "--profile", "full", *given, "--json", str(target)]) == 0
    lines = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert [line["variant"] for line in lines if line["type"] == "header"] == ["", "kernels off", "read-only"]
    assert len(started) == 1, "one process for all of them, none for ranks and x64, which have no such case"


def test_each_variant_counts_its_cases() -> None:
    assert how_many(FULL, STANDARD) > how_many(FULL, VARIANTS["kernels off"]) > 0
    assert how_many(FULL, VARIANTS["read-only"]) == len(FULL.golden(list(MODES))), "no checks"
    assert how_many(FULL, VARIANTS["ranks"]) == len(FULL.ranks(["host"])) > how_many(QUICK, VARIANTS["ranks"]) > 0
    assert how_many(FULL._replace(groups=("norms",)), VARIANTS["ranks"]) == 0
    assert set(selection.PROFILES) == {"quick", "full"}
    assert set(CLAUSES) >= {item.clause for item in FULL.golden(["host"])}


# ---------------------------------------------------------------------- several variants in a process
CRASHES = """
import os
from islices.conformance.variants import VARIANTS

VARIANTS["read-only"] = VARIANTS["read-only"]._replace(arrange=lambda *given: os._exit(9))
"""


def test_a_crash_in_one_variant_leaves_those_before_it_whole(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CRASHES)
    report = tmp_path / "report.jsonl"
    command = [
        sys.executable, "-m", "islices", "conform", "-b", "numpy", "--variant", "standard", "--variant", "read-only",
        "-k", "algebra/scale", "--json", str(report),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(islices.__path__[0]).resolve().parent}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 3, done.stdout + done.stderr
    lines = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
    kinds = [(line["type"], line.get("variant")) for line in lines if line["type"] in ("header", "footer", "error")]
    assert kinds == [("header", ""), ("footer", None), ("header", "read-only"), ("error", None)]
    assert "the process ended in algebra/scale" in next(line["reason"] for line in lines if line["type"] == "error")
