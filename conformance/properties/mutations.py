"""Make damaged or forged files by random changes to the bytes of good files.

Without foreign=True, loading a *damaged* file must raise an error or return the tree of the good file. A *forged* file
has a changed manifest, and a digest that is correct for the new manifest. A forged file may load if the manifest is
valid. Hypothesis draws the changes.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from typing import Any, NamedTuple

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, "2", "F16", [], {}, [2**62, 2**62, 0], [1] * 70, 2**60, 2**63 - 1, 2**64, 10**400,
    {"array": "bias"}, {"pickle": "x"},
)  # fmt: skip


class FileMutant(NamedTuple):
    kind: str
    data: bytes
    forged: bool = False
    #: True if the file is handmade or from another program; it may then load only with foreign=True
    foreign: bool = False


def mutant(random: random.Random, data: bytes) -> FileMutant:
    """Return a `FileMutant`: a copy of a good file with one kind of random change."""
    kinds = [_flip_bits, _cut, _insert, _edit_header, _edit_header]
    change = random.choice([*kinds, _forge] if b"islices.json" in data else kinds)
    return FileMutant(change.__name__.strip("_"), change(random, data), change is _forge)


# ---------------------------------------------------------------------- bytes, whatever they mean
def _flip_bits(random: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        out[random.randrange(len(out))] ^= 1 << random.randrange(8)
    return bytes(out)


def _cut(random: random.Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + data[at + random.choice((1, 2, 8, 64, len(data))) :]


def _insert(random: random.Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 4, 8, 100))) + data[at:]


# ---------------------------------------------------------------------- .safetensors, with valid syntax
def pack(header: Any, data: bytes) -> bytes:
    """Return the bytes of a .safetensors file. `header` may be invalid: any JSON value, or raw bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _edit_header(random: random.Random, data: bytes) -> bytes:
    header, rest = _unpack(data)
    _change_one(random, header)
    return pack(header, rest)


def _forge(random: random.Random, data: bytes) -> bytes:
    header, rest = _unpack(data)
    manifest = json.loads(header["__metadata__"]["islices.json"])
    _change_one(random, manifest)
    header["__metadata__"] |= signed(json.dumps(manifest))
    return pack(header, rest)


def signed(text: str) -> dict[str, str]:
    """Return the metadata of a file: the manifest `text` and its correct digest."""
    return {"islices.json": text, "islices.sha256": hashlib.sha256(text.encode()).hexdigest()}


def _change_one(random: random.Random, tree: Any) -> None:
    """Change a random item of a JSON tree. The item gets another value, or is increased by 1, renamed or removed."""
    places: list[tuple[Any, Any]] = []
    _collect(tree, places)
    (holder, key), (other, other_key) = random.choice(places), random.choice(places)
    subject = random.choice(("odd", "odd", "other", "number", "rename", "drop"))
    if subject == "drop":
        del holder[key]
    elif subject == "rename" and isinstance(key, str):
        holder[key + "x"] = holder.pop(key)
    elif subject == "number" and type(holder[key]) is int:
        holder[key] += 1
    else:
        holder[key] = json.loads(json.dumps(other[other_key])) if subject == "other" else random.choice(ODD)


def _collect(x: Any, places: list[tuple[Any, Any]]) -> None:
    for key, item in x.items() if isinstance(x, dict) else enumerate(x):
        places.append((x, key))
        if isinstance(item, (dict, list)):
            _collect(item, places)
