"""Check docstrings and pages for plain English. `make lint` runs this program.

The program prints the figures of each area, and exits with 1 if a figure is above its ceiling.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
#: relative clauses, prepositions, conjunctions and participles, with which docstrings should not begin
OPENERS = re.compile(
    r"(What|Whose|Which|Who|Where|When|While|Whether|Of|By|In|That|How|With|From|To|As|If)\b"
    r"|(?!String|Nothing|Everything|Bring|Embedding|Mapping|Padding|Training)\w+ing\b"
)
#: words of a private dialect, for which the field has other words
WORDS = re.compile(
    r"\b(told|tells?|said|asks?|asked|mend(s|ed|ing)?|parts? from|beside|alone|anew|fronts?|refused?s?|(?<!your )own"
    r"|tak(es?|en|ing) away|of which|in (its|their) ways?)\b(?!-)",
    re.IGNORECASE,
)
DATE, TEST_PATH = re.compile(r"\b20\d\d-\d\d-\d\d\b"), re.compile(r"\btests/\w")
#: pages that may have dates and paths of tests
DATED = {"docs/performance.md", "docs/judged.md", "conformance/SPEC.md", "CONTRIBUTING.md"}
DIALECT = re.compile(r"(^|_)(adopt\w*|ways?|said|told|mend\w*|what|whose|asked|asks?)(_|$)")
LIMIT = 25  # words in a sentence

#: largest figures in any area: openers per 100 docstrings, long and nested sentences per 100, listed words per 1,000
CEILINGS = (1, 8, 3, 0.5)
#: files that are separate areas
PAGES = ("README.md", "CONTRIBUTING.md", "conformance/SPEC.md")
COUNTS = {"Keras'": 0, "dates": 0, "test paths": 0, "identifiers": 0}
#: page -> KiB; "docs" means all of docs/*.md
SIZES: dict[str, float] = {
    "docs": 197,
    "README.md": 6,
    "CONTRIBUTING.md": 5.3,
    "conformance/SPEC.md": 60,
    "docs/index.md": 2,
    "docs/tasks.md": 6,
    "docs/install.md": 3,
    "docs/gradients.md": 7,
    "docs/operations.md": 6,
    "docs/optimizers.md": 9,
    "docs/performance.md": 9,
    "docs/torch.md": 10.4,
    "docs/keras.md": 11.2,
    "docs/jax.md": 10.2,
    "docs/gluon.md": 3,
    "docs/porting.md": 15,
    "docs/diff.md": 8.2,
    "docs/parity.md": 8,
    "docs/files.md": 4.8,
    "docs/vocabularies.md": 4.3,
    "docs/audit.md": 2.5,
    "docs/distributed.md": 12.5,
    "docs/suite.md": 3.6,
    "docs/reports.md": 3.6,
    "docs/protocol.md": 9.2,
    "docs/judge.md": 5.3,
    "docs/adapter_author.md": 7.1,
    "docs/library_author.md": 5.4,
    "docs/stability.md": 6.8,
    "docs/formulas.md": 13.1,
}


def sentences_of_docstring(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring, without its examples, headings and fields of parameters."""
    for paragraph in re.split(r"\n\s*\n|^.*\n-{3,}$|^[\w*, .]+ : .*$", text, flags=re.MULTILINE):
        if ">>>" not in paragraph:
            yield from split(re.sub(r"``?[^`]*``?", "x", paragraph))


def sentences_of_page(text: str) -> Iterator[str]:
    """Yield the sentences of a page, without its tables, code and headings."""
    skipped = 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type.startswith(("heading", "table")):
            skipped += token.nesting
        elif token.type == "inline" and not skipped:
            pieces = (c.content or " " if c.type in ("text", "softbreak") else "x" * (c.type == "code_inline")
                      for c in token.children or ())  # fmt: skip
            yield from split("".join(pieces))


def split(paragraph: str) -> Iterator[str]:
    text = " ".join(paragraph.split())
    yield from (s for s in re.split(r"(?<=\w[.!?])\s+|(?<=[)\]|][.!?])\s+|(?<=[.!?]\))\s+", text) if len(s.split()) > 1)


def faults_of(sentence: str) -> Counter[str]:
    """Count the words in a sentence, and the faults of each kind."""
    words = re.findall(r"[^\W\d_][\w'-]*", sentence)
    return Counter(
        {
            "sentences": 1,
            "text": len(words),
            "long": len(words) > LIMIT,
            "nested": len(re.findall(";", sentence)) > 1 or len(re.findall(r"(?<=\s)\((?=[^\W\d]{2})", sentence)) > 1,
            "words": len(WORDS.findall(sentence)),
        }
    )


def measure(name: str, text: str, identifiers: set[str]) -> tuple[str, Counter[str]]:
    """Return a file's area, and the counts for its docstrings or its text. Add the file's identifiers with words of
    dialect to `identifiers`."""
    theirs = 0 if name.endswith("prose.py") else len(re.findall(r"\bKeras'(?!s|\w)", text))
    counts: Counter[str] = Counter({"Keras'": theirs})
    area = name.partition("/")[0].removesuffix("_pytest.py")
    if name.endswith(".py"):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(ast.parse(text)):
            used = str(getattr(node, "name", getattr(node, "arg", "")))
            if DIALECT.search(used) and not used.startswith("test_"):
                identifiers.add(used)
            if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
                counts.update(docstrings=1, openers=OPENERS.match(docstring) is not None)
                for sentence in sentences_of_docstring(docstring):
                    counts.update(faults_of(sentence))
        return area, counts
    if name not in DATED:
        counts.update({"dates": len(DATE.findall(text)), "test paths": len(TEST_PATH.findall(text))})
    for sentence in sentences_of_page(text):
        counts.update(faults_of(sentence))
    return area if area == "docs" else name if name in PAGES else "other pages", counts


def figures(counts: Counter[str]) -> tuple[float, float, float, float]:
    """Return the four rates that CEILINGS limits."""
    per = (
        ("openers", "docstrings", 100),
        ("long", "sentences", 100),
        ("nested", "sentences", 100),
        ("words", "text", 1000),
    )
    openers, long, nested, words = (round(scale * counts[x] / max(counts[of], 1), 1) for x, of, scale in per)
    return openers, long, nested, words


def main() -> int:
    listed = ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.md"]
    names = subprocess.run(listed, cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    areas: defaultdict[str, Counter[str]] = defaultdict(Counter)
    sizes, identifiers = {"docs": 0}, set[str]()
    for name in names:
        if name == "CHANGELOG.md" or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_text("utf-8")
        area, counts = measure(name, text, identifiers)
        areas[area].update(counts)
        if name.endswith(".md"):
            sizes[name] = len(text.encode())
            sizes["docs"] += sizes[name] * (area == "docs")
    found: list[tuple[str, float, float]] = []
    print(f"{'':24}openers %  long %  nested %  words per 1,000")
    for area, counts in sorted(areas.items()):
        rates = figures(counts)
        print(f"{area:24}{rates[0]:9}{rates[1]:8}{rates[2]:10}{rates[3]:17}")
        found += [(area, *pair) for pair in zip(rates, CEILINGS, strict=True)]
    total = sum(areas.values(), Counter({"identifiers": len(identifiers)}))
    print(
        *(f"{kind}: {total[kind]}" for kind in COUNTS),
        *(f"{p}: {sizes.get(p, 0) / 1024:.1f} KiB" for p in SIZES),
        sep="\n",
    )
    found += [(kind, total[kind], most) for kind, most in COUNTS.items()]
    found += [(page, round(sizes.get(page, 0) / 1024, 2), most) for page, most in SIZES.items()]
    above = [f"{what}: {is_now}, at most {most}" for what, is_now, most in found if is_now > most]
    print(*above, sep="\n", file=sys.stderr)
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
