"""Make hostile files by hand. `islices.load` must raise an error for each file. With foreign=True, a file without the
mark of islices may load.
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np

from islices.conformance.properties.mutations import pack, signed


def _manifest(**changes: Any) -> dict[str, str]:
    held = {"name": "a", "dtype": "float32", "shape": [2], "sha256": hashlib.sha256(bytes(8)).hexdigest()}
    manifest = {"format": "islices", "version": 1, "metadata": {}, "arrays": [held], "tree": {"array": "a"}}
    return signed(json.dumps(manifest | changes))


def _slices(indices: list[int], dense_shape: list[Any], coalesced: bool) -> tuple[dict[str, str], bytes]:
    """Return (manifest with its digest, bytes of the indices) of slices whose rows contain one float32 zero each."""
    raw = np.array(indices, "<i8").tobytes()
    held = [
        {"name": name, "dtype": dtype, "shape": shape, "sha256": hashlib.sha256(data).hexdigest()}
        for name, dtype, shape, data in (
            ("values", "float32", [len(indices), 1], bytes(4 * len(indices))),
            ("indices", "int64", [len(indices)], raw),
        )
    ]  # fmt: skip
    leaf = {"values": "values", "indices": "indices", "dense_shape": dense_shape, "coalesced": coalesced}
    return _manifest(arrays=held, tree={"slices": leaf}), raw


#: name of a fault -> (indices, dense_shape, coalesced) of inconsistent slices
NO_SLICES: dict[str, tuple[list[int], list[Any], bool]] = {
    "index out of range": ([0, 7], [7, 1], False), "negative index": ([-1, 0], [7, 1], False),
    "false claim to be coalesced": ([3, 3], [7, 1], True), "rows of another shape": ([0, 1], [7, 2], False),
    "rows negative": ([0, 1], [-7, 1], False), "rows beyond int64": ([0, 1], [2**63, 1], False),
    "no dimensions": ([0, 1], [], False), "a row dimension unknown": ([0, 1], [7, None], False),
    "rows a float": ([0, 1], [7.0, 1], False), "rows true": ([0, 1], [True, 1], False),
}  # fmt: skip


def _array(**changes: Any) -> dict[str, Any]:
    return {"arrays": [{"name": "a", "dtype": "float32", "shape": [2], "sha256": "0" * 64} | changes]}


A: dict[str, Any] = {"array": "a"}
#: name of a fault -> the changed entries of a manifest that must not load
NO_TREES: dict[str, dict[str, Any]] = {
    "a newer version": {"version": 2},
    "a version that is true": {"version": True},
    "an array twice": {"tree": {"list": [A, A]}},
    "an array unnamed": {"tree": None},
    "an unknown array": {"tree": {"list": [A, {"array": "b"}]}},
    "an unknown node": {"tree": {"pickle": "a"}},
    "a padding_idx that is no row": {"tree": {"table": {"weights": "a", "padding_idx": 2, "scale_by_freq": False}}},
    "a key twice in a dict": {"tree": {"dict": [["k", A], ["k", None]]}},
    "a key of another type": {"tree": {"dict": [[1.5, A]]}},
    "metadata of numbers": {"metadata": {"a": 1}},
    "another digest": _array(),
    "another dtype": _array(dtype="int32"),
    "another shape": _array(shape=[1, 2]),
    "a dtype that is a list": _array(dtype=[]),
    "more entries": {"more": 1},
}


def _deep(levels: int) -> dict[str, str]:
    node = '{"list":[' * levels + '{"array":"a"}' + "]}" * levels
    return signed(_manifest()["islices.json"].replace('{"array": "a"}', node))


def handmade() -> dict[str, bytes]:
    """Return {name of a fault: file} for faults that random damage would hardly produce."""

    def one(texts: Any, **changes: Any) -> bytes:
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes
        return pack({"__metadata__": texts, "a": entry}, bytes(8))

    def slices(indices: list[int], dense_shape: list[Any], coalesced: bool) -> bytes:
        texts, raw = _slices(indices, dense_shape, coalesced)
        n = len(indices)
        values = {"dtype": "F32", "shape": [n, 1], "data_offsets": [0, 4 * n]}
        held = {"dtype": "I64", "shape": [n], "data_offsets": [4 * n, 12 * n]}
        return pack({"__metadata__": texts, "values": values, "indices": held}, bytes(4 * n) + raw)

    entry = b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    good = _manifest()
    ours = b'"__metadata__":' + json.dumps(good).encode()
    return {
        "empty": b"",
        "seven bytes": b"\0" * 7,
        "header of 2^60 bytes": struct.pack("<Q", 2**60) + b"{}",
        "header of 2^64 - 1 bytes": b"\xff" * 8 + b"{}",
        "header of 99 MB": struct.pack("<Q", 99_000_000) + b"[" * 1000 + bytes(99_000_000 - 1000),
        "header of a million lists": pack(b'{"a":' + b"[],"[:2] * 1_000_000 + b"}", b""),
        "header nested 100,000 deep": pack(b'{"a":' * 100_000, b""),
        "header of no JSON": pack(b"{" + b"\xff" * 100, b""),
        "header of UTF-16": pack('{"a":1}'.encode("utf-16"), b""),
        "header that is a list": pack(b"[]", b""),
        "a pickle": b"\x80\x04\x95" + b"cos\nsystem\n(S'true'\ntR." * 10,
        "a tensor of 2^60 bytes": one(good, shape=[2**58], data_offsets=[0, 2**60]),
        "offsets that wrap around": one(good, data_offsets=[2**64 - 8, 2**64]),
        "offsets reversed": one(good, data_offsets=[8, 0]),
        "a shape that wraps around": one(good, shape=[2**63, 2, 2]),
        "a shape of no elements that wraps around": one(good, shape=[0, 2**62, 2**62], data_offsets=[0, 0]),
        "70 dimensions": one(good, shape=[1] * 69 + [2]),
        "an unknown dtype": one(good, dtype="F7"),
        "eight-bit floats": one(good, dtype="F8_E4M3", shape=[8]),
        "a tensor twice": pack(b"{" + ours + b"," + entry + b"," + entry.replace(b"F32", b"I32") + b"}", bytes(8)),
        "bytes behind the data": one(good) + b"\0",
        "metadata of the file that are numbers": one({**good, "n": 1}),
        "metadata the manifest does not have": one({**good, "n": "1"}),
        "half of our texts": one({"islices.json": good["islices.json"]}),
        "no texts of ours": one({}),
        "101 levels": one(_deep(101)),
        "10,000 levels": one(_deep(10_000)),
        **{name: one(_manifest(**changes)) for name, changes in NO_TREES.items()},
        **{name: slices(*parts) for name, parts in NO_SLICES.items()},
    }  # fmt: skip
