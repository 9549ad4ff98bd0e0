"""Thinc's RAdam counts its bias correction from 2: the first step, by m / (1 - beta1^2) and not g, is half as long."""

import numpy as np
from thinc.api import Optimizer

optimizer = Optimizer(0.1, L2=0.0, grad_clip=0.0, use_radam=True, use_averages=False)
w, _ = optimizer((0, "w"), np.zeros(1, np.float32), np.ones(1, np.float32))
print("first step:", w, "RAdam's: [-0.1]")
