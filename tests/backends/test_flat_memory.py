"""Test that memory stays flat over thousands of training steps, eager or compiled, on torch, TensorFlow and JAX."""

from __future__ import annotations

import json
import sys

import pytest
from suite_runs import run_code

import islices

pytestmark = pytest.mark.soak

STEPS = 2_000
#: Bytes that a step may leave behind on average. Python's smallest object needs 16 bytes, an array's header over 100.
LEFT = 256

#: Code that takes steps with every training method, and prints the resident bytes before the first step and after each
#: third of the steps.
RUN = """
import gc, importlib, json, sys
import numpy as np
from islices.conformance.tools.bench.step import Training, Model, Problem, our_variants

name, steps = sys.argv[1], int(sys.argv[2])
block = importlib.import_module(f"islices.conformance.own_calls.{name}").block
case = Training(Model((1_000,), 8, 64, 4), "adam", True)
problem = Problem(case, np.int32 if name == "jax" else np.int64)


def resident():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


found = {}
for label, ready in our_variants(name, problem).items():
    way, seen = ready(), []
    for k in range(3 * steps + 1):
        if k % steps == 0:
            seen.append(resident())
        block((way.step(), way.tables()))
    found[label] = seen
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_steps_leave_nothing_behind(backend: str) -> None:
    if backend not in islices.list_backends():
        pytest.skip(f"{backend} is not installed")
    found = json.loads(run_code(RUN, backend, STEPS, timeout=600).splitlines()[-1])
    assert "islices" in found
    for variant, (_, second, third, fourth) in found.items():  # the first steps compile and fill the allocators' pools
        assert min(third - second, fourth - third) <= LEFT * STEPS, (variant, second, third, fourth)
