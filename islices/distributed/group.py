"""Define Group, through which the core sends data between the ranks that an engine connects.

Each built-in engine has an adapter, the file ``collectives.py`` in the engine's folder under backends/. The adapter
sends bytes between ranks with the engine's operations. In this folder, the module `packing` converts arrays to bytes,
and `strategy` chooses how ranks exchange gradients. May import: `numpy`.
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

#: A contiguous 1-D array of uint8.
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class RankError(RuntimeError):
    """The error that a call raises if another rank has failed or is incompatible, or if an earlier error has made the
    group unusable. The call has changed no array on this rank.

    SPEC clause 25.

    Parameters
    ----------
    message : str
    ranks : sequence of int
        The ranks that are known to have failed or to be incompatible. The sequence is empty if no ranks are known.

    Examples
    --------
    >>> RankError("rank 2 raised MemoryError", ranks=(2,)).ranks
    (2,)
    """

    def __init__(self, message: str, *, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class RankTimeout(RankError, TimeoutError):  # noqa: N818 - it is a TimeoutError
    """The error that a call raises if another rank does not take part within the group's timeout. SPEC clause 25.

    Parameters
    ----------
    message : str
    ranks : sequence of int
        The ranks that did not take part. The sequence is empty if the engine does not report these ranks.

    Examples
    --------
    >>> issubclass(RankTimeout, TimeoutError)
    True
    """


@dataclass
class Traffic:
    """A group's traffic since the start or the last `reset`: the numbers of collectives and of payload bytes.

    `sent` and `received` count the bytes that this rank sent to other ranks and received from them.
    """

    collectives: int = 0
    sent: int = 0
    received: int = 0

    def reset(self) -> None:
        """Set the counters to zero."""
        self.collectives = self.sent = self.received = 0


class Group(abc.ABC):
    """A group of processes that compute together. Each process is called a rank.

    Ranks are numbered from 0 to size - 1; `rank` is the number of this process. All ranks must make the same calls in
    the same order, one at a time. An engine's adapter defines a subclass, which sets ``engine``, `rank` and `size`, and
    implements `_all_to_all`. If the engine has a gather that is faster than the default one, the adapter also
    implements `_all_gather`. Both methods may raise any error of the engine. The adapter may implement `_failure_of` to
    translate errors that mean that another rank has died or is late.

    Parameters
    ----------
    rank, size : int

    Attributes
    ----------
    engine : str
        The engine's name as error messages show it, such as "torch.distributed (gloo)".
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
        """Return every rank's data in the order of ranks. `lengths` contains the length of each rank's data, and is the
        same on all ranks. At least one length is not 0.

        The group has at least two ranks. The results may share memory with each other, but not with memory that changes
        later. Override this method if the engine has a gather that is faster than messages between pairs of ranks.
        """
        return self._all_to_all([data] * self.size, lengths)

    @abc.abstractmethod
    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        """Send parts[r] to each rank r, and return the bytes that each rank sends to this rank, in the order of ranks.
        Rank r sends lengths[r] bytes to this rank; lengths[r] may be 0. The group has at least two ranks."""

    def _failure_of(self, error: Exception) -> RankError | None:
        """Return a `RankError` if the engine's error means that another rank has died or is late, else None.

        The core raises other errors unchanged. After any error, the group cannot be used any more.
        """
        return None

    # ------------------------------------------------------------------ called by the core
    def all_gather(self, data: Bytes, lengths: Sequence[int] | None = None) -> list[Bytes]:
        """Send this rank's bytes to all ranks, and return every rank's bytes.

        Parameters
        ----------
        data : uint8 NumPy array, shape (n,)
        lengths : sequence of int, optional
            The number of bytes that each rank sends. By default, all ranks send as many bytes as this rank.

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
        """Let only this thread run the group's collectives within the context.

        If another thread enters the context at the same time, it gets a RuntimeError, because messages do not say from
        which thread they come. A forked process also gets a RuntimeError, unless the group has one rank.
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

        A group of one rank works in a forked process, with a new lock.
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
        """Run collectives that all ranks have agreed to run. If an error leaves the context, a group of several ranks
        cannot be used any more.

        The other ranks still wait for the rest of the call, and would take this rank's next message for a part of it.

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
        """Run a collective of an adapter, and count the bytes that are sent and received. `own` is the number of bytes
        that stay on this rank, which do not count.

        After an error of the collective, the group cannot be used any more, and all later calls raise RankError.
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
            except BaseException:  # for example Ctrl-C; this rank's messages would arrive in a later call
                self._broken = f"{self.engine}: a call was interrupted"
                raise
        self.traffic.collectives += 1
        self.traffic.sent += sent - own
        self.traffic.received += sum(sizes) - own
        return got


class Alone(Group):
    """A group of one rank, without an engine. Collectives send nothing, and return this rank's data (SPEC clause 25).

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
    """The ranks on which one program runs, for example along a mapped axis of JAX or as replicas of TensorFlow.

    The collectives are operations of the program, and accept the framework's arrays, including traced arrays.

    Attributes
    ----------
    engine : str
    size : int
        The number of ranks, which is already known while the program is traced.
    in_loops : bool
        True if the program may call the collectives within a loop.
    """

    engine: str
    size: int
    in_loops = True

    @abc.abstractmethod
    def all_gather(self, x: Any) -> Any:
        """Concatenate all ranks' arrays along axis 0, in the order of ranks.

        If shapes are static, they must be the same on every rank. Otherwise the first dimension may differ.
        """

    def all_to_all(self, x: Any) -> Any:
        """Send block r of x to each rank r. Concatenate the blocks that this rank receives along axis 0, in the order
        of ranks.

        x has the shape ``(size * k, ...)``, and each block has k rows. The default implementation raises
        NotImplementedError.
        """
        raise NotImplementedError(f"{self.engine}: all_to_all: the engine has none within a program")
