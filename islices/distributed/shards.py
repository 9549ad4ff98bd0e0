"""Save a ShardedTable as one file per rank, and load it on any number of ranks. SPEC clause 26.

A checkpoint is a folder with one file per rank, and a header that lists these files. `islices.save` writes all files of
a checkpoint. The header is written last, and one rename puts it in place. Until the rename, an old checkpoint in the
same folder stays valid. The files of the ranks contain blocks of rows, and a digest of each block. So a rank reads and
checks only the blocks that contain its rows. `load_sharded` does not trust the header, and checks each entry before it
opens a rank's file.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS, Array, Host
from islices.core.arguments import LARGEST, show
from islices.core.dtypes import host_dtype
from islices.core.host_memory import empty
from islices.core.linear import wide_dtype
from islices.core.registry import describe
from islices.core.trees import flatten
from islices.distributed.agree import Preflight, together
from islices.distributed.engines import find_processes, named_backend
from islices.distributed.group import RankError
from islices.distributed.packing import Form, range_of
from islices.distributed.sharded import ShardedTable, given_like
from islices.files import read_metadata, save
from islices.files.manifest import check_metadata, read_manifest
from islices.files.places import opened, path_text, remove, remove_left
from islices.files.safetensors import OWN, Archive, ArrayEntry, named, parse_json

#: The name of the header's file, and the entry of its metadata that contains the header. The name of a rank's file
#: contains a random token of the save, the rank, and the number of ranks.
HEADER, ENTRY = "islices-shards.safetensors", "checkpoint"
FILE = re.compile(r"shard-[0-9a-f]{16}-\d+-of-\d+\.safetensors")
#: Files whose names match this pattern may remain in the folder if a save was killed.
LEFT = re.compile(rf"{FILE.pattern}|\.islices-[0-9a-f]{{16}}\.tmp")
#: The approximate number of bytes in a block of rows, and the largest number of blocks of an array. The limit keeps the
#: headers of files short.
BLOCK, MOST_BLOCKS = 1 << 22, 1024


# ---------------------------------------------------------------------- header
class Piece(NamedTuple):
    """The file of one rank, which contains the rows start to stop - 1.

    `sha256` is the digest of the file's manifest. The manifest contains the digests of all arrays.
    """

    name: str
    start: int
    stop: int
    sha256: str


class ShardedHeader(NamedTuple):
    """The header of a checkpoint, which `read_sharded_header` returns."""

    num_rows: int
    row_shape: tuple[int, ...]
    dtype: str
    padding_idx: int | None
    scale_by_freq: bool
    #: the number of completed steps, or None if no state was saved
    steps: int | None
    #: name of an array of the state -> (dtype, True if the array has one number per row), without the step count
    state: dict[str, tuple[str, bool]]
    files: list[Piece]
    metadata: dict[str, str]

    def forms(self) -> dict[str, Form]:
        """Return a dict that maps the names of the stored arrays to (shape of a row, dtype)."""
        forms: dict[str, Form] = {"weights": (self.row_shape, host_dtype(self.dtype))}
        for name, (dtype, per_row) in self.state.items():
            forms[f"state.{name}"] = (() if per_row else self.row_shape, host_dtype(dtype))
        return forms


def read_sharded_header(folder: str | os.PathLike[str]) -> ShardedHeader:
    """Read only the header of a checkpoint that `save_sharded` wrote. The call is not collective.

    Parameters
    ----------
    folder : str or path

    Returns
    -------
    ShardedHeader

    Raises
    ------
    TypeError
        `folder` is not a path.
    ValueError
        The header is missing or damaged, or another version of islices wrote it. SPEC clause 26.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from islices.distributed import Alone, ShardedTable, read_sharded_header, save_sharded
    >>> table = ShardedTable.from_full(np.zeros((2, 3)), Alone())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_sharded(folder, table, metadata={"epoch": "7"})
    ...     header = read_sharded_header(folder)
    >>> header.num_rows, header.row_shape, header.dtype, len(header.files), header.metadata
    (2, (3,), 'float64', 1, {'epoch': '7'})
    """
    path = os.path.join(path_text(folder, "folder"), HEADER)
    try:
        text = read_metadata(path).get(ENTRY, "")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path}: it is not there: the folder holds no complete checkpoint of save_sharded") from None
    with named(path):
        found = parse_json(text, "the header")
        if not isinstance(found, dict) or found.keys() != set(ShardedHeader._fields):
            raise ValueError("it is no header of save_sharded")
        for name, fits in _CHECKS.items():
            if not fits(found[name], found):
                raise ValueError(f"got {name} {show(found[name])}, which no checkpoint has")
    state = {name: (dtype, bool(per_row)) for name, (dtype, per_row) in found["state"].items()}
    files = [Piece(*entry) for entry in found["files"]]
    return ShardedHeader(**{**found, "row_shape": tuple(found["row_shape"]), "state": state, "files": files})


def _is_count(n: Any) -> bool:
    return type(n) is int and 0 <= n <= LARGEST


def _is_kind(x: Any, dtype: str) -> bool:
    return isinstance(x, list) and len(x) == 2 and x[0] == wide_dtype(dtype) and type(x[1]) is bool


def _are_files(files: Any, rows: int) -> bool:
    """Return True if `files` is a valid list of files, and their ranges cover the numbers 0 to `rows` - 1 in order
    without gaps."""
    at = 0
    for entry in files if isinstance(files, list) else ():
        if not isinstance(entry, list) or len(entry) != 4 or not all(isinstance(entry[k], str) for k in (0, 3)):
            return False
        name, start, stop, _ = entry
        if not FILE.fullmatch(name) or start != at or not _is_count(stop) or stop < at:
            return False
        at = stop
    return at == rows and bool(files)


#: name of the header's entry -> a function of the entry's value and the whole header, which returns True if
#: `save_sharded` can write this value. The entries are checked in this order.
_CHECKS: dict[str, Any] = {
    "num_rows": lambda x, _: _is_count(x),
    "row_shape": lambda x, _: isinstance(x, list) and all(map(_is_count, x)),
    "dtype": lambda x, _: x in FLOATS,
    "padding_idx": lambda x, of: x is None or (_is_count(x) and x < of["num_rows"]),
    "scale_by_freq": lambda x, _: type(x) is bool,
    "steps": lambda x, _: x is None or (_is_count(x) and x < 2**31),
    "state": lambda x, of: isinstance(x, dict) and all(_is_kind(y, of["dtype"]) for y in x.values()),
    "files": lambda x, of: _are_files(x, of["num_rows"]),
    "metadata": lambda x, _: isinstance(x, dict) and all(isinstance(value, str) for value in x.values()),
}


# ---------------------------------------------------------------------- save
def save_sharded(
    folder: str | os.PathLike[str],
    table: ShardedTable,
    state: Mapping[str, Array] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a sharded table, and the optimizer's state if it is given, to a folder that all ranks can access. The call
    is collective.

    Parameters
    ----------
    folder : str or path
        If the folder does not exist, the call makes it. If the folder contains a checkpoint, the call replaces this
        checkpoint as soon as all ranks have written the new checkpoint. So each table needs a separate folder.
    table : ShardedTable
    state : dict, optional
        The result of `ShardedTable.init` or `step`.
    metadata : mapping of str to str, optional
        Texts, which must be the same on every rank. `read_sharded_header` returns these texts.

    Raises
    ------
    TypeError, ValueError, OSError
        This rank cannot save, or the ranks' tables, states or metadata differ. An old checkpoint in the folder stays
        valid.
    RankError, RankTimeout
        Another rank could not save, or did not call in time.

    Notes
    -----
    Each rank writes only its rows, so no rank sends or allocates an array of the whole table's size. SPEC clause 26.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from islices.distributed import Alone, ShardedTable, load_sharded, save_sharded
    >>> table = ShardedTable.from_full(np.array([[1.0], [2.0]]), Alone())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_sharded(folder, table)
    ...     loaded, state = load_sharded(folder, Alone())
    >>> loaded.shard.weights.tolist(), state
    ([[1.0], [2.0]], None)
    """
    call = "save_sharded"
    if isinstance(table, ShardedTable):
        group, error = table.group, None
    else:
        error = TypeError(f"table: got {describe(table)}; accepted is a ShardedTable")
        group = find_processes(None, None, error)

    def prepare() -> Preflight[tuple[str, dict[str, Any], dict[str, Host]]]:
        arrays, steps, kinds = _arrays(table, state)
        remarks = check_metadata(metadata)
        place = path_text(folder, "folder")
        os.makedirs(place, exist_ok=True)
        facts = {**table._description(), "steps": steps, "state": kinds, "metadata": remarks}
        return (place, facts, arrays), facts, np.frombuffer(secrets.token_bytes(8), np.int64)

    (place, facts, arrays), agreed = together(group, call, prepare, error=error)
    token = agreed.counts[0].tobytes().hex()
    names = [f"shard-{token}-{rank}-of-{group.size}.safetensors" for rank in range(group.size)]
    bounds, path = table.bounds.tolist(), os.path.join(place, names[group.rank])

    def write() -> Preflight[None]:
        rows = "{}:{}".format(*bounds[group.rank : group.rank + 2])
        save(path, {name: _blocks(x) for name, x in arrays.items()}, metadata={"rows": rows})
        with opened(path) as archive:
            return None, {}, np.frombuffer(bytes.fromhex(archive.texts[OWN[1]]), np.int64)

    def look() -> Preflight[None]:
        absent = [name for name in names if not os.path.exists(os.path.join(place, name))] if group.rank == 0 else []
        if absent:
            raise FileNotFoundError(f"{place}: {absent[0]} is not there: accepted is a folder that all ranks see")
        return None, {}, []

    try:
        _, agreed = together(group, call, write)
        together(group, call, look)
    except Exception:
        if group._broken is None:  # all ranks know that one rank could not write its file, so no rank writes the header
            remove(path)
        raise  # the file stays if the group is broken, because other ranks may believe that all files are complete
    pieces = zip(names, bounds[:-1], bounds[1:], (got.tobytes().hex() for got in agreed.counts), strict=True)
    header = {**facts, "files": list(map(list, pieces))}

    def publish() -> Preflight[set[str]]:
        if group.rank != 0:
            return set(), {}, []
        before = _named_files(place)
        save(os.path.join(place, HEADER), None, metadata={ENTRY: json.dumps(header)})
        return before, {}, []

    before, _ = together(group, call, publish)
    if group.rank == 0:
        _remove_others(place, before, set(names))


def _named_files(folder: str) -> set[str]:
    """Return the names of the ranks' files in a folder's checkpoint. If there is no valid checkpoint, return an empty
    set."""
    try:
        return {piece.name for piece in read_sharded_header(folder).files}
    except (OSError, ValueError):  # the folder has no checkpoint, or a damaged one
        return set()


def _remove_others(folder: str, before: set[str], kept: set[str]) -> None:
    """Remove the files of the old checkpoint, and files of other saves that were killed.

    Recent files of other saves stay, because they may belong to a save that is still running.
    """
    for name in before - kept:
        remove(os.path.join(folder, name))
    with contextlib.suppress(OSError):  # a file that cannot be removed is harmless
        now = os.stat(os.path.join(folder, HEADER)).st_mtime  # the current time on the file system's clock
        remove_left(folder, lambda name: name not in kept and LEFT.fullmatch(name), now)


def _arrays(table: ShardedTable, state: Any) -> tuple[dict[str, Host], int | None, dict[str, Any]]:
    """Return (arrays, steps, kinds) of a table and its state. Raise TypeError or ValueError if the state is invalid.

    `arrays` contains the host arrays by name, without the step count. `steps` is the step count, or None if there is no
    state. `kinds` maps the names of the state's arrays to [dtype, True if the array has one number per row].
    """
    B, shape = table.backend, table.shard.shape
    arrays = {"weights": B.to_numpy(table.shard.weights)}
    if state is None:
        return arrays, None, {}
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state) or "step" not in state:
        raise TypeError(f"state: got {describe(state)}; accepted is the dict that ShardedTable.init returned")
    kinds: dict[str, Any] = {}
    dtype = B.dtype(table.shard.weights)
    for name, x in state.items():
        accepted, wanted = ([(1,)], "int32") if name == "step" else ([shape, shape[:1]], wide_dtype(dtype))
        if not B.is_array(x) or B.shape(x) not in accepted:
            raise ValueError(
                f"state[{name!r}]: got {describe(x)}; accepted is an array of {B.name} of shape {accepted[0]}"
            )
        if B.dtype(x) != wanted:
            raise TypeError(f"state[{name!r}]: got {B.dtype(x)}; accepted for a table of {dtype} is {wanted}")
        if name != "step":
            arrays[f"state.{name}"] = B.to_numpy(x)
            kinds[name] = [B.dtype(x), B.shape(x) != shape]
    steps = int(B.to_numpy(state["step"])[0])
    if steps < 0:
        raise ValueError(f"state['step']: got {steps}; accepted is the number of steps taken, >= 0")
    return arrays, steps, kinds


def _blocks(x: Host) -> list[Host]:
    """Divide an array into blocks of about `BLOCK` bytes, or into at most `MOST_BLOCKS` larger blocks. Each block
    consists of whole rows."""
    rows = max(1, BLOCK * len(x) // max(1, x.nbytes), -(-len(x) // MOST_BLOCKS))
    return [x[at : at + rows] for at in range(0, len(x), rows)]


# ---------------------------------------------------------------------- load
def load_sharded(
    folder: str | os.PathLike[str], group: Any = None, *, like: Any = "numpy"
) -> tuple[ShardedTable, dict[str, Array] | None]:
    """Read a checkpoint that `save_sharded` wrote. The number of ranks may differ from that of the save. The call is
    collective.

    Parameters
    ----------
    folder : str or path
    group : None, str, Group or an engine's group object
        See `get_group`.
    like : str, Backend or array
        The backend of the loaded arrays. An array also determines the device. If `like` is a tf.Variable, the loaded
        arrays are tf.Variables.

    Returns
    -------
    (ShardedTable, state)
        The state is None if the checkpoint contains none.

    Raises
    ------
    ValueError
        There is no valid header, or a file is missing, truncated, damaged or replaced. In these cases, every rank
        raises a ValueError. Or `group` or `like` is invalid.
    TypeError
        An argument has a wrong type, or the framework does not have the table's dtype.
    RankError, RankTimeout
        Another rank has died, or did not call in time.

    Notes
    -----
    If another process replaces the checkpoint during the call, all ranks may raise ValueError, and you can call again.
    Besides the header, each rank opens only the files that contain its rows. From these files, the rank reads only the
    blocks that contain its rows (usually about 4 MiB each), and checks each block's SHA-256. SPEC clause 26.

    Examples
    --------
    >>> import tempfile, numpy as np, islices
    >>> from islices.distributed import Alone, ShardedTable, load_sharded, save_sharded
    >>> table = ShardedTable.from_full(np.array([[1.0], [2.0]]), Alone())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_sharded(folder, table, table.init(islices.optim.adagrad(0.1)))
    ...     loaded, state = load_sharded(folder, Alone())
    >>> loaded, sorted(state)
    (ShardedTable((2, 1), float64, numpy, rows 0 to 1 on rank 0 of 1), ['accumulator', 'step'])
    """
    B, refused = named_backend(like)
    found = find_processes(group, B, refused)
    call = "load_sharded"

    def look() -> Preflight[ShardedHeader]:
        header = read_sharded_header(folder)
        return header, {"files": [piece.name for piece in header.files]}, []

    def read() -> Preflight[tuple[Array, dict[str, Array] | None]]:
        assert B is not None
        for _, dtype in header.forms().values():  # check dtypes before any data are read
            B.asarray(np.zeros(1, dtype))
        arrays = _read_rows(path_text(folder, "folder"), header, *range_of(header.num_rows, found))
        given = {name: given_like(B, x, like) for name, x in arrays.items()}
        weights, state = given["weights"], None
        if header.steps is not None:
            step = given_like(B, np.array([header.steps], np.int32), like)
            state = {"step": step, **{name: given[f"state.{name}"] for name in header.state}}
        return (weights, state), {}, []

    try:
        header, _ = together(found, call, look, error=refused)
        (weights, state), _ = together(found, call, read)
    except RankError as failed:
        if found._broken is not None:  # a rank has died or is late; otherwise one rank could not read a file
            raise
        raise ValueError(f"{os.fsdecode(folder)}: {failed}") from failed
    options = {"padding_idx": header.padding_idx, "scale_by_freq": header.scale_by_freq}
    return ShardedTable(weights, header.num_rows, found, **options), state  # type: ignore[arg-type]


def _read_rows(folder: str, header: ShardedHeader, start: int, stop: int) -> dict[str, Host]:
    """Read the rows start to stop - 1 of all arrays. Raise ValueError if a file is missing or damaged."""
    forms = header.forms()
    row_bytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms.values())
    pieces = {os.path.join(folder, p.name): p for p in header.files if p.start < stop and start < p.stop}
    for path, piece in pieces.items():  # check all files before anything is allocated
        if not os.path.exists(path):
            raise ValueError(f"{path}: it is not there, though the checkpoint names it")
        rows = piece.stop - piece.start
        if os.stat(path).st_size < rows * row_bytes:
            raise ValueError(f"{path}: its {rows} rows are not all there: truncated, or another file")
    out = {name: empty((stop - start, *shape), dtype) for name, (shape, dtype) in forms.items()}
    for path, piece in pieces.items():
        with opened(path) as archive:
            _read_piece(archive, piece, forms, start, out)
    return out


def _read_piece(archive: Archive, piece: Piece, forms: Mapping[str, Form], start: int, out: Mapping[str, Host]) -> None:
    """Read rows from the blocks of a file into the arrays of `out`. The first row of these arrays is row `start` of the
    table.

    Raise ValueError if the file does not belong to the checkpoint.
    """
    if archive.texts.get(OWN[1]) != piece.sha256:
        raise ValueError("it is not the file that the checkpoint names: its manifest has another SHA-256")
    manifest = read_manifest(archive)
    tree: Any = None if manifest is None else manifest.tree
    if not isinstance(tree, dict) or tree.keys() != forms.keys():
        raise ValueError("it does not hold the arrays that the checkpoint names")
    for name, (shape, dtype) in forms.items():
        into, at = out[name], piece.start
        for leaf in flatten(tree[name]):
            if not isinstance(leaf, ArrayEntry) or leaf.shape[1:] != shape or leaf.dtype != dtype.name:
                raise ValueError(f"{name!r} holds other arrays than {dtype} of rows {shape}")
            end = at + leaf.shape[0]
            first, last = max(at, start), min(end, start + len(into))
            if first < last:
                into[first - start : last - start] = archive.read(leaf)[first - at : last - at]
            at = end
        if at != piece.stop:
            raise ValueError(
                f"it holds {at - piece.start} rows of {name!r}; the checkpoint says {piece.stop - piece.start}"
            )
