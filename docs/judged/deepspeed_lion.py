"""DeepSpeedCPULion takes the sign of 0 for 1: weights whose gradient is 0 move by the whole rate."""

import torch
from deepspeed.ops.lion import DeepSpeedCPULion

w = torch.nn.Parameter(torch.ones(4))
optimizer = DeepSpeedCPULion([w], lr=0.1)
w.grad = torch.tensor([1.0, -1.0, 0.0, -0.0])
optimizer.step()
print(w.tolist(), "Lion: [0.9, 1.1, 1.0, 1.0]")
