"""mlx.core.take does not check indices, as its pages say: rows out of range are what lies in memory there."""

import mlx.core as mx

x = mx.array([1.0, 2.0, 3.0])
found = {i: mx.take(x, mx.array([i])).item() for i in range(-64, 64) if not -3 <= i < 3}
print("numbers other than 0, from outside of x:", sum(value != 0 for value in found.values()), "of", len(found))
