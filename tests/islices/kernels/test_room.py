"""Test that a step raises and changes nothing if there is too little memory to compile its kernel. If the kernel were
compiled anyway, LLVM would end the process."""

from __future__ import annotations

import sys

import pytest
from suite_runs import run_code

pytest.importorskip("numba")

PROGRAM = """
import resource
import numpy as np, islices

def step(rule, dtype):
    weights = np.ones((4, 2), dtype)
    try:
        optimizer, table = rule(0.1), islices.Table(weights)
        grad = islices.IndexedSlices(np.ones((1, 2), dtype), np.array([1]), (4, 2))
        optimizer.step(table, grad, optimizer.init(table))
    finally:
        print(bool((weights == 1).all()), end=" ")

step(islices.optim.adam, np.float32)
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
try:
    step(islices.optim.adagrad, np.float64)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
step(islices.optim.adagrad, np.float64)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited, and /proc read")
def test_a_step_without_memory_for_its_kernel_is_a_memory_error() -> None:
    printed = run_code(PROGRAM)
    statement = "64 MiB for a compiled kernel are not free; accepted is islices.config.use_kernels(False)"
    assert printed.split(" ", 2)[:2] == ["False", "True"], printed
    assert statement in printed
    assert printed.endswith("\nFalse "), "the same step, once there is memory"
