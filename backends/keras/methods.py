"""Replace a method of a single object. Keras calls `compile`, `train_step` and others on the instance, so it calls the
replacement.

May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def around(owner: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for the place of the owner's method, which returns ``call(method, *args, **kwargs)``.

    If only the object gets the function, its class does not change, so saving, loading and cloning work as before.
    """
    method = getattr(owner, name)

    @wraps(method)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return call(method, *args, **kwargs)

    return replacement
