"""Compare gradients and tables, and explain their differences.

A `Difference` contains each `TensorDifference` of `islices.porting.compare.measure` and each `Explanation` of
`islices.porting.compare.explanation`. May import: this folder.
"""

from islices.porting.compare.difference import Difference, diff

__all__ = ["Difference", "diff"]
