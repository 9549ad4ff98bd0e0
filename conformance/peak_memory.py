"""Measure the peak memory of a call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from islices.conformance.composite_operations import UnsupportedError


def peak_growth(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return (result of a call, growth of the process's peak resident memory in bytes during the call). Raise
    UnsupportedError where the system cannot measure peak memory."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")  # reset the high-water mark to the present memory use
    except OSError as error:
        raise UnsupportedError("no measure of peak memory on this platform") from error
    before = high_water()
    result = call()
    return result, high_water() - before


def high_water() -> int:
    status = Path("/proc/self/status").read_text("ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024
