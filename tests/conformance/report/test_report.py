"""Reports: read, shown in four ways, joined, and never believed more than their lines say."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from report_samples import HOSTILE_COUNTS, SHOWN, WHOLE, case, header, hostile_report, lines, real_report, run_of

from islices.cli import UsageError, main
from islices.conformance.outputs import wrapped
from islices.conformance.report import matrix, read, read_runs, remarks, summary
from islices.conformance.report.compact import compact
from islices.conformance.report.grid import folded, grid
from islices.conformance.report.html import html_page
from islices.conformance.report.markdown import code, markdown, word
from islices.conformance.report.merging import json_lines
from islices.conformance.report.reading import MAX_LINE
from islices.conformance.report.runs import Run, column_labels, columns, run_names
from islices.conformance.report.terminal import problem_lines


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


def test_what_does_not_print_stands_as_its_escape(hostile: list[Run]) -> None:
    (bad,) = (c for c in hostile[0].cases if c["outcome"] == "fail")
    assert bad["id"] == bad["got"] == SHOWN
    assert bad["reason"] == f"{SHOWN}\nsecond line"
    assert hostile[3].backend == hostile[3].version == hostile[3].modes[0] == SHOWN


def test_only_a_whole_run_is_believed(tmp_path: Path) -> None:
    whole = lines(*run_of(header("numpy"), case("clipping/a", "pass"), case("clipping/b", "pass")))
    for text, words in (
        (whole.rsplit("\n", 2)[0] + "\n", "no footer"),
        (whole[: len(whole) - 20], "no footer"),  # killed while it wrote the last line
        (lines(header("numpy"), {"type": "start", "id": "clipping/a", "mode": "host"}), r"in clipping/a (host)"),
        (lines(*whole_with(whole, 2)), "counts 2 cases, and 1 stand"),
        (whole.replace('"exit": 0', '"exit": 3'), "pytest ended with 3"),
        (whole.replace("clipping/b", "clipping/a"), "twice"),
        (whole + lines({"type": "error", "reason": "exit 139"}), "exit 139"),
        (whole.replace('"skipped": ""', '"skipped": "no GPU"'), "skipped, and holds cases"),
    ):
        (run,) = runs_of(tmp_path, text)
        assert words in run.error
        assert run.counts()["harness error"] == 1
    assert not runs_of(tmp_path, whole)[0].error


def whole_with(text: str, left_out: int) -> list[dict[str, Any]]:
    return [json.loads(line) for k, line in enumerate(text.splitlines()) if k != left_out]


def test_what_the_parent_saw_survives_in_the_lines(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, WHOLE)
    run.broke("killed\x1b by signal 11")
    assert run.error == "killed\\x1b by signal 11"
    (again,) = runs_of(tmp_path, "\n".join(run.lines))
    assert again.error == run.error


def test_a_file_that_grows_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "grows.jsonl"
    assert [run.backend for run in read_runs("torch", path)] == ["torch"]
    path.write_text("")
    assert [run.header for run in read_runs("torch", path)] == [{}]
    for size in range(1, len(WHOLE), 97):
        path.write_text(WHOLE[:size])
        (run,) = read_runs("torch", path)
        assert run.error
        assert run.footer == {}
    path.write_text(WHOLE)
    assert [run.error for run in read_runs("torch", path)] == [""]


DEEP = '{"type": ' + "[" * 200_000 + "]" * 200_000 + "}"
BROKEN: dict[str, tuple[str, str]] = {
    "empty": ("", "holds no run"),
    "blank lines": ("\n\n \n", "holds no run"),
    "not JSON": ("hello\n", "line 1: not JSON"),
    "cut in its first line": (WHOLE[:50], "line 1: not JSON"),
    "broken in the middle": (WHOLE.replace('"id": "clipping/a"', '"id": clipping/a"', 1), "line 2: not JSON"),
    "two objects in a line": (WHOLE.replace("\n", "", 1), "line 1: not JSON"),
    "a list": ("[]\n", "line 1: got a JSON array"),
    "a number": ("1\n", "line 1: got 1; accepted"),
    "no type": ("{}\n", "line 1: type: got null"),
    "a type that is a list": ('{"type": []}\n', "line 1: type: got a JSON array"),
    "a type nobody knows": ('{"type": "x\\u001b"}\n', 'line 1: type: got "x\\u001b"'),
    "another tool's lines": ('{"type": "case"}\n', "line 1: case: id is missing"),
    "a case before a header": (lines(case("a", "pass")), "line 1: a case line before any header"),
    "a case after the footer": (WHOLE + lines(case("c", "pass")), "line 5: a case line after the footer"),
    "an outcome nobody knows": (
        lines(header("x"), case("a", "great")),
        'line 2: outcome: got "great"; accepted are pass',
    ),
    "no mode": (WHOLE.replace('"mode": "host", ', "", 1), "line 2: case: mode is missing"),
    "no backend": (WHOLE.replace('"backend": "numpy", ', ""), "line 1: header: backend is missing"),
    "an empty backend": (lines(*run_of(header(""))), 'line 1: backend: got ""'),
    "a name that is a number": (WHOLE.replace('"clipping/a"', "7"), "line 2: id: got 7; accepted is a string"),
    "a time that is text": (WHOLE.replace("0.25", '"slow"'), 'line 2: seconds: got "slow"'),
    "a time below zero": (WHOLE.replace("0.25", "-1"), "line 2: seconds: got -1"),
    "a time without end": (WHOLE.replace("0.25", "1e999"), "line 2: seconds: got Infinity"),
    "NaN": (WHOLE.replace("0.25", "NaN"), "line 2: not JSON: NaN"),
    "true for a number": (WHOLE.replace("0.25", "true"), "line 2: seconds: got true"),
    "thousands of digits": (WHOLE.replace("0.25", "1" * 5000), "line 2: not JSON"),
    "counts that are a list": (
        WHOLE.replace('{"pass": 1, "unsupported": 1}', "[]"),
        "line 4: counts: got a JSON array",
    ),
    "devices that are a string": (WHOLE.replace('["cpu"]', '"cpu"'), 'line 1: devices: got "cpu"'),
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


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for data in (b"\xff\xfe{}\n", WHOLE.encode().replace(b"clipping", b"\xffclip", 1), bytes(range(256))):
        path.write_bytes(data)
        with pytest.raises(UsageError, match=r"r\.jsonl, line \d+: not JSON"):
            read(path)


def test_a_matrix_too_large_to_draw_is_refused(tmp_path: Path) -> None:
    one = run_of(header("torch"), case("a", "pass"))
    for text, words in (
        (lines(*one) * 201, "holds 201 runs"),
        (lines(*run_of(header("torch"), *(case("a", "pass", f"m{k}") for k in range(17)))), "holds 17 modes in a run"),
        (lines(*run_of(header("x"), *(case("a", "pass", clause=f"{k}") for k in range(501)))), "holds 501 clauses"),
    ):
        with pytest.raises(UsageError, match=words):
            runs_of(tmp_path, text)


# ---------------------------------------------------------------------- what the columns are called
def test_columns_that_would_have_one_name_are_told_apart(tmp_path: Path) -> None:
    text = lines(
        *run_of(header("jax"), case("a", "pass")),
        *run_of(header("jax", numpy="2.3.1", python="3.12.1"), case("a", "pass")),
        *run_of(header("torch"), case("a", "pass"), case("a", "pass", "framework")),
        *run_of(header("torch", version="2.0+cpu", variant="kernels off"), case("a", "pass")),
        *run_of(header("mxnet"), case("a", "pass")), *run_of(header("mxnet"), case("a", "pass")),
    )  # fmt: skip
    runs = runs_of(tmp_path, text)
    assert [" ".join(label) for label in column_labels(columns(runs))] == [
        "jax @1.0 host NumPy 1.26.4 Python 3.11.7", "jax @1.0 host NumPy 2.3.1 Python 3.12.1", "torch @1.0 host",
        "torch @1.0 framework", "torch @2.0 kernels off host", "mxnet @1.0 host #1", "mxnet @1.0 host #2",
    ]  # fmt: skip
    assert run_names(runs)[2:4] == ["torch@1.0", "torch@2.0+cpu kernels off"]


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


@pytest.mark.parametrize("wide", [False, True])
def test_the_terminal_fits_its_width(
    wide: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.jsonl"
    heads = [header(name, version=f"{k}.0") for k, name in enumerate(["torch", "tensorflow", "jax", "mxnet"] * 3)]
    path.write_text(
        lines(*(entry for head in heads for entry in run_of(head, case("a", "pass"), case("a", "pass", "framework"))))
    )
    monkeypatch.setenv("NO_COLOR", "1")
    for columns_wide in (60, 100, 300):
        monkeypatch.setenv("COLUMNS", str(columns_wide))
        assert main(["report", str(path), *(["--wide"] if wide else [])]) == 0
        output = capsys.readouterr().out
        assert max(map(len, output.splitlines())) <= columns_wide
        assert "\x1b" not in output
        if wide or columns_wide == 300:
            assert output.count("host") == output.count("framework") == 12
        else:
            assert len(re.findall(r"h f\b", output)) == 12
            assert "modes: h host, f framework\nmarks: ✓ all pass\n" in output
    assert len(matrix(read(path), 60, wide=wide)) > 1 == len(matrix(read(path), 300, wide=wide))


AT_A_GLANCE = """\
                    torch       jax
                    1.0         1.0
  group      cases  h    f  t   h
  densify        1  ✓    ✓  ✓   ·
✗ clipping       3  ✗1d1 !1 ✓   ✓u2

  passed, by setting
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
✗ clipping, clip by norm (10): 1 fail in torch @1.0 host, 1 harness error in
    torch @1.0 framework
✗ ranks, gradients over ranks (25): 1 fail in torch @1.0 ranks host
"""


def test_at_80_columns_groups_stand_beside_backends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, to the letter: a mark a mode, settings as totals, what has no column in a line, what fails by name."""
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
    output = capsys.readouterr().out
    assert output.startswith(AT_A_GLANCE), output
    monkeypatch.setenv("COLUMNS", "119")
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[:11] == AT_A_GLANCE.splitlines()[:11]
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["report", str(path)]) == 0
    assert "clause of the spec" in capsys.readouterr().out, "there is room for every clause"
    monkeypatch.delenv("COLUMNS")
    assert main(["report", str(path), "-o", str(tmp_path / "r.txt")]) == 0
    assert (tmp_path / "r.txt").read_text("utf-8").startswith(AT_A_GLANCE[:200]), "a file is read anywhere"
    assert main(["report", str(path), "-o", str(tmp_path / "r.txt"), "--wide"]) == 0
    assert "clause of the spec" in (tmp_path / "r.txt").read_text("utf-8")


def test_each_environment_of_a_backend_is_a_column_of_its_own(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, lines(
        *run_of(header("jax"), case("a", "pass")), *run_of(header("jax", variant="x64"), case("a", "pass")),
        *run_of(header("jax", numpy="2.3.1"), case("a", "pass")),
        *run_of(header("jax", numpy="2.3.1", variant="x64"), case("a", "fail")),
        *run_of(header("torch", variant="ranks"), case("a", "pass")),
        {k: v for k, v in header("jax", variant="cuda").items() if k != "version"},
        {"type": "error", "reason": "killed"},
    ))  # fmt: skip
    whole = compact(runs)
    assert whole.labels == [["jax", "1.0", "NumPy 1.26.4"], ["jax", "1.0", "NumPy 2.3.1"], ["torch", "1.0", "ranks"]]
    totals = {
        line.head: ["".join(text for part in cell for _, text in part) for cell in line.cells]
        for line in whole.settings
    }
    assert totals == {
        "standard": ["1", "1", ""],
        "x64": ["1", "✗1", ""],
        "ranks": ["", "", "1"],
        "cuda": ["!1", "", ""],
    }


def test_a_reason_that_runs_share_is_told_once(tmp_path: Path) -> None:
    declared = [case(f"clipping/{x}", "unsupported", reason="no such type") for x in "ab"]
    runs = runs_of(tmp_path, lines(
        *run_of(header("torch"), *declared), *run_of(header("torch", variant="kernels off"), *declared),
        *run_of(header("torch", variant="read-only"), *declared[:1]), *run_of(header("jax"), *declared),
    ))  # fmt: skip
    assert remarks(runs) == [
        ("torch@1.0, kernels off, read-only", "unsupported, 2, 2, 1 cases", "no such type"),
        ("jax@1.0", "unsupported, 2 cases", "no such type"),
    ]
    assert remarks(runs[:2]) == [("torch@1.0, kernels off", "unsupported, 2 cases each", "no such type")]


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
def test_markdown_of_a_real_run(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, real_report())
    text = markdown([run])
    table = [line.split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert {len(line) for line in table} == {3}
    counted = [int(n) for line in table[2:] for n in re.findall(r"\d+", line[2].split("u")[0])]
    assert sum(counted) == run.counts()["pass"]
    assert f"unsupported, {run.counts()['unsupported']} case" in text


def test_markdown_keeps_hostile_text_in_code(hostile: list[Run]) -> None:
    text = markdown(hostile)
    outside = re.sub(r"(?s)^(`{3,})text\n.*?\n\1$", "", text, flags=re.MULTILINE)
    outside = re.sub(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", outside)
    for word_ in ("<img", "script", "nobody", "**b**", "rich"):
        assert word_ in text
        assert word_ not in outside
    table = [re.sub(r"\\\|", "", line) for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in table}) == 1


@pytest.mark.parametrize("text", ["", "`", "``a` ```", " a ", "a\nb", "plain"])
def test_code_ends_where_it_should(text: str) -> None:
    fence, inside = re.fullmatch(r"(`+)(.*?)\1", code(text)).groups()  # type: ignore[union-attr]
    assert "`" * len(fence) not in inside
    assert " ".join(inside.split()) == " ".join(text.split())


def test_word_leaves_alone_what_means_nothing() -> None:
    assert word("clip_by_value (9)") == "clip_by_value (9)"
    for text in ("a|b", "*a*", "_a_", "@you", "#1", "http://x", "www.x", "<b>", "[a](b)"):
        assert word(text) == f"`{text}`"


# ---------------------------------------------------------------------- HTML as text (test_page.py opens it)
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


def test_the_page_of_a_real_run_holds_every_case(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, real_report())
    page = html_page(runs)
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert {id for _, id in data["cases"]} == {c["id"] for c in runs[0].cases}
    assert "Conforms: no case fails" in page
    table = page.split('<table class="matrix"')[1].split("</table>")[0]
    shown = sum(int(n) for n in re.findall(r'<span class="pass">(\d+)</span>', table))
    assert shown == runs[0].counts()["pass"], "the matrix is there without JavaScript"


@pytest.mark.repeats
def test_forty_thousand_cases_stay_handy(tmp_path: Path) -> None:
    heads = [header("torch", version=f"{k}.0") for k in range(20)]
    cases = [case(f"clipping/{'n' * 30}/{k}", "pass", call="clip(" + "1.0, " * 500 + ")") for k in range(2000)]
    runs = runs_of(tmp_path, lines(*(entry for head in heads for entry in run_of(head, *cases))))
    assert sum(len(run.cases) for run in runs) == 40_000
    assert len(html_page(runs)) < 4_000_000
