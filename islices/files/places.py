"""Handle files on disk: check a name, open a file, and replace a file by a complete new one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from typing import Any

from islices.core.arguments import show
from islices.core.registry import describe
from islices.files.safetensors import Archive, named

#: Seconds without a write after which a file counts as abandoned.
ABANDONED = 3600.0


def path_text(path: Any, argument: str) -> str:
    """Convert a path to a str; raise TypeError for any other object."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise TypeError(f"{argument}: got {describe(path)}; accepted is a str or a path") from None


def file_name(path: Any) -> str:
    """Convert the path of a .safetensors file to a str. Raise TypeError or ValueError for any other object or name."""
    name = path_text(path, "path")
    if "\0" in name:
        raise ValueError(f"path: got {show(name)}; accepted are names without NUL")
    if os.path.splitext(name)[1].lower() != ".safetensors":
        raise ValueError(f"path: got {show(name)}; accepted are names that end in .safetensors")
    return name


@contextlib.contextmanager
def opened(path: Any, foreign: bool = False) -> Iterator[Archive]:
    """Open a .safetensors file of islices or, if `foreign` is True, of any program, and yield the `Archive`. Raise
    ValueError for any other file, and OSError if the system cannot open the file."""
    name = file_name(path)
    with open(name, "rb", buffering=0, opener=_without_waiting) as file, named(name):
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        archive = Archive(name, file, status.st_size)
        if not foreign and not any(text.startswith("islices.") for text in archive.texts):
            raise ValueError(
                "it is no file that islices.save wrote; load(path, foreign=True) takes any, as a dict of dense arrays"
            )
        yield archive


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))  # so opening a pipe returns at once instead of blocking


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield the path of an empty file for the caller to write. At the end of the context, the new file is synced to
    disk and moved to `path`. If the new file replaces another file, it gets that file's permissions.

    If an error is raised, the new file is removed. A call that was killed leaves its file behind. The function also
    removes such files for the same `path`, if nobody has written to them in the last `ABANDONED` seconds.
    """
    target = os.path.realpath(path)  # a symbolic link stays, as it would with open
    mode = _mode_of(target)
    folder, name = os.path.split(target)
    label = hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
    beside = os.path.join(folder, f".islices-{label}{secrets.token_hex(4)}.tmp")
    try:
        with open(beside, "xb") as made:
            status = os.fstat(made.fileno())
        remove_left(folder, re.compile(rf"\.islices-{label}[0-9a-f]{{8}}\.tmp").fullmatch, status.st_mtime)
        yield beside
        with open(beside, "rb+") as written:
            os.chmod(beside, stat.S_IMODE(status.st_mode) if mode is None else mode)
            os.fsync(written.fileno())
        os.replace(beside, target)
    except BaseException as error:
        remove(beside)  # if this fails, a later call removes the file
        if isinstance(error, OSError) and error.filename == beside:
            error.filename = path
        raise
    _sync_folder(folder)


def remove(path: str) -> None:
    """Remove a file. Errors of the system are ignored, because a file that stays is harmless."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def remove_left(folder: str, chosen: Callable[[str], object], now: float) -> None:
    """Remove the chosen files to which no one has written for `ABANDONED` seconds. `now` is the current time of the
    folder's file system.
    """
    with contextlib.suppress(OSError):  # the folder may be writable, but not readable
        for name in filter(chosen, os.listdir(folder)):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):  # a file that stays is harmless
                if now - os.stat(path).st_mtime > ABANDONED:
                    os.unlink(path)


def _mode_of(target: str) -> int | None:
    """Return the permissions of an existing file, or None if there is no file. Raise OSError for a folder or for a file
    that cannot be written, and ValueError for anything else that is not a regular file."""
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
    """Sync the folder, if the system supports this, so that a rename in the folder reaches the disk."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
