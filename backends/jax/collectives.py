"""Use JAX as an engine of `islices.distributed`. Ranks are the processes of `jax.distributed` or, within a program, the
positions along mapped axes.

This module compensates for the following properties of JAX:

- JAX's collectives need the same shape on every rank, and JAX compiles a program for every shape, which takes 20 to 100
  ms. So bytes are padded to one of 256 lengths (`LENGTHS`). If the messages of an all-to-all have very unequal lengths,
  they are sent in rounds. All messages of a round are padded to the length that the longest message needs.
- A collective waits for another process as long as that process lives. Some collectives run before the call returns,
  others after it. So a collective with a timeout runs in a separate thread, which is abandoned after the timeout.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax as typed_lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from islices.backend import Host
from islices.backends.jax.precision import apart
from islices.core.arguments import show
from islices.core.host_memory import empty
from islices.core.registry import describe
from islices.distributed.group import ArrayGroup, Bytes, Group, RankError, RankTimeout

lax: Any = typed_lax  # some versions have no type annotations for collectives
AXIS = "islices_ranks"
BY_RANK: Any = PartitionSpec(AXIS)
HOW_TO_MAP = "within jax.shard_map over a mesh that has this axis, jax.pmap or jax.vmap with axis_name="
#: The possible lengths of messages. There are 8 lengths per power of two, so at most an eighth of a message of more
#: than 128 bytes is padding. One byte can contain the position of a length in this list. Each length is a multiple of
#: 16, so that arrays in rows of this length are aligned.
LENGTHS = [0, *((8 + eighth) << power for power in range(4, 36) for eighth in range(8))][:256]
_length_class = partial(bisect.bisect_left, LENGTHS)
#: An all-to-all is sent in rounds if one exchange of equally long messages would send at least this many times the
#: bytes of the rounds.
WORTH_ROUNDS = 2


def default_group(timeout: float | None) -> Group:
    """Return the group of all processes that jax.distributed connects. If jax.distributed has not been initialized,
    raise RuntimeError.

    If `timeout` is not None, it becomes the group's timeout in seconds.
    """
    if not jax.distributed.is_initialized():
        raise RuntimeError(
            "jax.distributed has not been started on this process: call jax.distributed.initialize(...) before JAX "
            'computes anything (on CPU after jax.config.update("jax_cpu_collectives_implementation", "gloo")), or give '
            "group="
        )
    group = _all_processes()
    if timeout is not None:
        group.timeout = float(timeout)
    return group


def running() -> Group | None:
    """Return the group of all processes, or None if jax.distributed has not been initialized."""
    return _all_processes() if jax.distributed.is_initialized() else None


@cache
def _all_processes() -> JaxGroup:
    """Return the group of all processes. All callers get the same object, and so share its errors and its traffic."""
    return JaxGroup()


def wrap(x: Any, timeout: float | None) -> Group | None:
    return None  # JAX has no object that represents its processes


class JaxGroup(Group):
    """The processes of jax.distributed. Each process communicates through its first device."""

    #: The number of seconds to wait for another rank. With None, JAX waits as long as the other process lives.
    timeout: float | None = None

    def __init__(self) -> None:
        super().__init__(jax.process_index(), jax.process_count())
        first = {d.process_index: d for d in sorted(jax.devices(), key=lambda d: d.id, reverse=True)}
        devices = [first[rank] for rank in range(self.size)]
        self._device = devices[self.rank]
        self._mesh = Mesh(np.array(devices), (AXIS,))
        self.engine = f"jax.distributed ({self._device.platform})"

    def _all_gather(self, data: Bytes, lengths: Sequence[int]) -> list[Bytes]:
        longest = LENGTHS[_length_class(max(lengths))]
        got = self._run("all_gather", _in_rows([data], longest)[0])
        return [row[:n] for row, n in zip(got, lengths, strict=True)]

    def _all_to_all(self, parts: Sequence[Bytes], lengths: Sequence[int]) -> list[Bytes]:
        classes = np.array([_length_class(len(p)) for p in parts], np.uint8)
        classes[self.rank] = 0  # this rank keeps this part
        table = self._run("all_gather", classes)  # [from, to], the same on every rank, so that all make the same choice
        ranks = np.arange(self.size)
        longest = [LENGTHS[table[ranks, ranks - self.size + shift].max()] for shift in range(1, self.size)]
        if sum(longest) * WORTH_ROUNDS <= (self.size - 1) * max(longest):
            got: Sequence[Bytes] = self._rounds(parts, longest)
        else:
            got = list(self._run("all_to_all", _in_rows(parts, max(longest), without=self.rank)))
        out = [row[:n] for row, n in zip(got, lengths, strict=True)]
        out[self.rank] = parts[self.rank]
        return out

    def _rounds(self, parts: Sequence[Bytes], longest: Sequence[int]) -> list[Bytes]:
        """Send the part for each other rank in a separate round, and return the part that is received from each rank.
        In round `shift`, each rank sends to the rank whose number is higher by `shift`, modulo the size of the group.

        All messages in round `shift` have the length ``longest[shift - 1]``. If this length is 0, the round is skipped.
        """
        got: list[Bytes] = [empty((0,), np.uint8)] * self.size
        for shift, length in enumerate(longest, 1):
            if length:
                part = parts[(self.rank + shift) % self.size]
                got[(self.rank - shift) % self.size] = self._run("shift", _in_rows([part], length)[0], shift)
        return got

    def _run(self, name: str, x: Host, shift: int = 0) -> Host:
        """Run the collective `name`, and return its result on this rank. `x` must have the same shape on every rank.
        `shift` is the distance between ranks for the collective "shift"."""
        program = _program(name, self._mesh, shift)
        spread = NamedSharding(self._mesh, BY_RANK)

        def collective() -> Host:
            mine = jax.device_put(x[None], self._device)
            whole = jax.make_array_from_single_device_arrays((self.size, *x.shape), spread, [mine])
            return np.asarray(jax.device_get(program(whole).addressable_data(0)))[0]  # type: ignore[no-any-return]

        return collective() if self.timeout is None else _within(self.timeout, collective)

    def _failure_of(self, error: Exception) -> RankError | None:
        text = str(error)
        if isinstance(error, TimeoutError) or any(words in text for words in ("imed out", "timeout", "DEADLINE")):
            return RankTimeout(f"{self.engine}: another rank did not come in time: {text}")
        own = any(words in text for words in ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"))
        # some versions of JAX raise ValueError if a program that has run before fails
        engines = isinstance(error, jax.errors.JaxRuntimeError) or (isinstance(error, ValueError) and "Gloo" in text)
        if engines and not own:
            return RankError(f"{self.engine}: another rank is gone: {text}")
        return None


@cache
def _program(name: str, mesh: Mesh, shift: int) -> Callable[[Any], Any]:
    size = mesh.size
    collective: Callable[[Any], Any] = {
        "all_gather": lambda x: lax.all_gather(x, AXIS),
        "all_to_all": lambda x: lax.all_to_all(x, AXIS, 0, 0),
        "shift": lambda x: lax.ppermute(x, AXIS, [(rank, (rank + shift) % size) for rank in range(size)]),
    }[name]
    return jax.jit(jax.shard_map(lambda x: collective(x[0])[None], mesh=mesh, in_specs=BY_RANK, out_specs=BY_RANK))


def _within(seconds: float, fn: Callable[[], Any]) -> Any:
    """Return ``fn()``, but raise TimeoutError if it takes longer than `seconds`. After a timeout, `fn` continues in a
    daemon thread, which does not prevent the process from ending."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(fn())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="islices collective", daemon=True).start()
    if not wait([future], seconds).done:
        raise TimeoutError(f"nothing came for {seconds:g} s")
    return future.result()


def _in_rows(parts: Sequence[Bytes], length: int, without: int | None = None) -> Host:
    """Return an array whose rows are the parts, padded with zeros to `length` bytes. The row with the number `without`
    contains only zeros."""
    out = empty((len(parts), length), np.uint8)
    for k, part in enumerate(parts):
        used = 0 if k == without else len(part)
        out[k, :used] = part[:used]
        out[k, used:] = 0
    return out


# ---------------------------------------------------------------------- within a program
def inside(group: Any, traced: bool) -> AxisGroup | None:
    """Return the group of the ranks along mapped axes of the program. `group` is the name of an axis or a tuple of
    names.

    Return None if no array is traced and `group` is not the name, or a tuple of names, of mapped axes.

    Raises
    ------
    NameError
        Arrays are traced, and a name in `group` is not the name of a mapped axis.
    ValueError, TypeError
        Arrays are traced, and `group` is not a name or a tuple of names. None raises ValueError, and any other object
        raises TypeError.
    """
    names = (group,) if isinstance(group, str) else group
    if isinstance(names, tuple) and names and all(isinstance(name, str) for name in names):
        sizes = [_axis_size(name, required=traced) for name in names]
        return None if None in sizes else AxisGroup(names, sizes)  # type: ignore[arg-type]
    if not traced:
        return None
    kind = ValueError if group is None else TypeError
    raise kind(
        f"group: got {describe(group)} for traced arrays; accepted is the name of a mapped axis, or a tuple of names: "
        f'group="data" {HOW_TO_MAP}'
    )


def _axis_size(name: str, *, required: bool) -> int | None:
    try:
        return int(lax.axis_size(name))
    except NameError as error:
        if not required:
            return None
        raise NameError(
            f"group: got {show(name)}; accepted for traced arrays is an axis that is mapped around them: {HOW_TO_MAP}"
        ) from error


class AxisGroup(ArrayGroup):
    """The ranks along mapped axes. The ranks are numbered in row-major order, so the index on the last axis changes
    fastest."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        self.names, self.sizes = tuple(names), tuple(sizes)
        self.size = math.prod(sizes)
        self.engine = f"JAX axis {', '.join(map(show, names))}"

    def all_gather(self, x: Any) -> Any:
        if x.size == 0:  # XLA cannot gather an empty array
            return jnp.zeros((self.size * x.shape[0], *x.shape[1:]), x.dtype)
        x = apart(x)
        for name in reversed(self.names):  # one axis after the other, because vmap does not accept a tuple of names
            # True for axes of shard_map, False for axes of vmap
            mapped = name in jax.sharding.get_abstract_mesh().manual_axes
            x = _gather_alike(x, name) if mapped else lax.all_gather(x, name, tiled=True)
        return x

    def all_to_all(self, x: Any) -> Any:
        if x.size == 0:
            return x
        blocks = apart(x).reshape(*self.sizes, -1, *x.shape[1:])
        for axis, name in enumerate(self.names):
            blocks = lax.all_to_all(blocks, name, axis, axis, tiled=True)
        return blocks.reshape(x.shape)


#: An all_gather for shard_map. shard_map knows that the result is the same on every rank, so out_specs may declare the
#: result as replicated.
_gather_alike: Callable[[Any, str], Any] = (
    partial(lax.all_gather_invariant, tiled=True)
    if hasattr(lax, "all_gather_invariant")  # newer versions of JAX lack it
    else partial(lax.all_gather, tiled=True, to="invarying")
)
