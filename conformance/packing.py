"""Pack the golden vectors for a wheel into one compressed text. The text contains each float array as bits, except
arrays
for which the vectors store an element as an integer.

setup.py runs this file before the package is installed. May import: the standard library.
"""

from __future__ import annotations

import json
import lzma
import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

_LETTERS = {"float16": "e", "bfloat16": "f", "float32": "f", "float64": "d"}


def pack(files: Sequence[bytes]) -> bytes:
    """Return the cases of the vector files as a compressed text. The text's first line is the SHA-256 of all files;
    each further line is a case."""
    cases = [_with_bits(case) for file in files for case in json.loads(file)["cases"]]
    lines = [json.dumps(case, separators=(",", ":"), ensure_ascii=False) for case in cases]
    best = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 24, "pb": 0}
    text = "\n".join([sha256(b"".join(files)).hexdigest(), *lines])
    return lzma.compress(text.encode(), filters=[best])


def unpack(packed: bytes) -> tuple[str, list[str]]:
    """Return (SHA-256 of the packed files, the cases as lines of JSON)."""
    digest, *lines = lzma.decompress(packed).decode().splitlines()
    return digest, lines


def numbers(dtype: str, bits: str) -> list[float]:
    """Return the numbers of an array. `bits` contains the big-endian bits of all numbers in hexadecimal."""
    if dtype == "bfloat16":
        bits = "".join(f"{bits[k : k + 4]}0000" for k in range(0, len(bits), 4))
    data = bytes.fromhex(bits)
    letter = _LETTERS[dtype]
    return list(struct.unpack(f">{len(data) // struct.calcsize(letter)}{letter}", data))


def _with_bits(x: Any) -> Any:
    if isinstance(x, list):
        return [_with_bits(v) for v in x]
    if not isinstance(x, dict):
        return x
    if x.get("array") in _LETTERS:
        data = [float(v["float"]) if isinstance(v, dict) else v for v in x["data"]]
        bits = struct.pack(f">{len(data)}{_LETTERS[x['array']]}", *data).hex()
        if x["array"] == "bfloat16":
            bits = "".join(bits[k : k + 4] for k in range(0, len(bits), 8))
        # arrays that have integers in the place of floats stay as they are
        if repr(numbers(x["array"], bits)) == repr(data):
            return {"array": x["array"], "shape": x["shape"], "bits": bits}
    return {key: _with_bits(v) for key, v in x.items()}
