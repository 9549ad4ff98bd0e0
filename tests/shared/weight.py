"""Count the code's tokens by folder, without docstrings and comments. A count of lines would reward dense lines.

`make weight` runs this program. The program prints each folder's tokens. The last line has the total, the mean number
of tokens per line, and the largest file.
"""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("islices", "backends", "conformance", "tests")
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def docstring_lines(source: str) -> set[int]:
    """Return the line numbers at which statements that consist of a string begin."""
    return {
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def weigh(path: Path) -> tuple[int, int]:
    """Return the number of tokens in a file, and the number of lines that have tokens. Docstrings and comments do not
    count."""
    strings = docstring_lines(path.read_text("utf-8"))
    with path.open("rb") as file:
        found = [t for t in tokenize.tokenize(file.readline) if t.type not in LAYOUT]
    kept = [t.start[0] for t in found if not (t.type == tokenize.STRING and t.start[0] in strings)]
    return len(kept), len(set(kept))


def main() -> None:
    weights = {}
    for folder in FOLDERS:
        links = {p for p in (ROOT / folder).iterdir() if p.is_symlink()}
        files = [p for p in (ROOT / folder).rglob("*.py") if not links & set(p.parents)]
        weights |= {p.relative_to(ROOT): weigh(p) for p in files}
    by_folder: Counter[str] = Counter()
    for path, (tokens, _) in weights.items():
        by_folder.update({path.parts[0]: tokens, "/".join(path.parts[:-1][:3]) + "/": tokens})
    for name, tokens in sorted(by_folder.items()):
        print(f"{tokens:>9,}  {name}")
    largest = max(weights, key=lambda path: weights[path])
    tokens, lines = (sum(column) for column in zip(*weights.values(), strict=True))
    print(f"{tokens:>9,}  in {len(weights)} files, {tokens / lines:.2f} a line; the largest is {largest}, "
          f"{weights[largest][0]:,}")  # fmt: skip


if __name__ == "__main__":
    main()
