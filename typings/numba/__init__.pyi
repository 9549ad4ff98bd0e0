"""Numba: what is inferred of its code, or said of compiled functions, is wrong in places, so all of it is Any."""

from typing import Any

def __getattr__(name: str) -> Any: ...
