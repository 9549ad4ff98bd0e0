"""Measure how much other processes use the cores, because this load makes times unreliable."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

#: The number of cores in use by other processes above which a measurement counts as disturbed.
BUSY = 0.25


class Others:
    """A meter of the load that other processes cause."""

    def __init__(self) -> None:
        self._before = _now()

    def cores(self) -> float | None:
        """Return the mean number of cores that other processes have used since the last call, or since the object was
        made. Return None if the system does not report the load."""
        now, before = _now(), self._before
        self._before = now
        if now is None or before is None or now[0] <= before[0]:
            return None
        wall, busy, own = (b - a for a, b in zip(before, now, strict=True))
        return max(0.0, (busy - own) / wall)


def is_disturbed(record: dict[str, Any]) -> bool:
    """Return True if other processes used more than BUSY cores during the measurement of a record."""
    return (record.get("others") or 0) > BUSY


def _now() -> tuple[float, float, float] | None:
    """Return (clock, busy time of all cores, processor time of this process and its children) in seconds. Return None
    if the system does not report these times."""
    try:
        line = Path("/proc/stat").read_text("ascii").partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = (int(x) for x in line.split()[1:9])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    times = os.times()
    return time.perf_counter(), busy, times.user + times.system + times.children_user + times.children_system
