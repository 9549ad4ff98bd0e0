"""Facebook's DLRM trained by islices' optimizers: https://github.com/facebookresearch/dlrm, your own copy, unchanged.

    python examples/dlrm.py dlrm --mini-batch-size=1024 --optimizer=rwsadagrad ...

runs dlrm/dlrm_s_pytorch.py with the arguments behind its folder, which are its own, and with islices in the place of
its sgd, adagrad and rwsadagrad. `--optimizer=adam`, which it lacks, is taken too. `--by=torch` leaves it as it is;
`--rounds=5` runs both that often, in turn, and prints the medians.
"""

import re
import runpy
import subprocess
import sys
from statistics import median

import torch

from islices.backends.torch import optim


def by_kind(sparse: type, dense: type, **numbers: float) -> type:
    """One optimizer of two: tables have sparse gradients, the rest has dense ones."""

    class ByKind(torch.optim.Optimizer):
        def __init__(self, params: object, lr: float) -> None:
            super().__init__(params, {"lr": lr})
            self.parts: list[torch.optim.Optimizer] = []

        def step(self, closure: None = None) -> None:
            (group,) = self.param_groups
            if not self.parts:  # by now each has its first gradient
                of = {kind: [p for p in group["params"] if p.grad.is_sparse == kind] for kind in (True, False)}
                self.parts = [sparse(of[True], lr=group["lr"], **numbers), dense(of[False], lr=group["lr"])]
            for part in self.parts:
                part.param_groups[0]["lr"] = group["lr"]  # the program's schedule changes it
                part.step()

    return ByKind


def run(folder: str, by: str, arguments: list[str]) -> None:
    sys.path.insert(0, folder)
    if by == "islices":
        rowwise = __import__("optim.rwsadagrad").rwsadagrad  # the program's own module
        rowwise.RWSAdagrad = by_kind(optim.RowwiseAdagrad, optim.Adagrad, eps=1e-10)
        torch.optim.SGD, torch.optim.Adagrad = optim.SGD, optim.Adagrad
    if "--optimizer=adam" in arguments:
        arguments = [x.replace("=adam", "=sgd") for x in arguments]
        torch.optim.SGD = optim.Adam if by == "islices" else by_kind(torch.optim.SparseAdam, torch.optim.Adam)
    sys.argv = [f"{folder}/dlrm_s_pytorch.py", *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def main(folder: str, *arguments: str) -> dict[str, tuple[float, float]]:
    ...
