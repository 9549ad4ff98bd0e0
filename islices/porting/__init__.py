"""Functions for porting a model: they explain why two gradients, two steps or two trainings differ.

May import: `islices.porting`.
"""

from islices.porting.compare import Difference, Step, diff, explain_steps
from islices.porting.trajectory import Parity, Recorder, parity

__all__ = ["Difference", "Parity", "Recorder", "Step", "diff", "explain_steps", "parity"]
