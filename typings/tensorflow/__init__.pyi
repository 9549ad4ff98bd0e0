"""TensorFlow has no annotations: what is inferred of its code is wrong in places, so all of it is Any."""

from typing import Any

def __getattr__(name: str) -> Any: ...
