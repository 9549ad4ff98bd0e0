"""Replace a method of a single object. Keras calls `compile`, `train_step` and others on the instance, so it calls the
replacement.

May import: the standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def replace(owner: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Replace the method `name` of `owner` with ``around(method, *args, **kwargs)``. Return a function that restores
    the method.

    The object's class does not change, so saving, loading and cloning work as before.
    """
    before = vars(owner).get(name)
    method = getattr(owner, name)

    @wraps(method)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return around(method, *args, **kwargs)

    def undo() -> None:
        if before is None:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, before)

    object.__setattr__(owner, name, replaced)
    return undo
