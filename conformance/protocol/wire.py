"""Convert values to JSON and back to values. Numbers are written as bits, so that both programs read exactly the same
numbers.

The protocol uses the tags of the vector files and, for integers, the tag "int". The protocol writes numbers as
little-endian bytes, with two hexadecimal digits per byte. An array contains the bytes of its elements in C order.

    {"array": "float32", "shape": [2], "bits": "0000803f00000040"}                an array; bool: a byte each, 00 or 01
    {"slices": ARRAY, "indices": ARRAY, "dense_shape": [10, null], "coalesced": true, "padded": true}    flags: if true
    {"float": "000000000000f03f"}                             a number by itself: 8 bytes of float64
    {"int": "0300000000000000"}                               an integer by itself: 8 bytes, 16, 24, ... if it is wider
    [..], {"tuple": [..]}, {"dict": {..}}                     containers
    "text", true, null                                        themselves

In values, JSON numbers occur only in shapes.

May import: `numpy`, `islices.conformance.data`.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from islices.conformance.data import Array, Slices

#: dtype -> the NumPy type of its bytes. A bfloat16 is the upper half of a float32.
DTYPES = {
    "float16": "<f2", "bfloat16": "<u2", "float32": "<f4", "float64": "<f8", "bool": "|u1",
    **{f"{'u' * (kind == 'u')}int{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    "complex64": "<c8", "complex128": "<c16",
}  # fmt: skip
#: The largest depth of nested containers.
DEEPEST = 64


class WireError(ValueError):
    """The error for a value that the protocol cannot represent, or for JSON that represents no value."""


# ---------------------------------------------------------------------- to JSON
def to_wire(x: Any) -> Any:
    """Convert a value of `islices.conformance.data` to an object for `json.dumps`. Raise WireError if the protocol
    cannot represent the value."""
    if x is None or isinstance(x, (bool, str)):
        return x
    if isinstance(x, Array):
        return {"array": x.dtype, "shape": list(x.shape), "bits": _bytes(x).hex()}
    if isinstance(x, Slices):
        parts = {"slices": to_wire(x.values), "indices": to_wire(x.indices), "dense_shape": list(x.dense_shape)}
        return parts | x.flags
    if isinstance(x, int):
        size = 8 * (x.bit_length() // 64 + 1)
        return {"int": x.to_bytes(size, "little", signed=True).hex()}
    if isinstance(x, float):
        return {"float": struct.pack("<d", x).hex()}
    if isinstance(x, list):
        return [to_wire(item) for item in x]
    if isinstance(x, tuple):
        return {"tuple": [to_wire(item) for item in x]}
    if isinstance(x, dict):
        if special := {"foreign", "set", "complex"} & x.keys():
            statement = {"foreign": "an array of another framework", "set": "a set", "complex": "a complex number"}
            raise WireError(f"the protocol has no word for {statement[special.pop()]}")
        return {"dict": {str(key): to_wire(item) for key, item in x.items()}}
    raise WireError(f"the protocol has no word for {type(x).__name__}")


def _bytes(x: Array) -> bytes:
    if x.dtype not in DTYPES:
        raise WireError(f"the protocol has no word for arrays of {x.dtype}")
    if x.dtype == "bfloat16":
        wide = np.array(x.data, np.float32).reshape(-1).view(np.uint32)
        return (wide >> np.uint32(16)).astype("<u2").tobytes()
    return np.array(x.data, DTYPES[x.dtype]).tobytes()


# ---------------------------------------------------------------------- from JSON
def from_wire(x: Any, path: str = "ok", depth: int = 0) -> Any:
    """Convert an object of `json.loads` to the value that it represents. Raise WireError, with the place in the
    message, if the object represents no value."""
    if depth > DEEPEST:
        raise WireError(f"{path}: containers nested deeper than {DEEPEST}")
    if x is None or isinstance(x, (bool, str)):
        return x
    if isinstance(x, list):
        return [from_wire(item, f"{path}[{k}]", depth + 1) for k, item in enumerate(x)]
    if isinstance(x, dict):
        if "array" in x:
            return _array(x, path)
        if "slices" in x:
            return _slices(x, path)
        if "float" in x:
            return float(struct.unpack("<d", _hex(x["float"], 8, f"{path}.float"))[0])
        if "int" in x:
            return int.from_bytes(_hex(x["int"], None, f"{path}.int"), "little", signed=True)
        if isinstance(x.get("tuple"), list):
            return tuple(from_wire(x["tuple"], path, depth + 1))
        if isinstance(x.get("dict"), dict):
            return {key: from_wire(item, f"{path}[{key!r}]", depth + 1) for key, item in x["dict"].items()}
    accepted = "an object with array, slices, float, int, tuple or dict, a list, a text, true, false or null"
    raise WireError(f"{path}: got {_short(x)}; accepted is {accepted}")


def _array(x: dict[str, Any], path: str) -> Array:
    name, shape = x["array"], _shape(x.get("shape"), f"{path}.shape")
    if not isinstance(name, str) or name not in DTYPES:
        raise WireError(f"{path}.array: got {_short(name)}; accepted are {', '.join(DTYPES)}")
    size = np.dtype(DTYPES[name]).itemsize
    data = np.frombuffer(_hex(x.get("bits"), size * math.prod(shape), f"{path}.bits"), DTYPES[name])
    if name == "bfloat16":
        data = (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return Array(name, shape, [bool(v) for v in data] if name == "bool" else data.tolist())


def _slices(x: dict[str, Any], path: str) -> Slices:
    values, indices = (from_wire(x.get(part), f"{path}.{part}") for part in ("slices", "indices"))
    for part, got in (("slices", values), ("indices", indices)):
        if not isinstance(got, Array) or not got.shape:
            raise WireError(f"{path}.{part}: got {_short(x.get(part))}; accepted is an array of one dimension or more")
    dense = x.get("dense_shape")
    known = dense[1:] if isinstance(dense, list) and dense[:1] == [None] else dense
    unknown = () if known is dense else (None,)
    dense_shape = (*unknown, *_shape(known, f"{path}.dense_shape"))
    return Slices(values, indices, dense_shape, **{flag: x.get(flag) is True for flag in ("coalesced", "padded")})


def _shape(x: Any, path: str) -> tuple[int, ...]:
    if not isinstance(x, list) or not all(type(n) is int and n >= 0 for n in x):
        raise WireError(f"{path}: got {_short(x)}; accepted is a list of whole numbers")
    return tuple(x)


def _hex(x: Any, size: int | None, path: str) -> bytes:
    """Return the bytes of a hexadecimal text. Raise WireError if x is anything else, or if the number of bytes is not
    `size`. If `size` is None, any number is valid."""
    try:
        found = bytes.fromhex(x) if isinstance(x, str) else None
    except ValueError:
        found = None
    if found is None or (size is not None and len(found) != size):
        came = f"{len(found)} bytes" if found is not None else _short(x)
        many = "bytes" if size is None else f"{size} bytes"
        raise WireError(f"{path}: got {came}; accepted are {many} as hexadecimal digits, two each")
    return found


def _short(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 80 else text[:80] + "..."
