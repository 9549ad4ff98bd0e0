"""Count the function calls inside islices during a small call: ``python -m islices.conformance.tools.bench.calls``.

The gradient has 64 slices of 16 numbers. Each call runs twice: first to load and compile code, then with
sys.setprofile, which also sees compiled kernels. The program prints one number per call. For each call that an argument
names, the program also prints the tree of functions. Function calls are most of the cost of a small call, so a test
limits their number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import islices
from islices import IndexedSlices, optim

SLICES, WIDTH, ROWS = 64, 16, 1000
#: The folder of islices' files, including the templates of kernels.
FOLDER = islices.__file__.removesuffix("__init__.py")


def functions_of(call: Callable[[], Any]) -> list[str]:
    """Return the names of the islices functions that a call runs, in order. The indentation of a name shows the
    depth."""
    call()
    depth, found = 0, []

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal depth
        path = frame.f_code.co_filename
        if not path.startswith(FOLDER) or path == __file__:
            return
        if event == "call":
            found.append("  " * depth + f"{path.removeprefix(FOLDER)}: {frame.f_code.co_qualname}")
            depth += 1
        elif event == "return":
            depth -= 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def _numpy_calls() -> dict[str, Callable[[], Any]]:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((SLICES, WIDTH)).astype(np.float32)
    g = IndexedSlices(values, rng.integers(0, ROWS, SLICES), (ROWS, WIDTH))
    table, adam = rng.standard_normal((ROWS, WIDTH)).astype(np.float32), optim.adam(0.1)
    state = adam.init(table)
    return {
        "coalesce": lambda: islices.coalesce(g),
        "clip_by_global_norm": lambda: islices.clip_by_global_norm([g], 1.0),
        "adam.step": lambda: adam.step(table, g, state),
    }


def _torch_calls() -> dict[str, Callable[[], Any]]:
    import torch

    from islices.backends.torch import clip_grad_norm_
    from islices.backends.torch.optim import Adam

    layer = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
    layer(torch.from_numpy(np.random.default_rng(0).integers(0, ROWS, SLICES))).sum().backward()
    adam = Adam(layer.parameters(), lr=0.2)

    def clip() -> None:
        assert layer.weight.grad is not None
        layer.weight.grad._values().fill_(1.0)
        clip_grad_norm_(layer.parameters(), 1.0)

    return {"coalesce": lambda: islices.coalesce(layer.weight.grad), "clip_grad_norm_": clip, "Adam.step": adam.step}


#: framework -> a function that returns {name: call to count}
CALLS: dict[str, Callable[[], dict[str, Callable[[], Any]]]] = {"numpy": _numpy_calls, "torch": _torch_calls}


def main(shown: list[str]) -> None:
    for framework, make in CALLS.items():
        for name, call in make().items():
            functions = functions_of(call)
            print(f"{framework:8}{name:24}{len(functions):4}")
            if name in shown:
                print("\n".join(functions))


if __name__ == "__main__":
    main(sys.argv[1:])
