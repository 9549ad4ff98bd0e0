"""Every code block of the README and of docs/ runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]
FRAMEWORKS = ("tensorflow", "torch", "jax", "mxnet")


def blocks(kind: str) -> list[str]:
    return [text for name, text in BLOCKS if name == kind]


def test_every_block_has_a_kind_that_is_tested() -> None:
    assert {name for name, _ in BLOCKS} <= {"python", "sh", "toml", "text"}
    assert blocks("python")


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.strip().split("\n")[0][:40])
def test_python_block(code: str) -> None:
    """Runs in a process of its own; a comment ``# -> text`` after a print states what it prints."""
    for name in FRAMEWORKS:
        if re.search(rf"^(import|from) .*\b{name}\b", code, re.MULTILINE):
            pytest.importorskip(name if name != "mxnet" else "islices.backends.mxnet")
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = re.findall(r"# -> (.*)$", code, re.MULTILINE)
    assert done.stdout.split("\n")[: len(expected)] == expected


def test_shell_blocks_name_real_targets_and_commands() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    made = {word for line in commands if line.startswith("make ") for word in [line.split()[1]]}
    assert {"conform", "test"} <= made <= targets
    for line in commands:
        if line.startswith("islices "):
            done = subprocess.run(
                [sys.executable, "-m", "islices", *line.split()[1:2], "--help"], capture_output=True, check=False
            )
            assert done.returncode == 0, line


def test_toml_blocks_parse() -> None:
    for text in blocks("toml"):
        assert tomllib.loads(text)
