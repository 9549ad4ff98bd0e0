"""A text to train on: its lines as ids of a vocabulary whose row 0 is the padding.

May import: `numpy`, `islices.cli`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from islices.cli import UsageError

__all__ = ["PADDING", "Text", "default_text", "padded", "read_text", "text_of"]

PADDING = 0
#: Words that the vocabulary keeps at most, the most frequent ones; others are left out of the lines.
WORDS = 2000
#: Characters of a text that are read at most, and words and lines that it must have.
LONGEST = 4_000_000
FEWEST_WORDS, FEWEST_LINES = 50, 20

_WORD = re.compile(r"[^\W\d_]+")
_LINE_END = re.compile(r"[.!?:;]\s|\n\s*\n")


class Text(NamedTuple):
    """vocabulary[0] is the padding; counts (rows,) how often each word occurs; lines of two ids or more."""

    name: str
    vocabulary: list[str]
    counts: np.ndarray[Any, Any]
    lines: list[np.ndarray[Any, Any]]


def default_text() -> str:
    """The help on topics that every CPython carries (`pydoc_data.topics`), in the order of their names."""
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError:  # distributions may package it apart
        raise UsageError("--text: this Python carries no pydoc_data.topics; give a text file") from None
    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: str) -> str:
    """A UTF-8 file, or UsageError for what is none."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(LONGEST)
    except OSError as error:
        raise UsageError(f"--text: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--text: {path} is no UTF-8 text (byte {error.start} of a block: {error.reason})") from None
    if "\0" in text:
        raise UsageError(f"--text: {path} is a binary file; accepted is UTF-8 text")
    return text


def text_of(name: str, text: str) -> Text:
    """The lines of a text: what stands between full stops or empty lines, in small letters, words of letters alone."""
    lines = [_WORD.findall(line.lower()) for line in _LINE_END.split(text)]
    counts = Counter(word for line in lines for word in line)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    number = {word: k for k, word in enumerate(ranked, start=1)}
    ids = [np.array([number[w] for w in line if w in number], np.int32) for line in lines]
    ids = [line for line in ids if len(line) >= 2]
    if len(ranked) < FEWEST_WORDS or len(ids) < FEWEST_LINES:
        raise UsageError(
            f"--text: {name} has {len(ranked)} different words in {len(ids)} lines; accepted are at least "
            f"{FEWEST_WORDS} words in {FEWEST_LINES} lines of two words or more"
        )
    return Text(name, ["<pad>", *ranked], np.array([0, *(counts[w] for w in ranked)]), ids)


def padded(lines: Sequence[np.ndarray[Any, Any]], width: int) -> np.ndarray[Any, Any]:
    """The first width ids of each line, (len(lines), width), filled up with the padding."""
    out = np.full((len(lines), width), PADDING, np.int32)
    for row, line in zip(out, lines, strict=True):
        row[: len(line)] = line[:width]
    return out
