"""Every code block of the README and of docs/ runs.

The blocks of one page run in order, in one folder and in processes of their own: a later one may read a file that an
earlier one wrote. A comment ``# -> text`` states what is printed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import Blocks, frameworks_of
from markdown_it import MarkdownIt

from islices.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: what is run or checked below
KINDS = {"python", "sh", "toml", "text"}


def code(page: Path) -> list[tuple[str, str]]:
    """(kind, text) of each code block, whatever marks it: ```, ~~~, in a list, or an indent, whose kind is ""."""
    tokens = MarkdownIt("commonmark").parse(page.read_text("utf-8"))
    return [(token.info, token.content) for token in tokens if token.type in ("fence", "code_block")]


BLOCKS = {str(page.relative_to(ROOT)): code(page) for page in PAGES}


def blocks(kind: str) -> list[str]:
    return [text for page in BLOCKS.values() for name, text in page if name == kind]


def test_every_block_has_a_kind_that_is_tested() -> None:
    kinds = {page: {kind for kind, _ in found} for page, found in BLOCKS.items()}
    assert {page: found - KINDS for page, found in kinds.items() if found - KINDS} == {}
    assert blocks("python")


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
@pytest.mark.parametrize("page", [page for page, found in BLOCKS.items() if "python" in dict(found)])
def test_python_blocks(page: str, runner: Blocks, tmp_path: Path) -> None:
    ran = 0
    for text in (text for kind, text in BLOCKS[page] if kind == "python"):
        for name in frameworks_of(text):
            pytest.importorskip(name if name != "mxnet" else "islices.backends.mxnet")
        done = runner.run(text, tmp_path)
        assert done["returncode"] == 0, f"{text}\n{done['stderr'][-3000:]}"
        expected = re.findall(r"# -> (.*)$", text, re.MULTILINE)
        assert done["stdout"].split("\n")[: len(expected)] == expected, text
        ran += 1
    assert ran


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
