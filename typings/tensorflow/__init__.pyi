"""Declare all of TensorFlow as Any, because it has no annotations, and inferred types are wrong in places."""

from typing import Any

def __getattr__(name: str) -> Any: ...
