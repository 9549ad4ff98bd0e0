"""Declare all of Keras as Any, because types that checkers infer from its code are wrong in places."""

from typing import Any

def __getattr__(name: str) -> Any: ...
