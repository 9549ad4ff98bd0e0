"""Probes of torch.compile. The probes cover the first step of Adam, and a lookup of an id out of range."""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from torch.nn.functional import embedding

from islices.conformance.composite_operations import UnsupportedError
from islices.conformance.tools.audit.probe import REFUSED, Probe
from islices.conformance.tools.audit.probes.torch import dense

#: Switch off precompiled headers and the search for vector instructions. Both take time and change no answer.
QUICK: dict[str, Any] = {"cpp.vec_isa_ok": True, "cpp.simdlen": 1, "cpp_cache_precompile_headers": False}
ADAM = "islices.optim.adam(lr): compiled and not, its steps have the same bits"


def inductor(function: Any) -> Any:
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++", "cl"))):
        raise UnsupportedError("torch.compile needs a C++ compiler, and none is installed: apt-get install g++")
    return torch.compile(function, options=QUICK)


def traced(function: Any) -> Any:
    return torch.compile(function, backend="eager")


def stepped(compiled: Any, gradient: list[float], lr: Any, **options: Any) -> Any:
    torch.compiler.reset()
    table = torch.nn.Parameter(torch.zeros(len(gradient)))
    table.grad = torch.tensor(gradient)
    compiled(torch.optim.Adam([table], lr=lr, **options).step)()
    return dense(table)


def many_ids() -> Any:
    torch.set_num_threads(max(2, torch.get_num_threads()))
    ids = torch.zeros(20_000, dtype=torch.int64)
    ids[1] = 4
    return inductor(lambda table, i: embedding(i, table))(torch.ones(4, 2), ids)


# fmt: off
PROBES = [
    Probe("torch.compile(optimizer.step) of Adam, the first step", "17",
          "with its compiler, Inductor: a step of 1 is off by 7e-6, because 1 - beta ** t is formed in float32", ADAM,
          "gradient 1, lr 1, eps 0", lambda: stepped(inductor, [1.0], 1.0, eps=0.0), [-1]),
    Probe("torch.compile(optimizer.step, backend='eager') of Adam, AdamW, Adamax, RAdam, the first step", "17",
          "tracing does it, not the compiler: a step of 1 is off by 7e-6", ADAM,
          "gradient 1, lr 1, eps 0", lambda: stepped(traced, [1.0], 1.0, eps=0.0), [-1]),
    Probe("torch.compile(optimizer.step, backend='eager') of Adam(lr=torch.tensor(0.))", "17",
          "a warmup that starts at 0 makes NaN of every weight whose gradients were zero: 0 / 0", ADAM, "gradients 0 and 1",
          lambda: stepped(traced, [0.0, 1.0], torch.tensor(0.0), foreach=False), [0, 0], issue="pytorch/pytorch#126514"),
    Probe("torch.compile(torch.nn.functional.embedding), ids out of range, many", "2",
          "from 512 numbers a thread on, the error is thrown in a thread of OpenMP, which ends the process", "islices.lookup(table, ids)",
          "20,000 ids, one of them 4", many_ids, REFUSED, "corrupts", "pytorch/pytorch#195402", True),
]
