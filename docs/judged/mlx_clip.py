"""mlx.optimizers.clip_grad_norm: where the sum of squares overflows float32 the clipped gradients are zeros."""

import mlx.core as mx
import mlx.optimizers

clipped, norm = mlx.optimizers.clip_grad_norm({"w": mx.array([3e19, 4e19])}, 1.0)
print(clipped["w"], norm, "[0.6, 0.8] and 5e19 is meant")
