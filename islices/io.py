"""save and load: trees of sparse gradients, dense arrays and tables in one file, for every framework alike.

A file is a plain .safetensors or .npz of named arrays that other programs read, with two texts besides: the *manifest*,
which says how the arrays make up the tree, and the manifest's digest. The manifest holds each array's dtype, shape and
digest, so that nothing a file holds can change unnoticed. The parts are in `islices.files`. SPEC clause 21.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from islices.arguments import check_flag, show
from islices.backend import Backend
from islices.files import CONTAINERS, Archive, Container, Contents, Dense, Giver, named, read_manifest
from islices.registry import describe, get_backend
from islices.trees import flatten, rebuild

__all__ = ["Header", "load", "read_header", "read_metadata", "save"]


class Header(NamedTuple):
    """What a file says about itself: see `read_header`."""

    metadata: dict[str, str]
    #: name -> (dtype, shape)
    arrays: dict[str, tuple[str, tuple[int, ...]]]
    #: whether islices wrote the file, so that it says which arrays make up slices
    own: bool


# ---------------------------------------------------------------------- save
def save(path: str | os.PathLike[str], tree: Any, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write gradients and tables to a file, all of it or nothing.

    Parameters
    ----------
    path : str or path
        Ending in .safetensors or .npz, which decides the format. A file that is there is replaced at once, by a rename.
    tree : sparse gradient, dense array, Table, None, or a list, tuple or dict of them
        Of any framework, also of several. Dense arrays may hold integers of 8 to 64 bits or bools too, and be 0-d.
        Keys are strings (any) or ints. Named tuples come back as tuples, other dicts as dicts.
    metadata : mapping of str to str, optional
        What else is to be remembered; `read_metadata` returns it. Names beginning with "islices." are ours.

    Raises
    ------
    TypeError, ValueError, IndexError
        What cannot be saved: the message says where in the tree. Slices whose indices are invalid are not.
    OSError
        What the system says; the old file, if there was one, is still there.

    Notes
    -----
    Never densifies: the file is as large as the stored rows. Slots of padded slices, which hold nothing, are left out.
    Arrays that are not in this machine's memory are fetched, for an .npz one by one. SPEC clause 21.

    Examples
    --------
    >>> import os, tempfile, numpy as np, islices
    >>> s = islices.IndexedSlices(np.ones((2, 3), np.float32), np.array([4, 999_999_999]), (1_000_000_000, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "grads.npz")
    ...     islices.save(path, {"embedding": s, "bias": np.zeros(3)}, metadata={"step": "100"})
    ...     print(islices.load(path)["embedding"])
    ...     print(sorted(np.load(path).files))
    IndexedSlices(n=2, dense_shape=(1000000000, 3), float32, int64, numpy)
    ['bias', 'embedding.indices', 'embedding.values', 'islices.json', 'islices.sha256']
    """
    path, container = _container(path)
    remarks = _check_metadata(metadata)
    contents = Contents(tree)
    with named(path), _replacing(path) as beside:
        container.write(beside, contents.arrays, lambda digests: contents.texts(digests, remarks))


def _container(path: Any) -> tuple[str, Container]:
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


def _check_metadata(metadata: Any) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: got {describe(metadata)}; accepted is a mapping of str to str")
    found = dict(metadata)
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata: got {describe(key)}: {describe(value)}; accepted are str and str")
        if key.startswith("islices."):
            raise ValueError(f"metadata: got the name {show(key)}; those beginning with 'islices.' are reserved")
        if re.search("[\ud800-\udfff]", key + value):
            raise ValueError(f"metadata: got {show(key)}: {show(value)}; accepted is text that UTF-8 can hold")
    return found


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[str]:
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


# ---------------------------------------------------------------------- load
@contextlib.contextmanager
def _opened(path: Any, foreign: bool) -> Iterator[Archive]:
    name, container = _container(path)
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


def load(path: str | os.PathLike[str], *, backend: str | Backend = "numpy", foreign: bool = False) -> Any:
    """Read a file that `save` wrote, into any framework.

    Parameters
    ----------
    path : str or path
        Ending in .safetensors or .npz.
    backend : str or Backend
        Whose arrays to make.
    foreign : bool
        True takes files too that something else wrote (`safetensors.torch.save_file`, `np.savez`): a dict of their
        dense arrays by name. Files of ours are read as ever.

    Returns
    -------
    The tree that was saved: `IndexedSlices` for sparse gradients, dense arrays, `Table`, all over the backend's arrays.

    Raises
    ------
    FileNotFoundError, OSError
        As open does.
    ValueError
        The file is truncated, damaged, hostile, of a newer version, or foreign; the message names it.
    TypeError, IndexError
        The framework has no such dtype (bfloat16 in NumPy without ml_dtypes; float64 in JAX unless jax_enable_x64), or
        holds int64 as int32 and a number does not fit.

    Notes
    -----
    Nothing in a file is executed. What it declares is compared with its size before anything is allocated, and every
    array with its SHA-256. Indices are checked as those of any slices. Memory: one copy of the data, and of one
    array at a time where the framework cannot share it. SPEC clause 21.

    Examples
    --------
    >>> import os, tempfile, numpy as np, islices
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "step.safetensors")
    ...     islices.save(path, [np.arange(3), None, (np.float32(0.5),)])
    ...     islices.load(path)
    [array([0, 1, 2]), None, (array(0.5, dtype=float32),)]
    """
    target = get_backend(backend)
    foreign = check_flag(foreign, "foreign")
    with _opened(path, foreign) as archive:
        manifest = read_manifest(archive)
        tree = _flat(archive) if manifest is None else manifest.tree
        leaves = flatten(tree)
        give = Giver(target, archive, set().union(*(leaf.dtypes() for leaf in leaves if leaf is not None)))
        return rebuild(tree, iter([None if leaf is None else leaf.load(give) for leaf in leaves]))


def _flat(archive: Archive) -> dict[str, Dense]:
    """What somebody else's file holds."""
    return {name: Dense(array, array.dtype, None) for name, array in archive.arrays.items()}


def read_header(path: str | os.PathLike[str], *, foreign: bool = False) -> Header:
    """What a file holds, without reading its data.

    Parameters
    ----------
    path, foreign
        As for `load`.

    Returns
    -------
    Header
        ``metadata`` (of a foreign .safetensors its own), ``arrays`` (name -> (dtype, shape), as other programs see
        them but for bfloat16, which .npz holds as uint16), and ``own``.

    Raises
    ------
    FileNotFoundError, OSError, ValueError, TypeError
        As `load`; damage to the data alone is not seen. SPEC clause 21.

    Examples
    --------
    >>> import os, tempfile, numpy as np, islices.io
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "step.npz")
    ...     islices.save(path, {"w": np.zeros((2, 3))}, metadata={"epoch": "7"})
    ...     islices.io.read_header(path)
    Header(metadata={'epoch': '7'}, arrays={'w': ('float64', (2, 3))}, own=True)
    """
    with _opened(path, check_flag(foreign, "foreign")) as archive:
        manifest = read_manifest(archive)
        held = _flat(archive) if manifest is None else manifest.held
        metadata = archive.texts if manifest is None else manifest.metadata
        return Header(metadata, {name: (leaf.dtype, leaf.shape) for name, leaf in held.items()}, manifest is not None)


def read_metadata(path: str | os.PathLike[str], *, foreign: bool = False) -> dict[str, str]:
    """The metadata alone: ``read_header(path).metadata``.

    Parameters
    ----------
    path, foreign
        As for `load`.

    Returns
    -------
    dict of str to str

    Raises
    ------
    FileNotFoundError, OSError, ValueError, TypeError
        As `read_header`. SPEC clause 21.

    Examples
    --------
    >>> import os, tempfile, islices.io
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "empty.npz")
    ...     islices.save(path, None, metadata={"why": "no gradient"})
    ...     islices.io.read_metadata(path)
    {'why': 'no gradient'}
    """
    return read_header(path, foreign=foreign).metadata
