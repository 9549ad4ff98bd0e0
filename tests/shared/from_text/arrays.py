"""Numbers that are rounded once, slices, their JSON forms in the protocol, and operations that only add, select or
scale."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")


class UnsupportedError(Exception):
    pass


def rounded(x: Any, dtype: str) -> Any:
    """Round numbers of the wide type to a dtype, and return them in the dtype's wide type."""
    x = np.asarray(x)
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        x = np.array(x, np.float32, order="C")
        bits = x.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        near = np.asarray(bits, np.uint32).view(np.float32)
        return np.where(np.isnan(x), x, near)
    return x.astype(dtype)


def wide(dtype: str) -> Any:
    return np.dtype(np.float32 if dtype in HALVES else dtype)


@dataclass(frozen=True)
class Array:
    dtype: str
    x: Any  # in the wide type of the dtype

    def like(self, x: Any) -> Array:
        return Array(self.dtype, rounded(x, self.dtype))


@dataclass(frozen=True)
class Slices:
    values: Array
    indices: Any
    shape: tuple[Any, ...]
    index_dtype: str = "int64"
    coalesced: bool = False
    padded: bool = field(default=False)

    @property
    def live(self) -> Any:
        """Return the positions of the slots that are not empty."""
        return np.flatnonzero(self.indices != self.shape[0]) if self.padded else np.arange(len(self.indices))

    def with_values(self, x: Any, **flags: bool) -> Slices:
        return replace(self, values=self.values.like(x), **flags)

    def at(self, places: Any, **flags: bool) -> Slices:
        return replace(
            self, values=Array(self.values.dtype, self.values.x[places]), indices=self.indices[places], **flags
        )


# ---------------------------------------------------------------------- the protocol's values
def read(x: Any) -> Any:
    if isinstance(x, list):
        return [read(item) for item in x]
    if not isinstance(x, dict):
        return x
    if "array" in x:
        return _array(x)
    if "slices" in x:
        s = Slices(read(x["slices"]), read(x["indices"]).x, tuple(x["dense_shape"]), x["indices"]["array"],
                   x.get("coalesced", False), x.get("padded", False))  # fmt: skip
        return _checked(s)
    if "float" in x:
        return struct.unpack("<d", bytes.fromhex(x["float"]))[0]
    if "int" in x:
        return int.from_bytes(bytes.fromhex(x["int"]), "little", signed=True)
    if "tuple" in x:
        return tuple(read(item) for item in x["tuple"])
    return {key: read(item) for key, item in x["dict"].items()}


def _array(x: dict[str, Any]) -> Array:
    name, raw = x["array"], bytes.fromhex(x["bits"])
    if name == "bfloat16":
        found = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        found = np.frombuffer(raw, name)
        found = found.astype(np.float32) if name == "float16" else found
    return Array(name, found.reshape(x["shape"]))


def _checked(s: Slices) -> Slices:
    """Check the indices of `s` as clause 2 requires, and return `s`. Raise IndexError or ValueError for wrong
    indices."""
    rows = s.shape[0]
    for k, index in enumerate(s.indices.tolist()):
        if index < 0 or (rows is not None and index >= rows + s.padded):
            raise IndexError(f"indices: got {index} at position {k}; accepted is 0 <= index < {rows}")
    if s.coalesced and not (np.diff(s.indices[s.live]) > 0).all():
        raise ValueError("coalesced: the indices do not ascend strictly")
    return s


def write(x: Any) -> Any:
    if isinstance(x, Array):
        if x.dtype == "bfloat16":
            raw = (np.array(x.x, np.float32, order="C").view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            raw = np.asarray(x.x).astype(x.dtype).tobytes()
        return {"array": x.dtype, "shape": list(np.shape(x.x)), "bits": raw.hex()}
    if isinstance(x, Slices):
        s = x.at(x.live)
        return {
            "slices": write(s.values), "indices": write(Array(s.index_dtype, s.indices)), "dense_shape": list(s.shape),
            "coalesced": s.coalesced,
        }  # fmt: skip
    if isinstance(x, tuple):
        return {"tuple": [write(item) for item in x]}
    if isinstance(x, list):
        return [write(item) for item in x]
    if isinstance(x, dict):
        return {"dict": {key: write(item) for key, item in x.items()}}
    return x


# ---------------------------------------------------------------------- clauses 3 to 6
def row_sums(s: Slices) -> dict[int, Any]:
    """Return the sum of each row as clause 3 defines it, in ascending order of rows. A sum is a left fold in the wide
    type, rounded once."""
    sums: dict[int, Any] = {}
    for k in s.live:
        index, row = int(s.indices[k]), s.values.x[k]
        sums[index] = sums[index] + row if index in sums else row
    return {index: rounded(sums[index], s.values.dtype) for index in sorted(sums)}


def stacked(rows: Any, like: Any) -> Any:
    return np.array(list(rows), like.dtype).reshape(-1, *like.shape[1:])


def coalesce(x: Any) -> Any:
    if isinstance(x, Array):
        return x
    rows = row_sums(x)
    values = Array(x.values.dtype, stacked(rows.values(), x.values.x))
    return Slices(values, np.array(list(rows), np.int64), x.shape, x.index_dtype, True)


def to_dense(x: Any) -> Any:
    if isinstance(x, Array):
        return x
    if x.shape[0] is None:
        raise ValueError("dense_shape: the number of rows is unknown")
    dense = np.zeros(x.shape, x.values.x.dtype)
    for index, row in row_sums(x).items():
        dense[index] = row
    return Array(x.values.dtype, dense)


def replace_values(s: Slices, values: Array) -> Any:
    return to_dense(replace(s, values=values))


def from_dense(x: Array) -> Slices:
    some = np.array([bool(np.any((row != 0) | (row != row))) for row in x.x], bool)
    return Slices(Array(x.dtype, x.x[some]), np.flatnonzero(some), x.x.shape, "int64", True)


def concat(parts: list[Slices]) -> Slices:
    joined = "int64" if any(s.index_dtype == "int64" for s in parts) else "int32"
    rows = next((s.shape[0] for s in parts if s.shape[0] is not None), None)
    live = [s.at(s.live) for s in parts]
    values = Array(parts[0].values.dtype, np.concatenate([s.values.x for s in live]))
    indices = np.concatenate([s.indices for s in live])
    return _checked(Slices(values, indices, (rows, *parts[0].shape[1:]), joined))


def mapped(fn: Any, *trees: Any) -> Any:
    """Apply `fn` to the leaves of trees with the same structure (clause 1). None is not a leaf: `fn` gets the leaves of
    the other trees, and a place with None in each tree stays None."""
    first = next((tree for tree in trees if tree is not None), None)
    if isinstance(first, dict):
        return {key: mapped(fn, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, (list, tuple)):
        return type(first)(mapped(fn, *xs) for xs in zip(*trees, strict=True))
    return None if first is None else fn(*(tree for tree in trees if tree is not None))


def add(*trees: Any) -> Any:
    return mapped(_add, *trees)


def _add(*terms: Any) -> Any:
    sparse = [x for x in terms if isinstance(x, Slices)]
    if len(sparse) == len(terms):
        return concat(sparse)
    dense = [x for x in terms if isinstance(x, Array)]
    total = dense[0].x
    for x in dense[1:]:
        total = rounded(total + x.x, x.dtype)
    total = total.copy()
    for s in sparse:
        for index, row in row_sums(s).items():
            total[index] = rounded(total[index] + row, s.values.dtype)
    return Array(dense[0].dtype, total)


def scale(x: Any, factor: Any) -> Any:
    """Multiply values by a factor (clauses 6 and 18)."""
    values = x.values if isinstance(x, Slices) else x
    if values.dtype not in FLOATS and not (isinstance(factor, int) and not isinstance(factor, bool)):
        raise TypeError("factor: integers are scaled by integers")
    product = values.x * wide(values.dtype).type(factor)
    return x.with_values(product) if isinstance(x, Slices) else x.like(product)


def divide(s: Slices, c: Any) -> Slices:
    """Divide values by a number (clauses 6 and 18)."""
    if s.values.dtype not in FLOATS or isinstance(c, bool) or not isinstance(c, (int, float, Array)):
        raise TypeError("c: floats are divided by numbers that are no bools")
    if isinstance(c, Array) and (c.x.shape or c.dtype == "bool"):
        raise TypeError("c: slices are divided by one number")
    return s.with_values(s.values.x / wide(s.values.dtype).type(c.x if isinstance(c, Array) else c))


# ---------------------------------------------------------------------- clauses 13 and 15
def _chosen(rows: Array, count: int) -> Any:
    if rows.dtype == "bool":
        return rows.x
    mask = np.zeros(count, bool)
    mask[rows.x] = True
    return mask


def keep_rows(x: Any, rows: Array, keep: bool = True) -> Any:
    if isinstance(x, Array):
        mask = _chosen(rows, len(x.x)) == keep
        return x.like(np.where(mask.reshape(-1, *[1] * (x.x.ndim - 1)), x.x, x.x.dtype.type(0)))
    mask = _chosen(rows, x.shape[0]) == keep
    x = x.at(x.live)
    return x.at(np.flatnonzero(mask[x.indices]))


def drop_rows(x: Any, rows: Array) -> Any:
    return keep_rows(x, rows, False)


def _extreme(pick: Any) -> Any:
    return lambda a, b: (
        np.where(np.isnan(a) | np.isnan(b), np.nan, pick(a, b)).astype(a.dtype) if a.dtype.kind == "f" else pick(a, b)
    )


UPDATES = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": _extreme(np.minimum),
    "max": _extreme(np.maximum), "update": lambda a, b: b,
}  # fmt: skip


def scatter(name: str, table: Array, s: Slices) -> Array:
    out = table.x.copy()
    for k in s.live:
        out[s.indices[k]] = UPDATES[name](out[s.indices[k]], s.values.x[k])
    return table.like(out)
