"""paddle.optimizer.Adam counts steps from 2 for sparse gradients, so the first step is 0.74 times the right one."""

import paddle

for sparse in (False, True):
    table = paddle.create_parameter([3, 1], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = paddle.optimizer.Adam(0.1, parameters=[table])
    paddle.nn.functional.embedding(paddle.to_tensor([1]), table, sparse=sparse).sum().backward()
    optimizer.step()
    print("sparse" if sparse else "dense", "gradient: moved by", 1.0 - float(table[1, 0]))
print("counted from 2:", 0.1 * (1 - 0.999**2) ** 0.5 / (1 - 0.9**2) * 0.1 / 0.001**0.5)
