"""mlx: x.at[7].add on three rows writes out of range, unchecked as its pages say."""

import mlx.core as mx

for rows in (7, 10**9):
    y = mx.zeros((3,)).at[mx.array([rows])].add(mx.array([1.0]))
    mx.eval(y)
    print(rows, y, flush=True)
