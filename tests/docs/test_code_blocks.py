"""Test the code blocks of the README and of docs/. Python programs run, and so do `islices` commands whose output the
page shows. Of shell blocks, only the names of targets and commands are checked; TOML blocks must parse.

The blocks of one page run in order, in one folder and in separate processes. A later block may read a file that an
earlier block wrote. A comment ``# -> text`` states the printed text. A block of kind "diff" changes the nearest earlier
program that it fits; the changed program then runs. A block of text that begins with ``$ islices ...`` is the output of
that command; ``...`` marks omitted lines.
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
#: kinds of blocks that a test runs or checks
KINDS = {"python", "sh", "toml", "text", "diff"}


def code(page: Path) -> list[tuple[str, str]]:
    """Return (kind, text) of each fenced or indented code block, including blocks in lists. An indented block has the
    kind ""."""
    tokens = MarkdownIt("commonmark").parse(page.read_text("utf-8"))
    return [(token.info, token.content) for token in tokens if token.type in ("fence", "code_block")]


BLOCKS = {str(page.relative_to(ROOT)): code(page) for page in PAGES}


def blocks(kind: str) -> list[str]:
    return [text for page in BLOCKS.values() for name, text in page if name == kind]


def test_every_block_has_a_kind_that_is_tested() -> None:
    kinds = {page: {kind for kind, _ in found} for page, found in BLOCKS.items()}
    assert {page: found - KINDS for page, found in kinds.items() if found - KINDS} == {}
    assert blocks("python")


@pytest.fixture(scope="module")
def runner() -> Iterator[Blocks]:
    made = Blocks()
    yield made
    made.close()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page == "README.md" else [pytest.mark.outside])
        for page, found in BLOCKS.items()
        if "python" in dict(found)
    ],
)
def test_python_blocks(page: str, runner: Blocks, tmp_path: Path) -> None:
    programs: list[str] = []
    for kind, text in BLOCKS[page]:
        if kind == "diff":
            changed = [new for program in reversed(programs) if (new := patched(program, text)) is not None]
            assert changed, f"no program above has these lines:\n{text}"
            text = changed[0]
        elif kind == "text" and (requested := command_of(text)) is not None:
            done = runner.run(requested[0], tmp_path)
            assert prints(requested[1], done["stdout"]), f"{text}\n{done['stdout']}\n{done['stderr'][-3000:]}"
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


def test_a_block_that_fails_is_seen(runner: Blocks, tmp_path: Path) -> None:
    for line in ("1 / 0", "import torch; 1 / 0"):
        done = runner.run(line, tmp_path)
        assert done["returncode"] == 1
        assert "ZeroDivisionError" in done["stderr"]
    assert runner.run("import torch, os; os.abort()", tmp_path)["returncode"] < 0
    assert runner.run("import torch; raise SystemExit(3)", tmp_path)["returncode"] == 3


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
