"""Check that the arguments of all ranks match before any data are sent. This check is called preflight.

Preflight normally needs one small collective, and one more if a rank sends more than 26 counts. If a rank has failed or
arguments differ, another collective sends the details to all ranks. Each failed rank then raises its error, and each
other rank raises a `RankError` with the numbers of the failed ranks. If arguments differ that must be the same, all
ranks raise the same ValueError. So no rank waits for a rank that has raised an error. SPEC clause 25.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from islices.backend import Host
from islices.distributed.group import Group, RankError

T = TypeVar("T")
#: name -> JSON value, for values that must be the same on every rank. Error messages contain the names.
Facts: TypeAlias = Mapping[str, Any]
#: The tuple that one rank prepares for a call: (a result, the values that must be the same on every rank, the numbers
#: to send).
Preflight: TypeAlias = tuple[T, Facts, Sequence[int] | Host]

#: The identifier of the protocol and its version, which is the first number of each rank's first message.
MAGIC = 0x15C1CE500000001
#: The first message begins with this many numbers: MAGIC, a flag, the digest in two halves, the number of counts,
#: and the length of the text. The flag is 1 if this rank has an error.
FIXED = 6
#: The number of counts that fit into the first message; more counts need another message.
WITHIN = 26
#: Error messages show at most this many characters of a rank's value.
LONGEST = 200


class Agreement(NamedTuple):
    """The messages that all ranks sent: the counts and the facts of each rank.

    `each` is None if the facts are the same on all ranks.
    """

    counts: list[Host]
    each: list[Facts] | None


def agree(
    group: Group,
    call: str,
    facts: Facts,
    counts: Sequence[int] | Host = (),
    *,
    error: Exception | None = None,
    optional: bool = False,
    free: Container[str] = (),
) -> Agreement:
    """Check that every rank makes this call with the same arguments and without an error.

    Parameters
    ----------
    group : Group
    call : str
        The name of the called function, for messages.
    facts : mapping of str to JSON values
        A dict from names to values. Every rank must have the same values, except for the names in `free`.
        Error messages contain the names.
    counts : sequence of int
        Numbers to send to all ranks. Ranks may send different numbers of counts.
    error : Exception, optional
        The error of this rank, if it has failed. `agree` raises the error after the collectives.
    optional : bool
        True if a value may be None on some ranks and not None on others. The caller must then read `Agreement.each`.
    free : container of str
        Names whose values may differ between ranks.

    Raises
    ------
    Exception
        `error`, if there is one, or the error of serialising `facts`.
    RankError
        Another rank has an error, has died or is late, or uses another version of the protocol. Or an earlier error has
        made the group unusable.
    ValueError
        The ranks' values differ. All ranks raise the same error.
    """
    if group.size == 1:
        if error is not None:
            raise error
        return Agreement([np.asarray(counts, np.int64)], None)
    text, error = _text(call, facts, error)
    encoded = np.frombuffer(text.encode(errors="backslashreplace"), np.uint8)
    header = np.zeros(FIXED + WITHIN, np.int64)
    digest = np.frombuffer(hashlib.sha256(encoded.tobytes()).digest()[:16], np.int64)
    header[:FIXED] = MAGIC, error is not None, *digest, len(counts), len(encoded)
    header[FIXED : FIXED + min(len(counts), WITHIN)] = counts[:WITHIN]
    headers = [got.view(np.int64) for got in group.all_gather(header.view(np.uint8))]
    if others := [rank for rank, got in enumerate(headers) if got[0] != MAGIC]:
        raise RankError(f"{call}: {_ranks(others)} speak another protocol (another version of islices?)", ranks=others)
    same = all((got[2:4] == digest).all() for got in headers)
    failed = [rank for rank, got in enumerate(headers) if got[1]]
    everything = None
    if failed or not same:
        texts = [bytes(got).decode() for got in group.all_gather(encoded, [int(got[5]) for got in headers])]
        if error is not None:
            raise error
        if failed:
            found = "; ".join(f"rank {rank} raised {texts[rank]}" for rank in failed)
            raise RankError(f"{call}: {found}: nothing was changed on any rank", ranks=failed)
        everything = [json.loads(text) for text in texts]
        if differing := _differences(everything, optional, free):
            raise ValueError(f"{call}: ranks differ: {differing}; accepted is the same on every rank")
    if all(int(got[4]) <= WITHIN for got in headers):
        return Agreement([got[FIXED : FIXED + int(got[4])] for got in headers], everything)
    mine = np.asarray(counts, np.int64).view(np.uint8)
    got = group.all_gather(mine, [8 * int(got[4]) for got in headers])
    return Agreement([x.view(np.int64) for x in got], everything)


def together(
    group: Group,
    call: str,
    prepare: Callable[[], Preflight[T]],
    *,
    optional: bool = False,
    free: Container[str] = (),
    error: Exception | None = None,
) -> tuple[T, Agreement]:
    """Call `prepare`, and wait until every rank has prepared the same call. Return (the first item of the result of
    `prepare`, the agreement).

    If a rank fails, every rank raises an error. `error` is an error that this rank had before the call; `prepare` is
    then not called. `agree` describes `optional` and `free`.
    """
    try:
        if error is not None:
            raise error
        result, facts, counts = prepare()
    except Exception as raised:
        agree(group, call, {}, error=raised)
        raise  # `agree` has raised
    return result, agree(group, call, facts, counts, optional=optional, free=free)


def _text(call: str, facts: Facts, error: Exception | None) -> tuple[str, Exception | None]:
    """Return (this rank's message, the error or None). The message contains the call and the facts or, after an error,
    the type and the text of the error.

    If the facts cannot be serialised, the result contains the error that json.dumps raised.
    """
    if error is None:
        try:
            return json.dumps({"call": call, **facts}), None
        except Exception as raised:
            error = raised
    try:
        return f"{type(error).__name__}: {error}", error
    except Exception:  # str(error) itself raised
        return type(error).__name__, error


def _differences(each: Sequence[Facts], optional: bool, free: Container[str]) -> str:
    """Describe how the ranks' values differ, name by name. If the values do not differ, return "".

    If `optional` is True and every rank has the name, None counts as equal to any value. Names in `free` are not
    compared.
    """
    names = dict.fromkeys(name for one in each for name in one if name not in free)
    found = []
    for name in names:
        groups: dict[str, list[int]] = {}
        for rank, one in enumerate(each):
            value = one.get(name)
            if optional and value is None and all(name in other for other in each):
                continue
            groups.setdefault(_words(value) if name in one else "nothing", []).append(rank)
        if len(groups) > 1:
            values = (f"{words:.{LONGEST}} on {_ranks(ranks)}" for words, ranks in groups.items())
            found.append(f"{name}: {', '.join(values)}")
    return "; ".join(found)


def _words(value: Any) -> str:
    if value is None or isinstance(value, str):
        return str(value)
    if isinstance(value, list):
        return " ".join(f"({', '.join(map(str, x))})" if isinstance(x, list) else str(x) for x in value)
    return json.dumps(value)


def _ranks(ranks: Sequence[int]) -> str:
    """Return a text such as "rank 3" or "ranks 0 to 6, 8 and 9", in which "to" stands for three or more numbers."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} {'and' if len(run) == 2 else 'to'} {run[-1]}" for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(words)
