"""Local work on every rank whose failure is reported to all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from islices.distributed.agree import Agreement, agree
from islices.distributed.group import Group
from islices.distributed.routes import Host

__all__ = ["together"]

T = TypeVar("T")


def together(
    group: Group,
    call: str,
    work: Callable[[], T],
    said: Callable[[T], dict[str, Any]],
    counts: Callable[[T], Host] | None = None,
    *,
    optional: bool = False,
    error: Exception | None = None,
) -> tuple[T, Agreement]:
    """(work(), what the ranks told one another), once every rank's work is done; or every rank raises.

    said and counts, what must be the same on every rank and what each tells all others, are functions of work's
    result; error is why this rank cannot even begin.
    """
    try:
        if error is not None:
            raise error
        done = work()
        words = said(done)
        numbers = [] if counts is None else counts(done).tolist()
    except Exception as raised:
        agree(group, call, {}, error=raised)
        raise  # agree has
    return done, agree(group, call, words, numbers, optional=optional)
