"""Compare gradients and tables, and explain their differences.

`islices.porting.compare.measure` (TensorDifference) and `islices.porting.compare.explanation` define the parts of a
`Difference`. May import: this folder.
"""

from islices.porting.compare.difference import Difference, diff

__all__ = ["Difference", "diff"]
