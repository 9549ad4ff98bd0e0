"""`islices vocabulary`: each way to say a mapping, fills, what is printed, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import islices
from islices import Table, optim
from islices.cli import main
from islices.vocabulary import normal, renumber

TABLE = np.arange(6.0).reshape(3, 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    optimizer = optim.adagrad(0.1)
    islices.save("old.npz", {"words": Table(TABLE), "adagrad": optimizer.init(Table(TABLE))}, metadata={"step": "1"})
    Path("list.json").write_text("[2, null, 0]")
    Path("object.json").write_text('{"2": 0, "0": 2}')
    np.save("array.npy", np.array([2, -1, 0]))
    Path("old.txt").write_text("a\nb\nc\n")
    Path("new.txt").write_text("c\nx\na\n")
    Path("new.json").write_text('{"c": 0, "a": 2, "x": 1}')
    return tmp_path


STATE = ["--state", "adagrad.*", "--state-fill", "accumulator=0.1"]


@pytest.mark.parametrize(
    "options",
    [
        ["--map", "list.json"],
        ["--map", "object.json"],
        ["--map", "array.npy", "--rows", "3"],
        ["--old-tokens", "old.txt", "--new-tokens", "new.txt"],
        ["--old-tokens", "old.txt", "--new-tokens", "new.json"],
    ],
)
def test_mappings(folder: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vocabulary", "old.npz", "new.npz", *options, *STATE, "--fill", "mean"]) == 0
    assert capsys.readouterr().out == "new.npz: 3 rows of 3: 2 kept, 1 dropped, 1 new\n"
    new = islices.load("new.npz")
    assert new["words"].weights.tolist() == renumber(TABLE, [2, -1, 0], fill="mean").tolist()
    assert new["adagrad"]["accumulator"][1].tolist() == [0.1, 0.1]
    assert islices.io.read_metadata("new.npz") == {"step": "1"}


@pytest.mark.parametrize(
    ("fill", "expected"), [("0.5", 0.5), ("mean", "mean"), ("normal:0.1", normal(0.1, seed=7)), ("-1e3", -1000)]
)
def test_growing(folder: Path, fill: str, expected: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["old.npz", "old.npz", "--rows", "5", f"--fill={fill}", "--seed", "7", "--no-states", "--chunk", "1e-5"]
    assert main(["vocabulary", *given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "files": ["old.npz", "old.npz"], "rows": 5, "old_rows": 3, "new": 2, "dropped": 0,
    }  # fmt: skip
    made = islices.load("old.npz")["words"].weights
    assert (made == renumber(TABLE, [0, 1, 2, -1, -1], fill=expected)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "got no mapping"),
        (["--map", "list.json"], "states: got None, and 'adagrad.accumulator' have as many rows"),
        (["--map", "list.json", "--state", "adagrad.*"], "state_fill: got None, and 'accumulator' has new rows"),
        (["--map", "list.json", "--no-states", "--rows", "4"], "--rows: got 4 for a mapping of 3 rows"),
        (["--map", "list.json", "--no-states", *STATE], "contradict each other"),
        (["--map", "list.json", "--old-tokens", "old.txt"], "go together"),
        (["--map", "list.json", "--old-tokens", "old.txt", "--new-tokens", "new.txt"], "accepted is one of them"),
        (["--map", "none.json"], "none.json: No such file"),
        (["--map", "old.txt"], "old.txt: Expecting value"),
        (["--map", "old.npz"], "old.npz: "),
        (["--rows", "2", "--no-states"], "rows: got 2 for a table of 3"),
        (["--rows", "4", "--no-states", "--fill", "median"], "--fill: got 'median'; accepted is a number, or mean"),
        (["--rows", "4", "--no-states", "--fill", "normal:1"], "with --seed"),
        (["--rows", "4", "--no-states", "--fill", "normal:-1", "--seed", "1"], "scale: got -1.0"),
        (["--rows", "4", "--state", "a*", "--state-fill", "1", "--state-fill", "2"], "beside others"),
        (["--rows", "4", "--no-states", "--table", "x"], "tables: got 'x'"),
        (["--rows", "4", "--no-states", "--chunk", "0"], "--chunk: got 0"),
    ],
)
def test_what_is_refused(folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(os.listdir())
    assert main(["vocabulary", "old.npz", "new.npz", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith("islices vocabulary: ")
    assert message in said
    assert sorted(os.listdir()) == before


def test_files_that_are_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vocabulary", "none.npz", "new.npz", "--rows", "4"]) == 2
    assert main(["vocabulary", "old.npz", "none/new.npz", "--rows", "4", "--no-states"]) == 2
    assert "none.npz: No such file" in capsys.readouterr().err
