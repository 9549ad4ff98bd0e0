"""Turn a real text into ids for embeddings. The text consists of CPython's documentation topics (pydoc_data.topics).

A token is a word, or one other character such as a digit or a comma. The id of a token is its rank by frequency in the
batch, starting at 1; id 0 is padding. Paragraphs with at least five tokens become rows of ids, cut or padded to a fixed
length. Plain Python computes everything, so every framework and the oracle get the same numbers.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from fractions import Fraction

from islices.conformance.data import Array
from islices.conformance.oracle import round_to

PADDING = 0


def paragraphs() -> list[list[str]]:
    from pydoc_data.topics import topics

    texts = (text for name in sorted(topics) for text in topics[name].split("\n\n"))
    tokens = (re.findall(r"[A-Za-z]+|[^\sA-Za-z]", text) for text in texts)
    return [words for words in tokens if len(words) >= 5]


def batch(rows: int, length: int) -> tuple[Array, int]:
    """Return (ids of shape ``(rows, length)``, number of distinct ids including the padding id)."""
    chosen = [words[:length] for words in paragraphs()[:rows]]
    counts = Counter(word for words in chosen for word in words)
    ids = {word: k + 1 for k, (word, _) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0])))}
    data = [ids[words[k]] if k < len(words) else PADDING for words in chosen for k in range(length)]
    return Array("int32", (len(chosen), length), data), len(ids) + 1


def upstream(ids: Array, width: int, seed: int = 0) -> Array:
    """Return a seeded float32 upstream gradient of shape ``(*ids.shape, width)``, whose numbers have absolute values
    between 1/16 and 33/16."""
    rng = random.Random(seed)
    count = len(ids.data) * width
    sizes = (Fraction(rng.getrandbits(40) | 1, 2**40) * 2 + Fraction(1, 16) for _ in range(count))
    data = [round_to(size if rng.random() < 0.5 else -size, "float32") for size in sizes]
    return Array("float32", (*ids.shape, width), data)
