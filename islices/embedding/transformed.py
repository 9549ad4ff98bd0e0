"""The function that a transformation of a function returns, in a module of nothing else, since compilers trace into it.

Compilers must do so, since it calls the user's code. May import: the standard library.
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
