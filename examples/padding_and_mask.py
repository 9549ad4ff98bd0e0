"""Compare torch's padding_idx with Keras's mask_zero, and compute the same gradient with both.

torch omits the padding row from the gradient. Keras only emits a mask: if no layer uses the mask, row 0 gets a gradient
like any other row. `drop_padding` makes Keras's gradient equal to torch's gradient. The lookup of islices has the
options `padding_idx` and `mask`.
"""

import keras
import numpy as np
import tensorflow as tf
import torch

import islices

WORDS, WIDTH = 50, 4
IDS = np.array([[7, 3, 7, 0, 0], [1, 7, 3, 3, 0]])
UPSTREAM = np.random.default_rng(0).integers(-8, 8, (*IDS.shape, WIDTH)).astype(np.float32)


def torch_gradient() -> np.ndarray:
    layer = torch.nn.Embedding(WORDS, WIDTH, padding_idx=0, sparse=True)
    (layer(torch.from_numpy(IDS)) * torch.from_numpy(UPSTREAM)).sum().backward()
    return islices.to_dense(layer.weight.grad).numpy()


def keras_gradient() -> tuple[np.ndarray, np.ndarray]:
    layer = keras.layers.Embedding(WORDS, WIDTH, mask_zero=True)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS) * UPSTREAM)
    gradient = tape.gradient(loss, layer.trainable_variables[0].value)
    return islices.to_dense(gradient).numpy(), islices.to_dense(islices.drop_padding(gradient, 0)).numpy()


def lookup_gradient(**options: object) -> np.ndarray:
    table = islices.Table(torch.zeros(WORDS, WIDTH))

    def loss(table: islices.Table) -> torch.Tensor:
        return (islices.lookup(table, torch.from_numpy(IDS), **options) * torch.from_numpy(UPSTREAM)).sum()

    _, gradient = islices.value_and_grad(loss)(table)
    return islices.to_dense(gradient).numpy()


def main() -> dict[str, bool]:
    expected = torch_gradient()
    raw, dropped = keras_gradient()
    same = {
        "Keras's gradient": np.array_equal(raw, expected),
        "Keras's without its padding row": np.array_equal(dropped, expected),
        "lookup(padding_idx=0)": np.array_equal(lookup_gradient(padding_idx=0), expected),
        "lookup(mask=ids != 0)": np.array_equal(lookup_gradient(mask=IDS != 0), expected),
    }
    for name, equal in same.items():
        print(f"{name:>32}: {'the same bits as' if equal else 'differs from'} torch's padding_idx=0")
    return same


if __name__ == "__main__":
    main()
