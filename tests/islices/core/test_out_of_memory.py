"""Test that `to_dense` raises MemoryError in the modes host and framework if there is too little memory."""

from __future__ import annotations

import os

import pytest
from suite_runs import run_code

import islices

resource = pytest.importorskip("resource", reason="this system sets no limits")

PROGRAM = """
import os, resource, sys
import numpy as np, islices

B = islices.get_backend(sys.argv[1])
values, ids = B.asarray(np.ones((2, 64), np.float32)), B.asarray(np.array([1, 3], np.int32))
s = islices.IndexedSlices(values, ids, (10_000_000, 64))
small = islices.IndexedSlices(values, ids, (10, 64))
for mode in ("host", "framework"):
    with islices.config.execution(mode):
        islices.to_dense(small)  # what loads, loads
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
for mode in ("host", "framework"):
    with islices.config.execution(mode):
        try:
            islices.to_dense(s)
        except MemoryError:
            print(mode, "MemoryError", flush=True)
os._exit(0)
"""


@pytest.mark.outside
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not say what a process uses")
@pytest.mark.parametrize("name", [name for name in ("torch", "tensorflow", "jax") if name in islices.list_backends()])
def test_every_mode_raises_memory_error(name: str) -> None:
    assert run_code(PROGRAM, name) == "host MemoryError\nframework MemoryError\n"
