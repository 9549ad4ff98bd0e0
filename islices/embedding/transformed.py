"""The function that a transformation of a function returns. Compilers trace into it, so the module has nothing else.

Compilers trace into this function because it calls the user's code. May import: the standard library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def transformed(run: Callable[..., Any], fn: Callable[..., Any], *options: Any) -> Callable[..., Any]:
    """Return ``run(fn, *options, args, kwargs)`` as a function of args and kwargs with fn's name."""

    # __module__ is not copied, so that TensorFlow's autograph treats the function as the library's
    @functools.wraps(fn, assigned=("__name__", "__qualname__", "__doc__"), updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(fn, *options, args, kwargs)

    return call
