"""Compare two trainings step by step until rounding no longer explains a difference.

descriptions    describes optimizers as JSON values
positions       defines `Step`: the trees of a step, as host arrays
folder          writes and reads a recording: a folder with one file per recorded step
recorder        defines `Recorder`, which writes a recording
tensor_names    pairs the tensors of both sides
distances       computes the distances between both sides
movements       judges the tables and states after the optimizer step, element by element
verdict         judges one step up to the first difference that rounding does not explain
trainings       defines `parity`, which judges step after step, and `Parity`, its result
explaining      explains the difference at the position where the trainings diverge
parity_report   writes the report and draws the picture of a `Parity`

May import: this folder.
"""

from islices.porting.trajectory.recorder import Recorder
from islices.porting.trajectory.trainings import Parity, parity

__all__ = ["Parity", "Recorder", "parity"]
