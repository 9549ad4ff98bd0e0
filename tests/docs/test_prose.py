"""Test that the prose lint counts planted faults and finds none in plain sentences."""

from __future__ import annotations

import prose

FAULTY = '''
def told():
    """What a step has beside its own state; it is long (in a way); and (again) nested.

    This sentence goes on and on until it has more words than a reader will keep in mind, which is the case from about
    twenty-five words onwards.

    >>> code()  # beside
    """
'''
PLAIN = '''
def step():
    """Return your own table. Each row moves (once); no other row does.

    Parameters
    ----------
    table : array, beside nothing
        The weights.
    """
'''


def test_planted_faults_are_counted() -> None:
    identifiers: set[str] = set()
    area, counts = prose.measure("islices/x.py", FAULTY, identifiers)
    assert (area, identifiers) == ("islices", {"told"})
    assert {k: counts[k] for k in ("docstrings", "openers", "sentences", "long", "nested", "words")} == {
        "docstrings": 1, "openers": 1, "sentences": 2, "long": 1, "nested": 1, "words": 2,
    }  # fmt: skip
    _, counts = prose.measure(
        "docs/x.md", "# Beside\n\nKeras' step, 2026-01-01: `tests/x.py`.\n\n| told |\n|---|\n", set()
    )
    assert {k: counts[k] for k in (*prose.COUNTS, "words")} == {
        "Keras'": 1, "dates": 1, "test paths": 1, "identifiers": 0, "words": 0,
    }  # fmt: skip


def test_plain_sentences_have_no_fault() -> None:
    assert prose.figures(prose.measure("tests/x.py", PLAIN, set())[1]) == (0, 0, 0, 0)
