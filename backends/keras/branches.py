"""Steps that may not be taken, in compiled code: a flag beside the step, where a branch of XLA would copy the table.

May import: the standard library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

__all__ = ["note_kept", "taken", "taking"]

#: True, or a traced flag.
_taken: ContextVar[Any] = ContextVar("taken", default=True)
#: The ids of variables that a step which is not taken leaves as they are.
_kept: ContextVar[set[int] | None] = ContextVar("kept", default=None)


def taken() -> Any:
    """Whether a step is taken here."""
    return _taken.get()


@contextlib.contextmanager
def taking(flag: Any) -> Iterator[set[int]]:
    """Steps within are taken where flag is true; gives the ids of the variables of which they see to that."""
    kept, outer = _kept.get(), _taken.get()
    kept = set() if kept is None else kept
    tokens = _taken.set(flag if outer is True else flag & outer), _kept.set(kept)
    try:
        yield kept
    finally:
        _taken.reset(tokens[0])
        _kept.reset(tokens[1])


def note_kept(variables: Iterable[Any]) -> None:
    """A step that is not taken leaves these variables as they are."""
    kept = _kept.get()
    if kept is not None:
        kept.update(map(id, variables))
