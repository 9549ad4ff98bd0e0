"""Hostile files, made by hand: every one must be refused by `islices.load`, whatever else it does."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
from typing import Any

import numpy as np

from islices.conformance.properties.mutations import npy, pack, signed, unzipped, zipped

__all__ = ["handmade"]


def handmade(suffix: str) -> dict[str, bytes]:
    """Files that no accident makes, by what is wrong with each."""
    return _safetensors() if suffix == ".safetensors" else _npz()


def _manifest(**changes: Any) -> dict[str, str]:
    held = {"name": "a", "dtype": "float32", "shape": [2], "sha256": hashlib.sha256(bytes(8)).hexdigest()}
    manifest = {"format": "islices", "version": 1, "metadata": {}, "arrays": [held], "tree": {"array": "a"}}
    return signed(json.dumps(manifest | changes))


def _slices(indices: list[int], dense_shape: list[Any], coalesced: bool) -> tuple[dict[str, str], bytes]:
    """A signed manifest of slices (2, 1), float32 zeros, and their bytes, values first."""
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


#: slices that are none: (indices, dense_shape, coalesced)
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
#: manifests that say what no tree is
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


def _safetensors() -> dict[str, bytes]:
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


def _plain(descr: str = "<f4", order: str = "False", shape: str = "(2,)") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }} \n"


def _npz() -> dict[str, bytes]:
    good = _manifest()
    array = npy(_plain(), bytes(8))

    def one(content: bytes = array, texts: Any = good, method: int = zipfile.ZIP_STORED) -> bytes:
        return zipped([("a.npy", content), *((n, t.encode()) for n, t in texts.items())], method, 1)

    def slices(indices: list[int], dense_shape: list[Any], coalesced: bool) -> bytes:
        texts, raw = _slices(indices, dense_shape, coalesced)
        n = len(indices)
        held = [
            ("values.npy", npy(_plain(shape=f"({n}, 1)"), bytes(4 * n))),
            ("indices.npy", npy(_plain("<i8", shape=f"({n},)"), raw)),
        ]
        return zipped([*held, *((name, t.encode()) for name, t in texts.items())])

    objects = io.BytesIO()
    np.savez(objects, a=np.array([{}], object))
    whole = one()
    directory, second = whole.index(b"PK\x01\x02"), struct.pack("<L", len(array) + 35)
    zeros = npy(_plain(shape="(50000000,)"), bytes(200_000_000))
    bomb = one(zeros, method=zipfile.ZIP_DEFLATED)
    lying = one().replace(struct.pack("<2L", len(array), len(array)), struct.pack("<2L", 2**31, 2**31))
    return {
        "empty": b"",
        "an end and nothing else": b"PK\x05\x06" + bytes(18),
        "an end that counts 65535 members": b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, 65535, 65535, 0, 0, 0),
        "a directory of 2^32 - 1 bytes": whole[:-10] + struct.pack("<L", 2**32 - 1) + whole[-6:],
        "a comment behind it": whole[:-2] + b"\x04\x00abcd",
        "something ahead of it": b"#!/bin/sh\n" + whole,
        "an array of objects": objects.getvalue(),
        "object dtype": one(npy(_plain("|O"), bytes(8))),
        "object dtype, sized": one(npy(_plain("|O8"), bytes(8))),
        "a structured dtype": one(npy(_plain().replace("'<f4'", "[('a', '<f4')]"), bytes(8))),
        "code for a header": one(npy("__import__('os').system('true') \n", bytes(8))),
        "a header of 9,000 brackets": one(npy("(" * 9000 + "\n", bytes(8))),
        "a header of digits": one(npy(_plain(shape="(" + "1" * 9000 + "X)"), bytes(8))),
        "a header of many dimensions": one(npy(_plain(shape="(" + "1, " * 1000 + ")"), bytes(8))),
        "a header of 2^32 - 1 bytes": one(b"\x93NUMPY\x02\0\xff\xff\xff\xff" + bytes(8)),
        "a version of .npy to come": one(npy(_plain(), bytes(8), 4)),
        "no .npy": one(b"PK" * 50),
        "columns first": one(npy(_plain(order="True"), bytes(8))),
        "big-endian": one(npy(_plain(">f4"), bytes(8))),
        "a shape that wraps around": one(npy(_plain(shape="(9223372036854775808, 2, 2)"), bytes(8))),
        "a shape of no elements that wraps around": one(npy(_plain(shape=f"(0, {2**62}, {2**62})"), b"")),
        "a shape of 2^60 elements": one(npy(_plain(shape="(1152921504606846976,)"), bytes(8))),
        "a negative shape": one(npy(_plain(shape="(-2,)"), bytes(8))),
        "bytes behind the array": one(array + b"\0"),
        "a member twice": zipped([*unzipped(whole), ("b.npy", array)]).replace(b"b.npy", b"a.npy"),
        "a member that is no array": zipped([*unzipped(whole), ("a.pkl", b"cos\nsystem\n(S'true'\ntR.")]),
        "a zip within": zipped([*unzipped(whole), ("b.npz", whole)]),
        "a zip within, named .npy": one(whole),
        "a name with a NUL": whole.replace(b"a.npy", b"a\0npy"),
        "two members in one place": whole[:directory] + whole[directory:].replace(second, bytes(4), 1),
        "encrypted": whole.replace(b"PK\x01\x02\x14\x03\x14\0\0\0", b"PK\x01\x02\x14\x03\x14\0\1\0"),
        "an unknown method": whole.replace(b"PK\x01\x02\x14\x03\x14\0\0\0\0\0", b"PK\x01\x02\x14\x03\x14\0\0\0\x0e\0"),
        "a bomb": bomb,
        "sizes that lie": lying,
        "no texts of ours": zipped([("a.npy", array)]),
        "half of our texts": zipped([("a.npy", array), ("islices.json", good["islices.json"].encode())]),
        "101 levels": one(texts=_deep(101)),
        "10,000 levels": one(texts=_deep(10_000)),
        **{name: one(texts=_manifest(**changes)) for name, changes in NO_TREES.items()},
        **{name: slices(*parts) for name, parts in NO_SLICES.items()},
    }  # fmt: skip
