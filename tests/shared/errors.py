"""Make tests of calls that raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

__all__ = ["each_raises"]


def each_raises(
    cases: Sequence[tuple[Callable[..., Any], type[Exception], str]], *arguments: Any
) -> Callable[..., None]:
    """Return a test with a case for each call. With the arguments, the call must raise the given error, and its message
    must match."""

    @pytest.mark.parametrize(("call", "error", "message"), cases, ids=[message for *_, message in cases])
    def test(call: Callable[..., Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            call(*arguments)

    return test
