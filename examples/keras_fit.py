"""model.fit of Keras on each of its backends: stock Keras, and by rows. Time a step, memory, distance of the weights.

    python examples/keras_fit.py 2000000 16 tensorflow torch jax

Memory is what fit takes at its peak beside the model and the optimizer's state. Lazy Adam is not Keras' Adam.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

BATCH, IDS, STEPS = 256, 20, 8


def megabytes(name: str) -> float:
    return int(Path("/proc/self/status").read_text().partition(name)[2].split()[0]) / 1e3


def compare(rows: int, width: int) -> None:
    import keras

    from islices import optim
    from islices.backends import keras as front

    rng = np.random.default_rng(0)
    ids = rng.integers(0, rows, (STEPS * BATCH, IDS)).astype(np.int32)
    labels = rng.standard_normal((STEPS * BATCH, 1)).astype(np.float32)
    for name, rate in (("SGD", 0.1), ("Adagrad", 0.01), ("Adam", 0.001)):
        start, ends = rng.standard_normal((rows, width), np.float32) / width, []
        stock = (keras.layers.Embedding, keras.Sequential, getattr(keras.optimizers, name)(rate))
        rule = getattr(optim, name.lower())(rate, semantics="islices" if name == "Adam" else "keras")
        ours = (front.Embedding, front.Sequential, front.Stepped(rule))
        for layer, kind, optimizer in (stock, ours) if rows * width < 10**8 else (ours,):
            model = kind([layer(rows, width), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1, "tanh")])
            model(ids[:1])
            model.set_weights([start, np.full((width, 1), 0.5, np.float32), np.zeros(1, np.float32)])
            model.compile(optimizer, loss="mse")
            model.optimizer.build(model.trainable_variables)
            before, marks = megabytes("VmRSS:"), [0.0]

            def begin(epoch: int, logs: object = None, marks: list[float] = marks) -> None:
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew; the first epoch compiles
                marks[0] = time.perf_counter()

            watch = keras.callbacks.LambdaCallback(on_epoch_begin=begin)
            model.fit(ids, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, callbacks=[watch])
            ms, memory = (time.perf_counter() - marks[0]) / STEPS * 1e3, megabytes("VmHWM:") - before
            ends.append(model.get_weights()[0])
            gap = f"{np.abs(ends[0] - ends[1]).max():.1e}" if len(ends) == 2 else ""
            who = type(optimizer).__module__.split(".")[0]
            print(keras.config.backend(), name, who, f"{ms:.1f} ms", f"{memory:.0f} MB", gap, sep="  ", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        compare(int(sys.argv[1]), int(sys.argv[2]))
    for backend in sys.argv[3:]:
        subprocess.run([sys.executable, *sys.argv[:3]], env={**os.environ, "KERAS_BACKEND": backend}, check=True)
