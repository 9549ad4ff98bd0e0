"""The function that a transformation of a function returns: alone in a module, since compilers look into it.

They have to, for it calls the user's own code. May import: the standard library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def transformed(run: Callable[..., Any], fn: Callable[..., Any], *options: Any) -> Callable[..., Any]:
    """``run(fn, *options, args, kwargs)`` as a function of args and kwargs that goes by fn's name."""

    # it keeps its own module, so that TensorFlow's autograph takes it for the library's
    @functools.wraps(fn, assigned=("__name__", "__qualname__", "__doc__"), updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(fn, *options, args, kwargs)

    return call
