"""Where the files lie: their kind by the suffix, opening one, and putting a whole one in the place of another."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Any

from islices.arguments import show
from islices.files.containers import Archive, Container, named
from islices.files.npz import NPZ
from islices.files.safetensors import SAFETENSORS
from islices.registry import describe

__all__ = ["CONTAINERS", "container_of", "opened", "replacing"]

#: suffix -> kind of file
CONTAINERS = {".safetensors": SAFETENSORS, ".npz": NPZ}


def container_of(path: Any) -> tuple[str, Container]:
    """A file's name and its kind, by its suffix; TypeError or ValueError for any other."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise TypeError(f"path: got {describe(path)}; accepted is a str or a path") from None
    if "\0" in name:
        raise ValueError(f"path: got {show(name)}; accepted are names without NUL")
    container = CONTAINERS.get(os.path.splitext(name)[1].lower())
    if container is None:
        raise ValueError(f"path: got {show(name)}; accepted are names that end in {' or '.join(CONTAINERS)}")
    return name, container


@contextlib.contextmanager
def opened(path: Any, foreign: bool = False) -> Iterator[Archive]:
    """A file of islices, or with foreign any of these kinds; ValueError or OSError for what is none."""
    name, container = container_of(path)
    with open(name, "rb", buffering=0, opener=_without_waiting) as file, named(name):
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        archive = container.open(name, file, status.st_size)
        if not foreign and not any(text.startswith("islices.") for text in archive.texts):
            raise ValueError(
                "it is no file that islices.save wrote; load(path, foreign=True) takes any, as a dict of dense arrays"
            )
        yield archive


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe is refused, not waited for


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """The path of an empty file to write, which takes another's place, and its permissions, once it is on the disk."""
    target = os.path.realpath(path)  # a link stays, as it would for open
    mode = _mode_of(target)
    folder = os.path.dirname(target)
    beside = os.path.join(folder, f".islices-{secrets.token_hex(8)}.tmp")
    try:
        with open(beside, "xb") as made:
            mode = stat.S_IMODE(os.fstat(made.fileno()).st_mode) if mode is None else mode
        yield beside
        with open(beside, "rb+") as written:
            os.chmod(beside, mode)
            os.fsync(written.fileno())
        os.replace(beside, target)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        if isinstance(error, OSError) and error.filename == beside:
            error.filename = path
        raise
    _sync_folder(folder)


def _mode_of(target: str) -> int | None:
    """The permissions of the file that is there, if it may be written as open would; None if there is none."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    if not stat.S_ISREG(mode):
        raise ValueError("what is there is no regular file, and is not replaced")
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
    return stat.S_IMODE(mode)


def _sync_folder(folder: str) -> None:
    """The rename on the disk too, where the system lets folders be synced."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
