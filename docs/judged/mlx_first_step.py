"""Bias correction in float32: 1 - 0.999 keeps four digits there, and Adam's first step is off by 7e-6 of itself."""

import mlx.core as mx
import mlx.optimizers

optimizer = mlx.optimizers.Adam(1.0, eps=0.0, bias_correction=True)
w = optimizer.apply_gradients({"w": mx.array([1.0])}, {"w": mx.array([0.0])})["w"]
print(f"a step of 1 is off by {abs(w.item() + 1):.1e}")
