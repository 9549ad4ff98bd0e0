"""Collect all oracles in one mapping from operations to the functions that compute their expected results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from islices.conformance.oracle import ORACLE
from islices.conformance.oracle_embedding import EMBEDDING
from islices.conformance.oracle_gradients import gradient
from islices.conformance.oracle_optim import optimizer_steps
from islices.conformance.oracle_unitwise import UNITWISE

ORACLES: dict[str, Callable[..., Any]] = {
    **ORACLE, **EMBEDDING, **UNITWISE, "gradient": gradient, "optimizer_steps": optimizer_steps
}  # fmt: skip
