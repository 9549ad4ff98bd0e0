"""Define Group, the core's interface to the ranks that an engine connects.

An engine's adapter (``collectives.py`` in the engine's folder under backends/) sends bytes between ranks with the
engine's fastest operations. The module `packing` of this folder turns arrays into bytes, and `strategy` chooses the
data to send. May import: `numpy`.
"""

from __future__ import annotations

import abc
import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A 1-D array of uint8, C-contiguous.
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class RankError(RuntimeError):
    """The error of a call that cannot finish because another rank failed. The call has changed nothing on this rank.

    SPEC clause 25.

    Parameters
    ----------
    message : str
    ranks : sequence of int
        The ranks known to have failed; empty if the engine does not report them.

    Examples
    --------
    >>> RankError("rank 2 raised MemoryError", ranks=(2,)).ranks
    (2,)
    """

    def __init__(self, message: str, *, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class RankTimeout(RankError, TimeoutError):  # noqa: N818 - it is a TimeoutError
    """The error of a call in which another rank did not take part within the engine's timeout. SPEC clause 25.

    Parameters
    ----------
    message : str
    ranks : sequence of int
        The ranks that did not take part; empty if the engine does not report them.

    Examples
    --------
    >>> issubclass(RankTimeout, TimeoutError)
    True
    """


@dataclass
class Traffic:
    """A group's traffic since the last `reset`: the number of collectives, and the payload bytes.

    The bytes are those that this rank sent to and received from other ranks.
    """

    collectives: int = 0
    sent: int = 0
    received: int = 0

    def reset(self) -> None:
        """Set the counters to zero."""
        self.collectives = self.sent = self.received = 0


class Group(abc.ABC):
    """The processes (ranks) that compute together, and the number of this process among them.

    Ranks are numbered from 0 to size - 1. Every rank makes the same calls in the same order, one at a time. An adapter
    sets ``engine``, `rank` and `size`, and implements the primitive `_all_to_all`. If the engine has a faster gather
    than the default one, the adapter also implements `_all_gather`. Both methods may raise any error of the engine;
    `_failure_of` translates the error.

    Parameters
    ----------
    rank, size : int

    Attributes
    ----------
    engine : str
        The engine's name in messages, such as "torch.distributed (gloo)".
    traffic : Traffic

    Notes
    -----
    SPEC clause 25. docs/distributed.md lists the engines.

    Examples
    --------
    >>> from islices.distributed import Alone
    >>> group = Alone()
    >>> group.rank, group.size, group.traffic
    (0, 1, Traffic(collectives=0, sent=0, received=0))
    """

    engine: str
    rank: int
    size: int

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.traffic = Traffic()
        self._process = os.getpid()
        self._thread = threading.RLock()
        self._broken: str | None = None
        self._lost: Sequence[int] = ()

    def __repr__(self) -> str:
        return f"<{self.engine}: rank {self.rank} of {self.size}>"

    # ------------------------------------------------------------------ implemented by an adapter
    def _all_gather(self, data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        """Return every rank's data in the order of ranks. All ranks know lengths[r], the length of rank r's data; not
        all lengths are 0.

        The size of the group is above 1. The results may share memory with each other, but never with anything that
        changes later. Override this method if the engine has a gather that is faster than exchanges between pairs.
        """
        return self._all_to_all([data] * self.size, lengths)

    @abc.abstractmethod
    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        """Return the bytes that each rank sends to this rank, in the order of ranks. This rank sends parts[r] to rank
        r, and gets lengths[r] bytes from rank r. Lengths may be 0; the size of the group is above 1."""

    def _failure_of(self, error: Exception) -> RankError | None:
        """Return a `RankError` if the engine's error means that another rank is gone or late, else None.

        Other errors are raised unchanged. After any error the group counts as broken.
        """
        return None

    # ------------------------------------------------------------------ called by the core
    def all_gather(self, data: Bytes, lengths: Sequence[int] | None = None) -> list[Bytes]:
        """Return every rank's bytes, on every rank.

        Parameters
        ----------
        data : uint8 NumPy array, shape (n,)
        lengths : sequence of int, optional
            The length of each rank's bytes; by default the length of this rank's bytes.

        Returns
        -------
        list of uint8 arrays
            One array per rank, in the order of ranks.
        """
        sizes = [len(data)] * self.size if lengths is None else [int(n) for n in lengths]
        if self.size == 1:
            return [data]
        if not any(sizes):
            return [data[:0]] * self.size
        return self._moved(self._all_gather, data, sizes, len(data), len(data) * self.size)

    def all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        """Send bytes to each rank, and return the bytes that each rank sends to this rank.

        Parameters
        ----------
        parts : sequence of uint8 NumPy arrays
            The bytes for each rank.
        lengths : sequence of int
            The number of bytes that each rank sends to this rank.

        Returns
        -------
        list of uint8 arrays
            One array per rank, in the order of ranks.
        """
        if self.size == 1:
            return [parts[0]]
        sizes = [int(n) for n in lengths]
        return self._moved(self._all_to_all, parts, sizes, len(parts[self.rank]), sum(map(len, parts)))

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Return a context in which only this thread may run the group's collectives.

        Another thread that enters the context at the same time gets RuntimeError. A forked process gets RuntimeError
        too, unless the group has one rank. Messages do not identify the sender's thread, so ranks would mix up the
        messages of two simultaneous calls.
        """
        self._check_process()
        lock = self._thread
        if not lock.acquire(blocking=False):
            raise RuntimeError(
                f"{self.engine}: got a call while another thread's is under way; accepted is one at a time, in the "
                "same order on every rank: threads need groups of their own"
            )
        try:
            yield
        finally:
            lock.release()

    def _check_process(self) -> None:
        """Raise RuntimeError in a forked process if the group has several ranks.

        In a forked process, a group of one rank gets a new lock and works.
        """
        if os.getpid() == self._process:
            return
        if self.size > 1:
            raise RuntimeError(
                f"{self.engine}: got a call in a forked process, which shares the ranks' connections with its parent; "
                "accepted are calls of the process that joined the ranks"
            )
        self._process, self._thread = os.getpid(), threading.RLock()

    @contextlib.contextmanager
    def to_the_end(self, call: str) -> Iterator[None]:
        """Return a context for collectives that all ranks have agreed to run.

        An error within the context breaks the group, because the other ranks still wait for the rest of the call. Those
        ranks would treat this rank's next message as part of the same call.

        Parameters
        ----------
        call : str
            The name of the call, for messages.
        """
        try:
            yield
        except BaseException as error:
            if self._broken is None:
                self._broken = f"{self.engine}: {call} ended amid its collectives, by {type(error).__name__}: {error}"
            raise

    def _moved(self, collective: Any, data: Any, sizes: list[int], own: int, sent: int) -> list[Bytes]:
        """Run a collective of an adapter, and count the bytes sent and received, without the `own` bytes.

        The `own` bytes stay on this rank. An error breaks the group, and a broken group raises RankError.
        """
        if self._broken is not None:
            raise RankError(
                f"{self._broken}; this group takes no more calls since: start the ranks anew", ranks=self._lost
            )
        with self.exclusive():
            try:
                got: list[Bytes] = collective(data, sizes)
            except Exception as error:
                found = self._failure_of(error)
                self._broken = str(found) if found is not None else f"{self.engine}: {error}"
                self._lost = found.ranks if found is not None else ()
                if found is None:
                    raise
                raise found from error
            except BaseException:  # also Ctrl-C: after it, messages would arrive in another call
                self._broken = f"{self.engine}: a call was interrupted"
                raise
        self.traffic.collectives += 1
        self.traffic.sent += sent - own
        self.traffic.received += sum(sizes) - own
        return got


class Alone(Group):
    """The group of a single rank, without an engine. Nothing is sent, and calls return the results of one process (SPEC
    clause 25).

    Examples
    --------
    >>> import numpy as np
    >>> from islices.distributed import Alone, all_reduce
    >>> all_reduce([np.array([1.0]), None], "mean", Alone())
    [array([1.]), None]
    """

    engine = "one process"

    def __init__(self) -> None:
        super().__init__(0, 1)

    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        return [parts[0]]


class ArrayGroup(abc.ABC):
    """The ranks within one program (a mapped axis, a replica context).

    The collectives accept the framework's arrays, including traced ones, and are part of the program.

    Attributes
    ----------
    engine : str
    size : int
        The number of ranks, known when the program is traced.
    in_loops : bool
        True if a loop of the program may call the collectives.
    """

    engine: str
    size: int
    in_loops = True

    @abc.abstractmethod
    def all_gather(self, x: Any) -> Any:
        """Return the ranks' arrays, concatenated along axis 0 in the order of ranks.

        Static shapes are the same on every rank; otherwise the first dimension may differ.
        """

    def all_to_all(self, x: Any) -> Any:
        """Send block r of x to rank r. Return the blocks for this rank, concatenated along axis 0 in the order of
        ranks.

        x has the shape (size * k, ...), and its blocks have k rows.
        """
        raise NotImplementedError(f"{self.engine}: all_to_all: the engine has none within a program")
