"""Compare Keras's optimizers with those of islices: python examples/keras_fit.py 2000000 16 tensorflow torch jax

The script prints the time per step, the memory that fit adds at its peak, and the largest gap between the tables."""

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

BATCH, IDS, STEPS = 256, 20, 8


def megabytes(name: str) -> float:
    return int(Path("/proc/self/status").read_text("utf-8").partition(name)[2].split()[0]) / 1e3


def compare(rows: int, width: int) -> None:
    import keras

    from islices import optim
    from islices.backends import keras as front

    rng = np.random.default_rng(0)
    ids = rng.integers(0, rows, (STEPS * BATCH, IDS), np.int32)
    labels = rng.standard_normal((STEPS * BATCH, 1), np.float32)
    for name, rate in (("SGD", 0.1), ("Adagrad", 0.01), ("Adam", 0.001)):
        start, ends = rng.standard_normal((rows, width), np.float32), []
        stock = getattr(keras.optimizers, name)(rate)
        rule = getattr(optim, name.lower())(rate, semantics="islices" if name == "Adam" else "keras")
        both = stock, front.Stepped(rule)
        for optimizer in both if rows * width < 10**8 else both[1:]:  # vast tables: only islices
            layers = [keras.layers.Embedding(rows, width), keras.layers.GlobalAveragePooling1D()]
            model = keras.Sequential([*layers, keras.layers.Dense(1, "tanh")])
            if optimizer is not stock:
                front.row_sparse(model)
            model(ids[:1])
            model.set_weights([start, np.full((width, 1), 0.5, np.float32), np.zeros(1, np.float32)])
            model.compile(optimizer, loss="mse")
            for _ in range(2):  # the first epoch compiles
                getattr(model, "zero_grad", gc.collect)()  # torch would keep the last gradients
                before = megabytes("VmRSS:")
                Path("/proc/self/clear_refs").write_text("5")  # reset the peak
                began = time.perf_counter()
                model.fit(ids, labels, batch_size=BATCH, shuffle=False, verbose=0)
                ms, memory = (time.perf_counter() - began) / STEPS * 1e3, megabytes("VmHWM:") - before
            ends.append(model.get_weights()[0])
            gap, who = np.abs(ends[0] - ends[-1]).max(), type(optimizer).__module__.partition(".")[0]
            print(f"{keras.config.backend()}  {name}  {who}  {ms:.1f} ms  {memory:.0f} MB  {gap:.1e}", flush=True)
            del model


if __name__ == "__main__":
    if len(sys.argv) == 3:
        compare(int(sys.argv[1]), int(sys.argv[2]))
    for name in sys.argv[3:]:
        subprocess.run([sys.executable, *sys.argv[:3]], env={**os.environ, "KERAS_BACKEND": name}, check=True)
