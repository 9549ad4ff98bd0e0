"""paddle.optimizer.Adam adds epsilon to the bias-corrected root; its documentation shows the uncorrected root."""

import paddle

w = paddle.create_parameter([1], "float32", default_initializer=paddle.nn.initializer.Constant(0.0))
optimizer = paddle.optimizer.Adam(1.0, epsilon=1.0, parameters=[w])
w.grad = paddle.ones([1])
optimizer.step()
rate, m, root = 0.001**0.5 / 0.1, 0.1, 0.001**0.5
print("moved by", w.item(), "the page:", -rate * m / (root + 1), "corrected:", -1 / (1 + 1))
