"""Every code block of the README and of docs/ runs.

The blocks of one page run in order, in one folder and in processes of their own: a later one may read a file that an
earlier one wrote. A comment ``# -> text`` states what is printed. A block of kind "diff" changes the last program above
that it fits, which then runs again; a block of text that begins with ``$ islices ...`` is what that command prints,
where ``...`` stands for what is left out. Programs for other environments are shown as they stand in files that are run
there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import Blocks, command_of, frameworks_of, patched, prints
from markdown_it import MarkdownIt

from islices.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: what is run or checked below
KINDS = {"python", "sh", "toml", "text", "diff"}
#: programs in other languages, and of libraries that make's environment lacks: where their files are
SHOWN = {"docs/judged.md": "docs/judged", "docs/protocol.md": "examples/adapters"}
SCRIPTS = {"js", "javascript"}


def code(page: Path) -> list[tuple[str, str]]:
    """(kind, text) of each code block, whatever marks it: ```, ~~~, in a list, or an indent, whose kind is ""."""
    tokens = MarkdownIt("commonmark").parse(page.read_text("utf-8"))
    return [(token.info, token.content) for token in tokens if token.type in ("fence", "code_block")]


BLOCKS = {str(page.relative_to(ROOT)): code(page) for page in PAGES}


def blocks(kind: str) -> list[str]:
    return [text for page in BLOCKS.values() for name, text in page if name == kind]


def test_every_block_has_a_kind_that_is_tested() -> None:
    kinds = {page: {kind for kind, _ in found} for page, found in BLOCKS.items()}
    for page in SHOWN:
        kinds[page] -= SCRIPTS
    assert {page: found - KINDS for page, found in kinds.items() if found - KINDS} == {}
    assert blocks("python")


@pytest.mark.parametrize("page", SHOWN)
def test_what_is_shown_stands_in_a_file(page: str) -> None:
    files = [path.read_text("utf-8") for path in (ROOT / SHOWN[page]).iterdir() if path.suffix in (".py", ".js")]
    kinds = SCRIPTS | {"python"} if page == "docs/judged.md" else SCRIPTS
    shown = [text for kind, text in BLOCKS[page] if kind in kinds]
    assert shown
    assert [text for text in shown if not any(text.strip() in file for file in files)] == []


def test_mxnet_is_made_importable_first() -> None:
    """On NumPy 2 it is not, by itself; the processes in which blocks run have imported it."""
    for text in blocks("python"):
        ahead, found, _ = text.partition("import mxnet")
        assert not found or "islices.backends.mxnet" in ahead, text


def test_no_page_hides_a_block_in_markup() -> None:
    """Raw HTML would show code that nobody runs; reStructuredText is there for the API alone, by directives."""
    for page in PAGES:
        assert not re.search(r"<(pre|code)\b", page.read_text("utf-8")), page
    directives = {
        "toctree", "currentmodule", "automodule", "autofunction", "autoclass", "autoexception", "py:data",
        "islices-commands",
    }  # fmt: skip
    for page in sorted((ROOT / "docs").rglob("*.rst")):
        text = page.read_text("utf-8")
        assert set(re.findall(r"^\s*\.\. ([\w:-]+)::", text, re.MULTILINE)) <= directives, page
        assert not re.search(r">>>|^(?!\s*\.\. ).*::$", text, re.MULTILINE), page


@pytest.fixture(scope="module")
def runner() -> Iterator[Blocks]:
    made = Blocks()
    yield made
    made.close()


@pytest.mark.repeats_where(lambda page: page != "README.md")
@pytest.mark.parametrize(
    "page", [page for page, found in BLOCKS.items() if "python" in dict(found) and page != "docs/judged.md"]
)
def test_python_blocks(page: str, runner: Blocks, tmp_path: Path) -> None:
    programs: list[str] = []
    for kind, text in BLOCKS[page]:
        if kind == "diff":
            changed = [new for program in reversed(programs) if (new := patched(program, text)) is not None]
            assert changed, f"no program above has these lines:\n{text}"
            text = changed[0]
        elif kind == "text" and (asked := command_of(text)) is not None:
            done = runner.run(asked[0], tmp_path)
            assert prints(asked[1], done["stdout"]), f"{text}\n{done['stdout']}\n{done['stderr'][-3000:]}"
            continue
        elif kind != "python":
            continue
        for name in frameworks_of(text):
            pytest.importorskip(name if name != "mxnet" else "islices.backends.mxnet")
        done = runner.run(text, tmp_path)
        assert done["returncode"] == 0, f"{text}\n{done['stderr'][-3000:]}"
        expected = re.findall(r"# -> (.*)$", text, re.MULTILINE)
        assert done["stdout"].split("\n")[: len(expected)] == expected, text
        programs.append(text)
    assert programs


def test_what_the_readme_says_of_keras(runner: Blocks, tmp_path: Path) -> None:
    """Its example with Keras's own optimizer: the row moves ten times as far as the clip allows."""
    pytest.importorskip("tensorflow")
    (ours,) = [text for kind, text in BLOCKS["README.md"] if kind == "python" and "islices_keras.SGD(" in text]
    assert "# -> [0.1]" in ours
    done = runner.run(ours.replace("islices_keras.SGD(", "keras.optimizers.SGD("), tmp_path)
    assert done["returncode"] == 0, done["stderr"][-3000:]
    assert float(done["stdout"].strip("[]\n")) == pytest.approx(1.0, rel=1e-6)


def test_a_block_that_fails_is_seen(runner: Blocks, tmp_path: Path) -> None:
    for line in ("1 / 0", "import torch; 1 / 0"):
        done = runner.run(line, tmp_path)
        assert done["returncode"] == 1
        assert "ZeroDivisionError" in done["stderr"]
    assert runner.run("import torch, os; os.abort()", tmp_path)["returncode"] < 0
    assert runner.run("import torch; raise SystemExit(3)", tmp_path)["returncode"] == 3


def test_blocks_run_apart(runner: Blocks, tmp_path: Path) -> None:
    """No name, module or backend state is left by one for the next; files are."""
    first = "import torch, sys, pathlib; name = 1; sys.modules['left'] = sys; pathlib.Path('kept').write_text('1')"
    assert runner.run(first, tmp_path)["returncode"] == 0
    then = "import torch, sys, os; print('name' in globals(), 'left' in sys.modules, os.listdir())"
    assert runner.run(then, tmp_path)["stdout"] == "False False ['kept']\n"


def test_changes_of_programs() -> None:
    program = "a = 1\nif a:\n    b = 2\n"
    assert patched(program, "-a = 1\n+a = 3\n@@\n if a:\n+    c = 4\n") == "a = 3\nif a:\n    c = 4\n    b = 2\n"
    assert patched(program, "-a = 2\n") is None
    assert patched("a\na\n", "-a\n") is None
    assert command_of("keras and torch differ\n") is None
    code, printed = command_of("$ islices diff a.safetensors b.safetensors\nwhy: ...\n") or ("", "")
    assert "main(['diff', 'a.safetensors', 'b.safetensors'])" in code
    assert prints(printed, "why: this\nand that \n")
    assert prints("one\n...\nfour", "one\ntwo  \nthree\nfour\n")
    assert not prints("one\n...\nfour", "one\nfive\n")
    table = "  position  largest gap  of allowed  at step\n  step          {}        {} {}        1"
    assert prints(table.format("1.5e-08", "38", "%"), table.format("2.5e-09", "0.3", "%"))
    assert not prints(table.format("1.5e-08", "38", "%"), table.format("0.001", "650", "x"))
    assert not prints(table.format("0.0023", "650", "x"), table.format("0.001", "650", "x"))


def test_shell_blocks_name_real_targets_and_commands() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    made = {word for line in commands if line.startswith("make ") for word in [line.split()[1]]}
    assert {"conform", "test"} <= made <= targets
    called = {line.split()[1] for line in commands if line.startswith("islices ")}
    assert {"conform", "report"} <= called
    for name in sorted(called):
        assert main([name, "--help"]) == 0, name


def test_toml_blocks_parse() -> None:
    for text in blocks("toml"):
        assert tomllib.loads(text)
