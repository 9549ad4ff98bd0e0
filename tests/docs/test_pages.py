"""Check the pages as GitHub shows them.

Links and the answers to tasks must have targets, and the side bar must list every page. Each paragraph with a date must
also have a machine and a command.
"""

from __future__ import annotations

import itertools
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from islices.conformance.data import SPEC_VERSION

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(p for name in ("docs", "conformance", "examples") for p in (ROOT / name).rglob("*.md"))]
)
GUIDES = [README, *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and Sphinx create for the headings of the page."""
    found: set[str] = set()
    parsed = tokens(page.read_text("utf-8"))
    for heading, inline in itertools.pairwise(parsed):
        if heading.type == "heading_open":
            text = "".join(child.content for child in inline.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            count = sum(f == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", f) is not None for f in found)
            found.add(f"{slug}-{count}" if count else slug)
    return found


def targets(text: str) -> Iterator[str]:
    """Yield the targets of the text's links and images, except targets on other sites."""
    for token in tokens(text):
        for child in token.children or ():
            target = child.attrGet({"link_open": "href", "image": "src"}.get(child.type, ""))
            if target and not re.match(r"\w+:", str(target)):
                yield str(target)


def broken(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.exists():
        return True
    return bool(anchor) and (file.suffix != ".md" or anchor not in anchors(file))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert [target for target in targets(page.read_text("utf-8")) if broken(page, target)] == []


# ---------------------------------------------------------------------- the README
def test_its_links_are_absolute_on_a_package_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    readme = runpy.run_path("setup.py")["readme"]
    text = README.read_text("utf-8")
    assert list(targets(text))
    assert readme(text, "") == text
    assert list(targets(readme(text, "https://example.org/islices"))) == []


# ---------------------------------------------------------------------- tasks, contents, pictures
def rows(page: Path) -> list[str]:
    """Return the rows of all tables in the page, without their head rows."""
    lines = page.read_text("utf-8").splitlines()
    is_head = [line.startswith("|---") for line in [*lines[1:], ""]]
    return [line for line, head in zip(lines, is_head, strict=True) if line.startswith("| ") and not head]


def test_every_task_is_answered() -> None:
    tasks = {line.split("|")[1].strip(): line.split("|", 2)[2] for line in rows(DOCS / "tasks.md")}
    assert len(tasks) >= 30
    assert len(tasks) == len(rows(DOCS / "tasks.md")), "a task stands twice"
    assert [task for task, answer in tasks.items() if not list(targets(answer))] == []


def test_the_side_bar_and_the_scripts_are_complete() -> None:
    listed = set(re.findall(r'"(?:docs/)?(\w+)"', (DOCS / "conf.py").read_text("utf-8")))
    assert {page.stem for page in DOCS.glob("*.md")} - {"index"} <= listed
    scripts = set(targets((ROOT / "examples" / "README.md").read_text("utf-8")))
    assert {f.name for f in (ROOT / "examples").glob("*.py")} == scripts


# ---------------------------------------------------------------------- figures
def paragraphs(page: Path) -> list[str]:
    return re.split(r"\n\s*\n", page.read_text("utf-8"))


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_what_was_measured_names_machine_and_command(page: Path) -> None:
    """Check that each paragraph with a date also gives the cores, the memory and the command of the measurement."""
    command = r"`(\w+=\w+\s)*(islices|make|pytest|python examples/\w+\.py)\s[^`]+`"
    for text in paragraphs(page):
        if re.search(r"\b20\d\d-\d\d-\d\d\b", text):
            assert re.search(r"\d cores,\s\d+\sGB", text), text
            assert re.search(command, text), text


def test_the_suite_names_the_version_of_the_specification() -> None:
    text = (ROOT / "conformance" / "SPEC.md").read_text("utf-8")
    assert text.splitlines()[2].startswith(f"Version {SPEC_VERSION}. ")
