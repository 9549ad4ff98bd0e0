"""Compare gradients and tables, and explain their differences.

What a `Difference` holds stands in `islices.porting.compare.measure` (TensorDifference) and
`islices.porting.compare.explanation`. May import: this folder.
"""

from islices.porting.compare.difference import Difference, diff
from islices.porting.compare.step import Step, explain_steps

__all__ = ["Difference", "Step", "diff", "explain_steps"]
