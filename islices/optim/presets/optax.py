"""The arithmetic of optax, in its own order of operations. SPEC clauses 11 and 16."""

from __future__ import annotations

from collections.abc import Mapping

from islices.optim.formulas import Preset

__all__ = ["PRESETS"]

#: optimizer -> its preset
PRESETS: Mapping[str, Preset] = {}
