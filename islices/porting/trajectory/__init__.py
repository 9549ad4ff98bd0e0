"""The comparison of two trainings step by step, as long as rounding explains their distance.

positions       the trees of a step, as host arrays
folder          a recording: a folder with a file for each step
recorder        `Recorder`, which writes a recording
tensor_names    pairs of the two sides' tensors
distances       the distance of two sides
movements       the step itself, element by element
verdict         one step: the first position that rounding does not explain
trainings       `parity`: step after step until there is one; `Parity`, its result
explaining      `islices.diff` at the position where they part
parity_report   its report and its picture

May import: this folder.
"""

from islices.porting.trajectory.recorder import Recorder
from islices.porting.trajectory.trainings import Parity, parity

__all__ = ["Parity", "Recorder", "parity"]
