"""Test that a small call makes few function calls inside islices, because function calls are most of its cost."""

from __future__ import annotations

import pytest

from islices.conformance.tools.bench.calls import CALLS, functions_of

MOST = {
    "numpy": {"coalesce": 18, "clip_by_global_norm": 49, "adam.step": 75},
    "torch": {"coalesce": 20, "clip_grad_norm_": 68, "Adam.step": 98},
}


@pytest.mark.parametrize("framework", MOST)
def test_small_calls_go_through_few_functions(framework: str) -> None:
    pytest.importorskip(framework)
    counts = {name: functions_of(call) for name, call in CALLS[framework]().items()}
    assert counts.keys() == MOST[framework].keys()
    for name, functions in counts.items():
        assert 0 < len(functions) <= MOST[framework][name], "\n".join([name, *functions])
