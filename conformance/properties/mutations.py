"""Files that were damaged or forged: the bytes of good ones, changed at random.

What is *damaged* must not load, or load to the same bits. What is *forged* has a manifest whose digest was made again,
as an attacker can: it may load, if what it says is valid. Hypothesis draws the changes.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Mutant", "mutant", "pack", "signed"]

HUGE = (2**60, 2**63 - 1, 2**64, -1, 0, 1, 2**31)
ODD: tuple[Any, ...] = (None, True, -1, 1.5, "2", [], {}, 2**60, 10**400)


class Mutant(NamedTuple):
    kind: str
    data: bytes
    forged: bool = False
    #: made by hand, or of a file that is not ours: may load only where that is asked for
    foreign: bool = False


def mutant(random: random.Random, data: bytes) -> Mutant:
    """Make one file of a good one."""
    kinds = [*BYTES, _edit_header, _edit_header, _edit_header]
    change = random.choice([*kinds, _forge] if b"islices.json" in data else kinds)
    return Mutant(change.__name__.strip("_"), change(random, data), change is _forge)


# ---------------------------------------------------------------------- bytes, whatever they mean
def _flip_bits(random: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        out[random.randrange(len(out))] ^= 1 << random.randrange(8)
    return bytes(out)


def _truncate(random: random.Random, data: bytes) -> bytes:
    return data[: random.choice((random.randrange(len(data)), len(data) - 1 - random.randrange(64)))]


def _insert(random: random.Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 4, 8, 100))) + data[at:]


def _delete(random: random.Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + data[at + random.choice((1, 2, 8, 64)) :]


def _write_number(random: random.Random, data: bytes) -> bytes:
    """A length, an offset or a count of another size, wherever it hits."""
    code = random.choice(("<H", "<L", "<Q"))
    at = random.choice((random.randrange(64), random.randrange(len(data)), len(data) - 22 + random.randrange(18)))
    number = random.choice(HUGE) % (1 << 8 * struct.calcsize(code))
    return data[:at] + struct.pack(code, number) + data[at + struct.calcsize(code) :]


def _write_digit(random: random.Random, data: bytes) -> bytes:
    places = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    at = random.choice(places)
    return data[:at] + bytes([random.randrange(48, 58)]) + data[at + 1 :]


BYTES: list[Callable[[random.Random, bytes], bytes]] = [
    _flip_bits, _truncate, _insert, _delete, _write_number, _write_digit,
]  # fmt: skip


# ---------------------------------------------------------------------- .safetensors, with valid syntax
def pack(header: Any, data: bytes) -> bytes:
    """A .safetensors file of a header, which need not be one."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _edit_header(random: random.Random, data: bytes) -> bytes:
    header, rest = _unpack(data)
    names = [name for name in header if name != "__metadata__"]
    a, b = random.choice(names), random.choice(names)
    field = random.choice(("dtype", "shape", "data_offsets", "name", "drop", "add", "swap", "metadata"))
    if field == "dtype":
        header[a]["dtype"] = random.choice(("F32", "I32", "U32", "F64", "I64", "F16", "BF16", "U8", "BOOL", "F8_E4M3"))
    elif field == "shape":
        header[a]["shape"] = _odd_shape(random, header[a]["shape"])
    elif field == "data_offsets":
        header[a]["data_offsets"] = random.choice(
            (header[b]["data_offsets"], [random.choice(HUGE), random.choice(HUGE)], random.choice(ODD))
        )
    elif field == "name":
        header[a + "x"] = header.pop(a)
    elif field == "drop":
        del header[a]
    elif field == "add":
        header["more"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(rest), len(rest)]}
    elif field == "swap":
        header[a], header[b] = header[b], header[a]
    else:
        _edit_metadata(random, header)
    return pack(header, rest)


def _edit_metadata(random: random.Random, header: dict[str, Any]) -> None:
    texts = header["__metadata__"]
    key = random.choice(list(texts))
    what = random.choice(("drop", "odd", "letter", "rename"))
    if what == "drop":
        del texts[key]
    elif what == "odd":
        texts[key] = random.choice(ODD)
    elif what == "rename":
        texts[key.replace("islices", "foreign")] = texts.pop(key)
    else:
        at = random.randrange(len(texts[key]))
        texts[key] = texts[key][:at] + random.choice("0aZ{}[],:") + texts[key][at + 1 :]


def _forge(random: random.Random, data: bytes) -> bytes:
    header, rest = _unpack(data)
    header["__metadata__"] |= _forged_texts(random, header["__metadata__"]["islices.json"])
    return pack(header, rest)


# ---------------------------------------------------------------------- shapes and manifests
def _odd_shape(random: random.Random, shape: list[Any]) -> list[Any]:
    new = list(shape) or [1]
    at = random.randrange(len(new))
    choices: list[list[Any]] = [
        new[::-1], [*new, 1], [1, *new], new[1:], [0, *new], [2**62, 2**62, 0], [1] * 70,
        [*new[:at], random.choice(HUGE), *new[at + 1 :]], [*new[:at], random.choice(ODD), *new[at + 1 :]],
    ]  # fmt: skip
    return random.choice(choices)


def _forged_texts(random: random.Random, text: str) -> dict[str, str]:
    """A manifest that was changed somewhere, with the digest that belongs to it."""
    manifest = json.loads(text)
    holders: list[tuple[Any, Any]] = []
    _collect(manifest, holders)
    holder, key = random.choice(holders)
    old = holder[key]
    others = [json.loads(json.dumps(h[k])) for h, k in random.sample(holders, 3)]
    holder[key] = random.choice(
        [*others, *ODD, old + 1 if type(old) is int else old, {"array": "bias"}, {"pickle": "x"}]
    )
    return signed(json.dumps(manifest))


def signed(text: str) -> dict[str, str]:
    return {"islices.json": text, "islices.sha256": hashlib.sha256(text.encode()).hexdigest()}


def _collect(x: Any, holders: list[tuple[Any, Any]]) -> None:
    for key, item in x.items() if isinstance(x, dict) else enumerate(x):
        holders.append((x, key))
        if isinstance(item, (dict, list)):
            _collect(item, holders)
