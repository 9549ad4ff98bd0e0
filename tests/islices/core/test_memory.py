"""Test that an allocation may be interrupted, and that later allocations work and free their memory for reuse."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from islices.core import host_memory as memory

SHAPE = (1 << 18, 2)


@pytest.mark.parametrize("at", range(1, 9))
def test_an_interrupt_amid_an_allocation(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt an allocation at each of its lines, as Ctrl-C does. Destructors raise no errors, and the next
    allocation works."""
    monkeypatch.setattr(memory, "_free", {})
    noise: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        inside = frame.f_code.co_name in ("array", "__init__") and frame.f_code.co_filename == memory.__file__
        if inside and event in ("call", "line"):
            lines += 1
            if lines == at:
                raise KeyboardInterrupt
        return trace if inside else None

    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            memory.empty(SHAPE, np.float32)
    finally:
        sys.settrace(None)
    gc.collect()
    assert noise == []
    assert sum(raw.nbytes for raw in memory._free.values()) <= memory.KEPT
    made = memory.empty(SHAPE, np.float32)
    made[...] = 1
    assert made.__array_interface__["data"][0] % memory.ALIGNMENT == 0
    del made
    assert len(memory._free) == 1, "the memory is free for the next"
