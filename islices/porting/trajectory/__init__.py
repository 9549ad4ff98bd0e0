"""Compare two trainings step by step until rounding no longer explains a difference.

positions       the trees of a step, as host arrays
folder          a recording: a folder with a file for each step
recorder        `Recorder`, which writes a recording
tensor_names    pairs the tensors of both sides
distances       computes the distances between two sides
movements       judges the optimizer step, element by element
verdict         judges one step up to the first difference that rounding does not explain
trainings       `parity`, which judges step after step, and `Parity`, its result
explaining      `islices.diff` at the position where the trainings diverge
parity_report   the report and the picture of a `Parity`

May import: this folder.
"""

from islices.porting.trajectory.recorder import Recorder
from islices.porting.trajectory.trainings import Parity, parity

__all__ = ["Parity", "Recorder", "parity"]
