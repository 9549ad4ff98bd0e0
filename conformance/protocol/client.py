"""Run the process of an adapter: handshake, calls with a time limit, restarts and stray output.

    suite    {"hello": "islices", "protocol": 1, "spec": "1.11"}
    adapter  {"hello": "my kernels", "version": "0.3", "protocol": 1}
    suite    {"call": 1, "op": "coalesce", "args": [...], "kwargs": {...}}
    adapter  {"call": 1, "ok": ...}   or   {"call": 1, "unsupported": "why"}   or
             {"call": 1, "error": "IndexError", "message": "..."}

The adapter must end when its input ends. Any other line that the adapter prints, such as an answer to another call, is
a stray line. The client counts stray lines and stores the first ones. A library may print a greeting, so stray lines
are no failure. If the process ends or exceeds the time limit, the next call starts a new process.

May import: this folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

from islices.conformance.protocol.wire import WireError, from_wire, to_wire

#: The version of the protocol that this module implements.
PROTOCOL = 1
#: The largest accepted length of a line, in bytes. The pieces of a longer line count as stray lines.
LONGEST = 256 * 2**20
#: The largest number of unread lines. If there are more, the adapter has to wait.
WAITING = 256
#: The number of stray lines that are stored; all stray lines are counted.
KEPT = 3
#: The number of bytes at the end of an adapter's error output that are stored.
LAST_WORDS = 4096
#: The seconds that an adapter has to end after its input is closed.
FAREWELL = 2.0


# ---------------------------------------------------------------------- answers
class Hello(NamedTuple):
    """The description of an adapter in its handshake. ``ops`` contains the adapter's operations, or is None if the
    adapter does not list them."""

    name: str
    version: str = ""
    ops: frozenset[str] | None = None


class Ok(NamedTuple):
    """The adapter's answer with the result of a call."""

    value: Any


class Unsupported(NamedTuple):
    """The adapter's answer that it does not support an operation, a dtype or an option."""

    reason: str


class Refused(NamedTuple):
    """The adapter's answer that a call is invalid. The answer contains the name of a Python exception and a message."""

    error: str
    message: str


Answer = Ok | Unsupported | Refused


class AdapterError(Exception):
    """The error for a broken adapter. This error is no evidence about the adapter's arithmetic."""


class StartError(AdapterError):
    """The error for an adapter that cannot start, or whose handshake is invalid."""


class CallError(AdapterError):
    """The error for an adapter that ended during a call, exceeded the time limit, or gave an invalid answer."""


# ---------------------------------------------------------------------- the process
class _Process:
    """A process, and the threads that read and write its pipes. Because of these threads, the process cannot block its
    caller."""

    def __init__(self, command: Sequence[str]) -> None:
        own_group: dict[str, Any] = {"start_new_session": True} if os.name == "posix" else {}
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, **own_group)
        self.lines: queue.Queue[bytes | None] = queue.Queue(WAITING)
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.last_words = bytearray()
        self._over = threading.Event()
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        assert self.popen.stderr is not None
        self._heard = threading.Thread(target=self._hear, args=(self.popen.stderr,), daemon=True)
        self._heard.start()
        for serve, file in ((self._read, self.popen.stdout), (self._write, self.popen.stdin)):
            threading.Thread(target=serve, args=(file,), daemon=True).start()

    def _read(self, file: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := file.readline(LONGEST):
                self._put(line)
        self._put(None)

    def _put(self, line: bytes | None) -> None:
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self.lines.put(line, timeout=0.2)
                return

    def _write(self, file: IO[bytes]) -> None:
        # the process no longer reads; the missing answer shows this
        with contextlib.suppress(OSError, ValueError), file:
            for data in iter(self.outbox.get, None):
                file.write(data)
                file.flush()

    def _hear(self, file: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(file.fileno(), 65536):
                self.last_words += chunk
                del self.last_words[:-LAST_WORDS]

    def statement(self) -> str:
        """Return the end of the process's error output. Call this method only after the process has ended."""
        self._heard.join(1.0)
        return self.last_words.decode("utf-8", "replace").strip()

    def end(self, patience: float = 0.0) -> int:
        """Close the process's input, wait up to `patience` seconds, then kill the process. Return the exit status. On
        POSIX, kill the process's children too."""
        self.outbox.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience)
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        else:
            self.popen.kill()
        status = self.popen.wait()
        self._over.set()
        return status


# ---------------------------------------------------------------------- the conversation
class Client:
    """An adapter program that the suite calls.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments; no shell reads them.
    spec : str
        The version of the specification, which the handshake sends.
    limit : float
        The seconds that a call or the handshake may take.

    Attributes
    ----------
    hello : Hello
        The adapter's description of itself.
    strays : int
        The number of printed lines outside the protocol; ``stray`` contains the first of these lines.
    restarts : int
        The number of restarts.

    Raises
    ------
    StartError
        The program does not exist, ends at once, or sends no valid handshake.

    Examples
    --------
    >>> import sys
    >>> program = '''
    ... import json, sys
    ... for line in map(json.loads, sys.stdin):
    ...     if "hello" in line:
    ...         print(json.dumps({"hello": "echo", "version": "1", "protocol": 1}), flush=True)
    ...     else:
    ...         print(json.dumps({"call": line["call"], "ok": line["args"][0]}), flush=True)
    ... '''
    >>> with Client([sys.executable, "-c", program]) as client:
    ...     client.hello.name, client.call("echo", [0.1])
    ('echo', Ok(value=0.1))
    """

    def __init__(self, command: Sequence[str], *, spec: str = "", limit: float = 30.0) -> None:
        self.command, self.spec, self.limit = list(command), spec, limit
        self.stray: list[str] = []
        self.strays = self.restarts = self._calls = 0
        self._process: _Process | None = None
        self.hello = self._start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *subject: object) -> None:
        self.close()

    def call(self, op: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Answer:
        """Call an operation of the adapter with values of `islices.conformance.data`, and return the answer.

        Raises
        ------
        WireError
            The protocol cannot represent an argument; nothing was sent.
        CallError
            The adapter ended, exceeded the time limit, or gave an invalid answer. After an end or a timeout, the next
            call starts the adapter again.
        StartError
            The adapter could not start again.
        """
        statement = {key: to_wire(x) for key, x in (kwargs or {}).items()}
        request = {"op": op, "args": [to_wire(x) for x in args], "kwargs": statement}
        if self._process is None:
            self._start()
            self.restarts += 1
        self._calls += 1
        self._send({"call": self._calls, **request})
        answer = self._receive("call", self._calls, CallError)
        return self._answer(answer)

    def close(self) -> None:
        """Close the input of the process. If the process does not end, kill it."""
        if self._process is not None:
            self._process.end(FAREWELL)
            self._process = None

    # -- the parts of a call
    def _start(self) -> Hello:
        try:
            self._process = _Process(self.command)
        except (OSError, ValueError) as error:
            raise StartError(f"cannot start {self.command[0]}: {getattr(error, 'strerror', None) or error}") from None
        self._send({"hello": "islices", "protocol": PROTOCOL, "spec": self.spec})
        found = self._receive("hello", None, StartError)
        if found.get("protocol") != PROTOCOL:
            self._drop()
            raise StartError(f"speaks protocol {found.get('protocol')!r:.40}; accepted is {PROTOCOL}")
        name, version, ops = found["hello"], found.get("version", ""), found.get("ops")
        listed = ops is None or (isinstance(ops, list) and all(isinstance(op, str) for op in ops))
        if not isinstance(name, str) or not name or not isinstance(version, str) or not listed:
            self._drop()
            raise StartError(
                f"its hello: got {json.dumps(found)[:200]}; accepted is a name, a text as version, texts as ops"
            )
        return Hello(name, version, None if ops is None else frozenset(ops))

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        self._process.outbox.put(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def _receive(self, key: str, value: int | None, kind: type[AdapterError]) -> dict[str, Any]:
        """Return the next line that is a JSON object with the given key and value; None means any value. Earlier lines
        count as stray. If there is no such line, raise an error of the given kind."""
        assert self._process is not None
        waited = "in this call" if value is not None else "to the handshake"
        deadline, before = time.monotonic() + self.limit, self.strays
        while True:
            try:
                line = self._process.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                hint = "" if value is not None else "; does it flush its output after each line?"
                self._drop()
                reported = self._remarks(before)
                raise kind(f"no answer {waited} within {self.limit:g} s{hint}{reported}") from None
            if line is None:
                status, statement = self._drop()
                ended = f"ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
                where = waited if value is not None else "before its handshake"
                raise kind(f"{ended} {where}{self._remarks(before)}" + (f": {_tail(statement)}" if statement else ""))
            found = _object(line)
            if key in found and (value is None or (found[key] == value and type(found[key]) is int)):
                return found
            self._keep(line)

    def _answer(self, found: dict[str, Any]) -> Answer:
        kinds = [kind for kind in ("ok", "unsupported", "error") if kind in found]
        if len(kinds) != 1:
            raise CallError(
                f"its answer holds {' and '.join(kinds) or 'nothing'}; accepted is ok, unsupported or error"
            )
        if kinds == ["ok"]:
            try:
                return Ok(from_wire(found["ok"]))
            except (WireError, RecursionError) as error:
                raise CallError(f"its answer is no value: {error}") from None
        message = found.get("message", "")
        if not isinstance(found[kinds[0]], str) or not isinstance(message, str):
            raise CallError("its answer: accepted are texts after unsupported, error and message")
        return Unsupported(found["unsupported"]) if kinds == ["unsupported"] else Refused(found["error"], message)

    def _keep(self, line: bytes) -> None:
        self.strays += 1
        if len(self.stray) < KEPT:
            self.stray.append(line[:200].decode("utf-8", "replace").strip())

    def _remarks(self, before: int) -> str:
        """Describe the stray lines after the first `before` stray lines; return "" if there are none."""
        count = self.strays - before
        first = f", the first {self.stray[before]!r}" if before < len(self.stray) else ""
        return f"; it printed {count} other line{'s' * (count > 1)}{first}" if count else ""

    def _drop(self) -> tuple[int, str]:
        """End the process. Return (exit status, end of the error output)."""
        assert self._process is not None
        process, self._process = self._process, None
        alive = process.popen.poll() is None
        status = process.end(0.5 if alive else 0.0)
        return status, process.statement()


def _object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; {} if the line is not a JSON object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _tail(text: str) -> str:
    """Return the line of an error output that probably explains why the process ended. The function returns the last
    line that mentions an error, or the last line if no line mentions an error."""
    lines = text.splitlines() or [""]
    reported = [
        line for line in lines if re.search(r"error|exception|panic|terminate|fault|what\(\)", line, re.IGNORECASE)
    ]
    return (reported or lines)[-1].strip()[:300]
