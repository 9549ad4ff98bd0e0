"""Comparing gradients and tables, and saying why they differ.

What a `Difference` holds stands in `islices.compare.measure` (TensorDifference) and `islices.compare.explanation`.
May import: this folder.
"""

from islices.compare.difference import Difference, diff

__all__ = ["Difference", "diff"]
