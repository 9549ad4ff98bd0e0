"""Tools for porting a model to another framework. They explain why two gradients or two trainings differ.

May import: `islices.porting`.
"""

from islices.porting.compare import Difference, diff
from islices.porting.trajectory import Parity, Recorder, parity

__all__ = ["Difference", "Parity", "Recorder", "diff", "parity"]
