"""Group: ranks that an engine connects, as the core sees them.

An engine's adapter (``collectives.py`` in its framework's folder under backends/) moves bytes between ranks, with the
engine's own collectives; what the bytes are is `islices.distributed.wire`, what is moved is decided in `strategy`. May
import NumPy.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

__all__ = ["Alone", "ArrayGroup", "Bytes", "Group", "RankError", "RankTimeout", "Traffic"]

#: A 1-D array of uint8, C-contiguous.
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class RankError(RuntimeError):
    """Another rank failed, so that what was asked of all cannot be finished; nothing has been changed on this one.

    Attributes
    ----------
    ranks : tuple of int
        The ranks known to have failed; empty where the engine does not say which.

    Examples
    --------
    >>> RankError("rank 2 raised MemoryError", ranks=(2,)).ranks
    (2,)
    """

    def __init__(self, message: str, *, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class RankTimeout(RankError, TimeoutError):  # noqa: N818 - it is a TimeoutError
    """Another rank did not come within the engine's timeout.

    Examples
    --------
    >>> issubclass(RankTimeout, TimeoutError)
    True
    """


@dataclass
class Traffic:
    """What a group has moved since `reset`: collectives, and payload bytes this rank sent to and got from others."""

    collectives: int = 0
    sent: int = 0
    received: int = 0

    def reset(self) -> None:
        self.collectives = self.sent = self.received = 0


class Group(abc.ABC):
    """Ranks 0 to size - 1, of which this process is one. Every rank makes the same calls in the same order.

    An adapter sets ``engine``, `rank` and `size`, and writes the two primitives `_all_gather` and `_all_to_all`; they
    may raise whatever the engine raises, for which `_what_failed` finds words.

    Attributes
    ----------
    engine : str
        What moves the bytes, for messages: "torch.distributed (gloo)".
    rank, size : int
    traffic : Traffic
    default_backend : str
        Whose arrays a rank gets for a leaf that is None there, if none of its leaves tells.
    """

    default_backend: ClassVar[str] = "numpy"
    engine: str
    rank: int
    size: int

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.traffic = Traffic()
        self._broken: str | None = None

    def __repr__(self) -> str:
        return f"<{self.engine}: rank {self.rank} of {self.size}>"

    # ------------------------------------------------------------------ what an adapter writes
    @abc.abstractmethod
    def _all_gather(self, data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """Every rank's data, in the order of ranks; lengths[r], known to all, is the length of rank r's, not all 0.

        Called with size > 1. The results may share memory with one another, never with anything that changes later.
        """

    @abc.abstractmethod
    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        """What each rank has for this one, in the order of ranks. parts[r] goes to rank r; lengths[r] bytes come from
        rank r. Each may be 0 long. Called with size > 1."""

    def _what_failed(self, error: Exception) -> RankError | None:
        """An error of the engine's that means that another rank is gone or late, in the library's words; None for any
        other (it is then raised as it came). The group counts as broken after either."""
        return None

    # ------------------------------------------------------------------ what the core calls
    def all_gather(self, data: Bytes, lengths: Sequence[int] | None = None) -> list[Bytes]:
        """Every rank's bytes, in the order of ranks. Without lengths all ranks' are as long as this one's."""
        sizes = [len(data)] * self.size if lengths is None else [int(n) for n in lengths]
        if self.size == 1:
            return [data]
        if not any(sizes):
            return [data[:0]] * self.size
        got = self._guarded(self._all_gather, data, sizes)
        self._count(len(data) * (self.size - 1), sum(sizes) - len(data))
        return got

    def all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        """What each rank has for this one; lengths[r] bytes come from rank r."""
        if self.size == 1:
            return [parts[0]]
        sizes = [int(n) for n in lengths]
        got = self._guarded(self._all_to_all, parts, sizes)
        own = len(parts[self.rank])
        self._count(sum(map(len, parts)) - own, sum(sizes) - own)
        return got

    def _guarded(self, collective: Any, *arguments: Any) -> list[Bytes]:
        if self._broken is not None:
            raise RankError(
                f"{self.engine}: {self._broken} before: this group takes no more calls; start the ranks anew"
            )
        try:
            return collective(*arguments)  # type: ignore[no-any-return]
        except Exception as error:
            found = self._what_failed(error)
            self._broken = str(found or error)
            if found is None:
                raise
            raise found from error
        except BaseException:  # Ctrl-C in mid-collective: what the others get next is not what they expect
            self._broken = "a call was interrupted"
            raise

    def _count(self, sent: int, received: int) -> None:
        self.traffic.collectives += 1
        self.traffic.sent += sent
        self.traffic.received += received


class Alone(Group):
    """The group of one rank: nothing is moved."""

    engine = "one process"

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _all_gather(self, data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        return [data]

    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        return [parts[0]]


class ArrayGroup(abc.ABC):
    """Ranks within one program (a mapped axis, a replica context): their collectives take the framework's own arrays,
    traced ones included, and are part of the program.

    Attributes
    ----------
    engine : str
    size : int
        Known when the program is traced.
    """

    engine: str
    size: int

    @abc.abstractmethod
    def all_gather(self, x: Any) -> Any:
        """The ranks' arrays, joined along axis 0 in the order of ranks. Where shapes are static they are the same on
        every rank; else the first dimension may differ."""

    def all_to_all(self, x: Any) -> Any:
        """x of shape (size * k, ...), in blocks of k: the blocks that the ranks have for this one, joined along axis 0
        in the order of ranks."""
        raise NotImplementedError(f"{self.engine}: all_to_all: the engine has none within a program")
