"""Continue the training of a Keras model in PyTorch on the same trajectory.

Keras's Adam updates every row, adds epsilon in a different place than torch, and corrects the bias in float32. With
semantics="keras" and rows="all", islices does the same on any framework. The program takes ten steps of
keras.optimizers.Adam, then ten steps of islices on torch from Keras's weights and state. The result is compared with
twenty steps of Keras. torch's Adam diverges from the same state, because the gradients are small.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf
import torch

import islices

ROWS, WIDTH = 50, 4
RNG = np.random.default_rng(0)
START = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
BATCHES = [(RNG.integers(0, ROWS, 16), RNG.normal(0, 1e-6, (16, WIDTH)).astype(np.float32)) for _ in range(20)]


def slices(name: str, ids: np.ndarray, values: np.ndarray) -> islices.IndexedSlices:
    return islices.convert(islices.IndexedSlices(values, ids, (ROWS, WIDTH)), name)


def by_keras(steps: int) -> tuple[keras.Variable, keras.optimizers.Optimizer]:
    table, optimizer = keras.Variable(START), keras.optimizers.Adam(0.01)
    for ids, values in BATCHES[:steps]:
        summed = islices.coalesce(islices.to_native(slices("tensorflow", ids, values)))
        optimizer.apply([tf.convert_to_tensor(summed)], [table])
    return table, optimizer


def main() -> dict[str, float]:
    there, adam = by_keras(10)
    state = {"step": np.array([10], np.int32), "m": np.array(adam._momentums[0]), "v": np.array(adam._velocities[0])}
    table, state = islices.convert((np.array(there), state), "torch")
    ours = islices.optim.adam(0.01, rows="all", semantics="keras")
    other = torch.nn.Parameter(table.clone())
    theirs = torch.optim.Adam([other], lr=0.01)
    theirs.state[other] = {"step": torch.tensor(10.0), "exp_avg": state["m"].clone(), "exp_avg_sq": state["v"].clone()}
    for batch in BATCHES[10:]:
        gradient = slices("torch", *batch)
        table, state = ours.step(table, gradient, state)
        other.grad = islices.to_dense(gradient)
        theirs.step()
    end = np.array(by_keras(20)[0])
    gaps = {"islices": float(np.abs(table.numpy() - end).max()), "torch": float(np.abs(other.detach() - end).max())}
    print(
        f"largest gap to Keras after 10 more steps: islices {gaps['islices']:.2g}, torch.optim.Adam {gaps['torch']:.2g}"
    )
    return gaps


if __name__ == "__main__":
    main()
