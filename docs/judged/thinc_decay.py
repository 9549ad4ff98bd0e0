"""Thinc decays after the update (bitsandbytes#2010's bug): the step itself is decayed as well."""

import numpy as np
from thinc.api import Optimizer

optimizer = Optimizer(0.1, L2=0.5, grad_clip=0.0, use_averages=False)
w, _ = optimizer((0, "w"), np.ones(1, np.float32), np.ones(1, np.float32))
print(w, "AdamW: 1 - 0.1 * 0.5 - 0.1 =", 0.85, "decayed after: (1 - 0.1) * 0.95 =", 0.855)
