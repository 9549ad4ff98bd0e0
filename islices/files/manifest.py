"""Make and read the manifest, which describes the tree in a file. `Contents` makes a manifest, and `read_manifest`
reads one.

A manifest is JSON that describes the nesting of lists, tuples and dicts, and the arrays and attributes of each leaf.
The manifest also contains every array's dtype, shape and SHA-256, and the caller's metadata. The whole manifest is
checked before any data are read. May import: `numpy`, the core.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from islices.backend import FLOATS, INDICES, INTEGERS, Array, Backend, Host
from islices.core.arguments import LARGEST, show
from islices.core.conversion import from_native, without_padding
from islices.core.dtypes import host_dtype
from islices.core.modes import HOST
from islices.core.registry import broken_backends, describe, find_backend
from islices.core.slices import IndexedSlices, check_dense_shape, check_indices
from islices.core.trees import DEEPEST
from islices.embedding.table import Table
from islices.files.safetensors import DTYPES, OWN, Archive, ArrayEntry, Outgoing, named, parse_json

#: The version of the manifest. `read_manifest` raises ValueError for any other version.
VERSION = 1
#: The greatest length of an array's name, before escapes and a suffix that makes the name unique. Names are only
#: labels, because the manifest contains the complete keys.
LABEL = 200
Path = tuple[str | int, ...]


# ---------------------------------------------------------------------- from a tree
class Contents:
    """The contents of a file, collected before the file is opened: the arrays, and the manifest's tree."""

    def __init__(self, tree: Any) -> None:
        self.arrays: list[Outgoing] = []
        self.taken = {"__metadata__", *OWN}
        self.counts: Counter[str] = Counter()
        self.tree = self.node(tree, (), DEEPEST)

    def node(self, x: Any, path: Path, depth: int) -> Any:
        if x is None:
            return None
        if isinstance(x, (dict, list, tuple)) and not depth:
            raise ValueError(f"tree: got a structure of more than {DEEPEST} levels, or one within itself")
        if isinstance(x, dict):
            keys = [_key(key, path) for key in x]
            items = zip(keys, x.values(), strict=True)
            return {"dict": [[key, self.node(item, (*path, key), depth - 1)] for key, item in items]}
        if isinstance(x, (list, tuple)):
            kind = "list" if isinstance(x, list) else "tuple"
            return {kind: [self.node(item, (*path, i), depth - 1) for i, item in enumerate(x)]}
        if isinstance(x, Table):
            weights = self.array(x.backend, x.weights, path, "weights")
            return {"table": {"weights": weights, "padding_idx": x.padding_idx, "scale_by_freq": x.scale_by_freq}}
        return self.leaf(x, path)

    def leaf(self, x: Any, path: Path) -> Any:
        backend = find_backend(x)
        if backend is None:
            raise TypeError(
                f"{_place(path)}: got {describe(x)}; accepted are sparse gradients, dense arrays, Table, None, or "
                f"lists, tuples and dicts of them{broken_backends()}"
            )
        if not isinstance(x, IndexedSlices) and not backend.is_native(x):
            return {"array": self.array(backend, x, path, "")}
        with named(_place(path)):
            s = without_padding(from_native(x))
            if not backend.is_traced(s.indices):
                check_indices(backend, s.indices, s.dense_shape[0], coalesced=s.coalesced)
        values = self.array(backend, s.values, path, "values")
        indices = self.array(backend, s.indices, path, "indices")
        shape = list(s.dense_shape)
        return {"slices": {"values": values, "indices": indices, "dense_shape": shape, "coalesced": s.coalesced}}

    def array(self, backend: Backend, x: Array, path: Path, part: str) -> str:
        dtype = backend.dtype(x)
        if dtype not in DTYPES:
            raise TypeError(f"{_place(path)}: got {describe(x)}; accepted dtypes are {', '.join(DTYPES)}")
        if backend.is_traced(x):
            raise TypeError(
                f"{_place(path)}: got {describe(x)}, traced or without data; accepted are arrays whose values are known"
            )
        shape = tuple(int(n or 0) for n in backend.shape(x))  # all dimensions are known
        name = self.name(path, part)
        self.arrays.append(Outgoing(name, dtype, shape, lambda: backend.to_numpy(x)))
        return name

    def name(self, path: Path, part: str) -> str:
        """Return a unique, printable label for an array, made from the array's path in the tree.

        Programs that unpack a file may use the labels as file names, because no label leads out of the folder.
        """
        label = ".".join([*map(str, path), *([part] if part else [])]) or "value"
        label = "".join(c if c.isprintable() and c not in "%\\" else urllib.parse.quote(c, "", errors="surrogatepass")
                        for c in label[:LABEL])  # fmt: skip
        label = re.sub(r"^/|/(?=[./])|(?<=\.)/", "%2F", label)  # unpacked files stay in the folder
        name = label
        while name in self.taken:
            self.counts[label] += 1
            name = f"{label}~{self.counts[label] + 1}"
        self.taken.add(name)
        return name

    def texts(self, digests: Sequence[str], metadata: dict[str, str]) -> dict[str, str]:
        """Return the texts to store with the arrays, given the arrays' digests."""
        held = [
            {"name": a.name, "dtype": a.dtype, "shape": a.shape, "sha256": sha256}
            for a, sha256 in zip(self.arrays, digests, strict=True)
        ]
        manifest = {"format": "islices", "version": VERSION, "metadata": metadata, "arrays": held, "tree": self.tree}
        text = json.dumps(manifest, separators=(",", ":"))
        return {**metadata, OWN[0]: text, OWN[1]: _sha256(text)}


def check_metadata(metadata: Any) -> dict[str, str]:
    """Return the caller's metadata, or {} for None.

    Raise TypeError or ValueError for metadata that a file cannot store.
    """
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


def _key(key: Any, path: Path) -> str | int:
    if isinstance(key, str):
        return str.__str__(key)
    if type(key) is int and abs(key) <= LARGEST:
        return key
    raise TypeError(f"{_place(path)}: got the key {show(key)}; accepted are strings, and ints of 64 bits")


def _place(path: Path) -> str:
    return "tree" + "".join(f"[{show(key)}]" for key in path)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------------- back to a tree
@dataclass(frozen=True)
class StoredSlices:
    values: ArrayEntry
    indices: ArrayEntry
    dense_shape: tuple[int | None, ...]
    coalesced: bool


@dataclass(frozen=True)
class StoredTable:
    weights: ArrayEntry
    padding_idx: int | None
    scale_by_freq: bool


class Giver:
    """A reader that turns the leaves of a file into a framework's arrays. The reader checks all dtypes before reading
    the first leaf."""

    def __init__(self, target: Backend, archive: Archive) -> None:
        self.target, self.archive = target, archive
        self.like = {dtype: self._probe(dtype) for dtype in sorted({x.dtype for x in archive.arrays.values()})}

    def _probe(self, dtype: str) -> Array:
        """Return an array of one element, which shows in which dtype the framework stores the given dtype.

        For example, JAX without x64 stores int64 as int32. Raise TypeError if the framework lacks the dtype.
        """
        if dtype != "uint16":
            return self.target.asarray(np.zeros(1, host_dtype(dtype)))
        try:
            return self._uint16(np.zeros(1, np.int32))
        except (AttributeError, KeyError):
            raise TypeError(f"array: got uint16, which {self.target.name} has not") from None

    def _uint16(self, host: Host) -> Array:
        """Convert a uint16 array of numbers, not of bit patterns. The usual conversion would not work, because adapters
        treat a uint16 array as the bits of bfloat16."""
        return self.target.astype(self.target.asarray(host.astype(np.int32)), "uint16")

    def put(self, host: Host, dtype: str) -> Array:
        """Convert a host array to the framework's array of a dtype. The arrays share memory if possible."""
        if dtype == "uint16":
            return self._uint16(host)
        like = self.like[dtype]
        if self.target.dtype(like) != dtype:  # JAX without x64 narrows int64 only after a check of every number
            return self.target.asarray(host)
        return self.target.from_host(host, like)

    def load(self, leaf: ArrayEntry | StoredSlices | StoredTable) -> Any:
        """Return a leaf of the file with arrays of the framework; raise ValueError for invalid indices or damaged
        data."""
        if isinstance(leaf, ArrayEntry):
            return self.put(self.archive.read(leaf), leaf.dtype)
        if isinstance(leaf, StoredTable):
            return Table(self.load(leaf.weights), padding_idx=leaf.padding_idx, scale_by_freq=leaf.scale_by_freq)
        indices, shape = self.archive.read(leaf.indices), leaf.dense_shape
        try:
            check_indices(HOST, indices, shape[0], coalesced=leaf.coalesced, argument=repr(leaf.indices.name))
        except IndexError as error:  # the invalid index comes from the file, not from the caller
            raise ValueError(str(error)) from None
        held = self.put(indices, leaf.indices.dtype)
        return IndexedSlices._trusted(self.target, self.load(leaf.values), held, shape, coalesced=leaf.coalesced)


class Manifest(NamedTuple):
    metadata: dict[str, str]
    #: name -> array, for every array
    held: dict[str, ArrayEntry]
    #: the tree, with an `ArrayEntry`, `StoredSlices` or `StoredTable` at each leaf
    tree: Any


def read_manifest(archive: Archive) -> Manifest | None:
    """Return the manifest of a file, checked against the file's arrays, or None if islices did not write the file.

    Raise ValueError for a damaged manifest, or for a version of the manifest that is not known.
    """
    if not any(name.startswith("islices.") for name in archive.texts):
        return None
    text, sha256 = (archive.texts.get(name) for name in OWN)
    if text is None or sha256 != _sha256(text):
        raise ValueError("the manifest is damaged: its SHA-256 is not what the file states")
    found = parse_json(text, "the manifest")
    if not isinstance(found, dict) or found.get("format") != "islices" or type(found.get("version")) is not int:
        raise ValueError("the manifest is not that of a file of islices")
    if found["version"] != VERSION:
        raise ValueError(f"it has version {found['version']}; this islices reads version {VERSION}: upgrade islices")
    if set(found) != {"format", "version", "metadata", "arrays", "tree"} or not isinstance(found["arrays"], list):
        raise ValueError("the manifest holds other entries than it should")
    metadata = found["metadata"]
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the manifest's metadata are no object of texts")
    others = {name: value for name, value in archive.texts.items() if name not in OWN}
    if others != metadata:
        raise ValueError("the metadata were changed: they are not what the manifest says")
    held = {array.name: array for array in (_held(entry, archive) for entry in found["arrays"])}
    if len(held) != len(found["arrays"]) or held.keys() != archive.arrays.keys():
        raise ValueError("the arrays of the file are not those of its manifest")
    unclaimed = dict(held)
    tree = _tree(found["tree"], unclaimed, DEEPEST)
    if unclaimed:
        raise ValueError(f"the manifest's tree does not say what {min(unclaimed)!r} is")
    return Manifest(metadata, held, tree)


def _held(entry: Any, archive: Archive) -> ArrayEntry:
    if not isinstance(entry, dict) or set(entry) != {"name", "dtype", "shape", "sha256"}:
        raise ValueError("the manifest describes an array by other than name, dtype, shape and sha256")
    name, dtype, sha256 = entry["name"], entry["dtype"], entry["sha256"]
    array = archive.arrays.get(name) if isinstance(name, str) else None
    if array is None:
        raise ValueError(f"the manifest names an array {show(name)}, which the file does not hold")
    if array.dtype != dtype or entry["shape"] != list(array.shape):
        raise ValueError(
            f"{name!r} is {array.dtype} of shape {array.shape}; its manifest says {show(dtype)} of "
            f"{show(entry['shape'])}"
        )
    if not isinstance(sha256, str):
        raise ValueError(f"{name!r}: got SHA-256 {show(sha256)}; accepted is a text")
    return replace(array, sha256=sha256)


def _tree(node: Any, unclaimed: dict[str, ArrayEntry], depth: int) -> Any:
    if node is None:
        return None
    if not isinstance(node, dict) or len(node) != 1:
        raise ValueError(f"the manifest's tree holds {show(node)}; accepted is one of dict, list, tuple, array, ...")
    ((kind, content),) = node.items()
    if kind in ("dict", "list", "tuple"):
        if not isinstance(content, list) or not depth:
            raise ValueError(f"the manifest's tree is no tree of lists, or has more than {DEEPEST} levels")
        if kind == "dict":
            return _dict(content, unclaimed, depth)
        items = [_tree(item, unclaimed, depth - 1) for item in content]
        return items if kind == "list" else tuple(items)
    if kind == "array":
        return _claim(content, unclaimed)
    if kind in ("slices", "table") and isinstance(content, dict):
        return (_slices if kind == "slices" else _table)(content, unclaimed)
    raise ValueError(f"the manifest's tree holds a {show(kind)}, which this islices does not know")


def _dict(content: list[Any], unclaimed: dict[str, ArrayEntry], depth: int) -> dict[str | int, Any]:
    out: dict[str | int, Any] = {}
    for item in content:
        if not isinstance(item, list) or len(item) != 2 or type(item[0]) not in (str, int) or item[0] in out:
            raise ValueError("the manifest's tree holds a dict whose keys are not strings and ints, each once")
        out[item[0]] = _tree(item[1], unclaimed, depth - 1)
    return out


def _claim(name: Any, unclaimed: dict[str, ArrayEntry]) -> ArrayEntry:
    leaf = unclaimed.pop(name, None) if isinstance(name, str) else None
    if leaf is None:
        raise ValueError(f"the manifest's tree names {show(name)}, which is no array, or another leaf's")
    return leaf


def _slices(content: dict[str, Any], unclaimed: dict[str, ArrayEntry]) -> StoredSlices:
    if set(content) != {"values", "indices", "dense_shape", "coalesced"}:
        raise ValueError("the manifest describes slices by other than values, indices, dense_shape and coalesced")
    values, indices = _claim(content["values"], unclaimed), _claim(content["indices"], unclaimed)
    dims, coalesced, name = content["dense_shape"], content["coalesced"], values.name
    if not isinstance(dims, list) or any(type(n) not in (int, type(None)) for n in dims) or type(coalesced) is not bool:
        raise ValueError(f"{name!r}: got dense_shape {show(dims)} and coalesced {show(coalesced)}")
    shape = check_dense_shape(dims)
    fits = len(indices.shape) == 1 and values.shape == (*indices.shape, *shape[1:])
    if not fits or values.dtype not in (*FLOATS, *INTEGERS) or indices.dtype not in INDICES:
        raise ValueError(
            f"{name!r}: values {values.dtype} {values.shape} and indices {indices.dtype} {indices.shape} are no slices "
            f"of {shape}"
        )
    return StoredSlices(values, indices, shape, coalesced)


def _table(content: dict[str, Any], unclaimed: dict[str, ArrayEntry]) -> StoredTable:
    if set(content) != {"weights", "padding_idx", "scale_by_freq"}:
        raise ValueError("the manifest describes a table by other than weights, padding_idx and scale_by_freq")
    weights, padding_idx = _claim(content["weights"], unclaimed), content["padding_idx"]
    if weights.dtype not in FLOATS or not weights.shape or type(content["scale_by_freq"]) is not bool:
        raise ValueError(f"{weights.name!r}: {weights.dtype} of shape {weights.shape} is no table")
    if padding_idx is not None and (type(padding_idx) is not int or not 0 <= padding_idx < weights.shape[0]):
        raise ValueError(f"{weights.name!r}: got padding_idx {show(padding_idx)}; it has {weights.shape[0]} rows")
    return StoredTable(weights, padding_idx, content["scale_by_freq"])
