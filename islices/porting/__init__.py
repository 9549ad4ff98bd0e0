"""Compare two gradients, two tables or two trainings, and explain why they differ. These tools help users to port a
model to another framework.

May import: `islices.porting`.
"""

from islices.porting.compare import Difference, diff
from islices.porting.trajectory import Parity, Recorder, parity

__all__ = ["Difference", "Parity", "Recorder", "diff", "parity"]
