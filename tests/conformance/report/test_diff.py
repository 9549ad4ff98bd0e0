"""Test the changes that `islices report diff` prints, the kinds of these changes, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_samples import case, header, lines, run_of

from islices.cli import main
from islices.conformance.report.runs import OUTCOMES


def diff(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, *more: str
) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the output of `islices report diff --json`. Check that the command without --json has
    the same exit code, and shows the kinds of the first 20 changes."""
    paths = []
    for name, text in (("old", old), ("new", new)):
        (folder / f"{name}.jsonl").write_text(text)
        paths.append(str(folder / f"{name}.jsonl"))
    status = main(["report", "diff", *paths, *more])
    shown = capsys.readouterr().out
    assert main(["report", "diff", *paths, *more, "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert found["regressed"] == (status == 1)
    for change in found["changes"][:20]:
        assert change["kind"] in shown
    return status, found


def report(*cases: dict[str, Any], **fields: Any) -> str:
    return lines(*run_of(header("torch", **fields), *cases))


@pytest.mark.parametrize("old", ["", *OUTCOMES])
@pytest.mark.parametrize("new", ["", *OUTCOMES])
def test_every_step(old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = case("other", "pass")
    before, after = (report(both, *([case("a", outcome)] if outcome else [])) for outcome in (old, new))
    status, found = diff(tmp_path, capsys, before, after)
    kinds = [change["kind"] for change in found["changes"]]
    if old == new:
        expected: list[str] = []
    elif not new:
        expected = ["vanished"]
    elif not old:
        expected = ["regression" if new in ("fail", "harness error") else "new"]
    else:
        expected = ["regression" if OUTCOMES.index(new) > OUTCOMES.index(old) else "improvement"]
    assert kinds == expected
    assert status == (1 if {"regression", "vanished"} & set(kinds) else 0)
    assert found["compared"] == 1 + bool(old and new)


def test_columns_of_one_kind_are_matched_by_interpreter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = report(case("a", "pass"), numpy="1.26.4") + report(case("a", "fail"), numpy="2.3.1")
    new = report(case("a", "fail"), numpy="2.3.1", version="2.0") + report(case("a", "pass"), numpy="1.26.4")
    status, found = diff(tmp_path, capsys, old, new)
    assert status == 0
    assert found["changes"] == []
    assert found["compared"] == 2
    swapped = report(case("a", "pass"), numpy="2.3.1") + report(case("a", "fail"), numpy="1.26.4")
    _, found = diff(tmp_path, capsys, old, swapped)
    assert sorted(c["kind"] for c in found["changes"]) == ["improvement", "regression"]


def test_a_run_that_breaks_is_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = report(case("a", "pass"), case("b", "pass"))
    crashed = lines(header("torch"), case("a", "pass"), {"type": "start", "id": "b", "mode": "host"})
    status, found = diff(tmp_path, capsys, whole, crashed)
    assert status == 1
    assert {(c["kind"], c["id"]) for c in found["changes"]} == {("regression", "the run itself"), ("vanished", "b")}
    status, found = diff(tmp_path, capsys, crashed, whole)
    assert status == 0
    assert sorted(c["kind"] for c in found["changes"]) == ["improvement", "new"]


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ("", "no such column"),
        (lines(*run_of(header("torch", variant="cuda", skipped="no CUDA device"))), "skipped: no CUDA device"),
        (lines(header("torch", variant="cuda")), "harness error: no footer"),
    ],
)
def test_a_column_that_is_gone_is_said(
    now: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stays = report(case("a", "pass"))
    old = stays + report(case("a", "pass"), case("b", "pass"), variant="cuda")
    status, found = diff(tmp_path, capsys, old, stays + now)
    assert status == 1
    gone = [c for c in found["changes"] if c["id"] in ("a", "b") and c["kind"] == "vanished"]
    assert len(gone) == 2
    assert all(words in c["reason"] for c in gone)
    status, found = diff(tmp_path, capsys, old, stays + now, "--common")
    assert status == 0
    assert found["compared"] == 1


def test_other_vectors_need_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = report(case("a", "pass"), case("b", "pass"), case("gone", "pass"))
    new = report(case("a", "pass"), case("b", "fail"), case("came", "fail"), vectors="b" * 64)
    for name, text in (("old", old), ("new", new)):
        (tmp_path / f"{name}.jsonl").write_text(text)
    assert main(["report", "diff", str(tmp_path / "old.jsonl"), str(tmp_path / "new.jsonl")]) == 2
    message = capsys.readouterr().err
    assert "vectors aaaaaaaaaaaa in" in message
    assert "vectors bbbbbbbbbbbb in" in message
    assert "--common" in message
    status, found = diff(tmp_path, capsys, old, new, "--common")
    assert status == 1
    assert [c["id"] for c in found["changes"]] == ["b"]
    nothing = lines(*run_of(header("jax"), case("a", "pass")))
    (tmp_path / "new.jsonl").write_text(nothing)
    assert main(["report", "diff", str(tmp_path / "old.jsonl"), str(tmp_path / "new.jsonl"), "--common"]) == 2
    assert "no case" in capsys.readouterr().err


def test_the_list_is_short_and_json_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = report(*(case(f"c{k}", "pass") for k in range(200)))
    new = report(*(case(f"c{k}", "fail") for k in range(200)))
    _, found = diff(tmp_path, capsys, old, new)
    assert found["counts"]["regression"] == len(found["changes"]) == 200
    main(["report", "diff", str(tmp_path / "old.jsonl"), str(tmp_path / "new.jsonl")])
    shown = capsys.readouterr().out
    assert "... and 150 more" in shown
    assert "200 regressions, 0 vanished" in shown
