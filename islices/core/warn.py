"""Warnings that show a caller's line. May import: the standard library."""

from __future__ import annotations

import sys
import warnings

#: Modules whose frames are skipped: contextlib enters contexts of islices, and frameworks call optimizer steps.
OURS = ("islices", "contextlib", "jax", "keras", "optax", "tensorflow", "torch")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that shows the nearest calling line outside of the modules in `OURS`."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
