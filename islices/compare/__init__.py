"""Comparing gradients and tables, and saying why they differ.

What a `Difference` holds stands in `islices.compare.measure` (TensorDifference) and `islices.compare.explanation`.
May import: this folder.
"""

from islices.compare.difference import Difference, diff
from islices.compare.step import Step, explain_steps

__all__ = ["Difference", "Step", "diff", "explain_steps"]
