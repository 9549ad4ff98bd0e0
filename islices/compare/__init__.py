"""Comparing gradients and tables, and saying why they differ. May import the core; NumPy alone is needed.

What a `Difference` holds stands in `islices.compare.measure` (TensorDifference) and `islices.compare.explanation`.
"""

from islices.compare.difference import Difference, diff

__all__ = ["Difference", "diff"]
