"""Plot how the time and memory of calls grow with stored rows and with table rows: growth.py FILE.svg (on Linux)."""

import os
import sys
import timeit
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import islices
from islices.conformance.peak_memory import peak_growth


def calls(slices: int, rows: int) -> dict[str, Any]:
    random, adam = np.random.default_rng(0), islices.optim.adam(0.1)
    indices = random.integers(0, rows, slices)
    gradient = islices.IndexedSlices(random.standard_normal((slices, 4), np.float32), indices, (rows, 4))
    table = np.zeros((rows, 4), np.float32)  # with state up to 48 GB; Linux provides only written pages
    state = adam.init(table)
    for array in (table, state["m"], state["v"]):
        array[indices] = 0
    return {
        "coalesce": lambda: islices.coalesce(gradient),
        "clip_by_global_norm": lambda: islices.clip_by_global_norm([gradient], 1.0),
        "adam.step": lambda: adam.step(table, gradient, state, donate=True),
    }


def measure(size: tuple[int, int]) -> dict[str, tuple[float, float]]:
    small, found = calls(100, 100), {}
    for name, call in calls(*size).items():
        small[name]()  # loads the compiled code
        mebibytes = peak_growth(call)[1] / 2**20
        found[name] = 1000 * sorted(timeit.repeat(call, number=1, repeat=5))[2], mebibytes
    return found


def main(file: str, slices: int = 10**7, rows: int = 10**9) -> None:
    os.environ["ISLICES_KERNELS"] = "1"  # kernels on from the first call
    powers = [10**k for k in range(3, 10)]
    by_slices, by_rows = [(n, 10**7) for n in powers if n <= slices], [(10**5, n) for n in powers if 10**5 <= n <= rows]
    _, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained", sharex="col", sharey="row")
    for side, (title, sizes) in enumerate({"stored rows": by_slices, "rows of the table": by_rows}.items()):
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
            results = list(pool.map(measure, sizes))
        for name in results[0]:
            for k, unit in enumerate(("ms", "MiB at the peak")):
                figures = [max(0.1, result[name][k]) for result in results]
                print(f"{name:20} by {title}, {unit}: " + ", ".join(f"{x:.3g}" for x in figures))
                axes[k, side].loglog([size[side] for size in sizes], figures, ".-", label=name)
                axes[k, side].set(ylabel=unit, xlabel=title)
    axes[0, 0].legend()
    plt.savefig(file)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
