"""Make the function that a transformation such as `value_and_grad` returns.

torch's Dynamo must trace this function, because it calls the user's code. Dynamo skips most other modules of islices.
Dynamo chooses by module, so this module contains nothing else. May import: the standard library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def transformed(run: Callable[..., Any], fn: Callable[..., Any], *options: Any) -> Callable[..., Any]:
    """Return a function with the name of `fn` that returns ``run(fn, *options, args, kwargs)`` for its arguments."""

    # __module__ is not copied, so that TensorFlow's autograph treats the function as the library's
    @functools.wraps(fn, assigned=("__name__", "__qualname__", "__doc__"), updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(fn, *options, args, kwargs)

    return call
