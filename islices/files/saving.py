"""Define `save`, which stores a tree of sparse gradients, dense arrays and tables in one file, and `load`, which reads
the file. The file has the same form for every framework.

A file is a plain .safetensors file of named arrays, which other programs can read. `save` adds two texts: the
*manifest*, which describes how the arrays form the tree, and the manifest's digest. The manifest contains each array's
dtype, shape and digest, so that `load` detects damage to the file. SPEC clause 21.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from islices.backend import Backend
from islices.core.arguments import check_flag
from islices.core.registry import get_backend
from islices.core.trees import flatten, rebuild
from islices.files.manifest import Contents, Giver, check_metadata, read_manifest
from islices.files.places import file_name, opened, replacing
from islices.files.safetensors import named, write_arrays


class Header(NamedTuple):
    """The header of a file, as `read_header` returns it."""

    metadata: dict[str, str]
    #: name -> (dtype, shape)
    arrays: dict[str, tuple[str, tuple[int, ...]]]
    #: True if islices wrote the file, so that the file describes which arrays belong to the same slices
    own: bool


# ---------------------------------------------------------------------- save
def save(path: str | os.PathLike[str], tree: Any, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write gradients, arrays and tables to a file, completely or not at all.

    Parameters
    ----------
    path : str or path
        The file's name, which ends in .safetensors. An existing file is replaced in one step, by a rename.
    tree : sparse gradient, dense array, Table, None, or a list, tuple or dict of them
        The leaves may be of any framework, or of several. Dense arrays may also be 0-d, and may also contain bools or
        integers of 8 to 64 bits. Keys of dicts are strings or ints. `load` returns named tuples as tuples, and
        subclasses of dict as dicts.
    metadata : mapping of str to str, optional
        Further texts; `read_metadata` returns them. Names that begin with "islices." are reserved.

    Raises
    ------
    TypeError, ValueError, IndexError
        path or metadata are not accepted. Or the tree contains an object that cannot be saved, such as slices with
        invalid indices; the message names the object's place in the tree.
    ModuleNotFoundError
        safetensors, or ml_dtypes for bfloat16, is missing: ``pip install "islices[io]"``.
    OSError
        The system cannot write the file. A file that already exists at the path stays as it is.

    Notes
    -----
    Saving never densifies: a gradient's size in the file depends on its stored rows, not on the table's size. Empty
    slots of padded slices are left out. Arrays outside of host memory are copied to the host one by one.
    SPEC clause 21.

    Examples
    --------
    >>> import os, tempfile, numpy as np, islices
    >>> s = islices.IndexedSlices(np.ones((2, 3), np.float32), np.array([4, 999_999_999]), (1_000_000_000, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "grads.safetensors")
    ...     islices.save(path, {"embedding": s, "bias": np.zeros(3)}, metadata={"step": "100"})
    ...     print(islices.load(path)["embedding"])
    ...     print(sorted(islices.files.read_header(path).arrays))
    IndexedSlices(n=2, dense_shape=(1000000000, 3), float32, int64, numpy)
    ['bias', 'embedding.indices', 'embedding.values']
    """
    path = file_name(path)
    remarks = check_metadata(metadata)
    contents = Contents(tree)
    with named(path), replacing(path) as beside:
        write_arrays(beside, contents.arrays, lambda digests: contents.texts(digests, remarks))


# ---------------------------------------------------------------------- load
def load(path: str | os.PathLike[str], *, backend: str | Backend = "numpy", foreign: bool = False) -> Any:
    """Read a file that `save` wrote, and return its tree with the arrays of any framework.

    Parameters
    ----------
    path : str or path
        The file's name, which ends in .safetensors.
    backend : str or Backend
        The backend of the loaded arrays.
    foreign : bool
        If True, also read files of other programs, such as those of `safetensors.torch.save_file`, and return {name:
        dense array} for them. For files of islices, the argument has no effect.

    Returns
    -------
    The tree that was saved, with arrays of the backend. The leaves are dense arrays, `Table`, None, and
    `IndexedSlices` for sparse gradients.

    Raises
    ------
    FileNotFoundError, OSError
        The system cannot open or read the file.
    ModuleNotFoundError
        safetensors, or ml_dtypes for bfloat16, is missing: ``pip install "islices[io]"``. Or the backend's framework is
        not installed.
    ImportError
        safetensors is too old, or the backend cannot be loaded.
    ValueError
        path or backend is not accepted. Or the file is truncated, damaged, hostile, of an unknown version, or foreign
        although foreign is False; the message then contains the file's name.
    TypeError, IndexError
        path, backend or foreign has a wrong type. Or the framework lacks a dtype of the file, such as float64 in JAX
        without jax_enable_x64. Or the framework stores int64 as int32, and a number does not fit.

    Notes
    -----
    Nothing in a file is executed. Declared sizes are compared with the file's size before any array is allocated. In a
    file of islices, every array is compared with its SHA-256, and indices are checked as in any sparse gradient.
    Loading needs memory for one copy of the data. If the framework cannot share memory with NumPy, loading also needs
    memory for one more array at a time. SPEC clause 21.

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
    with opened(path, foreign) as archive:
        manifest = read_manifest(archive)
        tree = archive.arrays if manifest is None else manifest.tree
        give = Giver(target, archive)
        return rebuild(tree, iter([None if leaf is None else give.load(leaf) for leaf in flatten(tree)]))


def read_header(path: str | os.PathLike[str], *, foreign: bool = False) -> Header:
    """Read a file's header without its data.

    Parameters
    ----------
    path, foreign
        As for `load`.

    Returns
    -------
    Header
        The attribute ``metadata`` contains the caller's texts, or all texts of a foreign file. ``arrays`` is a dict
        {name: (dtype, shape)}, and ``own`` is True for a file of islices.

    Raises
    ------
    FileNotFoundError, OSError, ImportError, ValueError, TypeError
        See `load`. Damage to the data causes no error, because the data are not read. SPEC clause 21.

    Examples
    --------
    >>> import os, tempfile, numpy as np, islices.files
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "step.safetensors")
    ...     islices.save(path, {"w": np.zeros((2, 3))}, metadata={"epoch": "7"})
    ...     islices.files.read_header(path)
    Header(metadata={'epoch': '7'}, arrays={'w': ('float64', (2, 3))}, own=True)
    """
    with opened(path, check_flag(foreign, "foreign")) as archive:
        manifest = read_manifest(archive)
        held = archive.arrays if manifest is None else manifest.held
        metadata = archive.texts if manifest is None else manifest.metadata
        return Header(metadata, {name: (x.dtype, x.shape) for name, x in held.items()}, manifest is not None)


def read_metadata(path: str | os.PathLike[str], *, foreign: bool = False) -> dict[str, str]:
    """Return only the metadata: ``read_header(path).metadata``.

    Parameters
    ----------
    path, foreign
        As for `load`.

    Returns
    -------
    dict of str to str

    Raises
    ------
    FileNotFoundError, OSError, ImportError, ValueError, TypeError
        See `read_header`. SPEC clause 21.

    Examples
    --------
    >>> import os, tempfile, islices.files
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "empty.safetensors")
    ...     islices.save(path, None, metadata={"why": "no gradient"})
    ...     islices.files.read_metadata(path)
    {'why': 'no gradient'}
    """
    return read_header(path, foreign=foreign).metadata
