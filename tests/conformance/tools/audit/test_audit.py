"""`islices audit`: how answers are judged, processes that end or hang, the choice of questions, what is printed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from islices.cli import main
from islices.conformance.data import Array
from islices.conformance.operations import UnsupportedError
from islices.conformance.tools.audit import choose, command, probes
from islices.conformance.tools.audit.inputs import gradients
from islices.conformance.tools.audit.probe import OUTCOMES, Ask, CorruptionError, Probe, examine, probe
from islices.conformance.tools.audit.run import run_all, verdict
from islices.conformance.tools.audit.show import blocks, markdown, summary

pytest.importorskip("rich", reason="rich is not installed")


# ---------------------------------------------------------------------- one answer
def judged(call: Any, expected: Any) -> dict[str, Any]:
    def ask() -> Iterator[Ask]:
        yield Ask("it", call, expected)

    return examine(Probe("t-1", "numpy", "f", "1", "", "", "", "", False, ask))


def raising(error: BaseException) -> Any:
    def call() -> None:
        raise error

    return call


NAN = float("nan")
#: (what the call returns, what is expected, outcome, error)
ANSWERS = [
    (1.0, 1.0, "agrees", ""),
    ([NAN, -0.0], [NAN, 0.0], "agrees", ""),
    (np.float32([1, 2]), Array("float32", (2,), [1.0, 2.0]), "agrees", ""),
    ("dense", "dense", "agrees", ""),
    (True, True, "agrees", ""),
    ([1.0, 2.5], [1.0, 2.0], "differs", "0.5, relative 0.25"),
    ([1.0, NAN], [1.0, 2.0], "differs", "inf"),
    ([0.0], [np.inf], "differs", "inf"),
    ([1.0], [1.0, 2.0], "differs", "shape (1,) instead of (2,)"),
    ("dense", "row-sparse", "differs", "another answer"),
    (np.array([1.0, 2.0]), "refused", "differs", "another answer"),
    (1, True, "differs", "another answer"),
    (3.0, 0.0, "differs", "3"),
]


@pytest.mark.parametrize(("got", "expected", "outcome", "error"), ANSWERS)
def test_an_answer_is_compared_with_the_expected_one(got: Any, expected: Any, outcome: str, error: str) -> None:
    found = judged(lambda: got, expected)
    assert (found["outcome"], found["error"]) == (outcome, error), found


def test_what_a_call_raises_is_an_answer() -> None:
    assert judged(raising(ValueError("no\nmore")), 1)["got"] == "ValueError: no"
    assert judged(raising(KeyError()), 1)["outcome"] == "raises"
    assert judged(raising(CorruptionError("row 5 changed")), 1)["outcome"] == "corrupts"
    assert judged(raising(UnsupportedError("no /proc")), 1)["outcome"] == "not run"


def test_the_worst_answer_is_reported_and_all_are_counted() -> None:
    def ask() -> Iterator[Ask]:
        yield Ask("same", lambda: 1, 1)
        yield Ask("off", lambda: 3, 1)
        yield Ask("farther", lambda: 9, 1)
        yield Ask("cannot tell", raising(UnsupportedError("here")), 1)

    found = examine(Probe("t-1", "numpy", "f", "1", "", "", "", "", False, ask))
    assert (found["outcome"], found["given"], found["got"], found["expected"]) == ("differs", "farther", "9", "1")
    assert found["counts"] == {"agrees": 1, "differs": 2, "not run": 1}


def test_a_probe_that_asks_nothing_or_fails_by_itself_is_no_answer() -> None:
    with pytest.raises(ValueError, match="asks nothing"):
        examine(Probe("t-1", "numpy", "f", "1", "", "", "", "", False, lambda: iter(())))

    def ask() -> Iterator[Ask]:
        yield Ask("it", lambda: 1, 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        examine(Probe("t-1", "numpy", "f", "1", "", "", "", "", False, ask))


def test_a_probe_names_its_trap_and_issue_properly() -> None:
    with pytest.raises(ValueError, match="trap: got 'agrees'"):
        probe("numpy", "f", "1", claim="", trap="agrees", instead="g")
    with pytest.raises(ValueError, match="issue: got 'numpy 3'"):
        probe("numpy", "f", "1", claim="", instead="g", issue="numpy 3")


def test_inputs_have_whole_norms_that_duplicates_change() -> None:
    norms = {g.name: float(np.linalg.norm(g.dense)) for g in gradients()}
    assert norms == {
        "sorted, unique": 5, "unsorted, unique": 5, "duplicates": 10, "cancelling duplicates": 5, "one": 5, "none": 0,
    }  # fmt: skip


#: (outcome, trap, verdict)
VERDICTS = [
    ("differs", "differs", "as measured"),
    ("agrees", "", "as measured"),
    ("agrees", "differs", "gone"),
    ("raises", "differs", "changed"),
    ("differs", "", "changed"),
    ("not run", "differs", ""),
    ("broken", "", ""),
]


@pytest.mark.parametrize(("outcome", "trap", "wanted"), VERDICTS)
def test_a_finding_is_held_against_what_was_measured(outcome: str, trap: str, wanted: str) -> None:
    assert verdict({"outcome": outcome, "trap": trap}) == wanted


# ---------------------------------------------------------------------- which questions
QUESTION = {"number": "torch-3", "call": "torch.nn.utils.clip_grad_norm_", "claim": "it refuses", "clause": "10"}
#: (expression, whether it means QUESTION)
EXPRESSIONS = [
    ("", True), ("clip", True), ("CLIP_grad", True), ("torch-3", True), ("clause 10", True), ("clause 1 and not", None),
    ("clip and refuses", True), ("clip and not refuses", False), ("adam or clip", True), ("not (adam or clip)", False),
    ("adam", False), ("it refuses", True), ("(clip", None), ("clip)", None), ("and", None), ("adam or", None),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "wanted"), EXPRESSIONS)
def test_expressions_choose_questions(expression: str, wanted: bool | None) -> None:
    if wanted is None:
        with pytest.raises(ValueError, match=r"missing|closed|unexpected"):
            choose.chosen(QUESTION, expression)
    else:
        assert choose.chosen(QUESTION, expression) is wanted


def test_every_module_of_the_folder_holds_probes() -> None:
    folder = Path(next(iter(probes.__path__)))
    has_probes = {
        p.stem
        for p in folder.glob("*.py")
        if re.search(r"^(@|    )?(probe|keras_dense\.declare_\w+)\(", p.read_text("utf-8"), re.M)
    }
    assert set(choose.modules()) == has_probes == {p.stem for p in folder.glob("*.py")} - {"__init__"}


def test_the_page_names_every_framework() -> None:
    page = (Path(__file__).parents[4] / "docs/audit.md").read_text("utf-8")
    table = " ".join(line for line in page.splitlines() if line.startswith("| `"))
    compiled_or_elsewhere = ["keras_jax", "keras_torch", "torch_compile"]
    for name in {*map(choose.framework_of, choose.modules()), *compiled_or_elsewhere}:
        assert f"`{name}`" in table, name


def test_what_to_use_instead_exists() -> None:
    checked = 0
    for path in Path(next(iter(probes.__path__))).glob("*.py"):
        strings = [n.value for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Constant)]
        text = " ".join(s for s in strings if isinstance(s, str))
        for name in set(re.findall(r"\bislices\.((?:\w+\.)*\w+)", text)):
            if name.startswith("backends.") and importlib.util.find_spec(name.split(".")[1]) is None:
                continue
            assert _resolved(name), f"{path.name} names islices.{name}, which is not there"
            checked += 1
    assert checked > 20


def _resolved(name: str) -> bool:
    found: Any = importlib.import_module("islices")
    path = "islices"
    for part in name.split("."):
        path += f".{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(path)
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


# ---------------------------------------------------------------------- processes
TOYS = '''
import os, time
from islices.conformance.tools.audit.probe import Ask, probe

def toy(library="numpy", trap="", isolated=False, **more):
    def register(call):
        def ask():
            yield Ask("it", call, 1)
        ask.__module__ = __name__
        return probe(library, call.__name__, "1", claim="c", trap=trap, instead="i", isolated=isolated, **more)(ask)
    return register

@toy()
def agrees():
    print("what a framework prints is no answer")
    return 1

@toy(trap="corrupts")
def aborts():
    os.abort()

@toy()
def goes_on_behind():
    return 1

@toy(trap="corrupts")
def hangs():
    time.sleep(600)

@toy(trap="corrupts", isolated=True)
def aborts_alone():
    os.kill(os.getpid(), 11)

@toy(isolated=True)
def ends_well_alone():
    return 1

@toy(library="no_such_library")
def lacks_its_library():
    return 1

@probe("numpy", "breaks", "1", claim="c", instead="i")
def breaks():
    raise ZeroDivisionError("in the probe")
    yield

@probe("numpy", "asks_nothing", "1", claim="c", instead="i")
def asks_nothing():
    yield from ()

@toy(trap="corrupts")
def exits():
    os._exit(7)
'''  # fmt: skip


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    package = tmp_path / "toys"
    package.mkdir()
    (package / "__init__.py").write_text("", "utf-8")
    (package / "toy.py").write_text(TOYS, "utf-8")
    (package / "lacking.py").write_text("import no_such_library", "utf-8")
    (package / "broken.py").write_text("1 / 0", "utf-8")
    unloadable = "from islices.conformance.operations import UnsupportedError as U; raise U('built for another torch')"
    (package / "unloadable.py").write_text(unloadable, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "toys"


@pytest.mark.outside
def test_a_process_that_ends_or_hangs_is_a_finding_and_the_rest_goes_on(toys: str) -> None:
    told: list[tuple[int, int]] = []
    modules = [f"{toys}.{name}" for name in ("toy", "lacking", "unloadable", "broken")]
    found = run_all(modules, "", lambda *n: told.append(n), patience=8)
    by_call = {f.get("call", f["number"]): (f["outcome"], f["got"], f["status"]) for f in found}
    assert by_call["agrees"] == ("agrees", "1", "as measured")
    assert by_call["aborts"] == ("corrupts", "the process ended by SIGABRT", "as measured")
    assert by_call["goes_on_behind"] == ("agrees", "1", "as measured")
    assert by_call["hangs"] == ("corrupts", "no answer within 8 s", "as measured")
    assert by_call["aborts_alone"] == ("corrupts", "the process ended by SIGSEGV", "as measured")
    assert by_call["ends_well_alone"] == ("agrees", "1", "as measured")
    assert by_call["lacks_its_library"] == ("not run", "no_such_library is not installed", "")
    assert by_call["exits"] == ("corrupts", "the process ended with exit code 7", "as measured")
    assert by_call["breaks"][0] == "broken"
    assert "in the probe" in by_call["breaks"][1]
    assert by_call["asks_nothing"][0] == "broken"
    assert "asks nothing" in by_call["asks_nothing"][1]
    assert by_call[f"{toys}.lacking"][:2] == ("not run", "no_such_library is not installed")
    assert by_call[f"{toys}.unloadable"][:2] == ("not run", "built for another torch")
    assert by_call[f"{toys}.broken"][0] == "broken"
    assert "ZeroDivisionError" in by_call[f"{toys}.broken"][1]
    assert [f["call"] for f in found if f["module"] == f"{toys}.toy"][:3] == ["agrees", "aborts", "goes_on_behind"]
    assert sum(planned for planned, _ in told) == sum(done for _, done in told) == 10


def test_an_interrupted_audit_ends_at_once(toys: str) -> None:
    def interrupt(planned: int, done: int) -> None:
        if planned:
            os.kill(os.getpid(), signal.SIGINT)

    started = time.monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all([f"{toys}.toy"] * 3, "hangs", interrupt, patience=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - started < 30  # its processes are ended, not waited for


# ---------------------------------------------------------------------- the command
def test_an_earlier_audit_stays_where_a_call_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("earlier", "utf-8")
    assert main(["audit", "-b", "numpy", "-k", "no such words", "--json", str(tmp_path / "a.jsonl")]) == 2
    assert (tmp_path / "a.jsonl").read_text("utf-8") == "earlier"


def test_a_broken_probe_is_exit_code_3(
    toys: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "modules", lambda: [f"{toys}.toy", f"{toys}.broken"])
    assert main(["audit", "-k", "breaks or agrees"]) == 3
    printed = capsys.readouterr().out
    assert "in the probe" in printed
    assert "1 agree" in printed


#: (arguments, what the message says)
WRONG = [
    (["-b", "tensorflaw"], "--backend: got 'tensorflaw'; accepted are "),
    (["-k", "clip and"], "-k: got 'clip and': a word is missing at its end"),
    (["-k", "(clip"], "a parenthesis is not closed"),
    (["--json", "/no/such/folder/a.jsonl"], "--json: cannot write /no/such/folder/a.jsonl"),
    (["--markdown", "/no/such/folder/a.md"], "--markdown: cannot write"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_calls_are_said_before_any_work(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_question_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert main(["audit", "-b", "torch_memory", "-k", "no such question"]) == 2
    assert "-k: no question matches 'no such question'" in capsys.readouterr().err


@pytest.mark.outside
def test_torch_is_asked_and_answers_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    document = tmp_path / "audit.md"
    arguments = ["audit", "-b", "torch_memory", "-k", "clause 2 or clause 7", "--markdown", str(document), "--json"]
    assert main(arguments) == 0
    header, *findings, footer = map(json.loads, capsys.readouterr().out.splitlines())
    assert header["type"] == "header"
    assert header["versions"]["torch"] == torch.__version__
    assert footer["type"] == "footer"
    assert sum(footer["outcomes"].values()) == len(findings) > 4
    for f in findings:
        assert f["type"] == "finding"
        assert f["outcome"] in OUTCOMES, f
        assert f["number"].startswith("torch_memory-")
        assert f["status"] in ("as measured", "gone", "changed")
    checked = next(f for f in findings if "check_invariants" in f["call"])
    assert (checked["outcome"], checked["got"], checked["counts"]) == ("agrees", "refused", {"agrees": 4})
    text = document.read_text("utf-8")
    for f in findings:
        assert f["number"] in text
    assert "https://github.com/pytorch/pytorch/issues/124168" in text


# ---------------------------------------------------------------------- what is printed
FINDING = {
    "number": "torch-1", "module": "torch", "library": "torch", "version": "2.13.0+cpu", "call": "torch.f",
    "clause": "10",
    "claim": "it is wrong " + "and wrong " * 12, "trap": "differs", "instead": "islices.g(x)", "issue": "a/b#1",
    "outcome": "differs", "given": "duplicates", "got": "[1]", "expected": "[2]", "error": "1, relative 0.5",
    "counts": {"differs": 2, "agrees": 1}, "status": "as measured",
}  # fmt: skip
FINE = FINDING | {"number": "torch-2", "call": "torch.g", "outcome": "agrees", "trap": "", "claim": "it sums"}


def lines(findings: list[dict[str, Any]], everything: bool = False, width: int = 60) -> list[str]:
    return [line.plain for line in blocks(findings, everything, width)]


def test_a_block_says_everything_within_the_width() -> None:
    printed = lines([FINDING, FINE])
    assert max(map(len, printed)) <= 60
    text = "\n".join(printed)
    parts = (
        "torch 2.13.0", "differs  torch.f", "torch-1, clause 10: clip by norm", "it is wrong", "a/b#1",
        "given        duplicates  (2 of 3 inputs)", "use instead  islices.g(x)", "torch.g: it sums",
    )  # fmt: skip
    for part in parts:
        assert part in text, text
    assert "use          islices.g(x)" in "\n".join(lines([FINE], everything=True))


def test_the_worst_comes_first() -> None:
    crash = FINDING | {"number": "torch-9", "outcome": "corrupts", "got": "the process ended by SIGSEGV"}
    heads = [line for line in lines([FINE, FINDING, crash]) if re.match("corrupts|differs|agrees", line)]
    assert [head.split()[0] for head in heads] == ["corrupts", "differs", "agrees"]


def test_what_is_gone_or_otherwise_says_so() -> None:
    gone = FINDING | {"outcome": "agrees", "status": "gone", "claim": "it was wrong"}
    assert "not in this version" in "\n".join(lines([gone]))
    new = FINDING | {"outcome": "raises", "got": "ValueError: no", "status": "changed", "claim": "it was wrong"}
    text = "\n".join(lines([new]))
    assert "not as once measured" in text
    assert "differs: it was wrong" in text
    assert "ValueError: no" in text
    assert summary([gone, new, FINE]) == "2 agree, 1 raise, 1 not in this version, 1 not as once measured"


def test_markdown_is_escaped_and_linked() -> None:
    header = {"islices": "1", "python": "3", "platform": "p", "versions": {"torch": "2"}}
    text = markdown([FINDING | {"claim": "a * b <i> [x]", "got": "`[1]`"}], header, everything=False)
    assert r"a \* b \<i\> \[x\]" in text
    assert "`` `[1]` ``" in text
    assert "[a/b#1](https://github.com/a/b/issues/1)" in text


def test_a_pipe_has_no_colours(toys: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "modules", lambda: [f"{toys}.toy"])
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert main(["audit", "-k", "goes_on_behind"]) == 0
    assert "\x1b" not in capsys.readouterr().out
