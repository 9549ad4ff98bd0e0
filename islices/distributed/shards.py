"""Saving a ShardedTable by shard, and loading it on any number of ranks. SPEC clause 26.

A checkpoint is a folder: one file a rank, which `islices.save` writes, and one header, which says which files belong
together and is replaced last, in one rename: until then the old checkpoint is the one that is there. In the files rows
lie in blocks, each with its own digest, so that a rank reads no more than the blocks that its rows lie in.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from islices.backend import Array
from islices.core.dtypes import host_dtype
from islices.core.host_memory import empty
from islices.core.linear import wide_dtype
from islices.core.registry import describe
from islices.distributed.engines import find_processes, named_backend
from islices.distributed.group import RankError
from islices.distributed.local import given_like
from islices.distributed.ranges import even_bounds
from islices.distributed.routes import Host
from islices.distributed.shard_files import (
    block_rows,
    checkpoint_errors,
    digest,
    named_files,
    piece_blocks,
    read_checkpoint,
    remove,
    remove_others,
    row_forms,
)
from islices.distributed.shard_header import (
    Piece,
    ShardedHeader,
    folder_name,
    write_header,
)
from islices.distributed.sharded import ShardedTable
from islices.distributed.together import together
from islices.files import save
from islices.files.manifest import check_metadata
from islices.files.places import opened
from islices.files.safetensors import Archive

__all__ = ["load_sharded", "save_sharded"]


# ---------------------------------------------------------------------- save
def save_sharded(
    folder: str | os.PathLike[str],
    table: ShardedTable,
    state: Mapping[str, Array] | None = None,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a sharded table, and its optimizer's state, into a folder that all ranks see. Collective.

    Parameters
    ----------
    folder : str or path
        Made if it is not there. A checkpoint in it is replaced once the new one is complete on all ranks: each table
        has a folder of its own.
    table : ShardedTable
    state : dict, optional
        What `ShardedTable.init` or `step` returned.
    metadata : mapping of str to str, optional
        The same on every rank; `read_sharded_header` returns it.

    Raises
    ------
    TypeError, ValueError, OSError
        On the rank that cannot; the old checkpoint, if there was one, is still there.
    RankError, RankTimeout
        Another rank could not.

    Notes
    -----
    Each rank writes its own rows, so that nothing of the table's size is moved or made. SPEC clause 26.

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
        wrong = TypeError(f"table: got {describe(table)}; accepted is a ShardedTable")
        group, error = find_processes(None, None, wrong)

    def prepare() -> tuple[str, dict[str, Any], dict[str, Host]]:
        arrays, steps, kinds = _arrays(table, state)
        remarks = check_metadata(metadata)
        place = folder_name(folder)
        os.makedirs(place, exist_ok=True)
        said = {**table._description(), "steps": steps, "state": kinds, "metadata": remarks}
        return place, said, arrays

    chosen = np.frombuffer(secrets.token_bytes(8), np.int64)
    (place, said, arrays), agreed = together(
        group, call, prepare, lambda found: found[1], lambda _: chosen, error=error
    )
    token = agreed.counts[0].astype(np.int64).tobytes().hex()
    names = [f"shard-{token}-{rank}-of-{group.size}.safetensors" for rank in range(group.size)]
    bounds, path = table.bounds.tolist(), os.path.join(place, names[group.rank])

    def write() -> Host:
        rows = "{}:{}".format(*bounds[group.rank : group.rank + 2])
        save(path, {name: _blocks(x) for name, x in arrays.items()}, metadata={"rows": rows})
        return np.frombuffer(bytes.fromhex(digest(path)), np.int64)

    def look() -> None:
        absent = [name for name in names if not os.path.exists(os.path.join(place, name))] if group.rank == 0 else []
        if absent:
            raise FileNotFoundError(f"{place}: {absent[0]} is not there: accepted is a folder that all ranks see")

    try:
        _, agreed = together(group, call, write, lambda _: {}, lambda sha256: sha256)
        together(group, call, look, lambda _: {})
    except Exception:
        if group._broken is None:  # all ranks have heard that one could not: none goes on to the header
            remove(path)
        raise  # where a rank is gone, others may have heard that all is well: the file stays until a later save
    digests = [got.tobytes().hex() for got in agreed.counts]
    content = {
        "rows": said.pop("num_rows"),
        **said,
        "files": [list(p) for p in zip(names, bounds[:-1], bounds[1:], digests, strict=True)],
    }

    def publish() -> list[str]:
        if group.rank != 0:
            return []
        before = named_files(place)
        write_header(place, content)
        return before

    before, _ = together(group, call, publish, lambda _: {})
    if group.rank == 0:
        remove_others(place, set(before), set(names))


def _arrays(table: ShardedTable, state: Any) -> tuple[dict[str, Host], int | None, dict[str, Any]]:
    """(arrays on the host by name, steps taken, the state's other arrays: [dtype, one number a row]), or an error."""
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
    """Pieces of the rows; bfloat16 as its bits."""
    rows = block_rows(len(x), x.nbytes // max(1, len(x)))
    return [x[at : at + rows] for at in range(0, len(x), rows)]


# ---------------------------------------------------------------------- load
def load_sharded(
    folder: str | os.PathLike[str], group: Any = None, *, like: Any = "numpy"
) -> tuple[ShardedTable, dict[str, Array] | None]:
    """Read what `save_sharded` wrote, on any number of ranks. Collective.

    Parameters
    ----------
    folder : str or path
    group : None, str, Group or an engine's own object
        See `get_group`.
    like : str, Backend or array
        Whose arrays to make; a tf.Variable makes variables.

    Returns
    -------
    (ShardedTable, state)
        state is None where none was saved.

    Raises
    ------
    ValueError
        On every rank: there is no header, or a file is missing, truncated, damaged, or another one.
    TypeError
        The framework has no such dtype.
    RankTimeout
        Another rank did not come.

    Notes
    -----
    If a save in another process replaces the checkpoint meanwhile, all ranks read the new one, after 20 such times they
    raise. A rank reads the headers of the files that its rows lie in, and of their data the blocks (some 4 MiB each) in
    which there are rows of its own; each block is held against its SHA-256. SPEC clause 26.

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
    found, error = find_processes(group, B, refused)

    def read(header: ShardedHeader) -> tuple[Array, dict[str, Array] | None]:
        assert B is not None
        dtypes = {"weights": header.dtype, **{f"state.{name}": dtype for name, (dtype, _) in header.state.items()}}
        probes = {dtype: B.asarray(np.zeros(1, host_dtype(dtype))) for dtype in dtypes.values()}  # or TypeError
        start, stop = even_bounds(header.num_rows, found.size)[found.rank : found.rank + 2].tolist()
        arrays = _read_rows(folder_name(folder), header, start, stop)
        given = {name: given_like(B, x, like, probes[dtypes[name]]) for name, x in arrays.items()}
        if header.steps is None:
            return given["weights"], None
        state = {"step": given_like(B, np.array([header.steps], np.int32), like, given["weights"])}
        return given["weights"], state | {name: given[f"state.{name}"] for name in header.state}

    try:
        header, (weights, state) = read_checkpoint(found, "load_sharded", folder, read, error)
    except RankError as failed:
        if found._broken is not None:  # a rank is gone, or late; else one could not read
            raise
        raise ValueError(f"{folder_name(folder)}: {failed}") from failed
    options = {"padding_idx": header.padding_idx, "scale_by_freq": header.scale_by_freq}
    return ShardedTable(weights, header.num_rows, found, **options), state  # type: ignore[arg-type]


def _read_rows(folder: str, header: ShardedHeader, start: int, stop: int) -> dict[str, Host]:
    """The rows start to stop - 1 of all arrays."""
    forms = row_forms(header)
    row_bytes = sum(int(np.prod(shape, dtype=np.float64)) * dtype.itemsize for shape, dtype in forms.values())
    pieces = [p for p in header.files if p.start < stop and start < p.stop]
    for piece in pieces:  # before anything is allocated
        path = os.path.join(folder, piece.name)
        with checkpoint_errors(path):
            if os.stat(path).st_size < (piece.stop - piece.start) * row_bytes:
                rows = piece.stop - piece.start
                raise ValueError(f"{path}: its {rows} rows are not all there: truncated, or another file")
    out = {name: empty((stop - start, *shape), dtype) for name, (shape, dtype) in forms.items()}
    for piece in pieces:
        path = os.path.join(folder, piece.name)
        with checkpoint_errors(path), opened(path) as archive:
            _read_piece(archive, piece, forms, start, out)
    return out


def _read_piece(archive: Archive, piece: Piece, forms: Mapping[str, Any], start: int, out: Mapping[str, Host]) -> None:
    """Of a file, the blocks with rows that out, whose first row is start, lacks."""
    blocks = piece_blocks(archive, piece, forms.keys())
    for name, (shape, dtype) in forms.items():
        into, at = out[name], piece.start
        for leaf in blocks[name]:
            end = at + leaf.shape[0]
            if leaf.shape[1:] != shape or leaf.array.dtype != dtype.name:
                raise ValueError(
                    f"{leaf.array.name!r} is {leaf.array.dtype} of rows {leaf.shape[1:]}, not {dtype} {shape}"
                )
            first, last = max(at, start), min(end, start + len(into))
            if first < last:
                into[first - start : last - start] = archive.read(leaf.array, leaf.sha256)[first - at : last - at]
            at = end
        if at != piece.stop:
            raise ValueError(
                f"it holds {at - piece.start} rows of {name!r}; the checkpoint says {piece.stop - piece.start}"
            )
