"""Start the ranks of an engine as processes on this machine, and collect their results."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from islices.core.registry import is_installed
from islices.distributed.engines import BUILTIN, list_engines, load_engine

#: The names of a rank's environment variables.
RANK, SIZE, MEETING, PORTS = "ISLICES_RANK", "ISLICES_RANKS", "ISLICES_MEETING", "ISLICES_PORTS"
TIMEOUT = "ISLICES_RANK_TIMEOUT"


class Finished(NamedTuple):
    """A rank that has ended. ``value`` is the result of the rank's function, or ``error`` is (names of the error's
    classes, text, traceback). If the process ended before it wrote either, both are None and ``statement`` is False."""

    value: Any
    error: tuple[list[str], str, str] | None
    returncode: int | None
    statement: bool


class Ranks(NamedTuple):
    """All ranks of a run, in order, and the texts that they printed. There is one text per rank; under MPI, there is a
    single text for all ranks."""

    ranks: list[Finished]
    output: list[str]
    seconds: float

    @property
    def values(self) -> list[Any]:
        """Return the results of all ranks. If a rank failed, raise AssertionError with the rank's traceback, or with
        the printed texts if there is no traceback."""
        for number, rank in enumerate(self.ranks):
            if rank.error is not None:
                raise AssertionError(f"rank {number} raised\n{rank.error[2]}")
            if not rank.statement:
                text = "\n".join(self.output)[-3000:]
                raise AssertionError(f"rank {number} ended with {rank.returncode} and said nothing\n{text}")
        return [rank.value for rank in self.ranks]


def absent(engine: str) -> str:
    """Return the reason why an engine cannot run here, or "" if it can."""
    module = list_engines()[engine]
    if not is_installed(module):
        return f"{module} is not installed" + (': pip install "islices[mpi]" mpich' if engine == "mpi" else "")
    try:
        if engine not in BUILTIN and not hasattr(load_engine(engine), "start"):
            return "it has no function start"
    except (ImportError, TypeError, ValueError) as error:
        return str(error)
    if engine == "mpi" and _mpiexec() is None:
        return "there is no mpiexec: pip install mpich"
    return ""


def run_ranks(
    engine: str,
    size: int,
    target: str,
    keywords: Mapping[str, Any] | None = None,
    *,
    timeout: float = 20.0,
    deadline: float = 120.0,
    environment: Mapping[str, str] | None = None,
) -> Ranks:
    """Run ``target`` on every rank of an engine.

    Parameters
    ----------
    engine : str
        The name of an engine: a key of the dict from `islices.distributed.engines.list_engines`.
    size : int
        The number of ranks.
    target : str
        "module:function" or "/path/file.py:function". Each rank calls ``function(group, **keywords)``, where group is a
        `Group`.
    keywords : mapping, optional
        The keyword arguments of the function; they must be picklable.
    timeout : float
        The seconds that a rank waits for other ranks, passed to the engine.
    deadline : float
        The seconds after which running processes are killed.
    environment : mapping, optional
        Further environment variables of the processes.

    Returns
    -------
    Ranks
    """
    folder = Path(tempfile.mkdtemp(prefix="islices-ranks-"))
    try:
        (folder / "given.pickle").write_bytes(pickle.dumps((sys.path, dict(keywords or {}))))
        started = time.monotonic()
        shared = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONFAULTHANDLER": "1",
            "OMP_NUM_THREADS": "1",
            SIZE: str(size),
            TIMEOUT: str(timeout),
            MEETING: str(folder / "meeting"),
            **(environment or {}),
        }
        command = [sys.executable, "-m", "islices.conformance.ranks.worker", engine, target, str(folder)]
        commands = _commands(engine, size, command, shared)
        codes, output = _follow(commands, folder, started + deadline)
        if len(commands) == 1 and size > 1:  # the exit code of MPI's launcher counts for all ranks
            codes = codes * size
        ranks = [_finished(folder / f"{rank}.pickle", codes[rank]) for rank in range(size)]
        return Ranks(ranks, output, time.monotonic() - started)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _commands(
    engine: str, size: int, command: list[str], shared: dict[str, str]
) -> list[tuple[list[str], dict[str, str]]]:
    if engine == "mpi":
        launcher = _mpiexec()
        if launcher is None:
            raise RuntimeError("there is no mpiexec: pip install mpich")
        # -m mpi4py ends all ranks if one ends with an exception
        python = [command[0], "-m", "mpi4py", *command[1:]]
        return [([launcher, "-n", str(size), *python], shared)]
    if engine == "jax":
        shared[PORTS] = str(free_ports(1)[0])
    elif engine == "tensorflow":
        shared[PORTS] = ",".join(map(str, free_ports(size)))
    return [(command, {**shared, RANK: str(rank)}) for rank in range(size)]


def _follow(
    commands: list[tuple[list[str], dict[str, str]]], folder: Path, until: float
) -> tuple[list[int | None], list[str]]:
    """Run the commands and return (exit codes, printed texts). If a process still runs at the time ``until``, it is
    killed, and its exit code is None."""
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context((folder / f"{k}.log").open("w+")) for k in range(len(commands))]
        processes = [
            stack.enter_context(_group_of(command, environment, log))
            for (command, environment), log in zip(commands, logs, strict=True)
        ]
        codes: list[int | None] = []
        for process in processes:
            try:
                codes.append(process.wait(timeout=max(0.0, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
    return codes, [(folder / f"{k}.log").read_text("utf-8", "replace") for k in range(len(commands))]


@contextlib.contextmanager
def _group_of(command: list[str], environment: dict[str, str], log: Any) -> Iterator[subprocess.Popen[Any]]:
    """Return a context whose value is a process, started in a new process group. At the end of the context, kill the
    group, because a launcher's children are in it."""
    process = subprocess.Popen(
        command, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _finished(path: Path, code: int | None) -> Finished:
    if not path.exists():
        return Finished(None, None, code, False)
    answer = pickle.loads(path.read_bytes())
    return Finished(answer.get("value"), answer.get("error"), code, True)


def _mpiexec() -> str | None:
    """Return the path of mpiexec. The program next to this Python, which the mpich wheel installs, is preferred to a
    program on PATH. Return None if neither exists."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
