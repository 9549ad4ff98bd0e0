"""Train Facebook's DLRM (an unchanged copy of https://github.com/facebookresearch/dlrm) with optimizers of islices.

    python examples/dlrm.py dlrm --mini-batch-size=1024 --optimizer=rwsadagrad ...

The command passes the arguments after the folder to dlrm/dlrm_s_pytorch.py. Optimizers of islices replace the program's
sgd, adagrad and rwsadagrad, and `--optimizer=adam` is a new choice. With `--by=torch`, the program keeps its
optimizers; adam then uses torch's SparseAdam for tables, and torch's Adam for other parameters.
"""

import importlib
import runpy
import sys
from typing import Any

import torch

from islices.backends.torch import optim


def by_kind(sparse: type, dense: type, **numbers: float) -> type:
    """Return a class that combines two optimizers: `sparse` for tables with sparse gradients, `dense` for other
    parameters."""

    class ByKind(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})
            self.parts: list[Any] = []

        def step(self, closure: None = None) -> None:
            (group,) = self.param_groups
            if not self.parts:  # now each parameter has its first gradient
                of = {kind: [p for p in group["params"] if p.grad.is_sparse is kind] for kind in (True, False)}
                self.parts = [sparse(of[True], lr=group["lr"], **numbers), dense(of[False], lr=group["lr"])]
            for part in self.parts:
                part.param_groups[0]["lr"] = group["lr"]  # the program's schedule changes the rate of the group
                part.step()

    return ByKind


def main(folder: str, *arguments: str) -> None:
    by_torch, program = "--by=torch" in arguments, f"{folder}/dlrm_s_pytorch.py"
    sys.path.insert(0, folder)
    if not by_torch:
        rowwise: Any = importlib.import_module("optim.rwsadagrad")  # a module of the DLRM program
        rowwise.RWSAdagrad = by_kind(optim.RowwiseAdagrad, optim.Adagrad, eps=1e-10)
        torch.optim.SGD, torch.optim.Adagrad = optim.SGD, optim.Adagrad  # type: ignore[misc]
    if "--optimizer=adam" in arguments:  # adam replaces the program's sgd
        adam = by_kind(torch.optim.SparseAdam, torch.optim.Adam) if by_torch else optim.Adam
        torch.optim.SGD = adam  # type: ignore[misc]
    sys.argv = [program, *(x.replace("=adam", "=sgd") for x in arguments if not x.startswith("--by="))]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
