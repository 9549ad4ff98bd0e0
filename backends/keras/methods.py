"""Replace a method of a single object. Keras calls `compile`, `train_step` and others on the instance, so Keras calls
the replacement.

May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def around(owner: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for the owner's method `name`. The replacement returns ``call(method, *args, **kwargs)``.

    If the caller sets the replacement on the object, the object's class does not change, so saving, loading and cloning
    work as before.
    """
    method = getattr(owner, name)

    @wraps(method)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return call(method, *args, **kwargs)

    return replacement
