"""Make a replacement for a method of a single object. Keras looks up methods such as `compile` and `train_step` on
the instance, so Keras calls the replacement.

May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def around(owner: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement for the method `name` of `owner`. The replacement returns ``call(method, *args, **kwargs)``.

    If the caller sets the replacement as an attribute of `owner`, the class of `owner` does not change. So saving,
    loading and cloning work as before.
    """
    method = getattr(owner, name)

    @wraps(method)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return call(method, *args, **kwargs)

    return replacement
