"""Paddle's SGD divides by zero and ends the process if a sparse embedding got no ids."""

import paddle

table = paddle.create_parameter([3, 2], "float32")
optimizer = paddle.optimizer.SGD(0.1, parameters=[table])
paddle.nn.functional.embedding(paddle.zeros([0], "int64"), table, sparse=True).sum().backward()
optimizer.step()
print("went well")
