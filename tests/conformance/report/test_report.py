"""Test the reading of reports and the writing in four formats. islices must not trust any text in a report."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from report_samples import HOSTILE_COUNTS, SHOWN, WHOLE, case, header, hostile_report, lines, real_report, run_of

from islices.cli import UsageError, main
from islices.conformance.outputs import wrapped
from islices.conformance.report import matrix, read, read_runs, remarks, summary
from islices.conformance.report.grid import folded, grid
from islices.conformance.report.html import html_page
from islices.conformance.report.markdown import markdown
from islices.conformance.report.merging import json_lines
from islices.conformance.report.reading import MAX_LINE
from islices.conformance.report.runs import Run
from islices.conformance.report.terminal import ENTRIES, problem_lines


def runs_of(folder: Path, text: str) -> list[Run]:
    path = folder / "report.jsonl"
    path.write_text(text, "utf-8")
    return read(path)


@pytest.fixture
def hostile(tmp_path: Path) -> list[Run]:
    return runs_of(tmp_path, hostile_report())


def test_a_failing_case_takes_20_lines_and_json_has_the_rest(tmp_path: Path) -> None:
    long = "numbers " * 5_000
    failed = case("norms/x", "fail", call=long, reason=f"first\n{long}", got=long, expected=long)
    runs = runs_of(tmp_path, lines(*run_of(header("fw"), failed)))
    shown = [piece for line in problem_lines(runs[0], "fw") for piece in wrapped(line, 80)]
    assert len(shown) <= 20
    assert all("more in --json)" in line for line in problem_lines(runs[0], "fw")[1:])
    assert json.loads(json_lines(runs).splitlines()[1])["got"] == long


def test_many_failures_are_counted(tmp_path: Path) -> None:
    failed = [case(f"norms/{k}", "fail", got=f"{k}") for k in range(ENTRIES + 3)]
    (run,) = runs_of(tmp_path, lines(*run_of(header("fw"), *failed)))
    heads = [line for line in problem_lines(run, "fw") if not line.startswith("  ")]
    assert len(heads) == ENTRIES + 1
    assert heads[-1] == "3 more cases fail in fw: all are in --json"


def test_failures_with_one_reason_are_one_entry(tmp_path: Path) -> None:
    names = ("norms/a", "norms/b", "norms/c")
    broken = [case(name, "harness error", reason="no memory") for name in names]
    (run,) = runs_of(tmp_path, lines(*run_of(header("fw"), *broken, case("norms/d", "fail", reason="no memory"))))
    heads = [line for line in problem_lines(run, "fw") if not line.startswith("  ")]
    assert [word in head for word, head in zip(("norms/a", "norms/d"), heads, strict=True)] == [True, True]
    assert "and 2 more cases" in heads[0]


# ---------------------------------------------------------------------- reading
def test_a_real_run_is_read_whole(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, real_report())
    assert run.backend == "numpy"
    assert len(run.cases) == run.header["total"] == sum(run.footer["counts"].values()) > 20
    assert run.counts()["pass"] > 20
    assert not run.error
    assert run.modes == ["host"]
    (one,) = read_runs("numpy", tmp_path / "report.jsonl")
    assert (one.header, one.cases, one.footer, one.error) == (run.header, run.cases, run.footer, "")


def test_phases_are_for_who_waits_and_kept_nowhere(tmp_path: Path) -> None:
    phase = lines({"type": "phase", "says": "importing numpy"})
    (plain,) = runs_of(tmp_path, WHOLE)
    (run,) = runs_of(tmp_path, phase + "".join(line + "\n" + phase for line in WHOLE.splitlines()))
    assert (run.header, run.cases, run.footer, run.error) == (plain.header, plain.cases, plain.footer, "")
    assert json_lines([run]) == WHOLE
    with pytest.raises(UsageError, match="holds no run"):
        runs_of(tmp_path, phase)


def test_only_a_whole_run_is_believed(tmp_path: Path) -> None:
    whole = lines(*run_of(header("numpy"), case("clipping/a", "pass"), case("clipping/b", "pass")))
    for text, words in (
        (whole.rsplit("\n", 2)[0] + "\n", "no footer"),
        (whole[: len(whole) - 20], "no footer"),  # the process was killed while it wrote the last line
        (lines(header("numpy"), {"type": "start", "id": "clipping/a", "mode": "host"}), r"in clipping/a (host)"),
        ("".join(line for k, line in enumerate(whole.splitlines(True)) if k != 2), "counts 2 cases, and 1 stand"),
        (whole.replace('"exit": 0', '"exit": 3'), "pytest ended with 3"),
        (whole.replace("clipping/b", "clipping/a"), "twice"),
        (whole + lines({"type": "error", "reason": "exit 139"}), "exit 139"),
        (whole.replace('"skipped": ""', '"skipped": "no GPU"'), "skipped, and holds cases"),
    ):
        (run,) = runs_of(tmp_path, text)
        assert words in run.error
        assert run.counts()["harness error"] == 1
    assert not runs_of(tmp_path, whole)[0].error


DEEP = '{"type": ' + "[" * 200_000 + "]" * 200_000 + "}"
BROKEN: dict[str, tuple[str, str]] = {
    "empty": ("", "holds no run"),
    "not JSON": ("hello\n", "line 1: not JSON"),
    "broken in the middle": (WHOLE.replace('"id": "clipping/a"', '"id": clipping/a"', 1), "line 2: not JSON"),
    "a list": ("[]\n", "line 1: got a JSON array"),
    "a type nobody knows": ('{"type": "x\\u001b"}\n', 'line 1: type: got "x\\u001b"'),
    "another tool's lines": ('{"type": "case"}\n', "line 1: case: id is missing"),
    "a case before a header": (lines(case("a", "pass")), "line 1: a case line before any header"),
    "an outcome nobody knows": (
        lines(header("x"), case("a", "great")),
        'line 2: outcome: got "great"; accepted are pass',
    ),
    "no backend": (WHOLE.replace('"backend": "numpy", ', ""), "line 1: header: backend is missing"),
    "a name that is a number": (WHOLE.replace('"clipping/a"', "7"), "line 2: id: got 7; accepted is a string"),
    "a time below zero": (WHOLE.replace("0.25", "-1"), "line 2: seconds: got -1"),
    "NaN": (WHOLE.replace("0.25", "NaN"), "line 2: not JSON: NaN"),
    "counts that are a list": (
        WHOLE.replace('{"pass": 1, "unsupported": 1}', "[]"),
        "line 4: counts: got a JSON array",
    ),
    "nested deeply": (DEEP, "line 1: nested too deeply"),
    "a line without end": ('{"type": "' + "x" * MAX_LINE, "line 1: too large"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_report_is_refused_by_file_and_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words = BROKEN[name]
    path = tmp_path / "r.jsonl"
    path.write_text(text, "utf-8")
    assert main(["report", str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"islices report: {path}")
    assert words in output.err
    assert output.err.count("\n") == 1


# ---------------------------------------------------------------------- the matrix
def test_the_matrix_counts_every_case(hostile: list[Run]) -> None:
    whole = grid(hostile)
    total = sum((counts for (row, _), counts in whole.counts.items() if row.group != "run"), Counter())
    assert total == HOSTILE_COUNTS
    assert [row.group for row in whole.rows] == ["run", "coalesce", "clipping", SHOWN]
    befell = [whole.cell(whole.rows[0], k) for k in range(len(whole.columns))]
    assert [dict(b) for b in befell] == [{}, {}, {"harness error": 1}, {}, {}, {}]
    assert [run.variant for run in hostile if run not in whole.runs] == ["cuda"]


def test_a_skipped_run_is_no_pass(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, lines(*run_of(header("torch", variant="cuda", skipped="no CUDA device"))))
    assert summary(runs) == "0 pass, 0 deviation, 0 unsupported, 0 fail, 0 harness error, 1 skipped run"
    assert remarks(runs) == []
    assert folded(runs) == [("skipped: cuda of torch", "no CUDA device")]
    assert matrix(runs, 80) == []
    assert "Conforms" not in html_page(runs)
    assert "Nothing passed" in html_page(runs)


def test_the_terminal_fits_its_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    heads = [header(name, version=f"{k}.0") for k, name in enumerate(["torch", "tensorflow", "jax", "mxnet"] * 3)]
    path.write_text(
        lines(*(entry for head in heads for entry in run_of(head, case("a", "pass"), case("a", "pass", "framework"))))
    )
    monkeypatch.setenv("NO_COLOR", "1")
    for columns_wide in (60, 100, 300):
        monkeypatch.setenv("COLUMNS", str(columns_wide))
        assert main(["report", str(path)]) == 0
        output = capsys.readouterr().out
        assert max(map(len, output.splitlines())) <= columns_wide
        assert "\x1b" not in output
        assert len(re.findall(r"h f\b", output)) == 12
        assert "modes: h host, f framework\nmarks: ✓ all pass\n" in output
    assert len(matrix(read(path), 60)) > 1 == len(matrix(read(path), 300))


AT_A_GLANCE = """\
                    torch       jax
                    1.0         1.0
  group      cases  h    f  t   h
  densify        1  ✓    ✓  ✓   ·
✗ clipping       3  ✗1d1 !1 ✓   ✓u2

  passed in
✗ standard       4  4 ✗1 !1 d1  1 u2
✗ ranks          1  ✗1          ·
  read-only      1  ·           1

modes: h host, f framework, t traced
marks: ✓ all, or all others, pass; ✗N N fail; !N N harness errors; dN N declared
    deviations; uN N unsupported; · no case
no case: kernels off of torch
skipped: cuda of torch, jax: finds no CUDA device here
skipped: ranks of jax: no engine
torch@1.0: deviation, 1 case: an open bug
jax@1.0: unsupported, 2 cases: no such type
"""


def test_at_80_columns_groups_stand_beside_backends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    dense = {"clause": "5", "group": "densify"}
    path.write_text(lines(
        *run_of(
            header("torch"), *(case("densify/a", "pass", mode, **dense) for mode in ("host", "framework", "traced")),
            case("clipping/a", "fail"), case("clipping/b", "deviation", reason="an open bug"),
            case("clipping/c", "harness error", "framework"), case("clipping/b", "pass", "traced"),
        ),
        *run_of(header("torch", variant="kernels off")),
        *run_of(header("torch", variant="cuda", skipped="torch 1.0 finds no CUDA device here")),
        *run_of(header("torch", variant="ranks"), case("ranks/a", "fail", group="ranks", clause="25")),
        *run_of(header("jax"), case("clipping/a", "pass"), *(case(f"clipping/{x}", "unsupported", reason="no such type")
                                                             for x in "bc")),
        *run_of(header("jax", variant="read-only"), case("clipping/a", "pass")),
        *run_of(header("jax", variant="cuda", skipped="jax 1.0 finds no CUDA device here")),
        *run_of(header("jax", variant="ranks", skipped="no engine")),
    ))  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["report", str(path)]) == 0
    output = re.sub(" +\n", "\n", capsys.readouterr().out)
    assert output.startswith(AT_A_GLANCE), output
    monkeypatch.setenv("COLUMNS", "119")
    assert main(["report", str(path)]) == 0
    assert [*map(str.rstrip, capsys.readouterr().out.splitlines()[:11])] == AT_A_GLANCE.splitlines()[:11]
    monkeypatch.delenv("COLUMNS")
    assert main(["report", str(path), "-o", str(tmp_path / "r.txt")]) == 0
    assert "  passed in" in (tmp_path / "r.txt").read_text("utf-8"), "a file is read anywhere"


def test_the_terminal_shows_hostile_text_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(hostile_report())
    assert main(["report", str(path)]) == 0
    output = capsys.readouterr().out
    assert not [c for c in output if not c.isprintable() and c != "\n"]
    assert "\\x1b[31mred\\x1b[0m" in output
    assert "[b]rich[/b]" in output
    assert "\n    second line" in output, "a text's lines are not taken for the report's"
    assert "6 pass, 1 deviation, 1 unsupported, 2 fail, 2 harness error, 1 skipped run" in output


# ---------------------------------------------------------------------- Markdown


def test_markdown_keeps_hostile_text_in_code(hostile: list[Run]) -> None:
    text = markdown(hostile)
    outside = re.sub(r"(?s)^(`{3,})text\n.*?\n\1$", "", text, flags=re.MULTILINE)
    outside = re.sub(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", outside)
    for word_ in ("<img", "script", "nobody", "**b**", "rich"):
        assert word_ in text
        assert word_ not in outside
    table = [re.sub(r"\\\|", "", line) for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in table}) == 1


# ---------------------------------------------------------------------- HTML as text
def test_the_page_holds_the_cases_and_no_markup_of_theirs(hostile: list[Run]) -> None:
    page = html_page(hostile)
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    assert "<img" not in page
    assert "http:" not in page.replace("xmlns='http://www.w3.org/2000/svg'", "")
    assert "https:" not in page
    assert "unsafe-inline" not in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    outcomes = Counter(letter for letters in data["letters"] for letter in letters if letter != ".")
    assert outcomes == {"p": 6, "f": 2, "d": 1, "u": 1, "h": 2}
    assert SHOWN in data["texts"]
    assert [SHOWN in id for _, id in data["cases"]].count(True) == 1
    assert "Does not conform: 2 fails, 2 harness errors" in page
