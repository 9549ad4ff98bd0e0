"""Two trainings compared step by step, as long as rounding explains how far they are apart.

steps     what a step is made of, position by position, read into host arrays
folder    a recording: a folder with a file for each step
recorder  `Recorder`, which writes one
pairing   which tensor of the one side answers which of the other
drift     how far two sides are apart, and how far they may be
replay    an optimizer's formula on what the other side had
judge     one step: the first position that rounding does not explain
run       `parity`: step after step until there is one; `Parity`, what came of it
show      its report and JSON; picture: its curves

May import: this folder.
"""

from islices.porting.trajectory.recorder import Recorder
from islices.porting.trajectory.trainings import Parity, parity

__all__ = ["Parity", "Recorder", "parity"]
