"""Compare gradients and tables, and explain their differences.

`diff` returns a `Difference`. A `Difference` contains one `TensorDifference` per tensor, and one `Explanation` per
cause that was found. May import: this folder.
"""

from islices.porting.compare.difference import Difference, diff

__all__ = ["Difference", "diff"]
