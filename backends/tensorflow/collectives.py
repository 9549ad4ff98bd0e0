"""Use tf.distribute as an engine of `islices.distributed`.

There are two kinds of groups. Within ``strategy.run``, the ranks are the replicas of the strategy, on one or more
machines. `Replicas` gathers tensors of the replicas, in eager or traced code. Outside of ``strategy.run``, the ranks
are the worker processes of a ``MultiWorkerMirroredStrategy``, and `TensorFlowGroup` sends bytes between these
processes.

`TensorFlowGroup` calls TensorFlow's collective operations directly, on the CPU of each worker and with special group
keys. ``tf.distribute.ReplicaContext.all_gather`` would send the lengths again, and tf.distribute has no all-to-all.
This module compensates for the following properties of the operations:

- The operations accept neither bytes nor bfloat16. So messages consist of words. A word has 8 bytes in
  `TensorFlowGroup`, and 4 bytes in `Replicas`.
- The operations sort ranks by the names of tasks as text, so worker 10 comes before worker 2. So each message contains
  the rank of its sender.
- The messages of all ranks must have the same length, so shorter messages are padded. For an all-to-all of all ranks,
  every message would have to be as long as the longest one, but no rank knows that length beforehand. So ranks exchange
  messages in pairs, because two ranks know the lengths of both messages.
- A gather or exchange of zero elements ends the process with a segmentation fault. So each message has at least one
  element.

May import: `tensorflow`, `numpy`, the core, this folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from islices.backend import Array, Host
from islices.backends.tensorflow import tensor_memory as memory
from islices.core.host_memory import empty
from islices.distributed.group import Alone, ArrayGroup, Bytes, Group, RankError, RankTimeout

#: The first group key of this module. The keys of TensorFlow begin with 1.
KEYS = 1 << 24
#: The instance keys of collectives. All ranks start collectives in the same order, so the keys agree.
_instances = itertools.count(1)
#: strategy -> its group. All callers with the same strategy share one group, so they share its errors and its traffic.
_groups: dict[Any, Group] = {}

#: The errors that TensorFlow raises if another process has ended or given up.
GONE = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
)

PROCESSES = (
    "with group=tf.distribute.MultiWorkerMirroredStrategy(...), whose workers are then the ranks, or with the name of "
    "another engine"
)
WAY_OUT = (
    "call all_reduce within strategy.run(...), where the ranks are the strategy's replicas; or outside of it, and "
    f"ShardedTable in any case there, {PROCESSES}"
)


# ---------------------------------------------------------------------- within strategy.run
def inside(group: Any = None, traced: bool = False) -> ArrayGroup | None:
    """Return the replicas of the current replica context if `group` stands for them, else None.

    Parameters
    ----------
    group : None, "tensorflow", tf.distribute.Strategy or tf.distribute.ReplicaContext
    traced : bool
        True if the tensors to send are symbolic.

    Returns
    -------
    Replicas or None
        The result is None outside of ``strategy.run``, and also if `group` is another engine or another strategy.

    Raises
    ------
    ValueError
        `group` is a replica context other than the current one.
    RuntimeError
        `traced` is True and the result would be None. No other engine can send symbolic tensors.

    Notes
    -----
    SPEC clause 25.

    Examples
    --------
    >>> inside() is None
    True
    >>> tf.distribute.OneDeviceStrategy("CPU:0").run(lambda: inside().size)
    1
    """
    context = tf.distribute.get_replica_context()
    if isinstance(group, tf.distribute.ReplicaContext):
        if group is not context:
            raise ValueError("group: got a replica context that this code is not in; accepted is the present one")
        return Replicas(context)
    if group is None or isinstance(group, str):
        present = tf.distribute.has_strategy() and group in (None, "tensorflow")
    else:
        present = context is not None and context.strategy is group
    if present and context is not None:
        return Replicas(context)
    if traced:
        raise RuntimeError(f"group: got symbolic tensors outside of strategy.run, where nothing moves them: {WAY_OUT}")
    return None


class Replicas(ArrayGroup):
    """The replicas of a tf.distribute strategy, in the order of their ids.

    This class has no all_to_all, because tf.distribute has none, and TensorFlow's operation needs keys that only the
    strategy can make.
    """

    in_loops = False  # replicas can communicate only outside of loops and branches

    def __init__(self, context: Any) -> None:
        self.context = context
        self.size = int(context.num_replicas_in_sync)
        self.engine = f"tf.distribute ({type(context.strategy).__name__})"

    def all_gather(self, x: Array) -> Array:
        """Concatenate the tensors of all replicas along axis 0. The first dimensions of the tensors may differ."""
        x = tf.convert_to_tensor(x)
        if self.size == 1:
            return x
        there, back = _words(x)
        # one more row, because a gather of zero elements ends the process
        longer = tf.concat((tf.zeros(_lengthened(there, 1), there.dtype), there), 0)
        mine = tf.stack([self.context.replica_id_in_sync_group, tf.shape(longer)[0]])[None]
        joined, sizes = self.context.all_gather([longer, mine], axis=0)
        found = back(tf.gather(joined, _places(*tf.unstack(sizes, num=2, axis=1))))
        found.set_shape((None, *x.shape[1:]))
        return found


def _places(ids: Array, sizes: Array) -> Array:
    """Return row numbers that sort concatenated blocks by their ids. The first row of each block is left out. `sizes`
    contains the length of each block."""
    ends = tf.cumsum(sizes)
    order = tf.argsort(ids)
    return tf.ragged.range(tf.gather(ends - sizes + 1, order), tf.gather(ends, order)).flat_values


def _words(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Convert a tensor of shape (n, ...) to int32 words. Return (the words, a function that converts words back).

    The words have the shape (n, k), or (n,) if rows have no elements. TensorFlow's all_gather accepts only a few
    dtypes. In eager code, TensorFlow retraces each all_gather of a dtype other than int32.
    """
    n, size = tf.shape(x)[0], x.dtype.size
    if 0 in x.shape[1:]:
        return tf.zeros((n,), tf.int32), lambda y: tf.zeros(_lengthened(x, tf.shape(y)[0]), x.dtype)
    used = tf.reduce_prod(tf.shape(x)[1:]) * size  # the number of bytes in a row
    padded = tf.pad(tf.reshape(tf.bitcast(x, tf.uint8), (n, used)), [[0, 0], [0, -used % 4]])

    def back(y: Array) -> Array:
        rows = tf.shape(y)[0]
        row = tf.reshape(tf.bitcast(y, tf.uint8), (rows, used + -used % 4))[:, :used]
        elements = row if size == 1 else tf.reshape(row, (rows, used // size, size))
        return tf.reshape(tf.bitcast(elements, x.dtype), _lengthened(x, rows))

    return tf.bitcast(tf.reshape(padded, (n, (used + 3) // 4, 4)), tf.int32), back


def _lengthened(x: Array, n: int | Array) -> Array:
    """Return the shape of `x` as a tensor, with `n` in place of the first dimension."""
    return tf.concat(([n], tf.shape(x)[1:]), 0)


# ---------------------------------------------------------------------- between worker processes
def default_group(timeout: float | None) -> Group:
    """Return the group of workers of the current strategy. Raise RuntimeError if no strategy is in scope, or if the
    strategy has several replicas that are not processes.

    If `timeout` is not None, it becomes the group's timeout in seconds.
    """
    if not tf.distribute.has_strategy():
        raise RuntimeError(f"no tf.distribute strategy is in scope: {WAY_OUT}")
    return _workers(tf.distribute.get_strategy(), timeout)


def running() -> Group | None:
    """Return the group of workers of the current strategy. Return None if no strategy is in scope, or if the strategy
    has several replicas that are not processes."""
    if not tf.distribute.has_strategy():
        return None
    strategy = tf.distribute.get_strategy()
    between = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return _workers(strategy, None) if between or strategy.num_replicas_in_sync == 1 else None


def wrap(x: Any, timeout: float | None) -> Group | None:
    """Return the group of workers of a strategy, or of a replica context's strategy. Return None for any other object.

    Raise RuntimeError if the strategy has several replicas that are not processes. If `timeout` is not None, it becomes
    the group's timeout in seconds.
    """
    if isinstance(x, tf.distribute.ReplicaContext):
        x = x.strategy
    return _workers(x, timeout) if isinstance(x, tf.distribute.Strategy) else None


def _workers(strategy: Any, timeout: float | None) -> Group:
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        if strategy.num_replicas_in_sync == 1:
            return Alone()
        replicas = f"the {strategy.num_replicas_in_sync} replicas of a {type(strategy).__name__}"
        if tf.distribute.has_strategy() and tf.distribute.get_replica_context() is not None:
            raise RuntimeError(
                f"group: got a call for processes within strategy.run, where {replicas} are threads of one; accepted "
                f"is to call it outside of strategy.run, {PROCESSES}, or group=Alone() for a table that is whole here"
            )
        raise RuntimeError(f"group: {replicas} meet only within a program: {WAY_OUT}")
    group = _groups.get(strategy)
    if group is None:
        options = getattr(strategy.extended, "_communication_options", None)
        group = TensorFlowGroup(strategy, float(getattr(options, "timeout_seconds", None) or 0.0))
        group = _groups[strategy] = group if group.size > 1 else Alone()
    if timeout is not None and isinstance(group, TensorFlowGroup):
        group.timeout = float(timeout)
    return group


def _place(resolver: Any) -> tuple[int, int]:
    """Return (the rank of this process, the number of ranks). If there is a chief, it has rank 0. If there is no
    cluster, return (0, 1)."""
    cluster = resolver.cluster_spec()
    tasks = [(job, k) for job in ("chief", "worker") if job in cluster.jobs for k in range(cluster.num_tasks(job))]
    return (tasks.index((resolver.task_type, resolver.task_id)), len(tasks)) if tasks else (0, 1)


class TensorFlowGroup(Group):
    """The worker processes of a MultiWorkerMirroredStrategy, outside of ``strategy.run``.

    Parameters
    ----------
    strategy : tf.distribute.MultiWorkerMirroredStrategy
    timeout : float
        The number of seconds to wait for another rank. 0 means to wait for ever, which is TensorFlow's default unless
        the strategy's CommunicationOptions set timeout_seconds. If a rank dies, calls fail before the timeout.
    """

    engine = "tf.distribute (MultiWorkerMirroredStrategy)"

    def __init__(self, strategy: Any, timeout: float = 0.0) -> None:
        super().__init__(*_place(strategy.cluster_resolver))
        self.strategy, self.timeout = strategy, timeout
        self.others = [other for other in range(self.size) if other != self.rank]

    def _all_gather(self, data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        words = _message(self.rank, data, max(lengths), copies=1)[0]
        (joined,) = self._run(tf.raw_ops.CollectiveGatherV2, self.size, [KEYS], [words])
        joined = joined.reshape(self.size, len(words))
        of_rank = {int(message[0]): message[1:].view(np.uint8) for message in joined}
        return [of_rank[rank][:length] for rank, length in enumerate(lengths)]

    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        # two copies, one for each rank of the pair, because the names of the ranks decide which copy this rank gets
        mine = [_message(self.rank, parts[o], max(len(parts[o]), lengths[o]), copies=2) for o in self.others]
        pairs = [(min(self.rank, other), max(self.rank, other)) for other in self.others]
        keys = [KEYS + 1 + low * self.size + high for low, high in pairs]
        got = list(parts)
        received = self._run(tf.raw_ops.CollectiveAllToAllV2, 2, keys, mine)
        for other, messages in zip(self.others, received, strict=True):
            theirs = messages[0 if messages[0, 0] == other else 1, 1:]
            got[other] = theirs.view(np.uint8)[: lengths[other]]
        return got

    def _run(self, op: Any, size: int, keys: Sequence[int], arrays: Sequence[Host]) -> Any:
        """Run one collective of `size` ranks for each key and its array, and return the results on this rank. Raise
        RuntimeError inside tf.function."""
        if not tf.executing_eagerly():
            raise RuntimeError(f"{self.engine}: got a call inside tf.function; accepted is eager code, or: {WAY_OUT}")
        with tf.device("CPU:0"):
            messages, instance = list(map(memory.accept, arrays)), tf.constant(next(_instances), tf.int32)
            got = _collectives(op, size, tuple(keys), self.timeout, instance, messages)
        return list(map(memory.view, got))

    def _failure_of(self, error: Exception) -> RankError | None:
        if not isinstance(error, tf.errors.OpError):
            return None
        text = _reason(error.message)  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(error, tf.errors.DeadlineExceededError):
            return RankTimeout(f"{self.engine}: another rank did not come within {self.timeout:g} s: {text}")
        if isinstance(error, GONE):
            return RankError(f"{self.engine}: another rank is gone: {text}")
        return None


@tf.function(autograph=False, reduce_retracing=True)  # type: ignore[untyped-decorator]
def _collectives(
    op: Any, size: int, keys: tuple[int, ...], timeout: float, instance: Array, messages: list[Array]
) -> list[Array]:
    # Stateless, because otherwise the exchanges in a function would wait for each other, in a different order on each
    # rank.
    options = {"ordering_token": [], "timeout_seconds": timeout, "is_stateless": True}
    return [
        op(input=x, group_size=size, group_key=key, instance_key=instance, **options)
        for x, key in zip(messages, keys, strict=True)
    ]


def _message(rank: int, data: Bytes, length: int, *, copies: int) -> Host:
    """Make a message, an array of shape (copies, 1 + words). Each copy contains the rank, followed by the data. The
    data are padded to `length` bytes and to a whole word."""
    out = empty((copies, 1 + -(-length // 8)), np.int64)
    out[:, 0] = rank
    out[:, 1:].view(np.uint8)[:, : len(data)] = data
    out[:, 1:].view(np.uint8)[:, len(data) :] = 0
    return out


def _reason(message: str) -> str:
    """Remove source locations and advice from the message of a collective's error."""
    lines = [line.strip() for line in message.splitlines()]
    found = [line for line in lines if line.startswith("Collective")]
    return found[-1].rpartition("aborted by: ")[2] if found else " ".join(line for line in lines if line)
