"""Compare gradients and tables, and explain their differences.

`diff` returns a `Difference`. A `Difference` contains one `TensorDifference` per tensor that both sides have, and the
`Explanation`s that were found. An `Explanation` contains one or more causes. May import: this folder.
"""

from islices.porting.compare.difference import Difference, diff

__all__ = ["Difference", "diff"]
