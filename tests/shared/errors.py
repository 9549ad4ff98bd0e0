"""Make tests of calls that raise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

__all__ = ["each_raises"]


def each_raises(
    cases: Sequence[tuple[Callable[..., Any], type[Exception], str]], *arguments: Any
) -> Callable[..., None]:
    """Return a test with one case per call. With the given arguments, the call must raise the given error with a
    matching message."""

    @pytest.mark.parametrize(("call", "error", "message"), cases, ids=[message for *_, message in cases])
    def test(call: Callable[..., Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            call(*arguments)

    return test
