"""Declare all of Numba as Any, because inferred types, and its types of compiled functions, are wrong in places."""

from typing import Any

def __getattr__(name: str) -> Any: ...
