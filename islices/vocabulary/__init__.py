"""Vocabularies that change: the rows of a table, and of its optimizer's state, renumbered, dropped and added.

>>> from islices import vocabulary
>>> vocabulary.RowMap.from_tokens(["<pad>", "cat", "dog"], ["<pad>", "dog", "emu"])
RowMap(3 rows of 3, 1 new)

SPEC clause 27.
"""

from islices.vocabulary.fills import Random, normal, uniform
from islices.vocabulary.mapping import RowMap
from islices.vocabulary.memory import grow, renumber

__all__ = ["Random", "RowMap", "grow", "normal", "renumber", "uniform"]
