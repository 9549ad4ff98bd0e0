"""Test the formats, the files and the usage errors of `islices report`, and test `islices report merge`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_samples import WHOLE, case, header, hostile_report, lines, real_report, run_of

from islices.cli import main
from islices.conformance.report import read


@pytest.mark.parametrize(
    ("name", "begins"),
    [("r.md", "**"), ("r.html", "<!DOCTYPE html>"), ("r.HTM", "<!DOCTYPE html>"), ("r.txt", " ")],
)
def test_the_extension_says_the_format(name: str, begins: str, tmp_path: Path) -> None:
    source, target = tmp_path / "s.jsonl", tmp_path / name
    source.write_text(WHOLE)
    target.write_text("old")
    assert main(["report", str(source), "-o", str(target)]) == 0
    assert target.read_text("utf-8").startswith(begins)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["s.jsonl", name]), "nothing else is left behind"


@pytest.mark.outside
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(real_report())
    command = [sys.executable, "-m", "islices", "report", str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, statement = process.communicate(timeout=60)
    assert (process.returncode, statement) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["r.jsonl", "-o", "x.pdf"], "x.pdf does not say the format; accepted are .txt, .md"),
        (["r.jsonl", "-o", ".", "--format", "html"], "cannot write ."),
        (["missing.jsonl"], "cannot read missing.jsonl: No such file"),
        (["r.jsonl", "--json"], "--json means nothing here"),
        (["merge", "r.jsonl"], "-o PATH is missing"),
        (["diff", "r.jsonl"], "diff: got 1 files; accepted are 2"),
        (["-", "-"], "standard input can be read once"),
    ],
)
def test_usage_errors(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.jsonl").write_text(WHOLE)
    assert main(["report", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


def test_the_commands_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reports.md").read_text("utf-8")
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    monkeypatch.chdir(tmp_path)
    for name in ("run", "linux", "linux-new"):
        Path(f"{name}.jsonl").write_text(WHOLE)
    Path("mac.jsonl").write_text(WHOLE.replace("Linux", "macOS"))
    ran = 0
    for line in blocks.splitlines():
        command, _, source = line.split(" #")[0].partition(" < ")
        if command.startswith("islices conform"):
            continue  # takes minutes; the test has written run.jsonl
        with open(source.strip() or "run.jsonl", encoding="utf-8") as file:
            monkeypatch.setattr("sys.stdin", file)
            assert main(shlex.split(command)[1:]) == 0, line
        ran += 1
    assert ran > 8
    assert len(read("all.jsonl")) == 2


def test_a_terminal_of_few_letters_gets_what_it_can_show(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(hostile_report())
    command = [sys.executable, "-m", "islices", "report", str(tmp_path / "r.jsonl")]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"x1d1u1" in done.stdout
    assert b"x clipping" in done.stdout, "a pass (+) and a failure (x) are two marks there, too"


# ---------------------------------------------------------------------- merge
def merge(folder: Path, *texts: str, more: tuple[str, ...] = ()) -> int:
    paths = []
    for k, text in enumerate(texts):
        path = folder / f"{k}.jsonl"
        path.write_text(text)
        paths.append(str(path))
    return main(["report", "merge", *paths, "-o", str(folder / "all.jsonl"), *more])


def test_merge_keeps_every_line(tmp_path: Path) -> None:
    texts = [
        real_report(),
        lines(*run_of(real_header("torch"), case("clipping/a", "pass"))),
        lines(real_header("jax"), case("a", "pass")),
    ]
    assert merge(tmp_path, *texts) == 0
    assert (tmp_path / "all.jsonl").read_text() == "".join(texts)
    runs = read(tmp_path / "all.jsonl")
    assert [run.backend for run in runs] == ["numpy", "torch", "jax"]
    assert [bool(run.error) for run in runs] == [False, False, True], "a run cut short stays one"


def real_header(backend: str) -> dict[str, Any]:
    head = json.loads(real_report().partition("\n")[0])
    return {**head, "backend": backend}


@pytest.mark.parametrize("fact", ["vectors", "spec"])
def test_merge_refuses_other_questions(fact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = lines(*run_of(header("torch", **{fact: "9.9"}), case("a", "pass")))
    assert merge(tmp_path, WHOLE, other) == 2
    message = capsys.readouterr().err
    assert f"{fact} 9.9 in {tmp_path}/1.jsonl (torch@1.0)" in message
    assert f"in {tmp_path}/0.jsonl (numpy@1.0)" in message
    assert not (tmp_path / "all.jsonl").exists()
    assert main(["report", str(tmp_path / "0.jsonl"), str(tmp_path / "1.jsonl")]) == 2, (
        "nor are they shown side by side"
    )


def test_merge_refuses_a_column_that_comes_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = lines(*run_of(header("numpy"), case("clipping/a", "fail", reason="new")))
    assert merge(tmp_path, WHOLE, again) == 2
    message = capsys.readouterr().err
    assert "numpy@1.0 host (NumPy 1.26.4, Python 3.11.7, Linux x86_64) comes twice" in message
    assert merge(tmp_path, WHOLE, again, more=("--replace",)) == 0
    assert (tmp_path / "all.jsonl").read_text() == again
    others = [header("numpy", variant="kernels off"), header("numpy", python="3.12.1"), header("numpy", version="2")]
    others.append(header("numpy", platform="macOS-15.1-arm64-arm-64bit"))
    assert merge(tmp_path, WHOLE, *(lines(*run_of(head, case("a", "pass"))) for head in others)) == 0
    assert len(read(tmp_path / "all.jsonl")) == 5
    other_mode = lines(*run_of(header("numpy"), case("a", "pass", "framework")))
    assert merge(tmp_path, WHOLE, other_mode) == 0, "another mode of it is another column"


def test_a_report_can_be_merged_into_itself(tmp_path: Path) -> None:
    torch = tmp_path / "t.jsonl"
    torch.write_text(lines(*run_of(header("torch"), case("a", "pass"))))
    whole = tmp_path / "all.jsonl"
    whole.write_text(WHOLE)
    whole.chmod(0o640)
    assert main(["report", "merge", str(whole), str(torch), "-o", str(whole)]) == 0
    assert [run.backend for run in read(whole)] == ["numpy", "torch"]
    assert whole.stat().st_mode & 0o777 == 0o640
